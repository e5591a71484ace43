from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from containers.state.recovery.decision import (
    LocalCheckpoint,
    OffsetLogEntry,
    Refuse,
    Restore,
    RestoreUnderNewLineage,
    Resume,
    StartFresh,
    depends_on,
    entries_after,
    recovery,
)
from sluice.core.ids import Generation, Lineage
from sluice.core.snapshots.snapshot import BlobId, BlobStoreName, CommitId, Snapshot

OURS, OTHERS = Lineage("ours"), Lineage("others")
CODE = "v1"


def text(batch: int) -> str:
    return f"plan of {batch}"


def plans(*batches: int, strict: bool = True, code: str = CODE) -> dict[int, OffsetLogEntry]:
    return {batch: OffsetLogEntry(batch, text(batch), Generation(1), strict, code) for batch in batches}


def local(committed: int, planned: int | None = None, lineage: Lineage = OURS) -> LocalCheckpoint:
    planned = committed if planned is None else planned
    return LocalCheckpoint(lineage, committed, planned, {batch: text(batch) for batch in range(planned + 1)})


def snapshot(batch: int, lineage: Lineage = OURS, *, restored_explicitly: bool = False) -> Snapshot:
    return Snapshot(CommitId("1-1"), lineage, batch, {BlobStoreName("local"): BlobId("x")}, restored_explicitly)


def batches(of: object) -> list[int]:
    assert isinstance(of, Resume | StartFresh | Restore)
    return [plan.batch for plan in of.replay]


def test_a_new_stage_begins_empty() -> None:
    assert recovery(OURS, None, None, {}, None, CODE) == StartFresh()


def test_a_complete_directory_is_resumed_although_there_is_a_snapshot() -> None:
    assert recovery(OURS, 7, local(7), plans(5, 6, 7), snapshot(5), CODE) == Resume()


def test_a_directory_that_was_interrupted_in_a_batch_runs_it_again_whatever_the_code() -> None:
    found = recovery(OURS, 7, local(7, 8), plans(7, 8, strict=False, code="v0"), snapshot(5), CODE)
    assert isinstance(found, Resume)
    assert batches(found) == [8]


def test_a_lost_disk_is_restored_and_what_came_after_the_snapshot_runs_again() -> None:
    found = recovery(OURS, 7, None, plans(4, 5, 6, 7, 8), snapshot(5), CODE)
    assert isinstance(found, Restore)
    assert batches(found) == [6, 7, 8]


def test_a_disk_that_was_lost_before_the_first_snapshot_begins_empty_and_runs_everything_again() -> None:
    found = recovery(OURS, 1, None, plans(0, 1, 2), None, CODE)
    assert isinstance(found, StartFresh)
    assert batches(found) == [0, 1, 2]


def test_a_disk_with_an_older_copy_catches_up_by_the_recorded_offsets() -> None:
    found = recovery(OURS, 9, local(6), plans(6, 7, 8, 9), snapshot(5), CODE)
    assert isinstance(found, Resume)
    assert batches(found) == [7, 8, 9]


def test_a_disk_that_is_older_than_the_newest_snapshot_is_restored_because_its_records_may_be_trimmed() -> None:
    found = recovery(OURS, 9, local(6), plans(6, 7, 8, 9), snapshot(8), CODE)
    assert isinstance(found, Restore)
    assert batches(found) == [9]


def test_a_directory_whose_batches_another_holder_planned_otherwise_is_not_used() -> None:
    forked = LocalCheckpoint(OURS, 7, 7, {6: text(6), 7: "another plan of 7"})
    found = recovery(OURS, 7, forked, plans(6, 7, 8), snapshot(5), CODE)
    assert isinstance(found, Restore)
    assert batches(found) == [6, 7, 8]


def test_a_planned_batch_that_another_holder_planned_otherwise_runs_as_that_one_planned_it() -> None:
    forked = LocalCheckpoint(OURS, 6, 7, {6: text(6), 7: "another plan of 7"})
    found = recovery(OURS, 6, forked, plans(6, 7), snapshot(5), CODE)
    assert isinstance(found, Resume)
    assert found.replay == (plans(7)[7],)


@pytest.mark.parametrize(
    ("known", "why"),
    [
        (plans(6, 8), "batch 7"),
        (plans(6, 7), "batch 8"),
        (plans(6, 7, 8, strict=False), "sink"),
        (plans(6, 7, 8, code="v0"), "version of the job file"),
    ],
)
def test_what_cannot_be_repeated_exactly_begins_a_new_lineage_at_the_snapshot(known: dict[int, OffsetLogEntry], why: str) -> None:
    found = recovery(OURS, 8, None, known, snapshot(5), CODE)
    assert isinstance(found, RestoreUnderNewLineage)
    assert why in found.why


