"""Deploys jobs: plans the next run of a job, and creates it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from coordinator.blobpool import BlobStores
from coordinator.drains.kept import KeptState, kept_histories, live_stages, read_kept, return_to_kept
from coordinator.fleet.notices import Notices
from coordinator.fleet.stage_metrics import StageMetrics
from coordinator.fleet.strangers import Strangers
from coordinator.jobmodels.cache import JobModels
from coordinator.jobmodels.groupers import Groupers
from coordinator.runs.streams import JobStreams
from coordinator.store.drains import DrainRow
from coordinator.store.jobmodels import ModelRow
from coordinator.store.runs import RunRow
from coordinator.store.sql import ReadTransaction, Store, WriteTransaction
from coordinator.transitions import get_run, hosts_of, request_stop
from sluice import tracing
from sluice.clock import Clock
from sluice.core.access.secrets import check_secrets
from sluice.core.drain import Mode, check_continued
from sluice.core.errors import NeverDrained, NotTheCurrentRun, RunIsDraining, StateUnregistered
from sluice.core.ids import JobName, RunId, Ssp, StageName, StreamId
from sluice.core.jobmodels.grouping import Grouper, PreviousAssignment
from sluice.core.jobmodels.model import JobModel, PlannedModel, plan_model
from sluice.core.jobmodels.placement import replicas_of, slots, spares_of
from sluice.core.jobmodels.spec import JobKind, Role, RunSpec, Start
from sluice.core.leases.failover import FailOver
from sluice.core.lifecycle import RunState
from sluice.streams.port import StreamSystem
from sluice.wire import samza as wire_samza


@dataclass(frozen=True, slots=True)
class UnreadStreams:
    """The streams of a history that its last run did not read: their start offsets and identities in the last run that read them."""

    starts: Mapping[Ssp, int] = field(default_factory=dict)
    identities: Mapping[StreamId, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Before:
    """What precedes a new run. `continued`: the run whose history it continues. `starts`: its start offsets, from that run or from the
    drain that ended it. `unread`: the streams of the history that the last run did not read. `unknown`: the database has no data of the
    job. `kept`: the kept state with which the new run begins a history; None if it begins with empty state, or continues a history."""

    run: RunRow | None
    continued: RunRow | None
    previous: PreviousAssignment
    model: JobModel | None
    starts: Mapping[Ssp, int] | None
    unread: UnreadStreams
    unknown: bool
    kept: KeptState | None = None

    @property
    def identities(self) -> Mapping[StreamId, str | None]:
        """The identities of the streams that the new run continues to read. Its offsets belong to these streams."""
        last = self.kept.spec if self.kept is not None else self.continued.spec if self.continued is not None else None
        return {**self.unread.identities, **{each.id: each.identity for each in (last.streams if last is not None else ())}}


@dataclass(frozen=True, slots=True)
class DeploymentPlan:
    """What a deployment would do: the run that it would replace, the job model, the spec, and the streams that it would create."""

    before: RunRow | None
    model: JobModel
    spec: RunSpec
    missing: Sequence[StreamId]


class Deployments:
    """`new_run_id` returns the id of a new run from its job and the time."""

    def __init__(
        self,
        store: Store,
        systems: Mapping[str, StreamSystem],
        models: JobModels,
        notices: Notices,
        clock: Clock,
        new_run_id: Callable[[JobName, datetime], RunId],
        groupers: Groupers,
        blob_stores: BlobStores,
        stage_metrics: StageMetrics | None = None,
        strangers: Strangers | None = None,
    ) -> None:
        self._store = store
        self._streams = JobStreams(systems)
        self._models = models
        self._notices = notices
        self._clock = clock
        self._new_run_id = new_run_id
        self._groupers = groupers
        self._blob_stores = blob_stores
        self._stage_metrics = stage_metrics or StageMetrics()
        self._strangers = strangers or Strangers()
        self._deploying = asyncio.Lock()

    async def deploy(self, spec: RunSpec, replaces: RunId | None = None, who: str = "") -> RunRow:
        """Create a run, requested by `who`; with `replaces`, only if that is the job's current run. Everything is checked before anything
        is created. Streams are created before the run that needs them, so that a crash leaves at most an empty stream, which the next
        attempt uses. A live run of the job is requested to stop. An attached job continues with its live run, so that two commands that
        start at the same time do not stop each other.

        A new history deletes what the stages have reported, and a restored database may lack later runs, so nothing is deployed until its
        catalog is complete.

        Raises the errors of graph, streams, grouping and placement; NotTheCurrentRun; RunIsDraining; BlobStoreUnusable; BadConfig;
        StateUnregistered; IncompatibleState; CatalogIncomplete.
        """
        self._check(spec)
        self._strangers.check_catalog()
        with tracing.span("deploy.create", job=spec.job):
            return await self._deploy(spec, replaces, who)

    async def _deploy(self, spec: RunSpec, replaces: RunId | None, who: str) -> RunRow:
        async with self._deploying:
            while True:
                run = await self._deployed(spec, replaces, who)
                if run is not None:
                    return run

    async def _deployed(self, spec: RunSpec, replaces: RunId | None, who: str) -> RunRow | None:
        """One attempt to deploy. None if the job model of the former run has changed since it was read, so that the plan is out of date."""
        spec, missing = await self._streams.with_counts(spec)
        async with self._store.read() as tx:
            before = await self._before(tx, spec.job, spec.start)
        _check_current(spec.job, before.run, replaces)
        if before.run is not None and _continues(before.run, spec):
            return before.run
        if before.run is not None:
            _check_not_draining(before.run)
        if before.unknown and spec.start == "checkpoint":
            await self._check_no_snapshots(spec.job)
        plan = await self._plan(spec, before.previous, before.model)
        for each in spec.streams:
            if each.id in missing:
                await self._streams.system(each.id.system).create(each.id.stream, each.partitions, kept=each.role is Role.INTERMEDIATE)
        fresh = check_continued(before.kept.stages, spec, plan.model) if before.kept is not None else ()
        starts = await self._streams.starts(spec, plan, before.starts, before.unread.starts, continued=before.continued is not None)
        spec = await self._streams.with_identities(spec, before.identities)
        return await self._save(spec, before, plan, starts, who, fresh)

    async def plan(self, spec: RunSpec, mode: Mode = Mode.DEFAULT) -> DeploymentPlan:
        """What `deploy` would do. Changes nothing. The start "drained" is planned as if the job had already been drained, in that mode.

        Raises the errors of `deploy`; for that start not NeverDrained and RunIsDraining.
        """
        self._check(spec)
        drain_first = spec.start == "drained"
        keeps_state = drain_first and mode is Mode.KEEP_STATE
        spec, missing = await self._streams.with_counts(spec)
        async with self._store.read() as tx:
            before = await self._before(tx, spec.job, "checkpoint" if keeps_state else "latest" if drain_first else spec.start)
        if before.run is not None and not drain_first:
            _check_not_draining(before.run)
        if before.unknown and spec.start == "checkpoint":
            await self._check_no_snapshots(spec.job)
        plan = await self._plan(spec, before.previous, before.model)
        if before.kept is not None:
            check_continued(before.kept.stages, spec, plan.model)
        elif keeps_state and before.run is not None and before.model is not None:
            check_continued(live_stages(before.run, before.model, self._stage_metrics), spec, plan.model)
        spec = await self._streams.with_identities(spec, before.identities)
        return DeploymentPlan(before.run, plan.model, spec, missing)

    def _check(self, spec: RunSpec) -> None:
        """Raises BadGraph, BlobStoreUnusable, BadConfig."""
        spec.check()
        check_secrets(spec.config)
        self._blob_stores.of_config(spec.config, None)
        FailOver(None, give_back=True).of_config(spec.config)
        replicas_of(spec.config)
        spares_of(spec.config)

    async def _before(self, tx: ReadTransaction, job: JobName, start: Start) -> _Before:
        """Raises NeverDrained, IncompatibleState."""
        former = await tx.runs.current(job)
        drain = await _last_drain(tx, job, former, start)
        kept = await read_kept(tx, drain, former) if drain is not None and former is not None and drain.mode is Mode.KEEP_STATE else None
        continued = former if start == "checkpoint" and drain is None else None
        starts = await tx.runs.start_offsets(continued.run_id) if continued else None
        previous = await tx.jobmodels.assignment(job) if continued or kept else PreviousAssignment()
        unread, forgotten = await _unread_streams(tx, former, previous) if former is not None else (UnreadStreams(), ())
        return _Before(
            run=former,
            continued=continued,
            previous=previous.without(forgotten),
            model=await self._models.decoded(tx, former) if former else None,
            starts=drain.drained if drain else starts,
            unread=unread,
            unknown=former is None and not await tx.fleet.owners(job) and not await tx.snapshots.page(job, None, None, None, 1),
            kept=kept,
        )

    async def _check_no_snapshots(self, job: JobName) -> None:
        """After a loss of the database a job must not start with empty state like a new one. Raises StateUnregistered."""
        name = await self._blob_stores.with_snapshots_of(job)
        if name is not None:
            raise StateUnregistered(
                f"blob store {name} has snapshots of job {job}, which are not in this coordinator's database: stop the coordinator and "
                "run `sluice rebuild`, or deploy with an explicit start to begin with empty state"
            )

    async def _plan(self, spec: RunSpec, previous: PreviousAssignment, last: JobModel | None) -> PlannedModel:
        def planned(grouper: Grouper) -> PlannedModel:
            return plan_model(spec, grouper, previous, last, slots(spec.containers))

        return await self._groupers.apply(spec.grouper, spec.max_tasks, planned)

    async def _save(
        self, spec: RunSpec, before: _Before, plan: PlannedModel, starts: Mapping[Ssp, int], who: str, fresh: Collection[StageName]
    ) -> RunRow | None:
        job, now, former, continued = spec.job, self._clock.now(), before.run, before.continued
        run_id = self._new_run_id(job, now)
        async with self._store.begin() as tx:
            self._strangers.check_catalog()
            newest = await tx.jobmodels.page(job, None, 1)
            if former is not None and (not newest or newest[0].version != former.model_version):  # changed, or the job was removed
                return None
            version = await self._version(tx, job, run_id, plan.model, now, who)
            run = RunRow(
                run_id=run_id,
                job=job,
                state=RunState.CREATED,
                first_run=continued.first_run if continued else run_id,
                spec=spec,
                model_version=version,
                created_at=now,
                backup=self._blob_stores.of_config(spec.config, former.backup if former else None),
                kept=continued.kept if continued else (),
            )
            if former is not None:
                await tx.jobmodels.put_former_hosts(job, await hosts_of(tx, former))
            await tx.runs.put(run)
            await tx.jobmodels.put_assignment(job, plan.assignment)
            await tx.runs.put_start_offsets(run_id, starts)
            if before.kept is not None and former is not None:
                now_run = await get_run(tx, former.run_id)
                await return_to_kept(tx, await read_kept(tx, before.kept.drain, now_run), fresh)
                run = replace(run, kept=await kept_histories(tx, before.kept, fresh))
                await tx.runs.put(run)
            elif (
                former is not None and continued is None
            ) or spec.start != "checkpoint":  # otherwise the stages continue, as after a rebuild
                await tx.fleet.drop_stage_states(job)
            if former is not None:  # read again: it may have changed since
                await request_stop(tx, _check_undrained(await get_run(tx, former.run_id), former), now, f"replaced by run {run_id}")
        self._models.serve(job, run_id, version, plan.model)
        if former is not None:
            self._notices.notify(former.run_id)
        return run

    async def _version(self, tx: WriteTransaction, job: JobName, run_id: RunId, model: JobModel, now: datetime, who: str) -> int:
        """The version of this model: the last version if the models are equal, otherwise a new one."""
        last = await tx.jobmodels.get(job)
        if last is not None and last.content_hash == model.content_hash():
            return last.version
        version = await tx.origin.next_number(last.version if last else 0)
        document = wire_samza.job_model_bytes(model).decode()
        await tx.jobmodels.add(ModelRow(job, version, run_id, model.content_hash(), now, f"run {run_id} was deployed", who, document))
        return version


def _continues(run: RunRow, spec: RunSpec) -> bool:
    attached = spec.kind is JobKind.ATTACHED and run.spec.kind is JobKind.ATTACHED
    return attached and not run.state.ended and run.stop_requested_at is None


def _check_current(job: JobName, current: RunRow | None, replaces: RunId | None) -> None:
    if replaces is not None and (current is None or current.run_id != replaces):
        present = f"its current run is {current.run_id}" if current else "it has no run"
        raise NotTheCurrentRun(f"run {replaces} is no longer the current run of job {job}: {present}; reload and try again")


def _check_not_draining(run: RunRow) -> RunRow:
    if run.state is RunState.DRAINING:
        raise RunIsDraining(f"run {run.run_id} of job {run.job} is draining: deploy when it has ended, or cancel the drain")
    return run


def _check_undrained(run: RunRow, read: RunRow) -> RunRow:
    """Raises RunIsDraining, also for a run that was drained since it was `read`: a new run would ignore the drain."""
    if run.state is RunState.DRAINED and read.state is not run.state:
        raise RunIsDraining(f"run {run.run_id} of job {run.job} was drained in the meantime: deploy again")
    return _check_not_draining(run)


async def _unread_streams(tx: ReadTransaction, last: RunRow, previous: PreviousAssignment) -> tuple[UnreadStreams, Collection[StreamId]]:
    """The streams in the history of the run `last` that this run does not read, and those among them to be forgotten: no task has begun a
    stage that reads them, so their keys have no state."""
    streams = previous.baselines.keys() - {each.id for each in last.spec.streams_read}
    if not streams:
        return UnreadStreams(), ()
    begun = {(row.stage, row.task) for row in await tx.fleet.stage_states(last.job)}
    history = await tx.runs.history(last.job, last.first_run)
    forgotten: set[StreamId] = set()
    starts: dict[Ssp, int] = {}
    identities: dict[StreamId, str | None] = {}
    for stream in sorted(streams):
        runs = [run for run in history if any(each.id == stream for each in run.spec.streams_read)]
        stages = {stage for run in runs for stage in run.spec.stage_names if stream in run.spec.reads(stage)}
        owners = previous.owners(stream)
        if not any(task in owners and (stage in stages or not runs) for stage, task in begun):
            forgotten.add(stream)
        elif runs:
            starts |= {ssp: at for ssp, at in (await tx.runs.start_offsets(runs[0].run_id)).items() if ssp.stream_id == stream}
            identities |= {each.id: each.identity for each in runs[0].spec.streams if each.id == stream}
    return UnreadStreams(starts, identities), forgotten


async def _last_drain(tx: ReadTransaction, job: JobName, former: RunRow | None, start: Start) -> DrainRow | None:
    """The drain whose end offsets are the start of a run, if any. Raises NeverDrained."""
    if start == "checkpoint":
        return await tx.drains.newest(former.run_id) if former is not None and former.state is RunState.DRAINED else None
    if start != "drained":
        return None
    found = await tx.drains.last_drained(job)
    if found is None:
        raise NeverDrained(f'job {job} was never drained: start it from "checkpoint", "earliest", "latest" or a time')
    return found
