"""The catalog for operators: list snapshots with the reasons why they are retained, pin them, choose one to restore."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from coordinator.snapshots.cleanup import pins_at
from coordinator.snapshots.inventory import is_known
from coordinator.store.fleet import StageStateRow
from coordinator.store.snapshots import HeadRow, PinRow, SnapshotRow
from coordinator.store.sql import ReadTransaction, Store, WriteTransaction
from coordinator.transitions import pin_id as pin_of
from coordinator.transitions import retirement
from sluice.clock import Clock
from sluice.core.drain import histories_of_state
from sluice.core.errors import ClientError, TaskHeld, UnknownJob, UnknownPin, UnknownSnapshot
from sluice.core.ids import JobName, StageKey, StageName, TaskName
from sluice.core.snapshots.retention import Retention, SnapshotTime, retained
from sluice.core.snapshots.snapshot import CommitId


@dataclass(frozen=True, slots=True)
class SnapshotDetails:
    """A snapshot and why it is retained. `head`: a restore starts from it. `chosen`: an operator chose it as the head. `history_ended`: it
    is of a history whose state the job's present run has not continued with."""

    row: SnapshotRow
    why: Sequence[str]
    head: bool
    chosen: bool
    history_ended: bool


@dataclass(frozen=True, slots=True)
class PinSpec:
    """The request for a pin. Without `checkpoint`, the head of each stage that matches `task` and `stage` (None: all) is pinned."""

    pin_id: str | None
    task: TaskName | None
    stage: StageName | None
    checkpoint: CommitId | None
    reason: str
    lasts: timedelta | None


@dataclass(frozen=True, slots=True)
class Choice:
    """A snapshot chosen for a restore. `given_up`: the number of later batches, which are discarded; None if they are of another
    lineage."""

    row: SnapshotRow
    given_up: int | None
    warnings: Sequence[str]


class SnapshotCatalog:
    """`new_id` returns the id of a new pin."""

    def __init__(self, store: Store, clock: Clock, retention: Retention, new_id: Callable[[], str]) -> None:
        self._store = store
        self._clock = clock
        self._retention = retention
        self._new_id = new_id

    async def snapshots(
        self, job: JobName, task: TaskName | None, stage: StageName | None, before: int | None, limit: int
    ) -> Sequence[SnapshotDetails]:
        """Newest first. Raises UnknownJob."""
        async with self._store.read() as tx:
            await _known_job(tx, job)
            rows = await tx.snapshots.page(job, task, stage, before, limit)
            return await self._described(tx, job, rows)

    async def heads(self, job: JobName) -> Mapping[tuple[TaskName, StageName], HeadRow]:
        """The snapshot of each stage that a restore starts from, now. Raises UnknownJob."""
        async with self._store.read() as tx:
            await _known_job(tx, job)
            return {(row.task, row.stage): row for row in await tx.snapshots.heads(job)}

    async def snapshot(self, key: StageKey, checkpoint: CommitId) -> SnapshotDetails:
        """Raises UnknownSnapshot."""
        async with self._store.read() as tx:
            (found,) = await self._described(tx, key.job, [await get_snapshot(tx, key, checkpoint)])
            return found

    async def _described(self, tx: ReadTransaction, job: JobName, rows: Sequence[SnapshotRow]) -> Sequence[SnapshotDetails]:
        stores = {row.key: row for row in await tx.fleet.stage_states(job)}
        why, ended = {}, await _of_ended_histories(tx, job, rows)
        for key in {row.key for row in rows}:
            why[key] = await self._why(tx, key, stores.get(key))

        def described(row: SnapshotRow) -> SnapshotDetails:
            key = row.key
            store = stores.get(key)
            head = store is not None and store.head == row.checkpoint
            chosen = head and store is not None and store.chosen
            return SnapshotDetails(row, why[key].get(row.checkpoint, ()), head, chosen, row.checkpoint in ended)

        return [described(row) for row in rows]

    async def _why(self, tx: ReadTransaction, key: StageKey, store: StageStateRow | None) -> Mapping[CommitId, Sequence[str]]:
        taken = [SnapshotTime(row.checkpoint, row.reported_at) for row in await tx.snapshots.of_stage(key)]
        return retained(taken, self._retention, store.head if store else None, pins_at(await tx.snapshots.pins_of(key), self._clock.now()))

    # --- pins ---

    async def pins(self, job: JobName) -> Sequence[Sequence[PinRow]]:
        """The job's pins that have not expired, by their ids, each with the rows of its snapshots. Raises UnknownJob."""
        now = self._clock.now()
        async with self._store.read() as tx:
            await _known_job(tx, job)
            by_id: dict[str, list[PinRow]] = {}
            for row in await tx.snapshots.pins(job):
                if row.expires_at is None or row.expires_at > now:
                    by_id.setdefault(row.pin_id, []).append(row)
        return [by_id[pin_id] for pin_id in sorted(by_id)]  # the order of text in databases depends on their collation

    async def pin(self, job: JobName, wanted: PinSpec) -> Sequence[PinRow]:
        """Pin snapshots that are retained. Raises UnknownJob, UnknownSnapshot, and ClientError for a pin that belongs to another job
        or to an active drain."""
        now = self._clock.now()
        async with self._store.begin() as tx:
            await _known_job(tx, job)
            chosen = await _to_be_pinned(tx, job, wanted)
            pin_id = wanted.pin_id or self._new_id()
            if any(row.job != job for row in await tx.snapshots.pin(pin_id)):
                raise ClientError(f"pin {pin_id} belongs to another job: choose another name")
            await _check_no_drain_needs(tx, pin_id)
            await tx.snapshots.drop_pin(pin_id)
            expires = None if wanted.lasts is None else now + wanted.lasts
            rows = [PinRow(pin_id, job, row.task, row.stage, row.checkpoint, wanted.reason, now, expires) for row in chosen]
            await tx.snapshots.put_pins(rows)
        return rows

    async def unpin(self, job: JobName, pin_id: str) -> None:
        """Delete a pin. Snapshots that no other rule retains are retired. Raises UnknownPin, and ClientError for the pin of an active
        drain."""
        async with self._store.begin() as tx:
            rows = [row for row in await tx.snapshots.pin(pin_id) if row.job == job]
            if not rows:
                raise UnknownPin(f"job {job} has no pin {pin_id!r}")
            await _check_no_drain_needs(tx, pin_id)
            await tx.snapshots.drop_pin(pin_id)
            now = self._clock.now()
            await tx.cleanup.put_all(retirement(row.key, now) for row in rows)

    # --- restore from a chosen snapshot ---

    async def choose(self, key: StageKey, checkpoint: CommitId) -> Choice:
        """Let the next owner of the task restore this snapshot and continue from it under a new lineage. Idempotent.

        Raises UnknownSnapshot, and TaskHeld while a container owns the task.
        """
        async with self._store.begin() as tx:
            found = await get_snapshot(tx, key, checkpoint)
            owned = await tx.fleet.owner(key.job, key.task)
            if owned is not None and not owned.owner.released:
                raise TaskHeld(f"{owned.owner.holder} owns task {key.task}: stop run {owned.run_id} first (`sluice stop`)")
            row = await tx.fleet.stage_state(key)
            if row is None:
                raise UnknownSnapshot(
                    f"job {key.job} was restarted without state and has no stage {key.stage} of task {key.task}: deploy it first"
                )
            if row.head != checkpoint or not row.chosen:
                await tx.fleet.put_stage_states([replace(row, head=checkpoint, chosen=True)])
            warnings = await _warnings(tx, key, ended=bool(await _of_ended_histories(tx, key.job, [found])))
        ahead = None if row.batch_id is None or row.lineage != found.lineage else row.batch_id - (found.batch_id or 0)
        return Choice(found, ahead, warnings)


