"""The commit of a stage's state, from top to bottom.

    freeze    link a consistent copy of the live checkpoint                       `containers.state.commits.freeze`
    repair    replace blobs that a blob store was found to have lost             `containers.state.commits.repair`
    upload    put what changed since the last snapshot into every blob store      `containers.state.commits.upload`
    report    the coordinator records the snapshot
    clean up  remove the frozen copy, in the background; the coordinator cleans up in the blob stores

A snapshot is valid only when it is reported. If the report is interrupted, its outcome is unknown, but the next snapshot must name its
predecessor. So a report without an answer is repeated, unchanged, before anything else. The coordinator answers each repetition in the same
way. It is not repeated for longer than `CommitPolicy.longest`: if it was not recorded, its blobs are garbage and will be deleted.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from containers.engine import StageStart
from containers.state.checkpoint import read_offset_log
from containers.state.commits.freeze import FrozenCheckpoint, freeze
from containers.state.commits.repair import repair
from containers.state.commits.upload import Marker, Uploader
from containers.state.context import StateContext
from containers.state.offsets.offsetlog import positions_in
from containers.state.offsets.wal import copy_entries
from containers.state.recovery.restore import LOST
from containers.state.transfer import in_parallel, log_progress, run_to_completion
from sluice import tracing
from sluice.blobs.port import BlobStore
from sluice.client import Refused, until_answered
from sluice.core.errors import BlobUnavailable, SnapshotConflict, StaleRun, Unavailable, UnknownTask
from sluice.core.ids import Instant, Ssp
from sluice.core.snapshots.snapshot import BlobId, BlobStoreName, CommitId, Snapshot, SnapshotIndex
from sluice.wire import body as wire_body
from sluice.wire import snapshots as wire_snapshots

log = logging.getLogger(__name__)

Uploads = Mapping[BlobStoreName, tuple[Marker, SnapshotIndex]]


class CommitOverdue(Unavailable):
    """The state could not be backed up for too long."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A snapshot that is in every blob store. `batch` is the last batch in it, `frozen_at` the time at which it was frozen."""

    id: CommitId
    batch: int
    frozen_at: Instant
    uploads: Uploads
    report: wire_snapshots.SnapshotRequest


@dataclass(slots=True)
class CommitState:
    """The commits of one stage of one task: what is durable, and what the next commit builds upon. Used on the agent's loop, by one commit
    at a time."""

    start: StageStart
    durable_batch: int = -1
    durable_commit: CommitId | None = None
    last: Commit | None = None
    """The last commit of this container."""
    indexes: Mapping[BlobStoreName, BlobId] = field(default_factory=dict)
    """The index of the newest reported snapshot in each blob store."""
    damaged: set[BlobStoreName] = field(default_factory=set)
    """The blob stores in which the newest snapshot cannot be repaired. The next commit uploads everything to them."""
    to_repair: set[BlobStoreName] = field(default_factory=set)
    """The blob stores that have lost blobs of retained snapshots. The next commit repairs them first. They may be added during a commit."""
    uploaders: dict[BlobStoreName, Uploader] = field(default_factory=dict)
    unanswered: Commit | None = None
    """A commit whose report has an unknown outcome. It must be settled soon: if it was not recorded, its blobs are garbage."""
    cleanup: asyncio.Task[None] | None = None
    keep_running_batch: Callable[[int], Awaitable[None]] | None = None
    """See `OffsetLogGate.keep_running_batch`."""
    plans_in: Mapping[BlobStoreName, BlobStore] | None = None
    """The blob stores to which the plans of batches that are not durable were copied; see `keep_plans`."""

    def lacking(self, state: StateContext) -> bool:
        """Whether a blob store of the run's backups does not have the complete newest snapshot."""
        return not self.indexes.keys() - self.damaged - self.to_repair >= state.destinations.to.keys()

    @property
    def gained_bytes(self) -> int:
        """See `Uploader.gained_bytes`: of all blob stores."""
        return sum(each.gained_bytes for each in self.uploaders.values())

    async def wait_for_cleanup(self) -> None:
        """Wait until the frozen copy of the last commit is removed."""
        if self.cleanup is not None:
            await asyncio.wait({self.cleanup})


async def open_commits(
    start: StageStart, snapshot: Snapshot | None, state: StateContext, damaged: Iterable[BlobStoreName] = ()
) -> CommitState:
    """Continue after `snapshot`, the newest one that the coordinator knows. The blob stores in `damaged` have lost blobs of it. Raises what
    `Uploader.begin` raises, except for a blob store that does not answer: the first commit waits for it."""
    stage = CommitState(start, to_repair=set(damaged))
    if snapshot is not None:
        stage.indexes = snapshot.markers
        if snapshot.lineage == start.lineage and not snapshot.restored_explicitly:
            stage.durable_batch, stage.durable_commit = snapshot.batch, snapshot.checkpoint
    with suppress(BlobUnavailable):
        await _open_uploaders(stage, state)
    return stage


