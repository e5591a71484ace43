"""The year of the simulation: its first days, and how growth is detected. `make simulate YEAR=1` runs all of it."""

from __future__ import annotations

from tests.simulation.year import CACHES_FULL_AFTER, MONTH, Size, grown, run_year


def test_three_jobs_run_for_some_days_and_their_output_is_complete() -> None:
    year = run_year(days=2)
    assert not year.broken
    assert year.events["drain DRAINED"]


def sizes(rows: int, objects: int) -> list[Size]:
    """A year that ends at these counts, and had less until the ninth month."""
    return [
        Size(day, {"runs": rows if late else 100}, objects if late else 1000, 0.0)
        for day in range(MONTH, 13 * MONTH, MONTH)
        for late in [day > CACHES_FULL_AFTER + MONTH]
    ]


def test_counts_that_stay_have_not_grown() -> None:
    assert grown(sizes(100, 1000)) == []


def test_a_table_that_grows_is_named() -> None:
    (found,) = grown(sizes(1000, 1000))
    assert "the table runs had at most 100 rows" in found


def test_growing_memory_is_found() -> None:
    (found,) = grown(sizes(100, 9000))
    assert "9000" in found
