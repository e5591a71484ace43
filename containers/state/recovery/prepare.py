"""Prepares a stage's checkpoint before its query starts, according to `decision`: resume, start fresh or restore."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import assert_never

from containers.engine import StageStart
from containers.errors import CheckpointUnreadable, StateNotLocal
from containers.state.checkpoint import inspect, read_local_checkpoint, set_aside, set_lineage
from containers.state.context import StateContext
from containers.state.offsets.wal import offset_log
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
    depends_on,
    entries_after,
    recovery,
)
from containers.state.recovery.power_loss import checked, damaged_file
from containers.state.recovery.restore import LOST, Source, finish_swap
from containers.state.transfer import log_progress
from sluice import tracing
from sluice.client import until_answered
from sluice.core.errors import BlobCorrupted, BlobUnavailable, SluiceError
from sluice.core.ids import Lineage
from sluice.core.snapshots.snapshot import BlobId, BlobStoreName, CommitId, Snapshot

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Prepared:
    """How to start the stage. The next snapshot follows `follows`, of which the blob stores in `damaged` have lost blobs."""

    start: StageStart
    follows: Snapshot | None
    damaged: frozenset[BlobStoreName] = frozenset()


async def prepare_checkpoint(state: StateContext, start: StageStart, snapshot: Snapshot | None, rule: Rule = recovery) -> Prepared:
    """Prepare the checkpoint as `rule` decides, and determine which batches must run again first. `snapshot`: the newest one that the
    coordinator knows. If all blob stores have lost it, an older one is restored, unless an operator chose it. May be interrupted anywhere
    and repeated. Raises StateNotLocal, and what blob stores and the coordinator raise."""
    stage, directory = start.stage.name, state.checkpoints.directory(start.task, start.stage.name)
    await state.in_thread(lambda: shutil.rmtree(state.checkpoints.frozen(start.task, stage), ignore_errors=True))
    await state.in_thread(lambda: finish_swap(directory))
    await state.copies.take(start.task, stage, start.lineage)
    damaged = await state.in_thread(lambda: damaged_file(directory))
    if snapshot is None and not state.destinations.restore_from:  # the engine checks that this disk has what was reported
        if damaged is not None:
            raise CheckpointUnreadable(_damage(damaged))
        await state.in_thread(lambda: checked(directory))
        return Prepared(start, None)
    if damaged is not None:
        log.error("%s: %s; the local checkpoint is not used", start.query, _damage(damaged))
    local = None if damaged is not None else await state.in_thread(lambda: read_local_checkpoint(directory))
    decided = await _decided(state, start, snapshot, local, rule)
    if isinstance(decided, Refuse):
        raise _refusal(start, directory, decided.why, damaged)
    if damaged is not None and isinstance(decided, StartFresh | StartUnderNewLineage):
        await state.in_thread(lambda: set_aside(directory))
    prepared, replay = await _carry_out(state, start, snapshot, decided, local, rule)
    await state.in_thread(lambda: checked(directory))
    state.meter(start).replayed += len(replay)
    return replace(prepared, start=replace(prepared.start, replay={entry.batch: entry.text for entry in replay}, restored=True))


async def _carry_out(
    state: StateContext,
    start: StageStart,
    snapshot: Snapshot | None,
    decided: Resume | StartFresh | StartUnderNewLineage | Restore | RestoreUnderNewLineage,
    local: LocalCheckpoint | None,
    rule: Rule,
) -> tuple[Prepared, Sequence[OffsetLogEntry]]:
    """Returns how to start, and which batches must run again."""
    stage = start.stage.name
    match decided:
        case Resume(replay=replay):
            return Prepared(start, snapshot), replay
        case StartFresh(replay=replay):
            await state.in_thread(lambda: state.checkpoints.prepare(start.task, stage, start.lineage, None))
            return Prepared(start, snapshot), replay
        case StartUnderNewLineage(why=why):
            log.warning("%s starts with empty state and a new lineage: %s", start.query, why)
            begun = await _new_lineage(state, start, why)
            await state.in_thread(lambda: state.checkpoints.prepare(start.task, stage, begun.lineage, None))
            return Prepared(begun, snapshot), ()
        case Restore() | RestoreUnderNewLineage():
            return await _restore(state, start, decided, local, rule)
        case undecided:
            assert_never(undecided)


def _refusal(start: StageStart, directory: Path, why: str, damaged: Path | None) -> CheckpointUnreadable | StateNotLocal:
    if damaged is not None:
        return CheckpointUnreadable(f"{_damage(damaged)}; there is no snapshot: {why}")
    return StateNotLocal(
        f"the state of stage {start.stage.name} of task {start.task} is not on this disk ({directory}) and there is no "
        f"snapshot of it: {why}; start this container on the disk that has it, or deploy with an explicit start to start with empty state"
    )


def _damage(file: Path) -> str:
    return f"{file} is empty: the machine has probably lost power, or its kernel crashed, before the file was written to the disk"


async def _decided(
    state: StateContext, start: StageStart, snapshot: Snapshot | None, local: LocalCheckpoint | None, rule: Rule
) -> Recovery:
    """Decide with the entries of all blob stores, if any are needed. A blob store that has the snapshot has the entries of all later
    batches, so others may be unavailable. If none of those answers, nothing is decided: batches that another disk ran would be planned
    again with other records. Raises BlobUnavailable, BlobCorrupted."""
    after = entries_after(snapshot)
    if after is None:
        return rule(start.lineage, start.reported, local, {}, snapshot, state.code)
    entries: dict[int, OffsetLogEntry] = {}
    damaged: dict[int, BlobCorrupted] = {}
    unavailable: BlobUnavailable | None = None
    complete = False
    for name, blobs in state.destinations.restore_from.items():
        try:
            entries = {**await offset_log(state, start, blobs).after(after, damaged), **entries}
        except BlobUnavailable as error:
            unavailable = unavailable or error
        else:
            complete = complete or (snapshot is not None and name in snapshot.markers)
    decided = rule(start.lineage, start.reported, local, entries, snapshot, state.code)
    for batch in sorted(damaged.keys() - entries.keys()):
        if depends_on(decided, batch, local):
            raise unavailable or damaged[batch]  # an unavailable blob store may have the entry
    if unavailable is not None and not (complete and isinstance(decided, Resume | Restore)):
        raise unavailable  # that blob store may have entries that no other has
    return decided


async def _restore(
    state: StateContext, start: StageStart, decision: Restore | RestoreUnderNewLineage, local: LocalCheckpoint | None, rule: Rule
) -> tuple[Prepared, Sequence[OffsetLogEntry]]:
    """Restore the newest snapshot that can be read. Returns how to start, and which batches must run again. After a crash before a new
    lineage begins, the next start restores the directory again."""
    head = decision.snapshot
    damaged = await _fetch(state, start, head)
    if damaged is None:
        return await _restore_older(state, start, head, None if head.restored_explicitly else local, rule)
    if isinstance(decision, Restore):
        return Prepared(start, head, damaged), decision.replay
    return Prepared(await _begin_lineage(state, start, head, decision.why), head, damaged), ()


async def _restore_older(
    state: StateContext, start: StageStart, head: Snapshot, local: LocalCheckpoint | None, rule: Rule
) -> tuple[Prepared, Sequence[OffsetLogEntry]]:
    """Continue from the newest of the older snapshots that can be read, or from the local checkpoint if it is newer than that."""
    lost = frozenset(head.markers)
    for older in await _older(state, start, head):
        decision = await _decided(state, start, older, local, rule)
        if isinstance(decision, Resume):
            return _resumed_behind(start, head), decision.replay
        if not isinstance(decision, Restore | RestoreUnderNewLineage):
            continue
        damaged = await _fetch(state, start, older, last_resort=False)
        if damaged is None:
            continue
        log.error(
            "%s: no blob store has snapshot %s any more: snapshot %s, batch %d, was restored", start.query, head.checkpoint, *_named(older)
        )
        if isinstance(decision, Restore):
            return Prepared(start, head, lost), decision.replay
        return Prepared(await _begin_lineage(state, start, older, decision.why, chosen=True), older, lost | damaged), ()
    if local is not None:
        decision = await _decided(state, start, None, local, rule)
        if isinstance(decision, Resume):  # exact, unless the records of its next batches were trimmed: then the query fails
            return _resumed_behind(start, head), decision.replay
    return Prepared(start, head, await _fetch(state, start, head, last_resort=True) or lost), ()


def _resumed_behind(start: StageStart, head: Snapshot) -> Prepared:
    log.error("%s: no blob store has snapshot %s any more: the older checkpoint on this disk is used", start.query, head.checkpoint)
    return Prepared(start, head, frozenset(head.markers))


async def _older(state: StateContext, start: StageStart, head: Snapshot) -> Sequence[Snapshot]:
    """The retained snapshots before `head`, newest first, without those of histories that the job has ended: their state was given up,
    and readers skip the records of their intermediate streams. None if an operator chose `head`."""
    if head.restored_explicitly:
        return ()
    found = await until_answered(partial(state.coordinator.snapshots_of, state.job, start.task, start.stage.name), start.query)
    rows = found.snapshots
    at = next((number for number, row in enumerate(rows) if row.checkpoint_id == head.checkpoint), len(rows))
    return [
        Snapshot(
            CommitId(row.checkpoint_id),
            Lineage(row.lineage),
            -1 if row.batch_id is None else row.batch_id,
            {BlobStoreName(name): BlobId(marker.index) for name, marker in row.markers.items()},
        )
        for row in rows[at + 1 :]
        if not row.history_ended
    ]


async def _begin_lineage(state: StateContext, start: StageStart, snapshot: Snapshot, why: str, *, chosen: bool = False) -> StageStart:
    """Start a new lineage after the snapshot. `chosen`: the coordinator must record this snapshot as the newest one."""
    log.warning("%s starts a new lineage after batch %d: %s; rows may be duplicated, but none is lost", start.query, snapshot.batch, why)
    stage = start.stage.name
    begun = await _new_lineage(state, start, why, snapshot.checkpoint if chosen else None)
    await state.in_thread(lambda: set_lineage(state.checkpoints.directory(start.task, stage), begun.lineage))
    return begun


async def _new_lineage(state: StateContext, start: StageStart, why: str, checkpoint: CommitId | None = None) -> StageStart:
    stage = start.stage.name
    request = partial(
        state.coordinator.new_lineage, state.run_id, start.task, stage, start.generation, start.lineage, why, checkpoint=checkpoint
    )
    return replace(start, lineage=await until_answered(request, start.query), reported=None)


async def _fetch(
    state: StateContext, start: StageStart, snapshot: Snapshot, *, last_resort: bool | None = None
) -> frozenset[BlobStoreName] | None:
    """Fetch the snapshot. Returns the blob stores that have lost blobs of it; None if no blob store has it, unless it is the last resort:
    then that error is raised. Also raises BlobUnavailable, and StateNotLocal if the run restores from no blob store that may have it."""
    sources = {
        name: Source(blobs, snapshot.markers[name]) for name, blobs in state.destinations.restore_from.items() if name in snapshot.markers
    }
    if not sources:
        if last_resort is False:
            return None
        raise StateNotLocal(
            f"snapshot {snapshot.checkpoint} is in {', '.join(snapshot.markers)}, but this run restores from "
            f"{', '.join(state.destinations.restore_from) or 'no blob store'}: add a blob store that has it to restore.from"
        )
    directory = state.checkpoints.directory(start.task, start.stage.name)
    began, (first, *others) = state.clock.elapsed(), sources.values()
    local = directory if directory.is_dir() else None
    meter = state.meter(start).restore
    try:
        trace = tracing.new_trace("restore", task=start.task, stage=start.stage.name, snapshot=snapshot.checkpoint)
        with trace:
            async with log_progress(f"{start.query} is restored", meter):
                restored = await state.restorer(first.blobs, start).restore(first.index, directory, local, others)
    except LOST as error:
        meter.failed += 1
        if last_resort:
            raise
        log.warning("snapshot %s of %s cannot be restored: %s", snapshot.checkpoint, start.query, error)
        return None
    except SluiceError:
        meter.failed += 1
        raise
    finally:
        meter.end()
    meter.seconds.add(state.clock.elapsed() - began)
    found = await state.in_thread(lambda: inspect(directory))
    if found is None or found.lineage != start.lineage:
        await state.in_thread(lambda: set_lineage(directory, start.lineage))
    took = state.clock.elapsed() - began
    log.info("%s restored snapshot %s, batch %d, in %.1f s: %s", start.query, *_named(snapshot), took, restored)
    return frozenset(name for name, source in sources.items() if source.index in restored.damaged)


def _named(snapshot: Snapshot) -> tuple[CommitId, int]:
    return snapshot.checkpoint, snapshot.batch