async def commit(stage: CommitState, state: StateContext, up_to: int | None = None) -> Commit | None:
    """Freeze the checkpoint, upload what changed, report it, clean up. Returns the reported commit. None if there was nothing to do: no
    batch was committed since the last snapshot, batch `up_to` is already durable in every blob store, or the run has no blob store for
    backups.

    May be interrupted anywhere. A crash at any line loses nothing: a snapshot is valid only when it is reported, and blobs that were
    uploaded before that are garbage with a TTL. Raises what `settle_report`, `freeze`, `repair` and `Uploader.upload` raise.
    """
    start = stage.start
    with tracing.new_trace("commit", task=start.task, stage=start.stage.name, generation=start.generation):
        return await _commit(stage, state, up_to)


async def _commit(stage: CommitState, state: StateContext, up_to: int | None) -> Commit | None:
    settled = await settle_report(stage, state)
    lacking = stage.lacking(state)
    if not state.destinations.to or (up_to is not None and up_to <= stage.durable_batch and not lacking):
        return settled
    await stage.wait_for_cleanup()
    start, meter, frozen_at, commit_id = stage.start, state.meter(stage.start).backup, state.clock.elapsed(), state.new_commit_id()
    checkpoint = state.checkpoints.directory(start.task, start.stage.name)
    directory = state.checkpoints.frozen(start.task, start.stage.name) / commit_id
    try:
        with tracing.span("freeze"):
            frozen = await run_to_completion(state.in_thread(lambda: freeze(checkpoint, directory)))
        batch = frozen.batch
        if batch is not None and stage.to_repair:
            await _repair(stage, state, frozen)
            lacking = stage.lacking(state)
        if batch is None or batch < stage.durable_batch or (batch == stage.durable_batch and not lacking):
            return settled
        entry = await state.in_thread(lambda: read_offset_log(directory, batch))
        await keep_plans(stage, state, batch)
        async with log_progress(f"{start.query} is backed up", meter):
            offsets = positions_in(entry, state.reads(start))
            with tracing.span("upload"):
                uploads = await _upload(stage, state, frozen, commit_id, offsets)
        if not uploads:  # the run's blob stores were removed meanwhile
            return settled
        await keep_plans(stage, state, batch)  # again: the next batch may have begun during the upload
        report = wire_snapshots.SnapshotRequest(
            generation=start.generation,
            lineage=start.lineage,
            batch_id=batch,
            offsets=wire_body.offsets_body(offsets),
            checkpoint_id=commit_id,
            markers={name: _marker_body(marker) for name, (marker, _) in uploads.items()},
        )
        stage.unanswered = Commit(commit_id, batch, frozen_at, uploads, report)
        return await settle_report(stage, state)
    finally:
        meter.end()
        stage.cleanup = asyncio.create_task(_remove(directory, state))


async def keep_plans(stage: CommitState, state: StateContext, after: int) -> None:
    """Put the plans of the batches after `after` into the present blob stores, if these have changed since that was last done. Raises
    BlobUnavailable, BlobCorrupted."""
    to = state.destinations.to
    if to and (stage.plans_in != to or stage.lacking(state)):
        await copy_entries(state, stage.start, after)
        stage.plans_in = to
    if stage.keep_running_batch is not None:
        await stage.keep_running_batch(after)


async def _repair(stage: CommitState, state: StateContext, frozen: FrozenCheckpoint) -> None:
    """Repair the blob stores that have lost blobs. If the newest snapshot cannot be repaired in one, the next upload to it has everything.
    An interrupted repair is repeated, because the index of the newest snapshot is unknown after it. Raises what `repair` raises."""
    stage.to_repair &= state.destinations.to.keys()
    for name in sorted(stage.to_repair):
        if (blobs := state.destinations.to.get(name)) is None:  # it was removed meanwhile
            stage.to_repair.discard(name)
            continue
        repaired = await repair(state, stage.start, name, blobs, frozen)
        as_before = name in stage.damaged and not repaired.whole and repaired.newest == stage.indexes.get(name)
        if not as_before:  # otherwise the upload of everything continues: a store is found to lack blobs every hour until it has ended
            stage.uploaders.pop(name, None)
        stage.damaged.discard(name)
        if repaired.newest is not None:
            stage.indexes = {**stage.indexes, name: repaired.newest}
            if not repaired.whole:
                stage.damaged.add(name)
        stage.to_repair.discard(name)


