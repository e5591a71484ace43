"""The part of a commit beyond this machine: a cut is uploaded to every blob store, and the coordinator is told.

The report is what makes a snapshot count. Whoever is interrupted while he waits for its answer does not know whether it does, and the next
snapshot must name the one before it: so a report without a known outcome is made again, the very same, before anything else. The
coordinator answers it alike however often it comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from containers.engine import StageStart
from containers.state.checkpoint import read_plan
from containers.state.context import StateContext
from containers.state.freeze import FrozenCheckpoint
from containers.state.offsetlog import positions_in
from containers.state.recovery import Snapshot
from containers.state.transfer import in_parallel, telling
from containers.state.upload import Marker, Uploader
from sluice.client import Refused, until_answered
from sluice.core.errors import SnapshotConflict, StaleRun, UnknownTask
from sluice.core.ids import Instant
from sluice.core.snapshot import BlobId, BlobStoreName, CommitId, SnapshotIndex
from sluice.wire import body as wire_body
from sluice.wire import snapshots as wire_snapshots


@dataclass(frozen=True, slots=True)
class Uploaded:
    """To one blob store."""

    committer: Uploader
    marker: Marker
    index: SnapshotIndex


@dataclass(frozen=True, slots=True)
class Delivered:
    """A snapshot that is uploaded everywhere. `batch` is the last in it, `frozen_at` when its cut was begun."""

    checkpoint: CommitId
    batch: int
    frozen_at: Instant
    report: wire_snapshots.SnapshotRequest
    uploads: Mapping[BlobStoreName, Uploaded]


class Delivery:
    """Of one stage, one at a time. On the agent's loop."""

    def __init__(self, place: StateContext, start: StageStart, head: Snapshot | None) -> None:
        """`head` is the snapshot that the coordinator has as the store's newest."""
        self._place = place
        self._start = start
        self._heads: Mapping[BlobStoreName, BlobId] = head.markers if head is not None else {}
        self._committers: dict[BlobStoreName, Uploader] = {}
        self._unanswered: Delivered | None = None

    async def begin(self) -> None:
        """Have a committer for each blob store that state goes to now; one that the newest snapshot is not in begins with everything.
        Raises what `Uploader.begin` raises."""
        to = self._place.destinations.to
        for name, blobs in to.items():
            if name not in self._committers:
                committer = self._place.committer(blobs, self._start)
                await committer.begin(self._heads.get(name))
                self._committers[name] = committer
        for name in self._committers.keys() - to.keys():
            del self._committers[name]

    @property
    def unsettled(self) -> bool:
        """Whether there is a report with an unknown outcome. It is not to wait for long: to the coordinator its blobs may be garbage."""
        return self._unanswered is not None

    async def settle(self) -> Delivered | None:
        """Report again what was reported with an unknown outcome; None if there is nothing of the kind. Raises what `deliver` raises."""
        return None if self._unanswered is None else await self._report(self._unanswered)

    async def deliver(self, cut: FrozenCheckpoint, checkpoint: CommitId, frozen_at: Instant) -> Delivered:
        """Upload the cut, which has a batch, and report it. May be interrupted: then `settle` comes first. Raises what `Uploader.upload`
        raises when the other uploads have ended, LeaseLost, Refused, and StaleRun when the run goes no further."""
        start, batch = self._start, cut.batch
        assert batch is not None
        assert self._unanswered is None, "settle first"
        await self.begin()
        plan = await self._place.in_thread(lambda: read_plan(cut.directory, batch))
        uploads = await self._upload(cut, checkpoint)
        report = wire_snapshots.SnapshotRequest(
            generation=start.generation,
            lineage=start.lineage,
            batch_id=batch,
            offsets=wire_body.offsets_body(positions_in(plan, self._place.reads(start))),
            checkpoint_id=checkpoint,
            markers={name: _spelled(each.marker) for name, each in uploads.items()},
        )
        return await self._report(Delivered(checkpoint, batch, frozen_at, report, uploads))

    async def _upload(self, cut: FrozenCheckpoint, checkpoint: CommitId) -> Mapping[BlobStoreName, Uploaded]:
        done: dict[BlobStoreName, Uploaded] = {}

        async def upload(name: BlobStoreName, committer: Uploader) -> None:
            marker, index = await committer.upload(cut, checkpoint, self._start.generation)
            done[name] = Uploaded(committer, marker, index)

        async with telling(f"{self._start.query} is backed up", self._place.meter(self._start).backup):
            await in_parallel((partial(upload, name, each) for name, each in self._committers.items()), len(self._committers))
        return done

    async def _report(self, delivered: Delivered) -> Delivered:
        place, start = self._place, self._start
        ask = partial(place.coordinator.report_snapshot, place.run_id, start.task, start.declared.stage.name, delivered.report)
        self._unanswered = delivered
        try:
            await until_answered(ask, start.query)
        except Refused as refused:
            self._unanswered = None
            if refused.refused_as in (SnapshotConflict.slug, UnknownTask.slug):
                await self._check_run(refused)
            raise
        self._unanswered = None
        for each in delivered.uploads.values():
            each.committer.committed(each.marker, each.index)
        self._heads = {name: each.marker.index for name, each in delivered.uploads.items()}
        return delivered

    async def _check_run(self, refused: Refused) -> None:
        """A drain that fails takes the stores back to where they were before it, and the run stops: that is no fault of ours."""
        run = await until_answered(partial(self._place.coordinator.run, self._place.run_id), self._start.query)
        if run.state.ended or run.stop_requested_at is not None:
            raise StaleRun(f"run {run.run_id} goes no further, and its state is not backed up any more: {refused}") from refused


def _spelled(marker: Marker) -> wire_snapshots.MarkerBody:
    return wire_snapshots.MarkerBody(
        index=marker.index,
        previous=marker.previous,
        files=marker.files,
        bytes=marker.bytes,
        uploaded_files=marker.uploaded_files,
        uploaded_bytes=marker.uploaded_bytes,
        puts=marker.puts,
    )
