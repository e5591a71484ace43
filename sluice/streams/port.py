"""The port of stream systems: what the coordinator, and `sluice streams`, need of a system of partitioned streams.

The contract, tested by `tests/contracts/streams.py` on every implementation:

* A stream has partitions 0 … n-1, n > 0. Offsets are integers that grow within a partition. `earliest` is the offset of the first record
  that still exists, `latest` the offset that the next record will have; in an empty partition both are equal.
* A system accepts the names of up to 240 characters that `core.ids.checked_name` does. Others it accepts or refuses with ClientError.
* Several processes may call any method at any time. A stream that does not exist raises UnknownStream. A system that cannot be reached
  raises StreamUnavailable; a later call may succeed.
* `create` may run twice: it accepts an existing stream with the same number of partitions, and raises StreamConflict, changing nothing,
  for another number. Records of a stream created with `kept` are deleted by `trim` only; records of other streams may also be deleted by
  the system's own retention.
* `at_time` gives for each partition the offset of the first record appended at or after the time, or `readable` if there is none.
* `readable` never decreases, and reaches an earlier `latest` once the transactions that were open then have ended. Some offsets have no
  record: the end of a transaction takes an offset, and so does each aborted record.
* `identity` never changes while a stream exists, even if it grows. A stream that was deleted and created again under the same name has
  another identity. A system without identities always returns None.
* `trim` may delete records below the given offsets, never one at or above. A second identical call deletes nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

Offsets = Mapping[int, int]
"""Partition -> offset."""


class StreamSystem(Protocol):
    """What the coordinator needs. Reading and writing records is the containers' part, see `containers.spark.systems`."""

    async def partitions(self, stream: str) -> int:
        """The number of partitions."""
        ...

    async def identity(self, stream: str) -> str | None:
        """Distinguishes the stream from earlier and later ones of the same name."""
        ...

    async def create(self, stream: str, partitions: int, *, kept: bool = False) -> None: ...

    async def earliest(self, stream: str) -> Offsets: ...

    async def latest(self, stream: str) -> Offsets: ...

    async def readable(self, stream: str) -> Offsets:
        """The offsets below which all records can be read. They are below `latest` while a transaction is open."""
        ...

    async def at_time(self, stream: str, when: datetime) -> Offsets: ...

    async def trim(self, stream: str, before: Offsets) -> int:
        """Delete records below `before`. Returns the number of records deleted."""
        ...

    @property
    def transactional(self) -> bool:
        """Whether a writer that is killed may leave a transaction open, so that readers have to wait."""
        ...

    async def abort(self, stream: str, job: str, stage: str, task: str) -> None:
        """End the transaction that this writer may have left open. A writer that is still running must then start again."""
        ...

    async def open_transactions(self, stream: str, offsets: Offsets) -> Mapping[int, str]:
        """By partition, the name of the writer whose open transaction begins at the offset, which is the end that readers see. The writer
        may be any program. Partitions with an unknown writer are left out."""
        ...

    def connection(self) -> Mapping[str, str]:
        """What a container needs in order to read and write this system, without secrets."""
        ...

    async def close(self) -> None: ...


KeyValue = tuple[bytes | None, bytes]
"""A record to append."""


@dataclass(frozen=True, slots=True)
class StreamRecord:
    partition: int
    offset: int
    timestamp: datetime
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, str | None]


class StreamAdmin(StreamSystem, Protocol):
    """What `sluice streams` needs in addition."""

    async def streams(self) -> Sequence[str]:
        """The names of all streams, sorted, without those that the system uses itself."""
        ...

    async def grow(self, stream: str, partitions: int) -> None:
        """Add partitions up to that number. Raises StreamConflict for a number below the present one."""
        ...

    async def append(self, stream: str, batches: AsyncIterable[Sequence[KeyValue]]) -> int:
        """Append the records; records with equal keys go to the same partition. Returns the number of records. Raises UnknownStream also
        when there are none."""
        ...

    def records(self, stream: str, starts: Offsets) -> AsyncGenerator[StreamRecord, None]:
        """The records of these partitions from these offsets to the present ends, one partition after the other."""
        ...
