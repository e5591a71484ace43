"""Describe, list and stop runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from coordinator.fleet.notices import Notices
from coordinator.jobmodels.cache import JobModels
from coordinator.store.drains import DrainRow
from coordinator.store.fleet import ContainerRow, StageStateRow, TaskOwnershipRow
from coordinator.store.groupcommit import GroupCommit
from coordinator.store.jobmodels import ModelHead, MonitoredStreamRow
from coordinator.store.runs import JobRow, RunRow
from coordinator.store.sql import ReadTransaction, Store
from coordinator.transitions import abandon_drain, backoff_of, get_run, hosts_of, request_stop
from sluice.clock import Clock
from sluice.core.drain import DrainId
from sluice.core.errors import SluiceError, UnknownContainer, UnknownJob, UnknownRun
from sluice.core.ids import ExecutionContainerId, JobName, ProcessorId, RunId
from sluice.core.jobmodels.model import JobModel
from sluice.core.jobmodels.spec import RunSpec
from sluice.core.leases.failover import DEFAULT, BackoffUntil, CrashLoopPolicy

SHOWN_INCARNATIONS = 5
"""Number of ended containers of each slot in the details of a run. `Runs.containers` lists all."""


@dataclass(frozen=True, slots=True)
class RunDetails:
    """A run with its containers, tasks, stages and drains, read at the time `at`. Of ended containers, only the newest ones of each
    slot."""

    at: datetime
    run: RunRow
    model: JobModel
    containers: Sequence[ContainerRow]
    holds: Sequence[TaskOwnershipRow]
    stores: Sequence[StageStateRow]
    drain: DrainRow | None
    failed_drains: Sequence[DrainId]
    version: ModelHead
    watched: Sequence[MonitoredStreamRow]
    backoffs: Mapping[ProcessorId, BackoffUntil]


@dataclass(frozen=True, slots=True)
class BasicRun:
    """The details of a run that its containers need."""

    run: RunRow
    drain: DrainRow | None
    failed_drains: Sequence[DrainId]


class BasicRunBodies:
    """The last answer of the view `basic` for each run, encoded. It is reused while its rows do not change, so that the requests of
    thousands of containers cost one encoding."""

    def __init__(self, at_most: int = 100) -> None:
        self._at_most = at_most
        self._bodies: dict[RunId, tuple[BasicRun, bytes]] = {}

    def encoded(self, basic: BasicRun, encode: Callable[[], bytes]) -> bytes:
        known = self._bodies.pop(basic.run.run_id, None)
        if known is None or known[0] != basic:
            known = (basic, encode())
        self._bodies[basic.run.run_id] = known
        if len(self._bodies) > self._at_most:
            del self._bodies[next(iter(self._bodies))]
        return known[1]


class Runs:
    def __init__(self, store: Store, models: JobModels, notices: Notices, clock: Clock, crash_loop: CrashLoopPolicy = DEFAULT) -> None:
        self._store = store
        self._models = models
        self._notices = notices
        self._clock = clock
        self._crash_loop = crash_loop
        self._basic: GroupCommit[RunId, BasicRun] = GroupCommit(self._read_basic)

    async def describe(self, run_id: RunId) -> RunDetails:
        """Raises UnknownRun."""
        async with self._store.read() as tx:
            run = await get_run(tx, run_id)
            containers = await tx.fleet.containers(run_id, newest=SHOWN_INCARNATIONS)
            (version,) = await tx.jobmodels.page(run.job, run.model_version + 1, 1)
            return RunDetails(
                at=self._clock.now(),
                run=run,
                model=await self._models.decoded(tx, run),
                containers=containers,
                holds=[row for row in await tx.fleet.owners(run.job) if row.run_id == run_id],
                stores=await tx.fleet.stage_states(run.job),
                drain=await tx.drains.newest(run_id),
                failed_drains=await tx.drains.failed_flushes(run.job),
                version=version,
                watched=[row for row in await tx.jobmodels.monitored(run.job) if row.run_id == run_id],
                backoffs=await self._backoffs(tx, run_id, containers),
            )

    async def basic(self, run_id: RunId) -> BasicRun:
        """Concurrent requests, as when all containers of a run start, share one read. Raises UnknownRun."""
        return await self._basic.submit(run_id)

    async def _read_basic(self, run_ids: Sequence[RunId]) -> Sequence[BasicRun | SluiceError]:
        found: dict[RunId, BasicRun | SluiceError] = {}
        async with self._store.read() as tx:
            for run_id in dict.fromkeys(run_ids):
                try:
                    run = await get_run(tx, run_id)
                    found[run_id] = BasicRun(run, await tx.drains.newest(run_id), await tx.drains.failed_flushes(run.job))
                except UnknownRun as error:
                    found[run_id] = error
        return [found[run_id] for run_id in run_ids]

    async def with_vacant_slots(self, run_id: RunId) -> tuple[BasicRun, Sequence[ProcessorId]]:
        """The run, and its slots without a valid container. Raises UnknownRun."""
        async with self._store.read() as tx:
            run = await get_run(tx, run_id)
            occupied = {each.processor_id for each in await tx.fleet.slots(run_id) if each.live}
            basic = BasicRun(run, await tx.drains.newest(run_id), await tx.drains.failed_flushes(run.job))
        return basic, [slot for slot in run.spec.slots if slot not in occupied]

    async def spec(self, run_id: RunId) -> RunSpec:
        """Raises UnknownRun."""
        async with self._store.read() as tx:
            return (await get_run(tx, run_id)).spec

    async def _backoffs(self, tx: ReadTransaction, run_id: RunId, containers: Sequence[ContainerRow]) -> Mapping[ProcessorId, BackoffUntil]:
        """The slots that are in crash-loop back-off now, with the total number of their failures."""
        by_slot: defaultdict[ProcessorId, list[ContainerRow]] = defaultdict(list)
        for each in containers:
            by_slot[each.processor_id].append(each)
        now = self._clock.now()
        found = {pid: backoff_of(rows, self._crash_loop, now) for pid, rows in by_slot.items()}
        for pid in [pid for pid, held in found.items() if held is not None and held.failures >= SHOWN_INCARNATIONS]:
            found[pid] = backoff_of(await tx.fleet.containers(run_id, pid), self._crash_loop, now)
        return {pid: held for pid, held in found.items() if held is not None}

    async def older(self, job: JobName | None, before: RunId | None, limit: int) -> Sequence[RunRow]:
        """Up to `limit` runs of the job, or of all jobs, newest first; with `before`, only runs older than that one.

        Raises UnknownJob, UnknownRun.
        """
        async with self._store.read() as tx:
            if job is not None and await tx.runs.current(job) is None:
                raise UnknownJob(f"there is no job {job!r}")
            return await tx.runs.page(job, await get_run(tx, before) if before is not None else None, limit)

    def now(self) -> datetime:
        return self._clock.now()

    async def containers(self, run_id: RunId, after: ExecutionContainerId | None, limit: int) -> Sequence[ContainerRow]:
        """Up to `limit` containers of the run, ordered by slot and epoch; with `after`, only those that follow that one.

        Raises UnknownRun, UnknownContainer.
        """
        async with self._store.read() as tx:
            await get_run(tx, run_id)
            last = None if after is None else await tx.fleet.container(after)
            if after is not None and (last is None or last.run_id != run_id):
                raise UnknownContainer(f"run {run_id} has no container {after!r}")
            return await tx.history.containers(run_id, last, limit)

    async def current(self, job: JobName) -> RunRow:
        """The job's newest run, ended or not. Raises UnknownJob."""
        async with self._store.read() as tx:
            run = await tx.runs.current(job)
            if run is None:
                raise UnknownJob(f"there is no job {job!r}")
            return run

    async def jobs(self, after: JobName | None = None, limit: int | None = None) -> Sequence[JobRow]:
        """All jobs, ordered by name; with `after`, those that follow that one, up to `limit`."""
        async with self._store.read() as tx:
            return await tx.runs.jobs(after, limit)

    async def hosts(self, job: JobName) -> Mapping[ProcessorId, str]:
        """Processor id -> host of the newest incarnation, possibly of a former run; "" if none ever registered. Raises UnknownJob."""
        async with self._store.read() as tx:
            run = await tx.runs.current(job)
            if run is None:
                raise UnknownJob(f"there is no job {job!r}")
            found = await hosts_of(tx, run)
            return {pid: found.get(pid, "") for pid in run.spec.slots}

    async def stop(self, run_id: RunId, reason: str, *, failed: bool) -> RunRow:
        """Make the run's containers stop after their current batch. Idempotent; an ended run does not change. A drain in progress is
        cancelled, or fails if it has begun to flush. Raises UnknownRun."""
        async with self._store.begin() as tx:
            now = self._clock.now()
            run = await abandon_drain(tx, await get_run(tx, run_id), f"the run was stopped{f': {reason}' if reason else ''}", now)
            run = await request_stop(tx, run, now, reason, failing=failed)
        self._notices.notify(run_id)
        return run
