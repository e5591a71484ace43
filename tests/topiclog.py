"""Kafka's topics with the calls of the embedded log that a `CountingEngine` makes. Kafka knows no batches: whoever repeats one appends it
once more."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from uuid import uuid4

from examples.playing.topics import Topics
from sluice.core.ids import Generation
from sluice.streams.log import Headers, Record, Writer

BATCH, APPEND = "test-batch", "test-append"
"""Headers: the batch that a record is of, by its lineage, and the append that it came with."""


class TopicLog(Topics):
    def append(
        self, stream: str, records: Sequence[Record], *, writer: Writer, batch: int, headers: Headers | None = None, now_micros: int
    ) -> bool:
        """At the time of day: a broker drops what is a week old."""
        marked = {**(headers or {}), BATCH: f"{stream} {writer.lineage} {batch}", APPEND: uuid4().hex}
        return super().append(stream, records, writer=writer, batch=batch, headers=marked, now_micros=time.time_ns() // 1000)

    def fence(self, stream: str, owner: str, generation: Generation) -> None:
        """Kafka keeps nobody out."""


def once(has: Callable[[Headers], bool]) -> Callable[[Headers], bool]:
    """Of the records that `has` takes, those of one append for each batch. For one look at a stream."""
    taken: dict[str, str] = {}
    return lambda headers: has(headers) and taken.setdefault(headers[BATCH], headers[APPEND]) == headers[APPEND]
