"""The checkpoints of queries that start after a drain, or in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from containers.attached.driver_drains import prepare
from containers.spark.scripts.active_queries import StreamSource


class Checkpoint:
    def __init__(self, *, emptied_by: str | None = None, begins: Any = None) -> None:
        self._emptied_by = emptied_by
        self._begins = begins
        self.journal: list[str] = []

    def begins_at(self) -> Any:
        return self._begins

    def emptied_by(self) -> str | None:
        return self._emptied_by

    def set_sources(self, sources: Any) -> None:
        self.journal.append(f"begin at {dict(sources)}")

    def lock(self, why: str) -> None:
        self.journal.append(f"lock: {why}")

    def unlock(self) -> None:
        self.journal.append("unlock")

    def mark_emptied(self, drain: str, batch: int) -> None:
        self.journal.append(f"emptied by {drain}")


class Reading:
    def __init__(self, *topics: str, sources: Sequence[StreamSource] = ()) -> None:
        self._sources = sources or [StreamSource("kafka", (topic,)) for topic in topics]

    def sources(self) -> Sequence[StreamSource]:
        return self._sources


@pytest.mark.parametrize(
    ("emptied_by", "drain", "expected"),
    [
        (None, None, []),
        (None, "d-1", []),
        ("d-1", "d-1", ["unlock"]),
        ("d-1", None, ["emptied by d-1"]),
        ("d-1", "d-2", ["emptied by d-1"]),
        ("", "d-2", ["emptied by (unknown)"]),
    ],
)
def test_only_the_drain_that_has_locked_a_checkpoint_may_start_a_query_on_it(
    emptied_by: str | None, drain: str | None, expected: list[str]
) -> None:
    checkpoint = Checkpoint(emptied_by=emptied_by)
    prepare(checkpoint, Reading("orders"), drain)
    assert checkpoint.journal == expected


def test_each_source_of_the_first_query_begins_at_the_offsets_of_its_topics() -> None:
    checkpoint = Checkpoint(begins={"orders": {"0": 7}, "prices": {"0": 9}})
    prepare(checkpoint, Reading("prices", "orders"), None)
    assert checkpoint.journal == ["begin at {'0': {'prices': {'0': 9}}, '1': {'orders': {'0': 7}}}"]


def test_a_source_with_a_name_begins_under_its_name() -> None:
    """Spark counts only those that have none."""
    checkpoint = Checkpoint(begins={"orders": {"0": 7}, "prices": {"0": 9}})
    sources = [StreamSource("kafka", ("prices",), name="src"), StreamSource("kafka", ("orders",))]
    prepare(checkpoint, Reading(sources=sources), None)
    assert checkpoint.journal == ["begin at {'src': {'prices': {'0': 9}}, '0': {'orders': {'0': 7}}}"]


def test_sources_that_share_the_partitions_of_a_topic_begin_with_their_own() -> None:
    checkpoint = Checkpoint(begins={"orders": {"0": 7, "1": 9}})
    sources = [StreamSource("kafka", ("orders",), partitions={"orders": [number]}) for number in (1, 0)]
    prepare(checkpoint, Reading(sources=sources), None)
    assert checkpoint.journal == ["begin at {'0': {'orders': {'1': 9}}, '1': {'orders': {'0': 7}}}"]


def test_a_first_query_that_reads_another_topic_is_refused() -> None:
    checkpoint = Checkpoint(begins={"orders": {"0": 7}})
    prepare(checkpoint, Reading("orders", "payments"), None)
    assert checkpoint.journal == [
        "unlock",
        "lock: The first query on this checkpoint cannot begin at the offsets of the drain: the query reads payments, and the drained "
        "query did not.",
    ]
