"""Runs: deploy, describe, stop."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from coordinator import wire, wire_samza
from coordinator.blobstores import BlobStores
from coordinator.clock import Clock
from coordinator.core.drain import DrainId
from coordinator.core.errors import (
    NeverDrained,
    NotTheCurrentRun,
    RunIsDraining,
    StateUnregistered,
    StreamConflict,
    UnknownJob,
    UnknownStream,
    UnknownSystem,
)
from coordinator.core.failover import FailOver
from coordinator.core.graph import chain
from coordinator.core.grouping import Grouper, Previous
from coordinator.core.holdback import USUAL, HeldUntil, HoldBack
from coordinator.core.ids import JobName, ProcessorId, RunId, Ssp, StreamId
from coordinator.core.lifecycle import RunState
from coordinator.core.model import JobModel
from coordinator.core.outline import Plan
from coordinator.core.placement import slots
from coordinator.core.standby import replicas_of
from coordinator.drainsteps import ShowDrain, containers_of, leave
from coordinator.endings import ask_to_stop, held_back, the_run
from coordinator.groupers import Groupers
from coordinator.jobmodels import JobModels, plan_model
from coordinator.notices import Notices
from coordinator.requested import bindings_of, graph_of, streams_of
from coordinator.store.drains import DrainRow
from coordinator.store.port import ContainerRow, HoldRow, JobRow, Reading, RunRow, Store, StoreRow, Writing
from coordinator.store.versions import ModelHead, ModelRow, WatchedRow
from coordinator.streams.port import Offsets, StreamSystem


@dataclass(frozen=True, slots=True)
class Described:
    """A run with all that hangs on it, as it was `at` that time."""

    at: datetime
    run: RunRow
    model: JobModel
    containers: Sequence[ContainerRow]
    holds: Sequence[HoldRow]
    stores: Sequence[StoreRow]
    drain: DrainRow | None
    failed_drains: Sequence[DrainId]
    version: ModelHead
    watched: Sequence[WatchedRow]
    held_back: Mapping[ProcessorId, HeldUntil]


@dataclass(frozen=True, slots=True)
class _Before:
    """What a new run comes after. `going_on`: the run whose history it continues; `starts`: where that, or the drain that ended it, begins.
    `unheard_of`: the registry knows nothing of the job."""

    run: RunRow | None
    going_on: RunRow | None
    previous: Previous
    model: JobModel | None
    starts: Mapping[Ssp, int] | None
    unheard_of: bool


@dataclass(frozen=True, slots=True)
class Proposed:
    """What a deployment would make: the run that it would replace, its job model, its streams, and which of them it would create."""

    before: RunRow | None
    model: JobModel
    streams: Sequence[Mapping[str, object]]
    missing: Sequence[StreamId]


class Runs:
    """`new_run_id` makes the id of a job's next run at a time."""

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
        show_drain: ShowDrain,
        hold_back: HoldBack = USUAL,
    ) -> None:
        self._store = store
        self._systems = systems
        self._models = models
        self._notices = notices
        self._clock = clock
        self._new_run_id = new_run_id
        self._groupers = groupers
        self._blob_stores = blob_stores
        self._show_drain = show_drain
        self._hold_back = hold_back
        self._deploying = asyncio.Lock()

    async def deploy(self, request: wire.RunRequest, replaces: RunId | None = None, who: str = "") -> RunRow:
        """Make a run, for `who`; with `replaces`, only while that is the job's current one. Everything is checked before anything is
        created; streams come before the run that needs them, so that a crash leaves at most an empty stream, which the next try finds and
        uses. A run deployed over a live one asks that one to stop.

        Raises the errors of graph, streams, grouping and placement; NotTheCurrentRun; RunIsDraining; BlobStoreUnusable; BadConfig;
        StateUnregistered.
        """
        bindings = self._checked(request)
        async with self._deploying:
            while True:
                run = await self._deployed(request, bindings, replaces, who)
                if run is not None:
                    return run

    async def _deployed(
        self, request: wire.RunRequest, bindings: Mapping[str, StreamId], replaces: RunId | None, who: str
    ) -> RunRow | None:
        """None when the job model of the former run has changed meanwhile: what was planned from it is out of date."""
        counts, missing = await self._counts(request, bindings)
        job = JobName(request.job)
        async with self._store.read() as tx:
            before = await self._before(tx, job, request.start)
        _check_current(job, before.run, replaces)
        if before.run is not None:
            _not_draining(before.run)
        if before.unheard_of and request.start == "checkpoint":
            await self._nothing_backed_up(job)
        plan = await self._plan(request, bindings, counts, before.previous, before.model)
        intermediate = {bindings[each.name] for each in request.intermediates}
        for name, stream in bindings.items():
            if stream in missing:
                await self._system(stream.system).create(stream.stream, counts[name], kept=stream in intermediate)
        starts = await self._starts(request, bindings, plan, before.starts)
        identities = await self._identities(request, bindings, before.going_on)
        return await self._save(request, streams_of(request, bindings, counts, identities), before, plan, starts, who)

    async def plan(self, request: wire.RunRequest) -> Proposed:
        """What `deploy` would make, of which nothing is made. With the start "drained" as after a drain that is still to come.

        Raises what `deploy` does; but for that start neither NeverDrained nor RunIsDraining.
        """
        bindings = self._checked(request)
        to_come = request.start == "drained"
        counts, missing = await self._counts(request, bindings)
        async with self._store.read() as tx:
            before = await self._before(tx, JobName(request.job), "latest" if to_come else request.start)
        if before.run is not None and not to_come:
            _not_draining(before.run)
        if before.unheard_of and request.start == "checkpoint":
            await self._nothing_backed_up(JobName(request.job))
        plan = await self._plan(request, bindings, counts, before.previous, before.model)
        there = {name: stream for name, stream in bindings.items() if stream not in missing}
        identities = await self._identities(request, there, before.going_on)
        return Proposed(before.run, plan.model, streams_of(request, bindings, counts, identities), missing)

    def _checked(self, request: wire.RunRequest) -> Mapping[str, StreamId]:
        """The request's streams by the job's names. Raises BadGraph, BlobStoreUnusable, BadConfig."""
        chain(graph_of(request))
        self._blob_stores.of_config(request.config, None)
        FailOver(None, give_back=True).of_config(request.config)
        replicas_of(request.config)
        return bindings_of(request)

    async def _before(self, tx: Reading, job: JobName, start: str | datetime) -> _Before:
        """Raises NeverDrained."""
        former = await tx.current_run(job)
        drain = await _last_drain(tx, job, former, start)
        going_on = former if start == "checkpoint" and drain is None else None
        starts = await tx.starts(going_on.run_id) if going_on else None
        return _Before(
            run=former,
            going_on=going_on,
            previous=await tx.assignment(job) if going_on else Previous(),
            model=await self._models.decoded(tx, former) if former else None,
            starts=drain.drained if drain else starts,
            unheard_of=former is None and not await tx.snapshots(job, None, None, None, 1),
        )

    async def _nothing_backed_up(self, job: JobName) -> None:
        """A database that was lost must not make a job begin with empty state, as if it were new. Raises StateUnregistered."""
        name = await self._blob_stores.with_snapshots_of(job)
        if name is not None:
            raise StateUnregistered(
                f"blob store {name} has snapshots of job {job}, which this coordinator's database does not know: stop the coordinator and "
                "run `sluice rebuild`, or deploy with an explicit start to begin with empty state"
            )

    def _system(self, name: str) -> StreamSystem:
        if name not in self._systems:
            raise UnknownSystem(f"no system {name!r} is configured: there is {', '.join(sorted(self._systems))}")
        return self._systems[name]

    async def _counts(self, request: wire.RunRequest, bindings: Mapping[str, StreamId]) -> tuple[dict[str, int], list[StreamId]]:
        """Partition counts by the job's names, and the streams that are still to be created."""
        counts: dict[str, int] = {}
        missing: list[StreamId] = []
        for each in request.inputs:
            stream = bindings[each.name]
            counts[each.name] = await self._system(stream.system).partitions(stream.stream)
        made: tuple[wire.IntermediateBody | wire.OutputBody, ...] = (*request.intermediates, *request.outputs)
        for wanted in made:
            stream = bindings[wanted.name]
            try:
                present = await self._system(stream.system).partitions(stream.stream)
            except UnknownStream:
                present = wanted.partitions
                missing.append(stream)
            if isinstance(wanted, wire.IntermediateBody) and present != wanted.partitions:
                raise StreamConflict(
                    f"the intermediate stream {stream} exists with {present} partitions and the job asks for {wanted.partitions}: "
                    "ask for as many, or give it another name"
                )
            counts[wanted.name] = present
        return counts, missing

    async def _identities(
        self, request: wire.RunRequest, bindings: Mapping[str, StreamId], going_on: RunRow | None
    ) -> Mapping[str, str | None]:
        """Which stream it is that each input's name stands for: in a history that goes on the one with which it began, as the offsets are
        that one's."""
        old = {(each["system"], each["stream"]): each.get("identity") for each in (going_on.streams if going_on else ())}

        async def identity(stream: StreamId) -> str | None:
            return old.get((stream.system, stream.stream)) or await self._system(stream.system).identity(stream.stream)

        return {each.name: await identity(bindings[each.name]) for each in request.inputs if each.name in bindings}

    async def _plan(
        self,
        request: wire.RunRequest,
        bindings: Mapping[str, StreamId],
        counts: Mapping[str, int],
        previous: Previous,
        last: JobModel | None,
    ) -> Plan:
        def planned(grouper: Grouper) -> Plan:
            return plan_model(request, grouper, bindings, counts, previous, last)

        return await self._groupers.asked(request.grouper, request.max_tasks, planned)

    async def _starts(
        self, request: wire.RunRequest, bindings: Mapping[str, StreamId], plan: Plan, old: Mapping[Ssp, int] | None
    ) -> Mapping[Ssp, int]:
        """The first offset of every partition that a task reads, as numbers. A run that goes on keeps those of its history, one after a
        drain those where that ended, and both read partitions that are new from their beginning; a new history begins intermediate streams
        at their end."""
        inputs = {bindings[each.name] for each in request.inputs}
        ssps = {ssp for task in plan.model.tasks.values() for ssp in task.ssps}
        starts: dict[Ssp, int] = {}
        for stream in sorted({ssp.stream_id for ssp in ssps}):
            where: str | datetime = request.start if stream in inputs else "latest"
            if old is not None or where == "checkpoint":
                where = "earliest" if stream in inputs or any(ssp.stream_id == stream for ssp in old or ()) else "latest"
            offsets = await self._resolve(stream, where)
            for ssp in ssps:
                if ssp.stream_id == stream:
                    starts[ssp] = (old or {}).get(ssp, offsets[ssp.partition])
        return starts

    async def _resolve(self, stream: StreamId, where: str | datetime) -> Offsets:
        system = self._system(stream.system)
        if isinstance(where, datetime):
            return await system.at_time(stream.stream, where)
        return await (system.latest if where == "latest" else system.earliest)(stream.stream)

    async def _save(
        self,
        request: wire.RunRequest,
        streams: Sequence[Mapping[str, object]],
        before: _Before,
        plan: Plan,
        starts: Mapping[Ssp, int],
        who: str,
    ) -> RunRow | None:
        job, now, former, going_on = JobName(request.job), self._clock.now(), before.run, before.going_on
        run_id = self._new_run_id(job, now)
        async with self._store.begin() as tx:
            newest = await tx.models(job, None, 1)
            if former is not None and newest[0].version != former.model_version:
                return None
            version = await self._version(tx, job, run_id, plan.model, now, who)
            run = RunRow(
                run_id=run_id,
                job=job,
                state=RunState.CREATED,
                origin=going_on.origin if going_on else run_id,
                spec=request.model_dump(mode="json", by_alias=True),
                streams=streams,
                model_version=version,
                created_at=now,
                backup=self._blob_stores.of_config(request.config, former.backup if former else None),
            )
            await tx.put_run(run)
            await tx.put_assignment(job, plan.assignment)
            await tx.put_starts(run_id, starts)
            if (former is not None and going_on is None) or request.start != "checkpoint":  # else what a rebuild has registered goes on
                await tx.drop_stores(job)
            if former is not None:  # as it is now: its containers did not wait for us
                await ask_to_stop(tx, _undrained(await the_run(tx, former.run_id), former), now, f"replaced by run {run_id}")
        self._models.serve(job, run_id, version, plan.model)
        if former is not None:
            self._notices.ring(former.run_id)
        return run

    async def _version(self, tx: Writing, job: JobName, run_id: RunId, model: JobModel, now: datetime, who: str) -> int:
        """The version of this model: the last one's if it is the same, else the next."""
        last = await tx.model(job)
        if last is not None and last.content_hash == model.content_hash():
            return last.version
        version = last.version + 1 if last else 1
        document = wire_samza.job_model_bytes(model).decode()
        await tx.add_model(ModelRow(job, version, run_id, model.content_hash(), now, f"run {run_id} was deployed", who, document))
        return version

    async def describe(self, run_id: RunId) -> Described:
        """Raises UnknownRun."""
        async with self._store.read() as tx:
            run = await the_run(tx, run_id)
            containers = await tx.containers(run_id)
            (version,) = await tx.models(run.job, run.model_version + 1, 1)
            return Described(
                at=self._clock.now(),
                run=run,
                model=await self._models.decoded(tx, run),
                containers=containers,
                holds=[row for row in await tx.holds(run.job) if row.run_id == run_id],
                stores=await tx.stores(run.job),
                drain=await tx.newest_drain(run_id),
                failed_drains=await tx.failed_flushes(run.job),
                version=version,
                watched=[row for row in await tx.watched(run.job) if row.run_id == run_id],
                held_back=self._held_back(containers),
            )

    async def request_of(self, run_id: RunId) -> wire.RunRequest:
        """The request that made the run. Raises UnknownRun."""
        async with self._store.read() as tx:
            return wire.RunRequest.model_validate((await the_run(tx, run_id)).spec)

    def _held_back(self, containers: Sequence[ContainerRow]) -> Mapping[ProcessorId, HeldUntil]:
        """The slots that are, by now."""
        by_slot: defaultdict[ProcessorId, list[ContainerRow]] = defaultdict(list)
        for each in containers:
            by_slot[each.processor_id].append(each)
        now = self._clock.now()
        found = {pid: held_back(rows, self._hold_back) for pid, rows in by_slot.items()}
        return {pid: held for pid, held in found.items() if held is not None and held.until > now}

    async def older(self, job: JobName | None, before: RunId | None, limit: int) -> Sequence[RunRow]:
        """Up to `limit` runs of the job, or of all, newest first, from the one that is next older than `before` on.

        Raises UnknownJob, UnknownRun.
        """
        async with self._store.read() as tx:
            if job is not None and await tx.current_run(job) is None:
                raise UnknownJob(f"there is no job {job!r}")
            return await tx.runs(job, await the_run(tx, before) if before is not None else None, limit)

    async def current(self, job: JobName) -> RunRow:
        """The job's newest run, ended or not. Raises UnknownJob."""
        async with self._store.read() as tx:
            run = await tx.current_run(job)
            if run is None:
                raise UnknownJob(f"there is no job {job!r}")
            return run

    async def jobs(self) -> Sequence[JobRow]:
        async with self._store.read() as tx:
            return await tx.jobs()

    async def hosts(self, job: JobName) -> Mapping[ProcessorId, str]:
        """Processor id -> host of the newest incarnation, of the job's current run; "" where none registered. Raises UnknownJob."""
        async with self._store.read() as tx:
            run = await tx.current_run(job)
            if run is None:
                raise UnknownJob(f"there is no job {job!r}")
            hosts = dict.fromkeys(slots(int(run.spec["containers"])), "")
            return hosts | {each.processor_id: each.host for each in await tx.containers(run.run_id) if each.processor_id in hosts}

    async def stop(self, run_id: RunId, reason: str, *, failed: bool) -> RunRow:
        """Ask the run's containers to stop between batches. May run twice; an ended run is answered as it is. A drain that is on is
        cancelled, or fails if it has begun to flush. Raises UnknownRun."""
        async with self._store.begin() as tx:
            now = self._clock.now()
            run, left = await leave(tx, await the_run(tx, run_id), f"the run was stopped{f': {reason}' if reason else ''}", now)
            run = await ask_to_stop(tx, run, now, reason, failing=failed)
            containers = await containers_of(tx, run_id) if left else []
        self._show_drain(containers, None)
        self._notices.ring(run_id)
        return run