def test_state_that_is_missing_everywhere_is_refused_and_never_started_fresh() -> None:
    found = recovery(OURS, 3, None, {}, None, CODE)
    assert isinstance(found, Refuse)
    assert "batch 0" in found.why
    assert isinstance(recovery(OURS, 3, local(3, lineage=OTHERS), {}, None, CODE), Refuse)


def test_a_chosen_snapshot_is_restored_under_a_new_lineage_whatever_this_disk_has() -> None:
    assert isinstance(recovery(OURS, 9, local(9), plans(8, 9), snapshot(5, restored_explicitly=True), CODE), RestoreUnderNewLineage)


def test_a_lineage_that_began_at_a_snapshot_of_another_one_is_restored_from_it() -> None:
    found = recovery(OURS, 6, local(9, lineage=OTHERS), plans(6, 7), snapshot(5, OTHERS), CODE)
    assert isinstance(found, Restore)
    assert batches(found) == [6, 7]


@given(
    st.none() | st.integers(-1, 12),
    st.none() | st.builds(local, st.integers(-1, 12), st.none(), st.sampled_from([OURS, OTHERS])),
    st.sets(st.integers(0, 12)),
    st.none() | st.builds(snapshot, st.integers(-1, 12)),
)
def test_every_batch_that_was_run_is_kept_or_run_again_or_the_lineage_is_new_since_rows_may_repeat(
    reported: int | None, here: LocalCheckpoint | None, durable: set[int], taken: Snapshot | None
) -> None:
    last = max([-1 if reported is None else reported, *durable])
    match recovery(OURS, reported, here, plans(*durable), taken, CODE):
        case Resume() as found:
            assert here is not None
            assert here.lineage == OURS
            assert taken is None or here.committed >= taken.batch
            assert batches(found) == list(range(here.committed + 1, last + 1))
        case Restore(snapshot=base) as found:
            assert batches(found) == list(range(base.batch + 1, last + 1))
        case StartFresh() as found:
            assert batches(found) == list(range(last + 1))
        case RestoreUnderNewLineage():
            assert taken is not None
        case Refuse():
            assert taken is None
            assert last >= 0


OLDER = 3
"""The number of a checkpoint's entries that Spark has not deleted."""

HERE = st.none() | st.builds(local, st.integers(-1, 12), st.none(), st.sampled_from([OURS, OTHERS])).map(
    lambda each: replace(each, entries={batch: plan for batch, plan in each.entries.items() if batch > each.committed - OLDER})
)


def test_the_plans_after_the_snapshot_are_read_and_a_few_before_to_compare_them_with_those_of_the_disk() -> None:
    assert entries_after(None) == -1
    assert entries_after(snapshot(9)) == 6
    assert entries_after(snapshot(1)) == -1


def test_no_plan_is_needed_for_a_chosen_snapshot() -> None:
    assert entries_after(snapshot(9, restored_explicitly=True)) is None


@given(st.none() | st.integers(-1, 12), HERE, st.sets(st.integers(0, 12)), st.none() | st.builds(snapshot, st.integers(-1, 12)))
def test_the_plans_that_are_not_read_do_not_change_the_decision(
    reported: int | None, here: LocalCheckpoint | None, durable: set[int], taken: Snapshot | None
) -> None:
    after = entries_after(taken)
    assert after is not None
    read = plans(*(batch for batch in durable if batch > after))
    assert recovery(OURS, reported, here, read, taken, CODE) == recovery(OURS, reported, here, plans(*durable), taken, CODE)


@given(
    st.none() | st.integers(-1, 12),
    HERE,
    st.sets(st.integers(0, 12)),
    st.none() | st.builds(snapshot, st.integers(-1, 12)),
    st.integers(0, 12),
    st.sampled_from(["as on the disk", "another plan"]),
)
def test_a_damaged_plan_on_which_the_decision_does_not_depend_would_not_have_changed_it(
    reported: int | None, here: LocalCheckpoint | None, durable: set[int], taken: Snapshot | None, damaged: int, plan: str
) -> None:
    read = plans(*(durable - {damaged}))
    decided = recovery(OURS, reported, here, read, taken, CODE)
    if not depends_on(decided, damaged, here):
        was = text(damaged) if plan == "as on the disk" else plan
        repaired = {**read, damaged: OffsetLogEntry(damaged, was, Generation(1), True, CODE)}
        assert recovery(OURS, reported, here, repaired, taken, CODE) == decided
