"""New versions of the job model of a live run: proposed, and put in force in one transaction.

Concurrency is optimistic: a change is planned without a lock from the version that was read, and the transaction refuses it if another
version has come into force. After a crash either the former version or the new one is in force. Memory is updated after the commit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from coordinator.blobpool import BlobStores
from coordinator.fleet.notices import Notices
from coordinator.jobmodels.cache import JobModels
from coordinator.jobmodels.groupers import Groupers
from coordinator.jobmodels.standby import with_standbys
from coordinator.store.fleet import ContainerRow, ContainerState, TaskOwnershipRow
from coordinator.store.jobmodels import ModelRow
from coordinator.store.runs import RunRow
from coordinator.store.sql import ReadTransaction, Store, WriteTransaction
from coordinator.transitions import containers_of, get_run
from sluice import tracing
from sluice.clock import Clock
from sluice.core.errors import BadPlacement, RunIsDraining, StaleRun, UnknownStream, UnknownSystem, VersionConflict
from sluice.core.ids import ExecutionContainerId, ProcessorId, RunId, Ssp
from sluice.core.jobmodels.expansion import Effect, StreamCount, StreamVerdict, Verdict, counts_now, effect, evaluate, overall
from sluice.core.jobmodels.grouping import Grouper, PreviousAssignment
from sluice.core.jobmodels.model import JobModel, PlannedModel, plan_model
from sluice.core.jobmodels.placement import Homes, scaled
from sluice.core.lifecycle import RunState
from sluice.streams.port import StreamSystem
from sluice.wire import samza as wire_samza

log = logging.getLogger(__name__)

SetModelVersion = Callable[[Sequence[ExecutionContainerId], int], None]
"""Sets the version in the answers to the heartbeats of these containers."""


@dataclass(frozen=True, slots=True)
class ModelChange:
    """A change of a run's model. None: no change of this part. `counts`: partition counts, looked up or hypothetical, by the job's names of
    the streams. `away`: slots that get no tasks. `homes`: the preferred slots of tasks, instead of those on the hosts where they ran."""

    containers: int | None = None
    counts: Mapping[str, StreamCount] | None = None
    away: frozenset[ProcessorId] | None = None
    homes: Homes | None = None


@dataclass(frozen=True, slots=True)
class ChangeReason:
    """Who requested the change, and why. `version`: make the change only if this version is in force; None: any version."""

    who: str
    why: str
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """The next model of a run, planned from its version in force."""

    run: RunRow
    former: JobModel
    plan: PlannedModel
    verdicts: Sequence[StreamVerdict]
    effect: Effect
    slots: Sequence[ProcessorId]

    @property
    def containers(self) -> int:
        return len(self.slots)

    @property
    def changed(self) -> bool:
        return not self.effect.nothing or list(self.slots) != list(self.run.spec.slots)

    @property
    def verdict(self) -> Verdict:
        return overall(self.verdicts, changed=self.changed)

    @property
    def reasons(self) -> Sequence[str]:
        return [each.reason for each in self.verdicts if each.reason]


@dataclass(frozen=True, slots=True)
class Change:
    """A change that was made. `run`: the run after the change. Its version is that of `proposal.run` if nothing had to be changed."""

    run: RunRow
    proposal: Proposal


@dataclass(frozen=True, slots=True)
class _Basis:
    """The input of a plan. `live`: the slots with a live container. `homes`: the slots on hosts where a task may have left its state."""

    run: RunRow
    model: JobModel
    previous: PreviousAssignment
    live: frozenset[ProcessorId]
    homes: Homes


class ModelVersions:
    """`set_model_version` announces a version in the answers to heartbeats."""

    def __init__(
        self,
        store: Store,
        systems: Mapping[str, StreamSystem],
        models: JobModels,
        notices: Notices,
        clock: Clock,
        groupers: Groupers,
        set_model_version: SetModelVersion,
        blob_stores: BlobStores,
    ) -> None:
        self._store = store
        self._systems = systems
        self._models = models
        self._notices = notices
        self._clock = clock
        self._groupers = groupers
        self._set_model_version = set_model_version
        self._blob_stores = blob_stores

    # --- proposing -------------------------------------------------------------------------------------------------

    async def propose(self, run_id: RunId, change: ModelChange) -> Proposal:
        """Plan a change without making it. Raises UnknownRun, BadGrouping, and BadPlacement, also when tasks would move away from their
        state."""
        async with self._store.read() as tx:
            run = await get_run(tx, run_id)
            basis = await self._read_basis(tx, run)
        return await self._plan(basis, change)

    async def _read_basis(self, tx: ReadTransaction, run: RunRow) -> _Basis:
        rows = await tx.fleet.containers(run.run_id)
        live = frozenset(each.processor_id for each in rows if each.state is ContainerState.LIVE)
        model = await self._models.decoded(tx, run)
        homes = with_standbys(homes_of(rows, await tx.fleet.owners(run.job)), run, model.placement, rows)
        return _Basis(run, model, await tx.jobmodels.assignment(run.job), live, homes)

    async def _plan(self, basis: _Basis, change: ModelChange) -> Proposal:
        run, model, previous = basis.run, basis.model, basis.previous
        away = change.away
        if away is None:  # a request for more containers also uses slots that have a container again
            away = reassigned_slots(run, model) - (basis.live if change.containers is not None else frozenset())
        spec = run.spec if change.containers is None else run.spec.with_slots(scaled(run.spec.slots, change.containers, away))
        processors = [pid for pid in spec.slots if pid not in away]
        counted = _counted(run, change.counts or {})
        homes = {**basis.homes, **(change.homes or {})}

        def evaluated(grouper: Grouper) -> tuple[PlannedModel, Sequence[StreamVerdict], Effect]:
            plan, found = evaluate(
                counted, lambda counts: plan_model(spec.with_counts(counts), grouper, previous, model, processors, homes), model
            )
            return plan, found, effect(model, plan.model)

        plan, found, changes = await self._groupers.apply(spec.grouper, spec.max_tasks, evaluated)
        check_state_moves(run, changes, self._blob_stores)
        return Proposal(run, model, plan, found, changes, spec.slots)

    # --- putting in force ------------------------------------------------------------------------------------------

    async def change(self, run_id: RunId, change: ModelChange, reason: ChangeReason) -> Change:
        """Put a new version of the run's model in force, grown as far as is safe. Creates no version if nothing changes.

        Raises the errors of `propose`, StaleRun, RunIsDraining, VersionConflict, and UnknownSystem or StreamUnavailable if the earliest
        offsets of new partitions cannot be looked up; nothing is changed then."""
        async with self._store.read() as tx:
            run = await get_changeable_run(tx, run_id, reason.version)
            basis = await self._read_basis(tx, run)
        proposal = await self._plan(basis, change)
        if not proposal.changed:
            return Change(run, proposal)
        return Change(await self._store_change(proposal, replace(reason, why=_why(proposal, reason.why))), proposal)

    async def _store_change(self, proposal: Proposal, reason: ChangeReason) -> RunRow:
        """Store in one transaction: the model, the assignment, the start offsets of new partitions, the run, and the notice to its
        containers."""
        run, plan = proposal.run, proposal.plan
        earliest_offsets = await self._earliest_offsets(proposal.effect.partitions.keys())
        counts = counts_now(each.count for each in proposal.verdicts if each.verdict is Verdict.SAFE)
        async with self._store.begin() as tx:
            now_run = await get_changeable_run(tx, run.run_id, run.model_version)
            await tx.runs.put_start_offsets(
                run.run_id, earliest_offsets
            )  # replaces those of growth that was rolled back, because no task has read it
            changed = replace(now_run, spec=now_run.spec.with_counts(counts).with_slots(proposal.slots))
            changed = await store_version(tx, changed, plan, reason, self._clock.now())
            containers = await containers_of(tx, run.run_id)
        self.in_force(changed, plan.model, containers)
        log.info("run %s: version %d of the job model is in force: %s", run.run_id, changed.model_version, reason.why)
        return changed

    def in_force(self, run: RunRow, model: JobModel, containers: Sequence[ExecutionContainerId]) -> None:
        """Announce a version after the commit. It does not await, so no other transaction writes before it returns."""
        self._models.serve(run.job, run.run_id, run.model_version, model)
        self._set_model_version(containers, run.model_version)
        self._notices.notify(run.run_id)

    async def _earliest_offsets(self, ssps: Collection[Ssp]) -> Mapping[Ssp, int]:
        """The earliest offset of each partition, so that a new one is read from its beginning."""
        found: dict[Ssp, int] = {}
        for stream in sorted({ssp.stream_id for ssp in ssps}):
            if stream.system not in self._systems:
                raise UnknownSystem(f"the run reads {stream}, and the system {stream.system!r} is no longer configured")
            earliest = await self._systems[stream.system].earliest(stream.stream)
            for ssp in ssps:
                if ssp.stream_id == stream:
                    if ssp.partition not in earliest:
                        raise UnknownStream(f"{stream} has no partition {ssp.partition}")
                    found[ssp] = earliest[ssp.partition]
        return found


def check_state_moves(run: RunRow, effect: Effect, blob_stores: BlobStores) -> None:
    """A task can only be moved if its state is in a blob store. Raises BadPlacement."""
    if effect.moves and run.spec.stateful and not blob_stores.backup(run.backup).to:
        names = ", ".join(str(move.task) for move in effect.moves[:3]) + (" and others" if len(effect.moves) > 3 else "")
        raise BadPlacement(
            f"run {run.run_id} is not backed up, so the state of the tasks that would move ({names}) would stay behind: set blob stores "
            f"first (PUT /runs/{run.run_id}/backup), or drain the job and deploy it with that number of containers"
        )


def _why(proposal: Proposal, why: str) -> str:
    """The text of what changed, with the reason in the request."""
    before = proposal.run.spec.containers
    scaled = [f"scaled from {before} to {proposal.containers} containers"] if proposal.containers != before else []
    grown = [each.reason for each in proposal.verdicts if each.verdict is Verdict.SAFE]
    return "; ".join([*scaled, *grown, *([why] if why else [])]) or "its tasks are assigned again"


def homes_of(rows: Sequence[ContainerRow], holds: Sequence[TaskOwnershipRow]) -> Homes:
    """Where the state of a task may still be on a disk: the live slots on the host of the task's last owner."""
    host_of = {row.execution_id: row.host for row in rows}
    on_host: dict[str, list[ProcessorId]] = {}
    for row in rows:
        if row.state is ContainerState.LIVE and row.host:
            on_host.setdefault(row.host, []).append(row.processor_id)
    return {hold.task: on_host.get(host_of.get(hold.owner.holder, ""), []) for hold in holds}


