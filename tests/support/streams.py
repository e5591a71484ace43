"""A stream system whose streams all exist, have two partitions, and are empty."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import uuid4

from examples.harness.topics import Topics
from sluice.core.ids import Generation
from sluice.streams.log import Headers, Record, Writer
from sluice.streams.port import Offsets


class TwoPartitions:
    async def partitions(self, stream: str) -> int:
        return 2

    async def identity(self, stream: str) -> str | None:
        return None

    async def create(self, stream: str, partitions: int, *, kept: bool = False) -> None:
        """The stream exists already."""

    async def earliest(self, stream: str) -> Offsets:
        return {0: 0, 1: 0}

    async def latest(self, stream: str) -> Offsets:
        return {0: 0, 1: 0}

    @property
    def transactional(self) -> bool:
        return False

    async def abort(self, stream: str, job: str, stage: str, task: str) -> None:
        """There are no transactions."""

    async def open_transactions(self, stream: str, offsets: Offsets) -> Mapping[int, str]:
        return {}

    async def readable(self, stream: str) -> Offsets:
        return await self.latest(stream)

    async def at_time(self, stream: str, when: datetime) -> Offsets:
        return {0: 0, 1: 0}

    async def trim(self, stream: str, before: Offsets) -> int:
        return 0

    def connection(self) -> Mapping[str, str]:
        return {}

    async def close(self) -> None:
        """Nothing to close."""


@dataclass
class BlockedReaders(TwoPartitions):
    """A system with transactions whose streams end at 10, and whose partition 0 can be read up to `readable_to`."""

    readable_to: int = 4
    aborted: list[tuple[str, str, str, str]] = field(default_factory=list)

    @property
    def transactional(self) -> bool:
        return True

    async def latest(self, stream: str) -> Offsets:
        return {0: 10, 1: 10}

    async def readable(self, stream: str) -> Offsets:
        return {0: self.readable_to, 1: 10}

    async def open_transactions(self, stream: str, offsets: Offsets) -> Mapping[int, str]:
        return {partition: f"sluice/flight-delays/hourly/{stream}/Partition {partition}" for partition in offsets}

    async def abort(self, stream: str, job: str, stage: str, task: str) -> None:
        self.aborted.append((stream, job, stage, task))


BATCH, APPEND = "test-batch", "test-append"
"""Headers: the lineage and batch of a record, and the id of its append."""


class TopicLog(Topics):
    def append(
        self, stream: str, records: Sequence[Record], *, writer: Writer, batch: int, headers: Headers | None = None, now_micros: int
    ) -> bool:
        """Appends with the present time, because a broker deletes records that are a week old."""
        marked = {**(headers or {}), BATCH: f"{stream} {writer.lineage} {batch}", APPEND: uuid4().hex}
        return super().append(stream, records, writer=writer, batch=batch, headers=marked, now_micros=time.time_ns() // 1000)

    def fence(self, stream: str, owner: str, generation: Generation) -> None:
        """Kafka does not fence writers."""


def once(has: Callable[[Headers], bool]) -> Callable[[Headers], bool]:
    """Filters records that satisfy `has`: only those of one append for each batch. Use one filter per read of a stream."""
    taken: dict[str, str] = {}
    return lambda headers: has(headers) and taken.setdefault(headers[BATCH], headers[APPEND]) == headers[APPEND]
