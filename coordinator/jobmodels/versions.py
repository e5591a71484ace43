"""Versions of the job models of runs that go on: proposed, and put in force in one transaction.

Optimistic: whoever wants a change plans it from the version that he saw, without holding anybody up, and the transaction refuses it when
another version is in force by then. A crash leaves the former version or the new one, whole; what is in memory follows the transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from coordinator.fleet.notices import Notices
from coordinator.jobmodels.cache import JobModels
from coordinator.jobmodels.groupers import Groupers
from coordinator.jobmodels.standby import with_standbys
from coordinator.store.fleet import ContainerRow, ContainerState, TaskOwnershipRow
from coordinator.store.jobmodels import ModelRow
from coordinator.store.runs import RunRow
from coordinator.store.sql import ReadTransaction, Store, WriteTransaction
from coordinator.transitions import containers_of, get_run
from sluice.clock import Clock
from sluice.core.errors import RunIsDraining, StaleRun, UnknownStream, UnknownSystem, VersionConflict
from sluice.core.expansion import Counted, Effect, Judged, Verdict, counts_now, effect, judge, overall
from sluice.core.grouping import Grouper, Previous
from sluice.core.ids import ExecutionContainerId, ProcessorId, RunId, Ssp
from sluice.core.lifecycle import RunState
from sluice.core.model import JobModel, PlannedModel, plan_model
from sluice.core.placement import Homes, slots
from sluice.streams.port import StreamSystem
from sluice.wire import samza as wire_samza

log = logging.getLogger(__name__)

SetModelVersion = Callable[[Sequence[ExecutionContainerId], int], None]
"""Tells which version the answers to these containers' heartbeats name."""


@dataclass(frozen=True, slots=True)
class ModelChange:
    """What a run's model is to become; None leaves it as it is. `counts`: streams as somebody saw or supposes them, by the job's names;
    `away`: slots that are given no tasks; `homes`: where tasks would rather be than on the hosts where they ran."""

    containers: int | None = None
    counts: Mapping[str, Counted] | None = None
    away: frozenset[ProcessorId] | None = None
    homes: Homes | None = None


@dataclass(frozen=True, slots=True)
class ChangeReason:
    """By whom and why; `version`: only while that is the run's version, None for whichever is."""

    who: str
    why: str
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """What would become of a run's model, made from its version in force."""

    run: RunRow
    former: JobModel
    plan: PlannedModel
    judged: Sequence[Judged]
    effect: Effect
    containers: int

    @property
    def changed(self) -> bool:
        return not self.effect.nothing or self.containers != self.run.spec.containers

    @property
    def verdict(self) -> Verdict:
        return overall(self.judged, changed=self.changed)

    @property
    def reasons(self) -> Sequence[str]:
        return [each.reason for each in self.judged if each.reason]


@dataclass(frozen=True, slots=True)
class Change:
    """What was done: the run as it is now, under `proposal.run.model_version` when nothing was to be changed."""

    run: RunRow
    proposal: Proposal


@dataclass(frozen=True, slots=True)
class _Known:
    """What a proposal is made from; `live`: the slots with a live container; `homes`: where tasks may have left their state."""

    run: RunRow
    model: JobModel
    previous: Previous
    live: frozenset[ProcessorId]
    homes: Homes


