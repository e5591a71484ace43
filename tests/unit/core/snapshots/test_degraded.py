"""In what respects a run is not backed up as requested."""

from __future__ import annotations

from sluice.core.ids import StageName, TaskName
from sluice.core.snapshots.degraded import BackupProblem, Degradation, backup_problems
from sluice.core.snapshots.snapshot import BlobStoreName

A, B, GONE = BlobStoreName("a"), BlobStoreName("b"), BlobStoreName("gone")
FIRST, SECOND = (TaskName("Partition 0"), StageName("s")), (TaskName("Partition 1"), StageName("s"))


def test_a_run_of_which_every_stage_is_in_every_blob_store_has_no_problem() -> None:
    assert backup_problems([A, B], {A, B}, {}, {FIRST: {A, B}, SECOND: {A, B}}) == []


def test_a_run_without_backup_has_no_problem() -> None:
    assert backup_problems([], {A}, {A: "away"}, {FIRST: set()}) == []


def test_the_stages_whose_newest_snapshot_a_blob_store_does_not_have_are_named() -> None:
    assert backup_problems([A, B], {A, B}, {}, {FIRST: {A}, SECOND: set()}) == [
        BackupProblem(A, Degradation.NO_SNAPSHOT, [SECOND]),
        BackupProblem(B, Degradation.NO_SNAPSHOT, [FIRST, SECOND]),
    ]


def test_a_blob_store_that_is_not_configured_has_no_other_problem() -> None:
    assert backup_problems([GONE], {A}, {}, {FIRST: set()}) == [BackupProblem(GONE, Degradation.NOT_CONFIGURED)]


def test_a_blob_store_that_cannot_be_opened_is_a_problem_with_its_error() -> None:
    assert [str(each) for each in backup_problems([A], {A}, {A: "no such bucket"}, {FIRST: {A}})] == [
        "blob store a cannot be opened: no such bucket"
    ]


def test_a_stage_whose_backup_is_overdue_is_named_with_its_error_for_each_blob_store() -> None:
    found = backup_problems([A, B], {A, B}, {}, {FIRST: {A, B}, SECOND: {A}}, {FIRST: "the bucket is full"})
    assert [str(each) for each in found] == [
        "the backup of Partition 0/s to blob store a is overdue: the bucket is full",
        "the backup of Partition 0/s to blob store b is overdue: the bucket is full",
        "the newest state is not backed up to blob store b: Partition 1/s",
    ]


def test_five_stages_are_named_and_the_others_counted() -> None:
    heads = {(TaskName(f"Partition {number}"), StageName("s")): set[BlobStoreName]() for number in range(7)}
    (problem,) = backup_problems([A], {A}, {}, heads)
    assert str(problem).endswith("Partition 4/s and 2 more")