def reassigned_slots(run: RunRow, model: JobModel) -> frozenset[ProcessorId]:
    """The slots of the run that have no tasks, because a fail-over reassigned them."""
    if len(model.containers) == run.spec.containers:  # nearly always; asked each second, and a run may have ten thousand slots
        return frozenset()
    return frozenset(run.spec.slots) - model.containers.keys()


async def store_version(tx: WriteTransaction, run: RunRow, plan: PlannedModel, reason: ChangeReason, now: datetime) -> RunRow:
    """Write the plan as the next version of the job's model, the run with that version, and the notice to its containers."""
    model = plan.model
    (newest,) = await tx.jobmodels.page(run.job, None, 1)
    version, document = await tx.origin.next_number(newest.version), wire_samza.job_model_bytes(model).decode()
    await tx.jobmodels.add(ModelRow(run.job, version, run.run_id, model.content_hash(), now, reason.why, reason.who, document))
    await tx.jobmodels.put_assignment(run.job, plan.assignment)
    changed = replace(run, model_version=version)
    await tx.runs.put(changed)
    detail = {"version": version, "containers": run.spec.containers, "why": reason.why}
    await tx.runs.add_notice(run.run_id, "MODEL", now, detail)
    tracing.record_whole(tracing.version_subject(run.run_id, version), "version", now, now, job=run.job, version=version, why=reason.why)
    return changed