def _check_current(job: JobName, current: RunRow | None, replaces: RunId | None) -> None:
    if replaces is not None and (current is None or current.run_id != replaces):
        present = f"its current run is {current.run_id}" if current else "it has no run"
        raise NotTheCurrentRun(f"{replaces} is not to be replaced as the run of job {job}: {present}; look again, and decide anew")


def _not_draining(run: RunRow) -> RunRow:
    if run.state is RunState.DRAINING:
        raise RunIsDraining(f"run {run.run_id} of job {run.job} is draining: deploy when it has ended, or cancel the drain")
    return run


def _undrained(run: RunRow, seen: RunRow) -> RunRow:
    """Raises RunIsDraining also for one that was drained since it was `seen`: its state is not to go on from."""
    if run.state is RunState.DRAINED and seen.state is not run.state:
        raise RunIsDraining(f"run {run.run_id} of job {run.job} has been drained meanwhile: deploy again")
    return _not_draining(run)


async def _last_drain(tx: Reading, job: JobName, former: RunRow | None, start: str | datetime) -> DrainRow | None:
    """The drain after which a run begins, if it does after one. Raises NeverDrained."""
    if start == "checkpoint":
        return await tx.newest_drain(former.run_id) if former is not None and former.state is RunState.DRAINED else None
    if start != "drained":
        return None
    found = await tx.last_drained(job)
    if found is None:
        raise NeverDrained(f'job {job} was never drained: start it from "checkpoint", "earliest", "latest" or a time')
    return found
