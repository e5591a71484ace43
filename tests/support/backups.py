"""A job of one task whose container commits, loses its disk and restores, with the coordinator's chores, all in one process."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from io import BytesIO
from itertools import count
from typing import Any

from containers.supervision.exit_report import EXIT_OK
from coordinator.blobpool import Backup, BlobStores
from coordinator.fleet.notices import Notices
from coordinator.fleet.report_checks import ReportChecks
from coordinator.snapshots.catalog import SnapshotCatalog
from coordinator.snapshots.cleanup import CleanUp, RetireStores, SweepExpired
from coordinator.snapshots.gc import GarbageCollector
from coordinator.snapshots.inventory import owns_blob_store
from coordinator.snapshots.reports import MarkerReport, SnapshotReport, Snapshots
from coordinator.store.fleet import StageStateRow
from coordinator.store.runs import RunRow
from coordinator.store.snapshots import MarkerRow
from coordinator.store.sql import ReadTransaction, Store
from coordinator.waits import DeletionHold
from sluice import Job
from sluice.blobs.port import BlobStore, Purpose, RequestContext
from sluice.core.ids import Generation, Lineage, ProcessorId, RunId, StageKey, StageName, TaskName
from sluice.core.jobmodels.grouping import PreviousAssignment
from sluice.core.jobmodels.model import JobModel, job_model
from sluice.core.lifecycle import RunState
from sluice.core.snapshots.indexjson import decoded, encoded
from sluice.core.snapshots.retention import Retention
from sluice.core.snapshots.snapshot import (
    BlobId,
    BlobStoreName,
    CommitId,
    DirIndex,
    FileBlob,
    FileIndex,
    FileMetadata,
    Kind,
    SnapshotIndex,
    SnapshotMetadata,
    fresh_blob_id,
    offsets_blob_id,
    walk,
)
from tests.contracts.rows import JOB, NOON, SSP, ownership_row, run_row, run_spec
from tests.support.agents import Incarnation, Place
from tests.support.databases import temporary_store
from tests.support.engines import DiskEngine, FakeQuery
from tests.support.fakes import FakeClock
from tests.support.memory import MemoryBlobs

TASK, STAGE, RUN = TaskName("Partition 0"), StageName("s"), RunId("r1")
KEY = StageKey(JOB, TASK, STAGE)
LOCAL = BlobStoreName("local")
TTL = timedelta(days=30)
GRACE = timedelta(hours=24)
ABOUT = RequestContext(Purpose.DATA)

Files = Mapping[str, bytes]

MODEL = job_model({}, {TASK: frozenset({SSP})}, {TASK: ProcessorId("0")}, {})


async def _model(_tx: ReadTransaction, _run: RunRow) -> JobModel:
    return MODEL


CHECKS = ReportChecks(_model, lambda _: {})


@dataclass(slots=True)
class Agent:
    """An agent that owns the task under a generation, with a directory on its disk. Its clock may be wrong by hours."""

    generation: Generation
    lineage: Lineage
    files: dict[str, bytes]
    batch: int
    previous: BlobId | None
    known: dict[str, FileIndex] = field(default_factory=dict)
    skew_hours: float = 0.0


@dataclass(slots=True)
class World:
    """`kept`: the contents of reported checkpoints."""

    blobs: BlobStore
    clock: FakeClock
    store: Store
    retention: Retention
    number: count[int] = field(default_factory=lambda: count(1))
    kept: dict[CommitId, Files] = field(default_factory=dict)
    blob_stores: BlobStores = field(init=False)
    snapshots: Snapshots = field(init=False)
    clean_up: CleanUp = field(init=False)
    collection: GarbageCollector = field(init=False)
    catalog: SnapshotCatalog = field(init=False)
    sweep: SweepExpired = field(init=False)
    retire: RetireStores = field(init=False)
    hold: DeletionHold = field(init=False)
    incomplete: bool = False
    """Whether the database may lack snapshots."""

    def __post_init__(self) -> None:
        self.wire(self.blobs)

    def wire(self, blobs: BlobStore) -> None:
        """Restart the coordinator with this blob store: everything in memory is lost."""

        async def on_open(name: BlobStoreName, opened: BlobStore) -> object:
            return await owns_blob_store(self.store, name, opened)

        stores = BlobStores({"local": "file:///not-opened"}, lambda name, url: blobs, Backup((LOCAL,), (LOCAL,)), on_open)
        self.blobs = blobs
        self.blob_stores = stores
        self.snapshots = Snapshots(self.store, stores, Notices(self.store), self.clock, lambda: Lineage(f"l{next(self.number)}"), CHECKS)
        self.hold = DeletionHold(self.clock, GRACE, lambda: self.incomplete)
        self.clean_up = CleanUp(self.store, stores, self.clock, self.retention, TTL, self.hold)
        self.collection = GarbageCollector(
            self.store, stores, self.clock, self.hold, grace=GRACE, every=timedelta(hours=1), deletes_per_second=1e9, pause=_no_pause
        )
        self.catalog = SnapshotCatalog(self.store, self.clock, self.retention, lambda: f"pin{next(self.number)}")
        self.sweep = SweepExpired(stores, self.clean_up, self.clock, self.hold)
        self.retire = RetireStores(self.store, self.clock, self.hold, timedelta(days=7), self.retention)

    async def begin(self) -> None:
        await self.blob_stores.opened(LOCAL)
        async with self.store.begin() as tx:
            await tx.runs.put(run_row(RUN, state=RunState.RUNNING, spec=run_spec(JOB, [STAGE], containers=1)))
            await tx.jobmodels.put_assignment(JOB, PreviousAssignment({SSP: TASK}, {SSP.stream_id: 1}, "g"))

    # --- the agent ---

    async def acquired(self, skew_hours: float = 0.0) -> Agent:
        """A new owner of the task. It restores the newest snapshot, as a container without a local directory does."""
        async with self.store.begin() as tx:
            held = await tx.fleet.owner(JOB, TASK)
            generation = Generation(1 if held is None else held.owner.generation + 1)
            await tx.fleet.put_owners([replace(ownership_row(TASK, generation, f"c{generation}"), run_id=RUN)])
            rows = await tx.fleet.stage_states(JOB, TASK)
            row = rows[0] if rows else StageStateRow(JOB, TASK, STAGE, Lineage(f"l{next(self.number)}"))
            await tx.fleet.put_stage_states([row])
            head = None if row.head is None else await tx.snapshots.get(KEY, row.head)
        agent = Agent(generation, row.lineage, {}, -1, None, skew_hours=skew_hours)
        if row.chosen:
            agent.lineage = await self.snapshots.new_lineage(RUN, TASK, STAGE, generation, row.lineage, "chosen")
        if head is not None:
            index = await self.index_of(head.markers[LOCAL].index)
            agent.files = dict(await self.contents(index))
            agent.known = dict(walk(index.root))
            agent.previous = head.markers[LOCAL].index
            agent.batch = -1 if head.batch_id is None else head.batch_id
        return agent

    async def released(self) -> None:
        async with self.store.begin() as tx:
            row = await tx.fleet.owner(JOB, TASK)
            if row is not None:
                await tx.fleet.put_owners([replace(row, owner=replace(row.owner, released=True))])

    def fresh(self, kind: Kind, agent: Agent) -> BlobId:
        millis = int((self.clock.now().timestamp() + agent.skew_hours * 3600) * 1000)
        return fresh_blob_id(KEY, kind, millis, f"{next(self.number):016x}")

    async def run_batch(self, agent: Agent, changes: Files) -> None:
        """Run a batch. Its offset-log entry is durable first."""
        agent.batch += 1
        await self.blobs.put_if_absent(offsets_blob_id(KEY, agent.lineage, agent.batch), b"plan", ABOUT)
        agent.files |= changes
        for name in [name for name, body in changes.items() if not body]:
            agent.files.pop(name, None)

    async def upload(self, agent: Agent) -> tuple[BlobId, SnapshotIndex]:
        """Upload new files, then the index, as a commit does before its report."""
        known = {}
        for name, body in sorted(agent.files.items()):
            former = agent.known.get(name)
            if former is not None and former.digest == hashlib.sha256(body).hexdigest():
                known[name] = former
                continue
            blob = self.fresh(Kind.DATA, agent)
            await self.blobs.put(blob, body, ABOUT, ttl=TTL)
            metadata = FileMetadata(0, 0, len(body), "o", "g", 0o644)
            known[name] = FileIndex(name, (FileBlob(blob, 0),), metadata, zlib.crc32(body), hashlib.sha256(body).hexdigest())
        checkpoint = CommitId(f"{1_700_000_000_000 + next(self.number)}-123456")
        root = DirIndex("", tuple(known[name] for name in sorted(known)))
        metadata_of = SnapshotMetadata(checkpoint, JOB, TASK, STAGE)
        millis = int((self.clock.now().timestamp() + agent.skew_hours * 3600) * 1000)
        index = SnapshotIndex(millis, metadata_of, root, agent.previous, agent.generation, agent.lineage, agent.batch)
        blob = self.fresh(Kind.SNAPSHOTS, agent)
        await self.blobs.put(blob, encoded(index), ABOUT, ttl=TTL)
        return blob, index

    async def report(self, agent: Agent, blob: BlobId, index: SnapshotIndex) -> None:
        """Raises LeaseLost, SnapshotConflict."""
        marked = {LOCAL: MarkerReport(MarkerRow(blob), agent.previous)}
        reported = SnapshotReport(agent.generation, agent.lineage, agent.batch, {SSP: agent.batch}, index.metadata.checkpoint, marked)
        await self.snapshots.report(RUN, TASK, STAGE, reported)
        self.kept[index.metadata.checkpoint] = dict(agent.files)
        agent.previous, agent.known = blob, dict(walk(index.root))

    async def commit(self, agent: Agent) -> CommitId:
        blob, index = await self.upload(agent)
        await self.report(agent, blob, index)
        return index.metadata.checkpoint

    # --- checks ---

    async def index_of(self, blob: BlobId) -> SnapshotIndex:
        body = BytesIO()
        await self.blobs.get(blob, body, ABOUT)
        return decoded(body.getvalue(), blob)

    async def contents(self, index: SnapshotIndex) -> Files:
        found = {}
        for name, file in walk(index.root):
            body = BytesIO()
            await self.blobs.get(file.blobs[0].blob, body, ABOUT)
            assert hashlib.sha256(body.getvalue()).hexdigest() == file.digest
            found[name] = body.getvalue()
        return found

    async def retained(self) -> Mapping[CommitId, BlobId]:
        async with self.store.read() as tx:
            return {row.checkpoint: row.markers[LOCAL].index for row in await tx.snapshots.of_stage(KEY)}

    async def check_retained(self) -> None:
        """Every retained snapshot can be restored byte for byte."""
        for checkpoint, blob in (await self.retained()).items():
            assert await self.contents(await self.index_of(blob)) == self.kept[checkpoint]

    async def listed(self) -> set[BlobId]:
        return {each.blob async for page in self.blobs.list("jobs/", ABOUT) for each in page}

    async def needed(self) -> set[BlobId]:
        """The blobs to which retained snapshots refer, and the offset-log entries that may have to run again."""
        found: set[BlobId] = set()
        for blob in (await self.retained()).values():
            found |= {blob, *(await self.index_of(blob)).blobs}
        return found

    # --- the coordinator ---

    async def tidy(self) -> None:
        """Run the chores, advancing the clock by hours, until they have nothing left to do."""
        for _ in range(4):
            self.clock.advance(601)
            await self.clean_up.run_once()
        await self.collection.run_once()
        self.clock.advance(GRACE.total_seconds() + 1)
        await self.clean_up.run_once()
        await self.collection.run_once()


async def _no_pause(seconds: float) -> None:
    """Return at once."""


def new_world(retention: Retention | None = None) -> World:
    clock = FakeClock(start=NOON)
    return World(MemoryBlobs(clock), clock, temporary_store(Store), retention or Retention(2))


BACKED_UP: dict[str, Any] = {"backup_stores": None, "restore_from": None}
EVERY_BATCH: dict[str, Any] = {"commit_interval_seconds": 0}
NEVER: dict[str, Any] = {"commit_interval_seconds": 3600, "max_replay": 1000}


def one_stage() -> Job:
    job = Job("delays", max_tasks=1)
    read, out = job.input("in"), job.output("out")
    job.stage(reads=read, writes=out, name="only")(lambda task: None)  # type: ignore[arg-type, return-value]
    return job


def start(there: Place, run_id: RunId, name: str, disk: str, **settings: Any) -> Incarnation:
    """Start a container with a disk of its own."""
    root = there.home.parent / disk
    return there.start(run_id, name, engine=DiskEngine(root=root), job=one_stage(), state_dir=root, **settings)


def disk_of(container: Incarnation) -> DiskEngine:
    assert isinstance(container.engine, DiskEngine)
    return container.engine


async def began(container: Incarnation) -> tuple[DiskEngine, FakeQuery]:
    return disk_of(container), await container.engine.started()


async def stopped(container: Incarnation) -> None:
    container.agent.stop_requested()
    assert (await container.ending()).exit_code == EXIT_OK
