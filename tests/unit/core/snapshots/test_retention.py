from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sluice.core.ids import Lineage
from sluice.core.snapshots.retention import Retention, SnapshotTime, floors, plan_needed, retained
from sluice.core.snapshots.snapshot import CommitId

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
L1, L2 = Lineage("l1"), Lineage("l2")


def taken(*minutes: int) -> list[SnapshotTime]:
    """Snapshots, named after their minutes since noon, in the order of reports, newest first."""
    return [SnapshotTime(CommitId(str(each)), NOON + timedelta(minutes=each)) for each in minutes]


def test_the_newest_snapshots_and_the_head_are_retained() -> None:
    found = retained(taken(40, 30, 20, 10), Retention(2), CommitId("10"), {})
    assert found == {"40": ["last"], "30": ["last"], "10": ["head"]}


def test_a_head_among_the_last_has_both_reasons() -> None:
    assert retained(taken(40, 30), Retention(1), CommitId("40"), {}) == {"40": ["head", "last"]}


def test_a_pinned_snapshot_stays_for_each_of_its_pins() -> None:
    found = retained(taken(40, 30, 20), Retention(1), None, {CommitId("20"): ["p1", "p2"]})
    assert found == {"40": ["last"], "20": ["pin p1", "pin p2"]}


def test_a_pin_on_a_missing_snapshot_has_no_effect() -> None:
    assert retained(taken(40), Retention(1), CommitId("gone"), {CommitId("gone"): ["p"]}) == {"40": ["last"]}


def test_the_newest_snapshot_of_each_hour_and_day_is_retained() -> None:
    day = 24 * 60
    found = retained(taken(2 * day, day + 59, day + 1, 130, 61, 60, 5), Retention(1, hourly=3, daily=2), None, {})
    assert found == {
        str(2 * day): ["last", "hourly", "daily"],
        str(day + 59): ["hourly", "daily"],
        "130": ["hourly"],
    }


def test_a_clock_that_was_put_back_does_not_change_the_order_of_reports() -> None:
    assert list(retained(taken(-300, 40, 30), Retention(2), None, {})) == ["-300", "40"]


def test_a_list_without_snapshots_is_accepted() -> None:
    assert retained([], Retention(3, 1, 1), CommitId("x"), {}) == {}


def test_plans_are_needed_from_the_oldest_snapshot_of_their_lineage_on() -> None:
    floor_of = floors([(L1, 9), (L1, 5), (L2, None)])
    assert floor_of == {L1: 5, L2: -1}
    assert [plan_needed(L1, batch, floor_of, L2) for batch in (4, 5, 6)] == [False, False, True]
    assert plan_needed(L2, 0, floor_of, L2)


def test_plans_of_a_lineage_without_snapshots_are_needed_while_it_continues() -> None:
    assert plan_needed(L2, 3, floors([(L1, 5)]), L2)
    assert not plan_needed(L2, 3, floors([(L1, 5)]), L1)
    assert not plan_needed(L2, 3, {}, None)