class ModelVersions:
    """`set_model_version` tells live containers by their heartbeats."""

    def __init__(
        self,
        store: Store,
        systems: Mapping[str, StreamSystem],
        models: JobModels,
        notices: Notices,
        clock: Clock,
        groupers: Groupers,
        set_model_version: SetModelVersion,
    ) -> None:
        self._store = store
        self._systems = systems
        self._models = models
        self._notices = notices
        self._clock = clock
        self._groupers = groupers
        self._set_model_version = set_model_version

    # --- proposing -------------------------------------------------------------------------------------------------

    async def propose(self, run_id: RunId, change: ModelChange) -> Proposal:
        """What would become of the run's model. Changes nothing. Raises UnknownRun, BadGrouping, BadPlacement."""
        async with self._store.read() as tx:
            run = await get_run(tx, run_id)
            known = await self._known(tx, run)
        return await self._proposed(known, change)

    async def _known(self, tx: ReadTransaction, run: RunRow) -> _Known:
        rows = await tx.fleet.containers(run.run_id)
        live = frozenset(each.processor_id for each in rows if each.state is ContainerState.LIVE)
        model = await self._models.decoded(tx, run)
        homes = with_standbys(homes_of(rows, await tx.fleet.owners(run.job)), run, model.placement, rows)
        return _Known(run, model, await tx.jobmodels.assignment(run.job), live, homes)

    async def _proposed(self, known: _Known, change: ModelChange) -> Proposal:
        run, model, previous = known.run, known.model, known.previous
        spec = run.spec if change.containers is None else replace(run.spec, containers=change.containers)
        away = change.away
        if away is None:  # whoever asks for containers wants those that are back to be used
            away = reassigned_slots(run, model) - (known.live if change.containers is not None else frozenset())
        processors = [pid for pid in slots(spec.containers) if pid not in away]
        counted = _counted(run, change.counts or {})
        homes = {**known.homes, **(change.homes or {})}

        def judged(grouper: Grouper) -> tuple[PlannedModel, Sequence[Judged], Effect]:
            plan, found = judge(
                counted, lambda counts: plan_model(spec.with_counts(counts), grouper, previous, model, processors, homes), model
            )
            return plan, found, effect(model, plan.model)

        plan, found, changes = await self._groupers.apply(spec.grouper, spec.max_tasks, judged)
        return Proposal(run, model, plan, found, changes, spec.containers)

    # --- putting in force ------------------------------------------------------------------------------------------

    async def change(self, run_id: RunId, change: ModelChange, reason: ChangeReason) -> Change:
        """Give the run a new version of its model: grown as far as is safe, on the slots that are wished for. May find nothing to do.

        Raises what `propose` raises, StaleRun, RunIsDraining, VersionConflict, and UnknownSystem or StreamUnavailable when the beginnings
        of new partitions cannot be looked up; nothing is changed then.
        """
        async with self._store.read() as tx:
            run = await changeable(tx, run_id, reason.version)
            known = await self._known(tx, run)
        proposal = await self._proposed(known, change)
        if not proposal.changed:
            return Change(run, proposal)
        return Change(await self._put(proposal, replace(reason, why=_why(proposal, reason.why))), proposal)

    async def _put(self, proposal: Proposal, reason: ChangeReason) -> RunRow:
        """In one transaction: the model, the assignment, where new partitions begin, the run, and the word to its containers."""
        run, plan = proposal.run, proposal.plan
        beginnings = await self._beginnings(proposal.effect.partitions.keys())
        counts = counts_now(each.counted for each in proposal.judged if each.verdict is Verdict.SAFE)
        async with self._store.begin() as tx:
            now_run = await changeable(tx, run.run_id, run.model_version)
            await tx.runs.put_start_offsets(run.run_id, beginnings)  # also of what was rolled back: nobody has read it
            changed = replace(now_run, spec=replace(now_run.spec.with_counts(counts), containers=proposal.containers))
            changed = await store_version(tx, changed, plan, reason, self._clock.now())
            containers = await containers_of(tx, run.run_id)
        self.in_force(changed, plan.model, containers)
        log.info("run %s is under version %d of its job model: %s", run.run_id, changed.model_version, reason.why)
        return changed

    def in_force(self, run: RunRow, model: JobModel, containers: Sequence[ExecutionContainerId]) -> None:
        """The transaction has ended: let everybody know. Nobody else writes before this has returned."""
        self._models.serve(run.job, run.run_id, run.model_version, model)
        self._set_model_version(containers, run.model_version)
        self._notices.notify(run.run_id)

    async def _beginnings(self, ssps: Collection[Ssp]) -> Mapping[Ssp, int]:
        """Where partitions begin, so that nothing of a new one is left out."""
        found: dict[Ssp, int] = {}
        for stream in sorted({ssp.stream_id for ssp in ssps}):
            if stream.system not in self._systems:
                raise UnknownSystem(f"no system {stream.system!r} is configured any more, and the run reads {stream}")
            earliest = await self._systems[stream.system].earliest(stream.stream)
            for ssp in ssps:
                if ssp.stream_id == stream:
                    if ssp.partition not in earliest:
                        raise UnknownStream(f"{stream} has no partition {ssp.partition}")
                    found[ssp] = earliest[ssp.partition]
        return found


