"""Containers, the owners of tasks, and the state of each stage of a task: rows, columns and SQL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Row, bindparam, case, delete, func, or_, select, update

from coordinator.store import tables
from coordinator.store.columns import Columns, Reads, Writes, offset_list, offsets_of
from sluice.core.access.tokens import Digest
from sluice.core.ids import (
    Epoch,
    ExecutionContainerId,
    Generation,
    JobName,
    Lineage,
    ProcessorId,
    RunId,
    Ssp,
    StageKey,
    StageName,
    TaskName,
)
from sluice.core.leases.ownership import Committed, TaskOwner
from sluice.core.snapshots.snapshot import CommitId


class ContainerState(StrEnum):
    LIVE = "LIVE"
    EXITED = "EXITED"
    LOST = "LOST"
    REPLACED = "REPLACED"


@dataclass(frozen=True, slots=True)
class ContainerRow:
    """One incarnation of a slot. `model_version`: the version of the job model that it runs, from its registration or from its report at
    `adopted_at`. `can_keep_state`: whether its agent supports drains of the mode KEEP_STATE."""

    execution_id: ExecutionContainerId
    run_id: RunId
    job: JobName
    processor_id: ProcessorId
    epoch: Epoch
    host: str
    bare: bool
    state: ContainerState
    registered_at: datetime
    last_seen_at: datetime
    ended_at: datetime | None = None
    exit_code: int | None = None
    reason: str = ""
    metrics_address: str | None = None
    model_version: int = 0
    adopted_at: datetime | None = None
    can_keep_state: bool = False
    token: Digest | None = None
    """The digest of the container's token; None if an earlier release registered it."""
    principal: str = ""
    """The principal that registered it; "" without authentication."""
    chose_token: bool = False
    """Whether the container has chosen its token. False if an earlier release registered it and it did not repeat its registration."""


@dataclass(frozen=True, slots=True)
class TaskOwnershipRow:
    """The last owner of a job's task. `model_version`: the version of the job model at the acquire; 0 if a release that did not record it
    granted the task."""

    job: JobName
    task: TaskName
    run_id: RunId
    owner: TaskOwner
    acquired_at: datetime
    model_version: int = 0


@dataclass(frozen=True, slots=True)
class LateRows:
    """Rows that a stage of a task has dropped as late in a run, under all owners of the task. `given_up`: those dropped after a feeder was
    no longer waited for (`idle_feeder_seconds`). `last_at`: the time of the last drop. `reported`: the number that the owner with this
    `generation` has reported since it acquired the task. `gave_up`: whether some feeder is no longer waited for."""

    run_id: RunId
    rows: int = 0
    given_up: int = 0
    last_at: datetime | None = None
    generation: Generation | None = None
    reported: int = 0
    gave_up: bool = False

    def counted(self, generation: Generation, rows: int, at: datetime | None) -> LateRows:
        """The row after the task's owner has reported `rows` late rows, the last of them dropped at that time. A report of a former owner,
        or an older report, changes nothing."""
        if self.generation is not None and generation < self.generation:
            return self
        more = rows - (self.reported if generation == self.generation else 0)
        if more <= 0:
            return self
        given_up = self.given_up + (more if self.gave_up else 0)
        return LateRows(self.run_id, self.rows + more, given_up, at or self.last_at, generation, rows, self.gave_up)


