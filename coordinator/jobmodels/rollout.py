"""The rollout of job models: the history of versions (who, when, why), the difference between two versions, rollback, and which containers
have adopted which version.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from coordinator.blobpool import BlobStores
from coordinator.jobmodels.cache import JobModels
from coordinator.jobmodels.versions import Change, ChangeReason, Proposal, check_state_moves, get_changeable_run, store_version
from coordinator.store.fleet import ContainerRow, ContainerState, TaskOwnershipRow
from coordinator.store.groupcommit import GroupCommit
from coordinator.store.jobmodels import ModelHead, MonitoredStreamRow
from coordinator.store.runs import RunRow
from coordinator.store.sql import ReadTransaction, Store, WriteTransaction
from coordinator.transitions import containers_of
from sluice.clock import Clock
from sluice.core.errors import (
    ClientError,
    IncompatibleExpansion,
    LeaseLost,
    SluiceError,
    UnknownContainer,
    UnknownJob,
    UnknownRun,
    UnknownVersion,
    VersionAdopted,
)
from sluice.core.ids import Epoch, ExecutionContainerId, JobName, RunId, StreamId
from sluice.core.jobmodels.expansion import Effect, Verdict, check_nothing_is_taken, effect
from sluice.core.jobmodels.model import JobModel, PlannedModel
from sluice.core.jobmodels.placement import in_order, scaled
from sluice.wire import samza as wire_samza

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a model. `document`: the model as stored, in Samza's JSON; `current`: it is in force."""

    head: ModelHead
    model: JobModel
    document: str
    current: bool


class ModelHistory:
    """`in_force` announces a version (`ModelVersions.in_force`)."""

    def __init__(
        self,
        store: Store,
        models: JobModels,
        clock: Clock,
        in_force: Callable[[RunRow, JobModel, Sequence[ExecutionContainerId]], None],
        blob_stores: BlobStores,
    ) -> None:
        self._store = store
        self._models = models
        self._clock = clock
        self._in_force = in_force
        self._blob_stores = blob_stores

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
        """What `later` changed compared with `former`. Raises UnknownJob, UnknownVersion."""
        old, new = await self.version(job, former), await self.version(job, later)
        return effect(old.model, new.model)

    async def roll_back(self, job: JobName, version: int, reason: ChangeReason) -> Change:
        """Put an older version in force again, as a new version. Refused once a container has adopted a later version, because a query that
        has run with more partitions cannot run with fewer. Streams that lose partitions do not grow back automatically.

        Raises UnknownJob, UnknownVersion, StaleRun, RunIsDraining, VersionConflict, VersionAdopted, IncompatibleExpansion, BadPlacement.
        """
        wanted = (await self.version(job, version)).model
        async with self._store.begin() as tx:
            run = await get_changeable_run(tx, (await _current(tx, job)).run_id, reason.version)
            if version >= run.model_version:
                raise UnknownVersion(f"version {version} is not older than version {run.model_version}, which is in force")
            await _not_adopted(tx, run, version)
            proposal = await self._older_model(tx, run, wanted)
            counts = _counts_of(proposal.plan.model)
            spec = run.spec.with_counts({each.name: counts[each.id] for each in run.spec.streams if each.id in counts})
            changed = replace(run, spec=spec.with_slots(proposal.slots))
            full_reason = replace(reason, why=f"rolled back to version {version}{f'; {reason.why}' if reason.why else ''}")
            changed = await store_version(tx, changed, proposal.plan, full_reason, self._clock.now())
            await _prevent_growth(tx, run, counts, reason, self._clock.now())
            containers = await containers_of(tx, run.run_id)
        self._in_force(changed, proposal.plan.model, containers)
        log.info(
            "job %s was rolled back to version %d of its job model, as version %d: %s", job, version, changed.model_version, reason.why
        )
        return Change(changed, proposal)

    async def _older_model(self, tx: ReadTransaction, run: RunRow, wanted: JobModel) -> Proposal:
        """Plan the rollback. Raises IncompatibleExpansion if the version in force did not grow from `wanted`, and BadPlacement if tasks
        would be moved away from their state."""
        present = await self._models.decoded(tx, run)
        try:
            check_nothing_is_taken(wanted, present)
        except IncompatibleExpansion as error:
            raise IncompatibleExpansion(
                "that version reads partitions that the one in force does not: deploy the job again, or let it grow"
            ) from error
        if _counts_of(wanted).keys() != _counts_of(present).keys():
            raise IncompatibleExpansion("that version belongs to a deployment that read fewer streams: deploy the job again")
        previous = await tx.jobmodels.assignment(run.job)
        read = _counts_of(wanted).keys()
        remaining = {ssp for task in wanted.tasks.values() for ssp in task.ssps}
        containers = int(wanted.config.get("job.container.count", run.spec.containers))
        config = {**present.config, "job.container.count": str(containers)}
        model = replace(wanted, config=config, changelog_partitions=present.changelog_partitions)
        kept = {ssp: task for ssp, task in previous.tasks.items() if ssp in remaining or ssp.stream_id not in read}
        assignment = replace(previous, tasks=kept)
        changes = effect(present, model)
        check_state_moves(run, changes, self._blob_stores)
        return Proposal(run, present, PlannedModel(model, assignment), (), changes, scaled(in_order(wanted.containers), containers, ()))


async def _current(tx: ReadTransaction, job: JobName) -> RunRow:
    run = await tx.runs.current(job)
    if run is None:
        raise UnknownJob(f"there is no job {job!r}")
    return run


