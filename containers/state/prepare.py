"""Making a stage's store ready before its query starts: go on, begin, or restore, as `containers/state/recovery.py` decides."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import assert_never

from containers.engine import StageStart
from containers.errors import StateElsewhere
from containers.state.checkpoint import inspect, read_local_checkpoint, set_lineage
from containers.state.context import StateContext
from containers.state.recovery import (
    LocalCheckpoint,
    OffsetLogEntry,
    Recovery,
    Refuse,
    Restore,
    RestoreUnderNewLineage,
    Resume,
    StartFresh,
    recovery,
)
from containers.state.restore import finish_swap
from containers.state.transfer import log_progress
from containers.state.wal import offset_log
from sluice.blobs.port import BlobStore
from sluice.client import until_answered
from sluice.core.errors import SluiceError
from sluice.core.snapshot import BlobStoreName, Snapshot

log = logging.getLogger(__name__)
OVERLAP = 3
"""How many plans of batches that a store has committed are compared with the store's own."""


async def prepare_checkpoint(state: StateContext, start: StageStart, snapshot: Snapshot | None) -> StageStart:
    """Make the store ready; how to start it. May be interrupted anywhere and run again. Raises StateElsewhere, and what blob stores and the
    coordinator raise."""
    stage, directory = start.declared.stage.name, state.checkpoints.directory(start.task, start.declared.stage.name)
    await state.in_thread(lambda: shutil.rmtree(state.checkpoints.frozen(start.task, stage), ignore_errors=True))
    await state.in_thread(lambda: finish_swap(directory))
    await state.copies.take(start.task, stage, start.lineage)
    local = await state.in_thread(lambda: read_local_checkpoint(directory))
    name, blobs = _source(state, snapshot)
    replay: Sequence[OffsetLogEntry] = ()
    match await _decided(state, start, snapshot, local, blobs):
        case Resume(replay=replay):
            pass
        case StartFresh(replay=replay):
            await state.in_thread(lambda: state.checkpoints.prepare(start.task, stage, start.lineage, None))
        case Restore(snapshot=found, replay=replay):
            await _restore(state, start, blobs, found, name)
        case RestoreUnderNewLineage(snapshot=found, why=why):
            log.warning("%s begins a new lineage after batch %d: %s; rows may come twice, none is lost", start.query, found.batch, why)
            ask = partial(state.coordinator.new_lineage, state.run_id, start.task, stage, start.generation, start.lineage, why)
            start = replace(start, lineage=await until_answered(ask, start.query))
            await _restore(state, start, blobs, found, name)
        case Refuse(why=why):
            raise StateElsewhere(
                f"the state of stage {stage} of task {start.task} is not on this disk ({directory}) and there is no snapshot of it: {why}; "
                "start this container on the disk that has it, or deploy with an explicit start to begin with empty state"
            )
        case decision:
            assert_never(decision)
    state.meter(start).replayed += len(replay)
    return replace(start, replay={plan.batch: plan.text for plan in replay}, restored=True)


async def _decided(
    state: StateContext, start: StageStart, snapshot: Snapshot | None, local: LocalCheckpoint | None, blobs: BlobStore
) -> Recovery:
    bases = [snapshot.batch if snapshot else -1]
    if local is not None and local.lineage == start.lineage:
        bases.append(local.committed)
    plans = await offset_log(state, start, blobs).after(max(-1, min(bases) - OVERLAP))
    return recovery(start.lineage, start.reported, local, plans, snapshot, state.code)


def _source(state: StateContext, snapshot: Snapshot | None) -> tuple[BlobStoreName, BlobStore]:
    """The first blob store to restore from that has the snapshot; without a snapshot the first."""
    for name, blobs in state.destinations.restore_from.items():
        if snapshot is None or name in snapshot.markers:
            return name, blobs
    assert snapshot is not None
    raise StateElsewhere(
        f"checkpoint {snapshot.checkpoint} is in {', '.join(snapshot.markers)}, and this run restores from "
        f"{', '.join(state.destinations.restore_from)}: name one that has it in restore.from"
    )


async def _restore(state: StateContext, start: StageStart, blobs: BlobStore, snapshot: Snapshot, name: BlobStoreName) -> None:
    directory = state.checkpoints.directory(start.task, start.declared.stage.name)
    began = state.clock.elapsed()
    local = directory if directory.is_dir() else None
    meter = state.meter(start).restore
    try:
        async with log_progress(f"{start.query} is restored", meter):
            restored = await state.restorer(blobs, start).restore(snapshot.markers[name], directory, local)
    except SluiceError:
        meter.failed += 1
        raise
    finally:
        meter.over()
    meter.seconds.add(state.clock.elapsed() - began)
    found = await state.in_thread(lambda: inspect(directory))
    if found is None or found.lineage != start.lineage:
        await state.in_thread(lambda: set_lineage(directory, start.lineage))
    took = state.clock.elapsed() - began
    log.info("%s restored checkpoint %s, batch %d, in %.1f s: %s", start.query, snapshot.checkpoint, snapshot.batch, took, restored)
