"""Making a stage's checkpoint ready before its query starts: resume, start fresh or restore, as `containers.state.recovery` decides."""

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
"""How many entries of committed batches are read, to compare them with those of the local checkpoint."""


async def prepare_checkpoint(state: StateContext, start: StageStart, snapshot: Snapshot | None) -> StageStart:
    """Make the checkpoint ready; the stage's start with what must run again first. May be interrupted anywhere and run again. Raises
    StateElsewhere, and what blob stores and the coordinator raise."""
    stage, directory = start.declared.stage.name, state.checkpoints.directory(start.task, start.declared.stage.name)
    await state.in_thread(lambda: shutil.rmtree(state.checkpoints.frozen(start.task, stage), ignore_errors=True))
    await state.in_thread(lambda: finish_swap(directory))
    await state.copies.take(start.task, stage, start.lineage)
    if snapshot is None and not state.destinations.restore_from:  # the engine checks that this disk has what was reported
        return start
    local = await state.in_thread(lambda: read_local_checkpoint(directory))
    source = _source(state, snapshot)
    replay: Sequence[OffsetLogEntry] = ()
    match await _decided(state, start, snapshot, local, None if source is None else source[1]):
        case Resume(replay=replay):
            pass
        case StartFresh(replay=replay):
            await state.in_thread(lambda: state.checkpoints.prepare(start.task, stage, start.lineage, None))
        case Restore(snapshot=found, replay=replay):
            await _restore(state, start, source, found)
        case RestoreUnderNewLineage(snapshot=found, why=why):
            source = _required(source, state, found)
            log.warning("%s starts a new lineage after batch %d: %s; rows may be duplicated, none is lost", start.query, found.batch, why)
            request = partial(state.coordinator.new_lineage, state.run_id, start.task, stage, start.generation, start.lineage, why)
            start = replace(start, lineage=await until_answered(request, start.query))
            await _restore(state, start, source, found)
        case Refuse(why=why):
            raise StateElsewhere(
                f"the state of stage {stage} of task {start.task} is not on this disk ({directory}) and there is no snapshot of it: {why}; "
                "start this container on the disk that has it, or deploy with an explicit start to start with empty state"
            )
        case decision:
            assert_never(decision)
    state.meter(start).replayed += len(replay)
    return replace(start, replay={entry.batch: entry.text for entry in replay}, restored=True)


async def _decided(
    state: StateContext, start: StageStart, snapshot: Snapshot | None, local: LocalCheckpoint | None, blobs: BlobStore | None
) -> Recovery:
    bases = [snapshot.batch if snapshot else -1]
    if local is not None and local.lineage == start.lineage:
        bases.append(local.committed)
    entries = {} if blobs is None else await offset_log(state, start, blobs).after(max(-1, min(bases) - OVERLAP))
    return recovery(start.lineage, start.reported, local, entries, snapshot, state.code)


Source = tuple[BlobStoreName, BlobStore]


def _source(state: StateContext, snapshot: Snapshot | None) -> Source | None:
    """The first blob store to restore from that has the snapshot; without a snapshot, the first one. None if there is none."""
    for name, blobs in state.destinations.restore_from.items():
        if snapshot is None or name in snapshot.markers:
            return name, blobs
    return None


def _required(source: Source | None, state: StateContext, snapshot: Snapshot) -> Source:
    """Raises StateElsewhere if there is no source."""
    if source is None:
        raise StateElsewhere(
            f"snapshot {snapshot.checkpoint} is in {', '.join(snapshot.markers)}, but this run restores from "
            f"{', '.join(state.destinations.restore_from) or 'no blob store'}: add a blob store that has it to restore.from"
        )
    return source


async def _restore(state: StateContext, start: StageStart, source: Source | None, snapshot: Snapshot) -> None:
    """Raises StateElsewhere if there is no source."""
    name, blobs = _required(source, state, snapshot)
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
        meter.end()
    meter.seconds.add(state.clock.elapsed() - began)
    found = await state.in_thread(lambda: inspect(directory))
    if found is None or found.lineage != start.lineage:
        await state.in_thread(lambda: set_lineage(directory, start.lineage))
    took = state.clock.elapsed() - began
    log.info("%s restored snapshot %s, batch %d, in %.1f s: %s", start.query, snapshot.checkpoint, snapshot.batch, took, restored)
