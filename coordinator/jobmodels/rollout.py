"""The history of a job's model: its versions with who, when and why, what one changed against another, which containers have adopted one,
and the way back to an older one.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from coordinator.jobmodels.cache import JobModels
from coordinator.jobmodels.versions import Change, ChangeReason, Proposal, changeable, store_version
from coordinator.store.fleet import ContainerRow, ContainerState
from coordinator.store.groupcommit import GroupCommit
from coordinator.store.jobmodels import ModelHead, MonitoredStreamRow
from coordinator.store.runs import RunRow
from coordinator.store.sql import ReadTransaction, Store, WriteTransaction
from coordinator.transitions import containers_of, get_run
from sluice.clock import Clock
from sluice.core.errors import (
    ClientError,
    IncompatibleExpansion,
    LeaseLost,
    SluiceError,
    UnknownContainer,
    UnknownJob,
    UnknownVersion,
    VersionAdopted,
)
from sluice.core.expansion import Effect, Verdict, check_nothing_is_taken, effect
from sluice.core.ids import Epoch, ExecutionContainerId, JobName, RunId, StreamId
from sluice.core.model import JobModel, PlannedModel
from sluice.wire import samza as wire_samza

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a model with what it holds; `current`: it is in force."""

    head: ModelHead
    model: JobModel
    document: str
    current: bool


class ModelHistory:
    """`in_force` lets everybody know of a version (`Versions.in_force`)."""

    def __init__(
        self,
        store: Store,
        models: JobModels,
        clock: Clock,
        in_force: Callable[[RunRow, JobModel, Sequence[ExecutionContainerId]], None],
    ) -> None:
        self._store = store
        self._models = models
        self._clock = clock
        self._in_force = in_force

    async def versions(self, job: JobName, before: int | None, limit: int) -> tuple[Sequence[ModelHead], int]:
        """Versions of the job's model, newest first, and the number of the one in force. Raises UnknownJob."""
        async with self._store.read() as tx:
            run = await _current(tx, job)
            return await tx.jobmodels.page(job, before, limit), run.model_version

    async def version(self, job: JobName, version: int) -> Version:
        """Raises UnknownJob, UnknownVersion."""
        async with self._store.read() as tx:
            run = await _current(tx, job)
            row = await tx.jobmodels.get(job, version)
            if row is None:
                raise UnknownVersion(f"the model of job {job} has no version {version}")
            return Version(row, wire_samza.parse_job_model(json.loads(row.document)), row.document, run.model_version == version)

    async def difference(self, job: JobName, former: int, later: int) -> Effect:
        """What `later` changed against `former`. Raises UnknownJob, UnknownVersion."""
        old, new = await self.version(job, former), await self.version(job, later)
        return effect(old.model, new.model)

    async def roll_back(self, job: JobName, version: int, asked: ChangeReason) -> Change:
        """Put what an older version says in force again, as a new version, as long as no container has adopted a later one: a query that
        has run with more partitions cannot run with fewer. Streams that it takes partitions from are not grown again by themselves.

        Raises UnknownJob, UnknownVersion, StaleRun, RunIsDraining, VersionConflict, VersionAdopted, IncompatibleExpansion.
        """
        wanted = (await self.version(job, version)).model
        async with self._store.begin() as tx:
            run = await changeable(tx, (await _current(tx, job)).run_id, asked.version)
            if version >= run.model_version:
                raise UnknownVersion(f"version {version} is not older than version {run.model_version}, which is in force")
            await _not_adopted(tx, run, version)
            proposal = await self._taken_back(tx, run, wanted)
            counts = _counts_of(proposal.plan.model)
            spec = run.spec.with_counts({each.name: counts[each.id] for each in run.spec.streams if each.id in counts})
            changed = replace(run, spec=replace(spec, containers=proposal.containers))
            told = replace(asked, why=f"rolled back to version {version}{f'; {asked.why}' if asked.why else ''}")
            changed = await store_version(tx, changed, proposal.plan, told, self._clock.now())
            await _keep_from_growing(tx, run, counts, asked, self._clock.now())
            containers = await containers_of(tx, run.run_id)
        self._in_force(changed, proposal.plan.model, containers)
        log.info("job %s is back at version %d of its job model, as version %d: %s", job, version, changed.model_version, asked.why)
        return Change(changed, proposal)

    async def _taken_back(self, tx: ReadTransaction, run: RunRow, wanted: JobModel) -> Proposal:
        """Raises IncompatibleExpansion for a version that is no former one of what is in force."""
        present = await self._models.decoded(tx, run)
        try:
            check_nothing_is_taken(wanted, present)
        except IncompatibleExpansion as error:
            raise IncompatibleExpansion(
                "that version reads what the one in force does not: deploy the job again, or let it grow"
            ) from error
        if _counts_of(wanted).keys() != _counts_of(present).keys():
            raise IncompatibleExpansion("that version is of a deployment that read fewer streams: deploy the job again")
        previous = await tx.jobmodels.assignment(run.job)
        kept = {ssp for task in wanted.tasks.values() for ssp in task.ssps}
        containers = int(wanted.config.get("job.container.count", run.spec.containers))
        model = replace(wanted, config={**present.config, "job.container.count": str(containers)})
        assignment = replace(previous, tasks={ssp: task for ssp, task in previous.tasks.items() if ssp in kept})
        return Proposal(run, present, PlannedModel(model, assignment), (), effect(present, model), containers)


