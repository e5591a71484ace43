"""The history of a job's model: versions with who, when and why, what one changed against another, and the way back."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from coordinator.drainsteps import containers_of
from coordinator.jobmodels import JobModels
from coordinator.store.port import Reading, RunRow, Store, Writing
from coordinator.store.versions import ModelHead, WatchedRow
from coordinator.versions import Asked, Change, Proposal, changeable, store_version, stream_of
from sluice.clock import Clock
from sluice.core.errors import IncompatibleExpansion, UnknownJob, UnknownVersion, VersionAdopted
from sluice.core.expansion import Effect, Verdict, check_nothing_is_taken, effect
from sluice.core.ids import ExecutionContainerId, JobName, StreamId
from sluice.core.model import JobModel, Plan
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
            return await tx.models(job, before, limit), run.model_version

    async def version(self, job: JobName, version: int) -> Version:
        """Raises UnknownJob, UnknownVersion."""
        async with self._store.read() as tx:
            run = await _current(tx, job)
            row = await tx.model(job, version)
            if row is None:
                raise UnknownVersion(f"the model of job {job} has no version {version}")
            return Version(row, wire_samza.parse_job_model(json.loads(row.document)), row.document, run.model_version == version)

    async def difference(self, job: JobName, former: int, later: int) -> Effect:
        """What `later` changed against `former`. Raises UnknownJob, UnknownVersion."""
        old, new = await self.version(job, former), await self.version(job, later)
        return effect(old.model, new.model)

    async def roll_back(self, job: JobName, version: int, asked: Asked) -> Change:
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
            streams = [{**each, "partitions": counts.get(stream_of(each), each["partitions"])} for each in run.streams]
            changed = replace(run, streams=streams, spec={**run.spec, "containers": proposal.containers})
            told = replace(asked, why=f"rolled back to version {version}{f'; {asked.why}' if asked.why else ''}")
            changed = await store_version(tx, changed, proposal.plan, told, self._clock.now())
            await _keep_from_growing(tx, run, counts, asked, self._clock.now())
            containers = await containers_of(tx, run.run_id)
        self._in_force(changed, proposal.plan.model, containers)
        log.info("job %s is back at version %d of its job model, as version %d: %s", job, version, changed.model_version, asked.why)
        return Change(changed, proposal)

    async def _taken_back(self, tx: Reading, run: RunRow, wanted: JobModel) -> Proposal:
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
        previous = await tx.assignment(run.job)
        kept = {ssp for task in wanted.tasks.values() for ssp in task.ssps}
        containers = int(wanted.config.get("job.container.count", run.spec["containers"]))
        model = replace(wanted, config={**present.config, "job.container.count": str(containers)})
        assignment = replace(previous, tasks={ssp: task for ssp, task in previous.tasks.items() if ssp in kept})
        return Proposal(run, present, Plan(model, assignment), (), effect(present, model), containers)


async def _current(tx: Reading, job: JobName) -> RunRow:
    run = await tx.current_run(job)
    if run is None:
        raise UnknownJob(f"there is no job {job!r}")
    return run


async def _not_adopted(tx: Reading, run: RunRow, version: int) -> None:
    """Raises VersionAdopted when a container runs, or was granted something of, a later version."""
    later = await tx.models(run.job, version + 2, 1)
    since = later[0].created_at
    for container in await tx.containers(run.run_id):
        if container.model_version > version:
            raise VersionAdopted(
                f"container {container.execution_id} has adopted version {container.model_version}: what it reads now it cannot give up"
            )
    for hold in await tx.holds(run.job):
        if hold.run_id == run.run_id and hold.acquired_at >= since:
            raise VersionAdopted(
                f"container {hold.hold.holder} has acquired task {hold.task} since version {later[0].version} came in force"
            )


async def _keep_from_growing(tx: Writing, run: RunRow, counts: Mapping[StreamId, int], asked: Asked, now: datetime) -> None:
    """Note of each stream that lost partitions which count is not to be grown to by itself."""
    watched = {row.stream_id: row for row in await tx.watched(run.job) if row.run_id == run.run_id}
    for each in run.streams:
        stream, had = stream_of(each), int(each["partitions"])
        if stream not in counts or counts[stream] == had:
            continue
        reason = f"its growth to {had} partitions was taken back{f' ({asked.why})' if asked.why else ''}: ask for it to grow again"
        watched[stream] = WatchedRow(
            run.job, *(stream.system, stream.stream), run.run_id, str(each["name"]), counts[stream], had, Verdict.REFUSED, reason, now, had
        )
    await tx.put_watched(run.job, list(watched.values()))


def _counts_of(model: JobModel) -> Mapping[StreamId, int]:
    found: dict[StreamId, int] = {}
    for task in model.tasks.values():
        for ssp in task.ssps:
            found[ssp.stream_id] = max(found.get(ssp.stream_id, 0), ssp.partition + 1)
    return found
