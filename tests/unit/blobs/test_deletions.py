"""Which records of deletions are merged."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from sluice.blobs.deletions import DeletionRecord, ended, merged_name, millis, names, plan_merge, record_name

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = 24 * 3600 * 1000


def record(minutes: int, size: int = 100) -> DeletionRecord:
    return DeletionRecord(record_name(millis(NOON + timedelta(minutes=minutes))), size)


def test_a_few_records_are_left_as_they_are() -> None:
    assert plan_merge([record(n) for n in range(15)]) == []


def test_sixteen_small_ones_are_merged_and_kept_as_long_as_the_youngest() -> None:
    records = [record(n) for n in range(16)]
    group = plan_merge(reversed(records))
    assert group == records
    assert DeletionRecord(merged_name(group), 0).until_millis == records[-1].until_millis


def test_large_ones_are_left_as_they_are() -> None:
    assert plan_merge([record(n, 1 << 20) for n in range(100)]) == []


def test_records_that_end_on_different_days_are_not_merged() -> None:
    records = [record(n * 100) for n in range(100)]
    assert plan_merge(records) == []
    group = plan_merge([*records, *(record(20_000 + n) for n in range(20))])
    assert len(group) >= 20
    assert len({each.until_millis // DAY for each in group}) == 1


def test_a_record_ends_at_its_time() -> None:
    records = [record(0), record(2)]
    assert ended(records, NOON + timedelta(minutes=1)) == [records[0].name]


def test_an_id_is_found_only_as_a_whole_line() -> None:
    assert names("a/1\na/2\n", "a/1")
    assert not names("a/10\nb/a/1\n", "a/1")


@given(st.lists(st.tuples(st.integers(0, 45 * 24 * 60), st.integers(0, 600_000)), max_size=300))
def test_merges_end_and_leave_few_records_for_each_day(parts: list[tuple[int, int]]) -> None:
    """Each record is kept at least as long as before, and at most a day longer."""
    first_ends = {each: each.until_millis for each in (record(minutes, size) for minutes, size in parts)}
    total, merges = sum(each.size for each in first_ends), 0
    while group := plan_merge(first_ends):
        merges += 1
        assert merges <= len(parts)
        merged = DeletionRecord(merged_name(group), sum(each.size for each in group))
        last = max(each.until_millis for each in group)
        earliest = min(first_ends.pop(each) for each in group)
        assert last == merged.until_millis < earliest + DAY
        first_ends[merged] = earliest
    assert sum(each.size for each in first_ends) == total
    assert len([each for each in first_ends if each.size < 512 << 10]) <= 15 * 46