def _why(proposal: Proposal, why: str) -> str:
    """What has happened, and the reason that was given for it."""
    before = proposal.run.spec.containers
    scaled = [f"scaled from {before} to {proposal.containers} containers"] if proposal.containers != before else []
    grown = [each.reason for each in proposal.judged if each.verdict is Verdict.SAFE]
    return "; ".join([*scaled, *grown, *([why] if why else [])]) or "its tasks are placed anew"


def homes_of(rows: Sequence[ContainerRow], holds: Sequence[TaskOwnershipRow]) -> Homes:
    """Where the state of tasks may still be on a disk: the slots that live on the host of each task's last holder."""
    host_of = {row.execution_id: row.host for row in rows}
    on_host: dict[str, list[ProcessorId]] = {}
    for row in rows:
        if row.state is ContainerState.LIVE and row.host:
            on_host.setdefault(row.host, []).append(row.processor_id)
    return {hold.task: on_host.get(host_of.get(hold.owner.holder, ""), []) for hold in holds}


def reassigned_slots(run: RunRow, model: JobModel) -> frozenset[ProcessorId]:
    """The slots of the run that have no tasks, since a fail-over gave them to others."""
    return frozenset(slots(run.spec.containers)) - model.containers.keys()


async def store_version(tx: WriteTransaction, run: RunRow, plan: PlannedModel, reason: ChangeReason, now: datetime) -> RunRow:
    """Write the plan as the next version of the job's model, the run that is under it, and the word to its containers."""
    model = plan.model
    (newest,) = await tx.jobmodels.page(run.job, None, 1)
    version, document = newest.version + 1, wire_samza.job_model_bytes(model).decode()
    await tx.jobmodels.add(ModelRow(run.job, version, run.run_id, model.content_hash(), now, reason.why, reason.who, document))
    await tx.jobmodels.put_assignment(run.job, plan.assignment)
    changed = replace(run, model_version=version)
    await tx.runs.put(changed)
    detail = {"version": version, "containers": run.spec.containers, "why": reason.why}
    await tx.runs.add_notice(run.run_id, "MODEL", now, detail)
    return changed


async def changeable(tx: ReadTransaction, run_id: RunId, version: int | None) -> RunRow:
    """The run, if its model may change. Raises UnknownRun, StaleRun, RunIsDraining, VersionConflict."""
    run = await get_run(tx, run_id)
    current = await tx.runs.current(run.job)
    if run.state.ended or run.stop_requested_at is not None or current is None or current.run_id != run_id:
        raise StaleRun(f"run {run_id} of job {run.job} is not to run any more: its job model does not change")
    if run.state is RunState.DRAINING:
        raise RunIsDraining(f"run {run_id} of job {run.job} is draining: its job model is frozen until the drain ends")
    if version is not None and version != run.model_version:
        raise VersionConflict(
            f"version {run.model_version} of the job model of {run.job} is in force, and not {version}: look again, and decide anew"
        )
    return run


def supposed(run: RunRow, counts: Mapping[str, int]) -> Mapping[str, Counted]:
    """Streams of a run with other counts, by the job's names. Raises UnknownStream for one that is no input of the run."""
    inputs = {each.name: each for each in run.spec.monitored}
    for name in counts:
        if name not in inputs:
            raise UnknownStream(f"run {run.run_id} has no input {name!r} that a stage reads: it has {', '.join(sorted(inputs))}")
    return {name: Counted(name, inputs[name].id, inputs[name].partitions, count) for name, count in counts.items()}


def _counted(run: RunRow, told: Mapping[str, Counted]) -> Sequence[Counted]:
    """Every stream that some stage reads, with what is told of it."""
    return [told.get(each.name) or Counted(each.name, each.id, each.partitions, each.partitions) for each in run.spec.streams_read]
