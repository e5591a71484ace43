"""The streams port: what the coordinator asks of a system of partitioned streams. Reading and writing records is the containers' part.

The contract, tested by `tests/contracts/streams.py` on every implementation:

* A stream has partitions 0 … n-1, n > 0. Offsets are integers that grow within a partition; `earliest` is the first record still there,
  `latest` the offset that the next record will have, so an empty partition has both equal.
* Names follow `core.ids.checked_name`; a system takes at least 240 characters and refuses longer ones with ClientError or takes them.
* Every method may be called at any time by several processes. Asking about a stream that does not exist raises UnknownStream; a system
  that cannot be reached raises StreamUnavailable, which passes.
* `create` may run twice: it is content with a stream that has the same count, raises StreamConflict for another, and changes nothing then.
  The records of a `kept` stream go by `trim` alone; of others a system may let them go by rules of its own.
* `at_time` gives per partition the offset of the first record that was appended at or after the time, or `latest` where there is none.
* `identity` is the same for as long as a stream lives, also while it grows, and another one for a stream that was deleted and made again
  under the same name. A system that cannot tell answers None, then as ever.
* `trim` may delete records below the given offsets and never one at or above; asked twice, the second finds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Protocol

Offsets = Mapping[int, int]
"""Partition -> offset."""


class StreamSystem(Protocol):
    async def partitions(self, stream: str) -> int:
        """How many partitions the stream has."""
        ...

    async def identity(self, stream: str) -> str | None:
        """What tells the stream from another of the same name, before or after it."""
        ...

    async def create(self, stream: str, partitions: int, *, kept: bool = False) -> None: ...

    async def earliest(self, stream: str) -> Offsets: ...

    async def latest(self, stream: str) -> Offsets: ...

    async def at_time(self, stream: str, when: datetime) -> Offsets: ...

    async def trim(self, stream: str, before: Offsets) -> int:
        """Delete what lies below `before`; the number of records that went."""
        ...

    def connection(self) -> Mapping[str, str]:
        """What a container needs in order to read and write this system, without secrets."""
        ...

    async def close(self) -> None: ...