async def _open_uploaders(stage: CommitState, state: StateContext) -> None:
    """Open an uploader for each blob store of the run's backups. A blob store without the newest snapshot gets everything."""
    to = state.destinations.to
    for name, blobs in to.items():
        if name not in stage.uploaders:
            uploader, index = state.uploader(blobs, stage.start), stage.indexes.get(name)
            try:
                if name not in stage.damaged:
                    await uploader.begin(index)
            except LOST as error:
                log.warning(
                    "%s is uploaded completely to blob store %s, which has lost its newest snapshot: %s", stage.start.query, name, error
                )
                stage.damaged.add(name)
            if name in stage.damaged:
                uploader.begin_whole(index)
            stage.uploaders[name] = uploader
    for name in stage.uploaders.keys() - to.keys():
        del stage.uploaders[name]


async def _upload(
    stage: CommitState, state: StateContext, frozen: FrozenCheckpoint, commit_id: CommitId, offsets: Mapping[Ssp, int]
) -> Uploads:
    """Upload to all blob stores concurrently. After an error, the other uploads finish before it is raised."""
    await _open_uploaders(stage, state)
    done: dict[BlobStoreName, tuple[Marker, SnapshotIndex]] = {}

    async def upload(name: BlobStoreName, uploader: Uploader) -> None:
        done[name] = await uploader.upload(frozen, commit_id, stage.start.generation, offsets, stage.start.continuation)

    if stage.uploaders:  # else the run's blob stores were removed meanwhile
        await in_parallel((partial(upload, name, each) for name, each in stage.uploaders.items()), len(stage.uploaders))
    return done


async def settle_report(stage: CommitState, state: StateContext) -> Commit | None:
    """Report the unanswered commit until the coordinator answers; None if there is none. Raises LeaseLost, Refused, StaleRun when the
    run has ended, and CommitOverdue when the commit is older than `CommitPolicy.longest`."""
    done, start = stage.unanswered, stage.start
    if done is None:
        return None
    try:
        with tracing.span("report"):
            await _report(done, start, state)
    except Refused as refused:
        stage.unanswered = None
        if refused.refused_as in (SnapshotConflict.slug, UnknownTask.slug):
            await _check_run(state, start, refused)
        raise
    for name, (marker, index) in done.uploads.items():
        stage.uploaders[name].reported(marker, index)
    stage.indexes = {name: marker.index for name, (marker, _) in done.uploads.items()}
    stage.damaged -= done.uploads.keys()
    stage.durable_batch, stage.durable_commit, stage.last, stage.unanswered = done.batch, done.id, done, None
    meter = state.meter(start)
    meter.snapshot_at, meter.snapshot_batch = state.clock.now(), done.batch
    meter.backup.seconds.add(state.clock.elapsed() - done.frozen_at)
    return done


async def _report(done: Commit, start: StageStart, state: StateContext) -> None:
    longest = state.policy.longest
    left = longest.total_seconds() - (state.clock.elapsed() - done.frozen_at)
    report = partial(state.coordinator.report_snapshot, state.run_id, start.task, start.stage.name, done.report)
    try:
        if left <= 0:
            raise TimeoutError
        async with asyncio.timeout(left):
            await until_answered(report, start.query)
    except TimeoutError:
        raise CommitOverdue(
            f"{start.query} was not backed up: the coordinator has not answered for {longest} whether it has recorded a snapshot"
        ) from None


async def _check_run(state: StateContext, start: StageStart, refused: Refused) -> None:
    """Raises StaleRun if the run has ended or is stopping. A drain that fails resets the snapshots and stops the run; the refusal is then
    not an error of this container."""
    run = await until_answered(partial(state.coordinator.basic_run, state.run_id), start.query)
    if run.state.ended or run.stop_requested_at is not None:
        raise StaleRun(f"run {run.run_id} has ended or is stopping, so its state is no longer backed up: {refused}") from refused


async def _remove(directory: Path, state: StateContext) -> None:
    with suppress(RuntimeError):  # the threads have ended with the container: the next start of the stage removes the directory
        await state.in_thread(lambda: shutil.rmtree(directory, ignore_errors=True))


def _marker_body(marker: Marker) -> wire_snapshots.MarkerBody:
    return wire_snapshots.MarkerBody(
        index=marker.index,
        previous=marker.previous,
        files=marker.files,
        bytes=marker.bytes,
        uploaded_files=marker.uploaded_files,
        uploaded_bytes=marker.uploaded_bytes,
        puts=marker.puts,
    )
