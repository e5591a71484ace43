"""How many rows a batch may read."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.batchsize import FIRST, LEAST, BatchSizes

TARGET = timedelta(seconds=3)
SIZES = BatchSizes(most=50_000, target=TARGET)


def settled(sizes: BatchSizes, rows_per_second: float, fixed: float = 0.1, batches: int = 40) -> int:
    """The limit after batches with a backlog, of which each takes a fixed time and a time for each row, in seconds."""
    limit = sizes.first
    for _ in range(batches):
        limit = sizes.after(limit, timedelta(seconds=fixed + limit / rows_per_second), more=True)
    return limit


@pytest.mark.parametrize(("rows_per_second", "least", "most"), [(100_000, 50_000, 50_000), (5_000, 12_000, 16_000), (500, 1_200, 1_600)])
def test_with_a_backlog_batches_take_about_the_target(rows_per_second: float, least: int, most: int) -> None:
    assert least <= settled(SIZES, rows_per_second) <= most


def test_the_bound_is_never_exceeded_and_a_slow_stage_still_reads_something() -> None:
    assert settled(BatchSizes(most=20, target=TARGET), 1_000_000) == 20
    assert settled(SIZES, 1) == LEAST
    assert settled(BatchSizes(most=20, target=TARGET), 1) == 20


def test_batches_grow_at_most_twofold_and_fall_at_most_to_a_quarter() -> None:
    assert SIZES.after(10_000, timedelta(0), more=True) == 20_000
    assert SIZES.after(10_000, timedelta(hours=1), more=True) == 2_500


def test_when_everything_is_read_batches_return_to_the_size_of_the_first() -> None:
    limit = 50_000
    for _ in range(10):
        limit = SIZES.after(limit, timedelta(seconds=1), more=False)
    assert limit == FIRST
    assert SIZES.after(1_000, timedelta(seconds=1), more=False) == 1_000


@given(
    st.integers(1, 10**7),
    st.lists(st.tuples(st.floats(0, 1e5), st.booleans()), max_size=30),
)
def test_the_limit_stays_between_the_bounds_whatever_batches_take(most: int, batches: list[tuple[float, bool]]) -> None:
    sizes = BatchSizes(most, TARGET)
    limit = sizes.first
    for seconds, more in batches:
        limit = sizes.after(limit, timedelta(seconds=seconds), more=more)
        assert min(LEAST, most) <= limit <= most
