"""Where the checkpoint of a script continues."""

from __future__ import annotations

from dataclasses import replace

import pytest

from containers.attached.checkpoints.recovery import script_recovery
from containers.state.recovery.decision import (
    LocalCheckpoint,
    OffsetLogEntry,
    Recovery,
    Restore,
    RestoreUnderNewLineage,
    Resume,
    StartFresh,
    StartUnderNewLineage,
)
from sluice.core.ids import Generation, Lineage
from sluice.core.snapshots.snapshot import CommitId, Snapshot

LINEAGE, CODE = Lineage("q"), "code"
SNAPSHOT = Snapshot(CommitId("1-1"), LINEAGE, 7, {})


def entries(*batches: int, code: str = CODE) -> dict[int, OffsetLogEntry]:
    return {batch: OffsetLogEntry(batch, f"plan of {batch}", Generation(1), strict=True, code=code) for batch in batches}


def decided(
    local: LocalCheckpoint | None = None,
    plans: dict[int, OffsetLogEntry] | None = None,
    snapshot: Snapshot | None = SNAPSHOT,
    *,
    new: bool = False,
    replays: int = 1_000,
) -> Recovery:
    reported = None if snapshot is None else snapshot.batch
    return script_recovery(LINEAGE, reported, local, plans or {}, snapshot, CODE, new=new, replays=replays)


def test_a_new_checkpoint_begins_empty() -> None:
    assert decided(snapshot=None, new=True) == StartFresh()


def test_a_checkpoint_on_this_disk_is_used_and_its_planned_batch_runs_by_itself() -> None:
    local = LocalCheckpoint(LINEAGE, 9, 10, {9: "plan of 9", 10: "plan of 10"})
    assert decided(local) == Resume()
    assert decided(local, entries(8, 9, 10)) == Resume((entries(10)[10],))


def test_a_checkpoint_that_is_older_than_the_newest_snapshot_or_of_another_query_is_not_used() -> None:
    for local in (LocalCheckpoint(LINEAGE, 6, 6), LocalCheckpoint(Lineage("former"), 9, 9)):
        assert isinstance(decided(local), RestoreUnderNewLineage)


def test_a_lost_disk_gives_the_query_another_id_because_later_batches_may_have_been_written() -> None:
    found = decided()
    assert isinstance(found, RestoreUnderNewLineage)
    assert "may have been written" in found.why


def test_a_query_whose_sink_asks_for_each_batch_repeats_the_batches_after_the_snapshot_under_its_id() -> None:
    assert decided(plans=entries(7, 8, 9)) == Restore(SNAPSHOT, tuple(entries(8, 9).values()))
    assert decided(plans=entries(8, 9)) == Restore(SNAPSHOT, tuple(entries(8, 9).values()))
    assert decided(plans=entries(6, 7)) == Restore(SNAPSHOT)


@pytest.mark.parametrize("plans", [entries(7, 9), entries(7, 8, code="another"), entries(7, code="another")])
def test_it_gets_another_id_if_a_plan_is_missing_or_is_of_another_script(plans: dict[int, OffsetLogEntry]) -> None:
    assert isinstance(decided(plans=plans), RestoreUnderNewLineage)


def test_it_gets_another_id_if_this_version_of_spark_cannot_repeat_so_many_batches() -> None:
    assert isinstance(decided(plans=entries(7, 8, 9), replays=1), RestoreUnderNewLineage)
    assert isinstance(decided(plans=entries(7, 8), replays=1), Restore)


def test_a_checkpoint_that_was_lost_before_its_first_snapshot_begins_empty_under_another_id() -> None:
    assert isinstance(decided(snapshot=None), StartUnderNewLineage)
    assert isinstance(decided(snapshot=None, plans=entries(0, 1)), StartUnderNewLineage)


def test_a_snapshot_that_an_operator_has_chosen_is_restored_under_another_id() -> None:
    chosen = replace(SNAPSHOT, restored_explicitly=True)
    assert isinstance(decided(LocalCheckpoint(LINEAGE, 9, 9), snapshot=chosen), RestoreUnderNewLineage)