@dataclass(frozen=True, slots=True)
class StageStateRow:
    """The state of a stage of a task: the lineage of its checkpoint directory, and the last batch reported (None before the first).

    `head` is the snapshot that the next one follows and that a restore starts from: the newest reported, or one that an operator chose
    (`chosen`, until a new lineage begins with it). `former` is the previous lineage. `starts`: the start offsets of this lineage where
    they differ from those of the run, because another task has read the partition before (`sluice.core.leases.ownership.regrouped`).
    `late_rows`: of the last run in which it dropped any."""

    job: JobName
    task: TaskName
    stage: StageName
    lineage: Lineage
    batch_id: int | None = None
    offsets: Mapping[Ssp, int] = field(default_factory=dict)
    generation: Generation | None = None
    reported_at: datetime | None = None
    head: CommitId | None = None
    chosen: bool = False
    former: Lineage | None = None
    starts: Mapping[Ssp, int] = field(default_factory=dict)
    late_rows: LateRows | None = None

    @property
    def key(self) -> StageKey:
        return StageKey(self.job, self.task, self.stage)

    def beginning(self, starts: Mapping[Ssp, int]) -> StageStateRow:
        """A copy of the row with additional start offsets."""
        return replace(self, starts={**self.starts, **starts})

    @property
    def position(self) -> Mapping[Ssp, int]:
        """The next offset of each partition that the stage has begun."""
        return {**self.starts, **self.offsets}

    @property
    def committed(self) -> Committed | None:
        """The last report; None before the first."""
        if self.generation is None:
            return None
        return Committed(self.generation, self.lineage, self.batch_id, self.offsets)


@dataclass(frozen=True, slots=True)
class RunCounts:
    """Counts of a run: its containers by state, the number of tasks that are owned under it, and its live containers by model version.
    `bare_slots`: the slots whose live container is bare."""

    containers: Mapping[ContainerState, int]
    owned: int
    versions: Mapping[int, int] = field(default_factory=dict)
    bare_slots: frozenset[ProcessorId] = frozenset()


@dataclass(frozen=True, slots=True)
class SlotRow:
    """The newest incarnation of a slot: whether it is live, when it was registered, or ended otherwise, and its exit code, if reported."""

    processor_id: ProcessorId
    live: bool
    since: datetime
    exit_code: int | None