async def _not_adopted(tx: ReadTransaction, run: RunRow, version: int) -> None:
    """Raises VersionAdopted if a container runs a later version, or has acquired a task of one."""
    later = await tx.jobmodels.page(run.job, version + 2, 1)
    since = later[0].created_at
    for container in await tx.fleet.containers(run.run_id):
        if container.model_version > version:
            raise VersionAdopted(
                f"container {container.execution_id} has adopted version {container.model_version}, and a query cannot give partitions up"
            )
    for hold in await tx.fleet.owners(run.job):
        adopted = hold.model_version > version if hold.model_version else hold.acquired_at >= since
        if hold.run_id == run.run_id and adopted:
            raise VersionAdopted(
                f"container {hold.owner.holder} has acquired task {hold.task} since version {later[0].version} came into force"
            )


async def _prevent_growth(tx: WriteTransaction, run: RunRow, counts: Mapping[StreamId, int], reason: ChangeReason, now: datetime) -> None:
    """For each stream that lost partitions, record the count to which it must not grow automatically."""
    watched = {row.stream_id: row for row in await tx.jobmodels.monitored(run.job) if row.run_id == run.run_id}
    for each in run.spec.streams:
        stream, had = each.id, each.partitions
        if stream not in counts or counts[stream] == had:
            continue
        why = f"its growth to {had} partitions was rolled back{f' ({reason.why})' if reason.why else ''}: request growth again"
        watched[stream] = MonitoredStreamRow(
            run.job, *(stream.system, stream.stream), run.run_id, each.name, counts[stream], had, Verdict.REFUSED, why, now, had
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
    """The version that a container runs, reported under its epoch."""

    run_id: RunId
    execution_id: ExecutionContainerId
    epoch: Epoch
    version: int


@dataclass(frozen=True, slots=True)
class AdoptionState:
    """`version`: the newest version that the container has reported. `current`: the run's version. `all_on`: the version that all live
    containers run; None if they differ."""

    version: int
    current: int
    all_on: int | None


class Adoptions:
    """Records which version each container runs. Concurrent reports, as when a fleet adopts a version, share a transaction. `set_adopted`
    announces what is recorded in the answers to heartbeats, so that a container whose report was lost sends it again. `on_released` is
    called with the tasks that a report has released."""

    def __init__(
        self,
        store: Store,
        models: JobModels,
        clock: Clock,
        set_adopted: Callable[[ExecutionContainerId, int], None],
        on_released: Callable[[Sequence[TaskOwnershipRow]], None],
    ) -> None:
        self._store = store
        self._models = models
        self._clock = clock
        self._set_adopted = set_adopted
        self._on_released = on_released
        self._reports: GroupCommit[AdoptionReport, AdoptionState] = GroupCommit(self._record_all)

    async def report(self, report: AdoptionReport) -> AdoptionState:
        """Record a report. Idempotent. A report of an older version changes nothing.

        Raises UnknownRun, UnknownContainer, UnknownVersion for a version that the run does not have yet, and LeaseLost for an incarnation
        that is not valid.
        """
        return await self._reports.submit(report)

    async def _record_all(self, reports: Sequence[AdoptionReport]) -> Sequence[AdoptionState | SluiceError]:
        async with self._store.begin() as tx:
            runs = {run_id: await tx.runs.get(run_id) for run_id in {each.run_id for each in reports}}
            released: list[TaskOwnershipRow] = []
            found = [await self._record(tx, runs[each.run_id], each, released) for each in reports]
            all_on = {run.run_id: _only((await tx.fleet.counts(run.run_id, run.job)).versions) for run in runs.values() if run is not None}
        self._on_released(released)
        for each, answer in zip(reports, found, strict=True):
            if isinstance(answer, AdoptionState):
                self._set_adopted(each.execution_id, answer.version)
        return [
            replace(answer, all_on=all_on[each.run_id]) if isinstance(answer, AdoptionState) else answer
            for each, answer in zip(reports, found, strict=True)
        ]

    async def _record(
        self, tx: WriteTransaction, run: RunRow | None, report: AdoptionReport, released: list[TaskOwnershipRow]
    ) -> AdoptionState | SluiceError:
        try:
            if run is None:
                raise UnknownRun(f"there is no run {report.run_id!r}")
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
        if report.version == run.model_version:
            released += await self._release_others(tx, run, container)
        return AdoptionState(container.model_version, run.model_version, None)

    async def _release_others(self, tx: WriteTransaction, run: RunRow, container: ContainerRow) -> Sequence[TaskOwnershipRow]:
        """Release the tasks of the container that the model in force assigns to other slots. A container that reports a version runs none
        of them; it owns one only if it never received the answer to its acquire, and then it cannot release the task itself."""
        mine = (await self._models.decoded(tx, run)).containers.get(container.processor_id)
        wanted = frozenset(task.name for task in mine.tasks.values()) if mine else frozenset()
        rows = [row for row in await tx.fleet.owned_by(container.execution_id) if row.run_id == run.run_id and row.task not in wanted]
        for row in rows:
            log.warning("task %s is released: container %s reports that it does not run it", row.task, container.execution_id)
        await tx.fleet.put_owners(replace(row, owner=replace(row.owner, released=True)) for row in rows)
        return rows


def version_of_all(containers: Iterable[ContainerRow]) -> int | None:
    """The version that all live containers run; None if they differ or none is alive."""
    return _only({each.model_version for each in containers if each.state is ContainerState.LIVE})


def _only(versions: Collection[int]) -> int | None:
    return next(iter(versions)) if len(versions) == 1 else None
