"""How often the queries of a container begin batches, while one of them has a backlog."""

from __future__ import annotations

from datetime import timedelta

import pytest

from containers.spark.paces import Paces
from containers.spark.query import RowLimit
from sluice.core.batchsize import CATCH_UP_INTERVAL, LEAST, BatchSizes

TARGET = timedelta(seconds=3)
NONE = timedelta(0)


class Gates:
    """The paces of gates that are not 0, and how often one was set."""

    def __init__(self) -> None:
        self.paces: dict[str, timedelta] = {}
        self.calls = 0

    def pace(self, query: str, shortest: timedelta) -> None:
        self.calls += 1
        self.paces[query] = shortest
        if shortest == NONE:
            del self.paces[query]


def running(*queries: str) -> tuple[Gates, Paces]:
    gates = Gates()
    paces = Paces(gates.pace)
    for query in queries:
        paces.started(query)
    return gates, paces


def test_queries_without_a_backlog_are_paced_until_the_one_with_a_backlog_has_caught_up() -> None:
    gates, paces = running("route", "a", "b")
    paces.committed("route", behind=True)
    assert gates.paces == {"a": 2 * CATCH_UP_INTERVAL, "b": 2 * CATCH_UP_INTERVAL}
    paces.committed("a", behind=False)
    assert gates.calls == 2  # nothing has changed
    paces.committed("route", behind=False)
    assert gates.paces == {}


def test_no_query_stays_paced_when_the_one_with_a_backlog_ends() -> None:
    gates, paces = running("route", "a")
    paces.committed("route", behind=True)
    paces.ended("route")
    assert gates.paces == {}
    paces.ended("route")
    assert gates.calls == 2


def test_a_query_that_has_ended_is_not_counted() -> None:
    gates, paces = running("route", "a", "b")
    paces.ended("b")
    paces.committed("route", behind=True)
    assert gates.paces == {"a": CATCH_UP_INTERVAL}


def test_batches_of_a_query_that_does_not_run_slow_no_other() -> None:
    """As those of a flush."""
    gates, paces = running("a")
    paces.committed("route", behind=True)
    assert gates.calls == 0


def test_a_query_that_starts_again_gets_a_new_pace() -> None:
    gates, paces = running("route", "a")
    paces.committed("route", behind=True)
    gates.paces.clear()  # the new gate has none
    paces.started("a")
    paces.committed("route", behind=True)
    assert gates.paces == {"a": CATCH_UP_INTERVAL}


@pytest.mark.parametrize(
    ("rows", "left", "behind"),
    [(1000, 1, True), (500, 1, True), (499, 1_000_000, False), (1000, 0, False), (1000, None, False), (0, 0, False)],
)
def test_a_query_is_behind_if_its_batch_was_limited_and_left_records(rows: int, left: int | None, *, behind: bool) -> None:
    limit = RowLimit(BatchSizes(1000, TARGET), lambda rows: None)
    limit.committed(rows, left, TARGET)
    assert limit.behind == behind


def test_a_batch_is_compared_with_the_limit_under_which_it_was_planned() -> None:
    limits: list[int] = []
    limit = RowLimit(BatchSizes(4 * LEAST, TARGET), limits.append)
    limit.committed(4 * LEAST, 1, 100 * TARGET)
    assert limits == [4 * LEAST, LEAST]
    assert limit.rows == LEAST
    limit.committed(LEAST // 2, 1, TARGET)
    assert limit.behind
    limit.committed(LEAST // 2 - 1, 1, TARGET)
    assert not limit.behind
    assert limits == [4 * LEAST, LEAST]


def test_a_query_that_is_to_be_paused_finds_nothing_to_read_until_it_continues() -> None:
    limits: list[int] = []
    limit = RowLimit(BatchSizes(4 * LEAST, TARGET), limits.append)
    limit.stop_reading()
    limit.committed(4 * LEAST, 1, 100 * TARGET)  # of the batch that was running
    assert limits == [4 * LEAST, 0]
    limit.continue_reading()
    assert limits == [4 * LEAST, 0, LEAST]