class FleetReads(Reads):
    async def container(self, execution_id: ExecutionContainerId) -> ContainerRow | None:
        query = select(tables.containers).where(tables.containers.c.execution_id == execution_id)
        found = (await self._connection.execute(query)).first()
        return container_row(found) if found else None

    async def containers(self, run_id: RunId, processor_id: ProcessorId | None = None, newest: int | None = None) -> Sequence[ContainerRow]:
        """The incarnations of a run's slots, or of one slot, by slot and epoch. With `newest`, only this number of each slot, and those
        that have not ended."""
        table = tables.containers
        query = select(table).where(table.c.run_id == run_id)
        if processor_id is not None:
            query = query.where(table.c.processor_id == processor_id)
        if newest is not None:
            last = select(table.c.processor_id, func.max(table.c.epoch).label("epoch")).where(table.c.run_id == run_id)
            of_slot = last.group_by(table.c.processor_id).subquery()
            query = query.join(of_slot, of_slot.c.processor_id == table.c.processor_id)
            query = query.where(or_(table.c.epoch > of_slot.c.epoch - newest, table.c.ended_at.is_(None)))
        return await self._all(query.order_by(table.c.processor_id, table.c.epoch), container_row)

    async def slots(self, run_id: RunId) -> Sequence[SlotRow]:
        """The slots of a run that have had a container. Only what is needed of each is decoded: a run may have ten thousand."""
        table, other = tables.containers.c, tables.containers.alias()
        live = table.state == ContainerState.LIVE.value
        since = case((live, table.registered_at), else_=func.coalesce(table.ended_at, table.last_seen_at))
        same_slot = (other.c.run_id == run_id) & (other.c.processor_id == table.processor_id)
        newest = select(func.max(other.c.epoch)).where(same_slot).scalar_subquery()
        query = select(table.processor_id, live.label("live"), since.label("since"), table.exit_code)
        query = query.where(table.run_id == run_id, table.epoch == newest)
        return await self._all(query, slot_row)

    async def active_containers(
        self, run_id: RunId | None = None, limit: int | None = None, *, bare_of: JobName | None = None
    ) -> Sequence[ContainerRow]:
        """The containers that have not ended, of a run or of all runs: the live ones, and those that were replaced but may still act. With
        `bare_of`, only the bare ones of this job."""
        table = tables.containers
        active = [ContainerState.LIVE.value, ContainerState.REPLACED.value]
        query = select(table).where(table.c.state.in_(active), table.c.ended_at.is_(None)).order_by(table.c.execution_id).limit(limit)
        if run_id is not None:
            query = query.where(table.c.run_id == run_id)
        if bare_of is not None:
            query = query.where(table.c.job == bare_of, table.c.bare)
        return [container_row(found) for found in await self._connection.execute(query)]

    async def counts(self, run_id: RunId, job: JobName) -> RunCounts:
        """The counts of a run of the job, computed by the database."""
        states, owners = tables.containers.c.state, tables.holds.c
        by_state = select(states, func.count()).where(tables.containers.c.run_id == run_id).group_by(states)
        owned = select(func.count()).where(owners.job == job, owners.run_id == run_id, owners.released.is_(False))
        version, live = tables.containers.c.model_version, (states == ContainerState.LIVE.value, tables.containers.c.ended_at.is_(None))
        are_bare = func.sum(case((tables.containers.c.bare, 1), else_=0))
        by_version = select(version, func.count(), are_bare).where(tables.containers.c.run_id == run_id, *live).group_by(version)
        versions = (await self._connection.execute(by_version)).all()
        bare = select(tables.containers.c.processor_id).where(tables.containers.c.run_id == run_id, *live, tables.containers.c.bare)
        return RunCounts(
            containers={ContainerState(state): count for state, count in await self._connection.execute(by_state)},
            owned=int(await self._connection.scalar(owned) or 0),
            versions={found[0]: found[1] for found in versions},
            bare_slots=frozenset(await self._connection.scalars(bare)) if any(found[2] for found in versions) else frozenset(),
        )

    async def owner(self, job: JobName, task: TaskName) -> TaskOwnershipRow | None:
        query = select(tables.holds).where(tables.holds.c.job == job, tables.holds.c.task == task)
        found = (await self._connection.execute(query)).first()
        return ownership_row(found) if found else None

    async def owners(self, job: JobName) -> Sequence[TaskOwnershipRow]:
        query = select(tables.holds).where(tables.holds.c.job == job).order_by(tables.holds.c.task)
        return await self._all(query, ownership_row)

    async def owned_by(self, execution_id: ExecutionContainerId) -> Sequence[TaskOwnershipRow]:
        """The tasks that the container owns and has not released."""
        table = tables.holds
        query = select(table).where(table.c.holder == execution_id, table.c.released.is_(False)).order_by(table.c.job, table.c.task)
        return [ownership_row(found) for found in await self._connection.execute(query)]

    async def stage_state(self, key: StageKey) -> StageStateRow | None:
        table = tables.stores
        query = select(table).where(table.c.job == key.job, table.c.task == key.task, table.c.stage == key.stage)
        found = (await self._connection.execute(query)).first()
        return stage_state_row(found) if found else None

    async def stage_states(self, job: JobName, task: TaskName | None = None, *, only_chosen: bool = False) -> Sequence[StageStateRow]:
        """The states of the stages of a job, or of one task. `only_chosen`: of those that continue from a snapshot that was chosen for
        them; the other rows are not decoded, because a job may have 100,000."""
        query = select(tables.stores).where(tables.stores.c.job == job)
        if task is not None:
            query = query.where(tables.stores.c.task == task)
        if only_chosen:
            query = query.where(tables.stores.c.chosen.is_(True))
        return await self._all(query.order_by(tables.stores.c.task, tables.stores.c.stage), stage_state_row)


