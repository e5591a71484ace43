"""The streams of a demo, in the embedded log or in Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

from examples.harness.topics import topic_partition_of
from sluice.core.ids import Lineage
from sluice.streams.log import Headers, Record, Row, Writer, partition_of
from sluice.streams.port import Offsets

System: TypeAlias = Literal["log", "kafka"]
Home: TypeAlias = Callable[[bytes, int], int]
"""(key, partition count) -> the partition of the key."""


def log_home(key: bytes, partitions: int) -> int:
    return partition_of(key, partitions, 0)


HOMES: Mapping[System, Home] = {"log": log_home, "kafka": topic_partition_of}


class Streams(Protocol):
    """The methods that `Log` and `Topics` share, as far as replays and checks need them."""

    def create(self, stream: str, partitions: int) -> None: ...

    def partitions(self, stream: str) -> int: ...

    def earliest(self, stream: str) -> Offsets: ...

    def latest(self, stream: str) -> Offsets: ...

    def last_batch(self, stream: str, lineage: Lineage) -> int | None: ...

    def append(
        self, stream: str, records: Sequence[Record], *, writer: Writer, batch: int, headers: Headers | None = None, now_micros: int
    ) -> bool: ...

    def read(self, stream: str, partition: int, start: int, end: int) -> Iterator[Sequence[Row]]: ...

    def headers(self, stream: str) -> Mapping[int, Headers]: ...
