"""How many rows a batch may read."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.batchsize import CATCH_UP_INTERVAL, LEAST, SLOW, BatchSizes, catch_up_intervals

TARGET = timedelta(seconds=3)
SIZES = BatchSizes(most=50_000, target=TARGET)


def settled(sizes: BatchSizes, rows_per_second: float, fixed: float = 0.1, batches: int = 40) -> int:
    """The limit after batches with a backlog, of which each takes a fixed time and a time for each row, in seconds."""
    limit = sizes.most
    for _ in range(batches):
        limit = sizes.after(limit, timedelta(seconds=fixed + limit / rows_per_second), more=True)
    return limit


@pytest.mark.parametrize("rows_per_second", [100_000, 5_000, 500])
def test_with_a_backlog_batches_settle_at_no_more_than_the_slow_duration(rows_per_second: float) -> None:
    limit = settled(SIZES, rows_per_second)
    assert limit == 50_000 or 1 / SLOW <= TARGET.total_seconds() / (0.1 + limit / rows_per_second) <= 1.1


def test_the_bound_is_never_exceeded_and_a_slow_stage_still_reads_something() -> None:
    assert settled(BatchSizes(most=20, target=TARGET), 1_000_000) == 20
    assert settled(SIZES, 1) == LEAST
    assert settled(BatchSizes(most=20, target=TARGET), 1) == 20


def test_batches_grow_at_most_twofold_and_fall_at_most_to_a_quarter() -> None:
    assert SIZES.after(10_000, timedelta(0), more=True) == 20_000
    assert SIZES.after(10_000, timedelta(hours=1), more=True) == 2_500


def test_a_batch_that_takes_less_than_three_times_the_target_makes_the_next_one_no_smaller() -> None:
    assert SIZES.after(10_000, timedelta(seconds=8.9), more=True) == 10_000
    assert SIZES.after(10_000, timedelta(seconds=9), more=True) == 3_333


def test_the_first_batch_of_a_query_may_take_ten_times_the_target() -> None:
    assert SIZES.after(50_000, timedelta(seconds=29), more=True, first=True) == 50_000
    assert SIZES.after(50_000, timedelta(seconds=31), more=True, first=True) == 12_500


def test_when_everything_is_read_the_limit_does_not_change() -> None:
    assert SIZES.after(50_000, timedelta(seconds=60), more=False) == 50_000
    assert SIZES.after(1_000, timedelta(seconds=1), more=False) == 1_000


def test_while_a_query_has_a_backlog_those_without_one_are_paced() -> None:
    assert catch_up_intervals({"route": True, "count": False}) == {"route": timedelta(0), "count": CATCH_UP_INTERVAL}
    assert catch_up_intervals({"route": True, "count": True}) == {"route": timedelta(0), "count": timedelta(0)}
    assert catch_up_intervals({"route": False, "count": False}) == {"route": timedelta(0), "count": timedelta(0)}
    assert catch_up_intervals({}) == {}


def test_the_more_queries_are_paced_the_fewer_batches_each_of_them_runs() -> None:
    def of(paced: int) -> timedelta:
        return catch_up_intervals({"route": True} | {f"count-{number}": False for number in range(paced)})["count-0"]

    assert [of(paced) for paced in (1, 2, 8, 100)] == [timedelta(seconds=each) for each in (1, 2, 8, 10)]


@given(
    st.integers(1, 10**7),
    st.lists(st.tuples(st.floats(0, 1e5), st.booleans()), max_size=30),
)
def test_the_limit_stays_between_the_bounds_whatever_batches_take(most: int, batches: list[tuple[float, bool]]) -> None:
    sizes = BatchSizes(most, TARGET)
    limit = sizes.most
    for seconds, more in batches:
        limit = sizes.after(limit, timedelta(seconds=seconds), more=more)
        assert min(LEAST, most) <= limit <= most
