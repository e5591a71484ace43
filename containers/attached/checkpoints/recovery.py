"""Where the checkpoint of a script continues: the rule of job files (`containers.state.recovery.decision`), and what differs for scripts.

Of a stage of a job file every batch is known: its offset-log entry is durable before the batch writes. A script may write as it likes. Only
batches of a sink that calls `app.batch_context()` have such an entry. So if a snapshot is restored, and nothing shows that the query has
such a sink, later batches may have been written. They cannot be repeated, so the query gets a new lineage: another id in Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from containers.state.recovery.decision import (
    LocalCheckpoint,
    OffsetLogEntry,
    Recovery,
    Refuse,
    Restore,
    RestoreUnderNewLineage,
    Resume,
    Rule,
    StartFresh,
    StartUnderNewLineage,
    recovery,
)
from sluice.core.ids import Lineage
from sluice.core.snapshots.snapshot import Snapshot

UNKNOWN = "batches after the snapshot may have been written, and what they have read is not known"


def rule_of_scripts(*, new: bool, replays: int) -> Rule:
    """`new`: the job has never had this checkpoint. `replays`: how many planned batches can run again before the query continues."""
    return partial(script_recovery, new=new, replays=replays)


def script_recovery(
    lineage: Lineage,
    reported: int | None,
    local: LocalCheckpoint | None,
    entries: Mapping[int, OffsetLogEntry],
    snapshot: Snapshot | None,
    code: str,
    *,
    new: bool,
    replays: int,
) -> Recovery:
    """As `recovery`. `code` identifies the script."""
    decided = recovery(lineage, reported, local, entries, snapshot, code)
    match decided:
        case StartFresh() if not new:  # where the first batch has begun is in no plan
            return StartUnderNewLineage("there is no snapshot of it, and its first batches may have been written")
        case Refuse(why=why):
            return StartUnderNewLineage(why)
        case Resume(replay=replay) | Restore(replay=replay) if len(replay) > replays:
            return _given_up(snapshot, f"{len(replay)} batches would have to run again, and this version of Spark cannot repeat them")
        case Restore(snapshot=restored, replay=()) if not _is_recorded(entries.get(restored.batch), code):
            return RestoreUnderNewLineage(restored, UNKNOWN)
        case _:
            return decided


def _given_up(snapshot: Snapshot | None, why: str) -> Recovery:
    return StartUnderNewLineage(why) if snapshot is None else RestoreUnderNewLineage(snapshot, why)


def _is_recorded(entry: OffsetLogEntry | None, code: str) -> bool:
    """Whether the last batch of a snapshot shows that no later batch has written: each would have an entry, as this one has."""
    return entry is not None and entry.strict and entry.code == code