async def _current(tx: ReadTransaction, job: JobName) -> RunRow:
    run = await tx.runs.current(job)
    if run is None:
        raise UnknownJob(f"there is no job {job!r}")
    return run


async def _not_adopted(tx: ReadTransaction, run: RunRow, version: int) -> None:
    """Raises VersionAdopted when a container runs, or was granted something of, a later version."""
    later = await tx.jobmodels.page(run.job, version + 2, 1)
    since = later[0].created_at
    for container in await tx.fleet.containers(run.run_id):
        if container.model_version > version:
            raise VersionAdopted(
                f"container {container.execution_id} has adopted version {container.model_version}: what it reads now it cannot give up"
            )
    for hold in await tx.fleet.owners(run.job):
        if hold.run_id == run.run_id and hold.acquired_at >= since:
            raise VersionAdopted(
                f"container {hold.owner.holder} has acquired task {hold.task} since version {later[0].version} came in force"
            )


async def _keep_from_growing(tx: WriteTransaction, run: RunRow, counts: Mapping[StreamId, int], asked: ChangeReason, now: datetime) -> None:
    """Note of each stream that lost partitions which count is not to be grown to by itself."""
    watched = {row.stream_id: row for row in await tx.jobmodels.monitored(run.job) if row.run_id == run.run_id}
    for each in run.spec.streams:
        stream, had = each.id, each.partitions
        if stream not in counts or counts[stream] == had:
            continue
        reason = f"its growth to {had} partitions was taken back{f' ({asked.why})' if asked.why else ''}: ask for it to grow again"
        watched[stream] = MonitoredStreamRow(
            run.job, *(stream.system, stream.stream), run.run_id, each.name, counts[stream], had, Verdict.REFUSED, reason, now, had
        )
    await tx.jobmodels.put_monitored(run.job, list(watched.values()))


def _counts_of(model: JobModel) -> Mapping[StreamId, int]:
    found: dict[StreamId, int] = {}
    for task in model.tasks.values():
        for ssp in task.ssps:
            found[ssp.stream_id] = max(found.get(ssp.stream_id, 0), ssp.partition + 1)
    return found


@dataclass(frozen=True, slots=True)
class AdoptionReport:
    """A container's word, under its epoch."""

    run_id: RunId
    execution_id: ExecutionContainerId
    epoch: Epoch
    version: int


@dataclass(frozen=True, slots=True)
class Adopted:
    """`version`: the newest that the container has told; `current`: the run's; `all_on`: that of all live containers, if it is one."""

    version: int
    current: int
    all_on: int | None


class Adoptions:
    """Those that come at once, as when a fleet adopts a version, share a transaction."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._reports: GroupCommit[AdoptionReport, Adopted] = GroupCommit(self._record_all)

    async def report(self, report: AdoptionReport) -> Adopted:
        """Keep it. May run twice; an older version than was told before changes nothing.

        Raises UnknownRun, UnknownContainer, UnknownVersion for one that the run has not come to, and LeaseLost for an incarnation that is
        not valid.
        """
        return await self._reports.submit(report)

    async def _record_all(self, asked: Sequence[AdoptionReport]) -> Sequence[Adopted | SluiceError]:
        async with self._store.begin() as tx:
            found = [await self._record(tx, each) for each in asked]
            all_on = {run_id: version_of_all(await tx.fleet.containers(run_id)) for run_id in {each.run_id for each in asked}}
        return [
            replace(answer, all_on=all_on[each.run_id]) if isinstance(answer, Adopted) else answer
            for each, answer in zip(asked, found, strict=True)
        ]

    async def _record(self, tx: WriteTransaction, report: AdoptionReport) -> Adopted | SluiceError:
        try:
            run = await get_run(tx, report.run_id)
            container = await tx.fleet.container(report.execution_id)
            if container is None or container.run_id != report.run_id:
                raise UnknownContainer(f"run {report.run_id} has no container {report.execution_id!r}")
            if container.state is not ContainerState.LIVE or container.epoch != report.epoch:
                raise LeaseLost(f"{report.execution_id} with epoch {report.epoch} is not a valid container of run {report.run_id}")
            if report.version > run.model_version:
                raise UnknownVersion(
                    f"run {report.run_id} is at version {run.model_version} of its job model: there is no {report.version} yet"
                )
        except (ClientError, LeaseLost) as refusal:
            return refusal
        if report.version > container.model_version:
            container = replace(container, model_version=report.version, adopted_at=self._clock.now())
            await tx.fleet.put_container(container)
        return Adopted(container.model_version, run.model_version, None)


def version_of_all(containers: Iterable[ContainerRow]) -> int | None:
    """The version that every live container runs; None while they differ, or when none is alive."""
    versions = {each.model_version for each in containers if each.state is ContainerState.LIVE}
    return versions.pop() if len(versions) == 1 else None