async def get_changeable_run(tx: ReadTransaction, run_id: RunId, version: int | None) -> RunRow:
    """The run, if its model may change. Raises UnknownRun, StaleRun, RunIsDraining, VersionConflict."""
    run = await get_run(tx, run_id)
    current = await tx.runs.current(run.job)
    if run.state.ended or run.stop_requested_at is not None or current is None or current.run_id != run_id:
        raise StaleRun(f"run {run_id} of job {run.job} has ended, is stopping or was replaced, so its job model can no longer change")
    if run.state is RunState.DRAINING:
        raise RunIsDraining(f"run {run_id} of job {run.job} is draining: its job model is frozen until the drain ends")
    if version is not None and version != run.model_version:
        raise VersionConflict(
            f"version {run.model_version} of the job model of {run.job} is in force, not version {version}: reload and try again"
        )
    return run


def hypothetical(run: RunRow, counts: Mapping[str, int]) -> Mapping[str, StreamCount]:
    """Hypothetical partition counts of a run's inputs, by the job's names. Raises UnknownStream for a name that is not an input of the
    run."""
    inputs = {each.name: each for each in run.spec.monitored}
    for name in counts:
        if name not in inputs:
            raise UnknownStream(f"run {run.run_id} has no input {name!r} that a stage reads: it has {', '.join(sorted(inputs))}")
    return {name: StreamCount(name, inputs[name].id, inputs[name].partitions, count) for name, count in counts.items()}


def _counted(run: RunRow, counts: Mapping[str, StreamCount]) -> Sequence[StreamCount]:
    """Every stream that a stage reads, with its new count, or its present count if there is no new one."""
    return [counts.get(each.name) or StreamCount(each.name, each.id, each.partitions, each.partitions) for each in run.spec.streams_read]