class FleetWrites(FleetReads, Writes):
    async def put_container(self, row: ContainerRow) -> None:
        await self._put(tables.containers, [container_columns(row)])

    async def set_last_seen(self, seen: Iterable[tuple[ExecutionContainerId, datetime]]) -> None:
        """Write when each container sent its last heartbeat. Unknown ids are ignored."""
        table = tables.containers
        statement = update(table).where(table.c.execution_id == bindparam("which")).values(last_seen_at=bindparam("at"))
        await self._for_each(statement, ({"which": execution_id, "at": at} for execution_id, at in seen))

    async def put_owners(self, rows: Iterable[TaskOwnershipRow]) -> None:
        await self._put(tables.holds, map(ownership_columns, rows))

    async def put_stage_states(self, rows: Iterable[StageStateRow]) -> None:
        await self._put(tables.stores, map(stage_state_columns, rows))

    async def drop_stage_states(self, job: JobName, only: Iterable[StageKey] | None = None) -> None:
        """Delete the states of all stages of the job, or only of these, so that their next history begins with empty state."""
        table = tables.stores
        if only is None:
            await self._connection.execute(delete(table).where(table.c.job == job))
            return
        of_task = table.c.task == bindparam("of_task"), table.c.stage == bindparam("of_stage")
        statement = delete(table).where(table.c.job == bindparam("of_job"), *of_task)
        await self._for_each(statement, ({"of_job": job, "of_task": key.task, "of_stage": key.stage} for key in only))


def container_columns(row: ContainerRow) -> Columns:
    columns = {name: getattr(row, name) for name in row.__slots__}
    return columns | {"state": row.state.value}


def container_row(found: Row[Any]) -> ContainerRow:
    return ContainerRow(**{**found._asdict(), "state": ContainerState(found.state)})


def slot_row(found: Row[Any]) -> SlotRow:
    return SlotRow(ProcessorId(found.processor_id), bool(found.live), found.since, found.exit_code)


def ownership_columns(row: TaskOwnershipRow) -> Columns:
    return {
        "job": row.job,
        "task": row.task,
        "run_id": row.run_id,
        "generation": row.owner.generation,
        "holder": row.owner.holder,
        "released": row.owner.released,
        "acquired_at": row.acquired_at,
        "model_version": row.model_version,
    }


def ownership_row(found: Row[Any]) -> TaskOwnershipRow:
    owner = TaskOwner(Generation(found.generation), ExecutionContainerId(found.holder), found.released)
    return TaskOwnershipRow(JobName(found.job), TaskName(found.task), RunId(found.run_id), owner, found.acquired_at, found.model_version)


def stage_state_columns(row: StageStateRow) -> Columns:
    columns = {name: getattr(row, name) for name in row.__slots__}
    late_rows = None if row.late_rows is None else _late_rows_json(row.late_rows)
    return columns | {"offsets": offset_list(row.offsets), "starts": offset_list(row.starts), "late_rows": late_rows}


def stage_state_row(found: Row[Any]) -> StageStateRow:
    """Columns by position: the page of a large job reads thousands of rows every two seconds."""
    columns: tuple[Any, ...] = tuple(found)
    job, task, stage, lineage, batch_id, offsets, generation, reported_at, head, chosen, former, starts, late_rows = columns
    return StageStateRow(
        job=job,
        task=task,
        stage=stage,
        lineage=lineage,
        batch_id=batch_id,
        offsets=offsets_of(offsets),
        generation=generation,
        reported_at=reported_at,
        head=head,
        chosen=chosen,
        former=former,
        starts=offsets_of(starts),
        late_rows=None if late_rows is None else _late_rows(late_rows),
    )


def _late_rows_json(late: LateRows) -> Columns:
    return {
        "runId": late.run_id,
        "rows": late.rows,
        "givenUp": late.given_up,
        "lastAt": None if late.last_at is None else late.last_at.isoformat(),
        "generation": late.generation,
        "reported": late.reported,
        "gaveUp": late.gave_up,
    }


def _late_rows(found: Mapping[str, Any]) -> LateRows:
    return LateRows(
        run_id=RunId(found["runId"]),
        rows=found["rows"],
        given_up=found["givenUp"],
        last_at=None if found["lastAt"] is None else datetime.fromisoformat(found["lastAt"]),
        generation=None if found["generation"] is None else Generation(found["generation"]),
        reported=found["reported"],
        gave_up=found["gaveUp"],
    )
