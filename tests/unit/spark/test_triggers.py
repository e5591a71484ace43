from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from containers.spark.query import Triggers, spread

SECOND = timedelta(seconds=1)


def millis(*found: timedelta) -> list[float]:
    return [each / timedelta(milliseconds=1) for each in found]


def test_one_query_has_the_configured_interval() -> None:
    assert Triggers(SECOND).of("a") == SECOND


def test_every_further_query_has_an_interval_of_its_own_and_keeps_it() -> None:
    triggers = Triggers(SECOND)
    first = [triggers.of(name) for name in "abcd"]
    assert millis(*first) == [1000, 1025, 1012, 1038]
    assert [triggers.of(name) for name in "dcba"] == first[::-1]


@given(st.integers(1, 3_600_000).map(lambda n: timedelta(milliseconds=n)), st.integers(0, 10_000))
def test_an_interval_is_never_shorter_than_configured_and_at_most_a_twentieth_longer(interval: timedelta, index: int) -> None:
    found = spread(interval, index)
    assert interval <= found <= interval * 1.05 + timedelta(milliseconds=0.5)
    assert found % timedelta(milliseconds=1) == timedelta()


def test_thirty_queries_with_a_second_all_differ() -> None:
    assert len({spread(SECOND, index) for index in range(30)}) == 30


def test_without_an_interval_a_batch_follows_the_other() -> None:
    assert Triggers(timedelta()).of("a") == Triggers(timedelta()).of("b") == timedelta()