async def _of_ended_histories(tx: ReadTransaction, job: JobName, rows: Sequence[SnapshotRow]) -> Collection[CommitId]:
    """The snapshots of histories whose state the job's present run has not continued with. A rebuild registers snapshots of runs that it
    does not know; these count as continued."""
    current = await tx.runs.current(job)
    if current is None:
        return ()
    runs = [await tx.runs.get(run_id) for run_id in sorted({row.run_id for row in rows})]
    histories = {run.run_id: run.first_run for run in runs if run is not None}
    return {
        row.checkpoint
        for row in rows
        if row.run_id in histories and histories[row.run_id] not in histories_of_state(current.first_run, current.kept, row.stage)
    }


async def get_snapshot(tx: ReadTransaction, key: StageKey, checkpoint: CommitId) -> SnapshotRow:
    """Raises UnknownSnapshot."""
    found = await tx.snapshots.get(key, checkpoint)
    if found is None:
        raise UnknownSnapshot(f"no snapshot {checkpoint} of {key} (it may have been deleted)")
    return found


async def _check_no_drain_needs(tx: ReadTransaction, pin_id: str) -> None:
    """Refuse to release pins of an active drain, which returns to the pinned snapshots if it fails. Raises ClientError."""
    for drain in await tx.drains.active():
        if pin_id == pin_of(drain.drain_id):
            raise ClientError(f"drain {drain.drain_id} is active and needs the pin {pin_id}: wait until the drain has ended")


async def _known_job(tx: ReadTransaction, job: JobName) -> None:
    if not await is_known(tx, job):
        raise UnknownJob(f"there is no job {job!r}")


async def _to_be_pinned(tx: WriteTransaction, job: JobName, wanted: PinSpec) -> Sequence[SnapshotRow | HeadRow]:
    if wanted.checkpoint is not None:
        if wanted.task is None or wanted.stage is None:
            raise ClientError("--checkpoint needs --task and --stage")
        return [await get_snapshot(tx, StageKey(job, wanted.task, wanted.stage), wanted.checkpoint)]
    found = [each for each in await tx.snapshots.heads(job, wanted.task) if wanted.stage in (None, each.stage)]
    if not found:
        raise UnknownSnapshot(f"job {job} has no matching snapshot yet")
    return found


async def _warnings(tx: ReadTransaction, key: StageKey, *, ended: bool) -> Sequence[str]:
    run = await tx.runs.current(key.job)
    stages = run.spec.stage_names if run is not None else []
    reads = run.spec.reads(key.stage) if run is not None and key.stage in stages else frozenset()
    if run is not None and ended and reads & set(run.spec.intermediates):
        return [
            "the snapshot is of a history that the job has ended: what earlier stages wrote after it in that history is not read, and what "
            "they have written since may be counted twice"
        ]
    if len(stages) < 2:
        return ["the batches after the snapshot run again under a new lineage: rows may be duplicated, but none are lost"]
    first = stages[0] == key.stage
    effect = (
        "writes records again that later stages have already read" if first else "reads records again, but earlier stages are not restored"
    )
    return [
        "the batches after the snapshot run again under a new lineage: rows may be duplicated, but none are lost",
        f"stage {key.stage} {effect}: restoring one stage of several to a point in time is not exactly-once",
    ]
