"""Registration, heartbeats and exits of containers."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from coordinator.fleet.acting import Acting
from coordinator.fleet.leases import LeaseEntry, Leases
from coordinator.fleet.notices import Notices, TaskWaiters
from coordinator.store.fleet import ContainerRow, ContainerState, TaskOwnershipRow
from coordinator.store.groupcommit import GroupCommit
from coordinator.store.runs import RunRow
from coordinator.store.sql import ReadTransaction, Store, WriteTransaction
from coordinator.transitions import backoff_of, drain_of, end_container, enter, get_run, settle_run
from sluice.clock import Clock
from sluice.core.access.tokens import Digest
from sluice.core.drain import Mode, Phase
from sluice.core.errors import (
    ClientError,
    CrashLoopBackoff,
    Forbidden,
    IdInUse,
    LeaseLost,
    OutdatedContainers,
    SlotInUse,
    SluiceError,
    StaleRun,
    Unavailable,
    UnknownContainer,
    UnknownSlot,
)
from sluice.core.ids import Epoch, ExecutionContainerId, JobName, ProcessorId, RunId
from sluice.core.leases.failover import DEFAULT, CrashLoopPolicy
from sluice.core.leases.lease import bounds_at_start, former_outage
from sluice.core.lifecycle import RunState, moved

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Registration:
    """The request of an incarnation of a slot. `bare`: a client that sends no epoch. `metrics_address`: "host:port". `can_keep_state`,
    `principal`, `chose_token`: see `ContainerRow`. `token`: the digest of its token.
    `only_if_free`: do not supersede a valid incarnation of the slot."""

    processor_id: ProcessorId
    execution_id: ExecutionContainerId
    host: str
    bare: bool
    metrics_address: str | None
    can_keep_state: bool = False
    token: Digest | None = None
    chose_token: bool = False
    principal: str = ""
    only_if_free: bool = False


@dataclass(frozen=True, slots=True)
class RegistrationResult:
    container: ContainerRow
    lease: timedelta
    interval: timedelta
    notices: int


class Registrations:
    """Registers containers and records their exit. Only this class and `ExpireLeases` make containers valid or invalid. `Leases.beat`
    answers heartbeats."""

    def __init__(
        self,
        store: Store,
        leases: Leases,
        notices: Notices,
        clock: Clock,
        acting: Acting,
        crash_loop: CrashLoopPolicy = DEFAULT,
        task_waiters: TaskWaiters | None = None,
    ) -> None:
        self._store = store
        self._leases = leases
        self._notices = notices
        self._clock = clock
        self._acting = acting
        self._crash_loop = crash_loop
        self._task_waiters = task_waiters or TaskWaiters()
        self.counts: Counter[RunId] = Counter()
        """Registrations of each run since the coordinator started."""
        self._registrations: GroupCommit[tuple[RunId, Registration], RegistrationResult] = GroupCommit(self._register_all)
        self._exits: GroupCommit[_Exit, ContainerRow] = GroupCommit(self._exit_all)

    async def recover(self) -> int:
        """At the start of the coordinator: give every container that has not ended the longest lease that it may have. Returns the number
        of these containers."""
        async with self._store.begin() as tx:
            standing = await tx.fleet.active_containers()
            runs = {run.run_id: run for run in await tx.runs.active()}
            stored, own = await tx.promises.lease_bounds(), self._leases.needed(len(standing))
            bounds = bounds_at_start(stored, own, active=bool(standing))
            outage = former_outage(stored, own, active=bool(standing))
            if bounds != stored:
                await tx.promises.put_lease_bounds(bounds)
        if outage:
            log.warning(
                "the former coordinator did not shut down cleanly, and may renew leases of containers for up to %g s. The tasks of "
                "a container that has not acknowledged this coordinator are not reassigned before that time and a lease have passed",
                outage.total_seconds(),
            )
        self._leases.begin(bounds, self._store.term, outage)
        superseded = []
        for container in standing:
            run = runs.get(container.run_id)
            if run is not None and container.state is ContainerState.LIVE:
                self._leases.grant(
                    container.execution_id,
                    container.epoch,
                    run.model_version,
                    bare=container.bare,
                    seen=False,
                    token=container.token,
                    adopted=container.model_version,
                )
            else:
                superseded.append(container)
        self._leases.renew_all()
        for container in superseded:
            self._leases.remember_superseded(container.execution_id, bare=container.bare)
        return len(standing)

    async def end(self) -> None:
        """Renew no lease from now on, and record the clean shutdown, so that the next coordinator need not wait for this one. Raises
        StoreUnavailable."""
        bounds = self._leases.end()
        if bounds is not None:
            async with self._store.begin() as tx:
                await tx.promises.put_lease_bounds(bounds)

    async def resynchronise(self) -> None:
        """Update the leases from the containers in the database. Existing leases do not change. A container that is missing there, because
        the database lost its last commits, becomes invalid, and keeps its tasks until its lease has expired."""
        async with self._store.read() as tx:
            standing = await tx.fleet.active_containers()
            runs = {run.run_id: run for run in await tx.runs.active()}
            stored = await tx.promises.lease_bounds()
            gone = set(self._leases.known()) - {each.execution_id for each in standing}
            ended = {each for each in gone if await tx.fleet.container(each) is not None}
        if stored is not None:
            self._leases.set_bounds(self._leases.bounds.covering(stored))
        for each in standing:
            run = runs.get(each.run_id)
            if run is None or each.state is not ContainerState.LIVE:
                self._leases.supersede(each.execution_id)
                self._leases.remember_superseded(each.execution_id, bare=each.bare)
            elif self._leases.epoch_of(each.execution_id) == each.epoch:
                self._leases.set_model_version([each.execution_id], run.model_version)
                self._leases.set_adopted(each.execution_id, each.model_version)
            else:
                self._leases.grant(
                    each.execution_id,
                    each.epoch,
                    run.model_version,
                    bare=each.bare,
                    seen=False,
                    token=each.token,
                    adopted=each.model_version,
                )
                self.counts[run.run_id] += 1
        for execution_id in gone:
            if execution_id in ended:
                self._leases.drop(execution_id)
            else:
                self._leases.supersede(execution_id)

    async def register(self, run_id: RunId, new: Registration) -> RegistrationResult:
        """Make this incarnation the valid one of its slot. An older incarnation is superseded. A registration that is repeated because its
        answer was lost gets the same answer, with a new token if the container has not chosen it. Raises Forbidden, UnknownRun,
        UnknownSlot, StaleRun, IdInUse, SlotInUse, CrashLoopBackoff, OutdatedContainers, and LeaseLost for a superseded incarnation."""
        return await self._registrations.submit((run_id, new))

    async def _register_all(self, requests: Sequence[tuple[RunId, Registration]]) -> Sequence[RegistrationResult | SluiceError]:
        """Register all in one transaction, one after the other. A refused registration writes nothing. The leases begin after the commit,
        before any other transaction can write."""
        async with self._store.begin() as tx:
            runs = _Runs(tx)
            found = [await self._register_one(tx, runs, run_id, new) for run_id, new in requests]
            bounds = self._leases.needed(sum(isinstance(each, _Stored) for each in found))
            if bounds != self._leases.bounds:
                await tx.promises.put_lease_bounds(bounds)
        self._leases.set_bounds(bounds)
        self.counts.update(each.container.run_id for each in found if isinstance(each, _Stored))
        for run_id in runs.notified:
            self._notices.notify(run_id)
        return [each if isinstance(each, SluiceError) else self._grant(each) for each in found]

    async def _register_one(self, tx: WriteTransaction, runs: _Runs, run_id: RunId, new: Registration) -> _Stored | SluiceError:
        try:
            run = _running(await runs.run(run_id), new.processor_id)
            known = await tx.fleet.container(new.execution_id)
            if known is not None:
                _check_repeated(known, run_id, new)
                if (known.token, known.chose_token) != (new.token, new.chose_token):
                    known = replace(known, token=new.token, chose_token=new.chose_token)
                    await tx.fleet.put_container(known)
                return _Stored(known, (), run.model_version, await runs.newest_notice(run_id))
            former = await tx.fleet.containers(run_id, new.processor_id)
            if new.bare:
                await self._check_unused(tx, run, new)
            if new.only_if_free or new.bare:
                _check_free(former)
            self._check_backoff(former)
            if run.state is RunState.DRAINING and not new.can_keep_state:
                await _check_drain_known(tx, run)
        except (ClientError, LeaseLost, CrashLoopBackoff) as refusal:
            return refusal
        container = await self._insert(tx, run, new, former)
        if run.state is RunState.CREATED:
            await runs.put(replace(run, state=moved(run.state, RunState.RUNNING), started_at=container.registered_at))
        await runs.begin_drain(run, container.registered_at)
        return _Stored(container, former, run.model_version, await runs.newest_notice(run_id))

    def _check_backoff(self, former: Sequence[ContainerRow]) -> None:
        """Raises CrashLoopBackoff."""
        now = self._clock.now()
        backoff = backoff_of(former, self._crash_loop, now)
        if backoff is not None:
            left = (backoff.until - now).total_seconds()
            raise CrashLoopBackoff(
                f"slot {former[-1].processor_id} has failed {backoff.failures} times in a row right after starting; "
                f"it may register again in {left:.0f} s",
                left,
            )

    async def _check_unused(self, tx: ReadTransaction, run: RunRow, new: Registration) -> None:
        """Raises SlotInUse while another container may run tasks of the slot: a bare container acquires none, and runs them at once."""
        acting = await self._acting.in_slot(tx, run, new.processor_id, new.execution_id)
        if acting is not None:
            left = acting.delay.total_seconds()
            raise SlotInUse(
                f"container {acting.former} may run tasks of slot {new.processor_id} for up to {left:.0f} s: report its exit with "
                "`terminated` when its process has ended, or declare it invalid and register again after that time"
            )

    def _grant(self, stored: _Stored) -> RegistrationResult:
        for each in stored.former:
            self._leases.supersede(each.execution_id)
        container = stored.container
        terms = self._leases.grant(
            container.execution_id,
            container.epoch,
            stored.model_version,
            bare=container.bare,
            token=container.token,
            adopted=container.model_version,
        )
        return RegistrationResult(container, terms.lease, terms.interval, stored.notices)

    async def _insert(self, tx: WriteTransaction, run: RunRow, new: Registration, former: Sequence[ContainerRow]) -> ContainerRow:
        now = self._clock.now()
        for each in former:
            if each.state is ContainerState.LIVE:
                old, slot = each.execution_id, new.processor_id
                log.info("container %s of slot %s of run %s is superseded by %s", old, slot, run.run_id, new.execution_id)
                await tx.fleet.put_container(replace(each, state=ContainerState.REPLACED))
        container = ContainerRow(
            execution_id=new.execution_id,
            run_id=run.run_id,
            job=run.job,
            processor_id=new.processor_id,
            epoch=Epoch(await tx.origin.next_number(max((each.epoch for each in former), default=0))),
            host=new.host,
            bare=new.bare,
            state=ContainerState.LIVE,
            registered_at=now,
            last_seen_at=now,
            metrics_address=new.metrics_address,
            model_version=run.model_version,
            adopted_at=now,
            can_keep_state=new.can_keep_state,
            token=new.token,
            principal=new.principal,
            chose_token=new.chose_token,
        )
        await tx.fleet.put_container(container)
        return container

    async def exited(self, execution_id: ExecutionContainerId, exit_code: int, reason: str, *, confirmed: bool = True) -> ContainerRow:
        """See `ContainerReports.exited`. Idempotent."""
        return await self._exits.submit(_Exit(execution_id, exit_code, reason, confirmed=confirmed))

    async def invalidate(self, execution_id: ExecutionContainerId, reason: str) -> ContainerRow:
        """See `ContainerReports.invalidate`. Idempotent: the first reason is kept."""
        return await self._exits.submit(_Exit(execution_id, None, reason, confirmed=False))

    async def _exit_all(self, exits: Sequence[_Exit]) -> Sequence[ContainerRow | SluiceError]:
        """Record all exits in one transaction, one after the other. The leases change after the commit: after a crash in between, the
        next coordinator waits for the longest lease of a container that is not valid."""
        async with self._store.begin() as tx:
            released: list[TaskOwnershipRow] = []
            found = [await self._exit(tx, each, released) for each in exits]
            ended = [each for each in found if isinstance(each, ContainerRow)]
            touched = sorted({each.run_id for each in ended})
            for run_id in touched:
                await settle_run(tx, await get_run(tx, run_id), self._clock.now())
        for each in ended:
            if each.ended_at is None:
                self._leases.supersede(each.execution_id)
            else:
                self._leases.drop(each.execution_id)
        self._task_waiters.notify_ended(ended, released)
        for run_id in touched:
            self._notices.notify(run_id)
        return found

    async def _exit(self, tx: WriteTransaction, exited: _Exit, released: list[TaskOwnershipRow]) -> ContainerRow | SluiceError:
        """Record one exit. Appends the tasks that the container owned to `released`."""
        try:
            container = await _get_container(tx, exited.execution_id)
        except UnknownContainer as refusal:
            return refusal
        now = self._clock.now()
        if not exited.confirmed:
            return await _invalidated(tx, container, exited)
        ended, holds = await end_container(tx, container, ContainerState.EXITED, now, exit_code=exited.exit_code, reason=exited.reason)
        released += holds
        return ended

    async def live(self) -> Sequence[ContainerRow]:
        """The valid containers of all runs."""
        async with self._store.read() as tx:
            return [each for each in await tx.fleet.active_containers() if each.state is ContainerState.LIVE]

    async def beat_of_job(self, execution_id: ExecutionContainerId, sent: int | None, job: JobName | None) -> LeaseEntry | None:
        """`Leases.beat` for a container of this job (None: of any job), and for bare containers. Also None for a bare container whose run
        has ended or is stopping: it reads no notices, so the answer makes it stop. While the database does not answer, only `Leases`
        decides."""
        try:
            async with self._store.read() as tx:
                container = await tx.fleet.container(execution_id)
                run = None if container is None else await tx.runs.get(container.run_id)
        except Unavailable as error:
            log.warning("heartbeat of %s: cannot look up its run: %s", execution_id, error)
            return self._leases.beat(execution_id, sent)
        if container is None or run is None or (job is not None and container.job != job):
            return None
        if container.bare and (run.state.ended or run.stop_requested_at is not None):
            self._leases.supersede(execution_id)
        return self._leases.beat(execution_id, sent)

    async def state_of_ended_run(self, execution_id: ExecutionContainerId) -> RunState | None:
        """For an invalid container: the state of its run if the run has ended, so that the container can exit with code 0."""
        async with self._store.read() as tx:
            container = await tx.fleet.container(execution_id)
            run = await tx.runs.get(container.run_id) if container else None
        return run.state if run and run.state.ended else None


@dataclass(frozen=True, slots=True)
class _Stored:
    """What a registration has written, before the lease is granted. `model_version`: of the run; a repeated registration leaves the
    container at the version of the first, so that it reports the present one."""

    container: ContainerRow
    former: Sequence[ContainerRow]
    model_version: int
    notices: int


@dataclass(frozen=True, slots=True)
class _Exit:
    """`exit_code`: None if the container is only declared invalid. `confirmed`: see `ContainerReports.exited`."""

    execution_id: ExecutionContainerId
    exit_code: int | None
    reason: str
    confirmed: bool


class _Runs:
    """The runs of one transaction, each read once."""

    def __init__(self, tx: WriteTransaction) -> None:
        self._tx = tx
        self._runs: dict[RunId, RunRow] = {}
        self._notices: dict[RunId, int] = {}
        self.notified: list[RunId] = []
        """Runs for which a notice was added. Their polls must be notified after the commit."""

    async def run(self, run_id: RunId) -> RunRow:
        """Raises UnknownRun."""
        if run_id not in self._runs:
            self._runs[run_id] = await get_run(self._tx, run_id)
        return self._runs[run_id]

    async def put(self, run: RunRow) -> None:
        await self._tx.runs.put(run)
        self._runs[run.run_id] = run

    async def begin_drain(self, run: RunRow, now: datetime) -> None:
        """Begin a drain that waited for the run's first container."""
        if run.state is RunState.DRAINING and run.started_at is None:
            drain = await drain_of(self._tx, run)
            if drain.phase is Phase.REQUESTED:
                await enter(self._tx, drain, Phase.STOPPING, now)
                self.notified.append(run.run_id)
            await self.put(replace(run, started_at=now))

    async def newest_notice(self, run_id: RunId) -> int:
        if run_id not in self._notices:
            self._notices[run_id] = await self._tx.runs.last_notice(run_id)
        return self._notices[run_id]


def _check_free(former: Sequence[ContainerRow]) -> None:
    """Raises SlotInUse while an incarnation of the slot is valid."""
    for each in former:
        if each.state is ContainerState.LIVE and each.ended_at is None:
            raise SlotInUse(f"container {each.execution_id} on {each.host or 'an unknown host'} has slot {each.processor_id}")


async def _check_drain_known(tx: ReadTransaction, run: RunRow) -> None:
    """Raises OutdatedContainers for a container that would empty the state under a drain that keeps it."""
    drain = await drain_of(tx, run)
    if drain.mode is Mode.KEEP_STATE:
        raise OutdatedContainers(
            f"run {run.run_id} is under drain {drain.drain_id}, which keeps the state, and this container is of a release that would empty "
            "it: start one of this release, or cancel the drain"
        )


def _running(run: RunRow, processor_id: ProcessorId) -> RunRow:
    if run.state.ended or run.stop_requested_at is not None:
        raise StaleRun(f"run {run.run_id} is {'ended as ' + run.state if run.state.ended else 'stopping'}: deploy a new run")
    if run.spec.scaled_to:
        known, has = processor_id in run.spec.scaled_to, ", ".join(run.spec.scaled_to)
    else:
        known, has = 0 <= _slot_number(processor_id) < run.spec.containers, f"0 to {run.spec.containers - 1}"
    if not known:
        raise UnknownSlot(f"run {run.run_id} has no processor {processor_id!r}: it has {has}")
    return run


def _slot_number(processor_id: ProcessorId) -> int:
    return int(processor_id) if processor_id.isascii() and processor_id.isdigit() and str(int(processor_id)) == processor_id else -1


def _check_repeated(known: ContainerRow, run_id: RunId, new: Registration) -> None:
    """Raises IdInUse, Forbidden, LeaseLost."""
    if (known.run_id, known.processor_id) != (run_id, new.processor_id):
        raise IdInUse(
            f"execution container id {known.execution_id!r} belongs to slot {known.processor_id} of run {known.run_id}: "
            "every incarnation needs a new id"
        )
    if known.principal != new.principal:
        raise Forbidden(f"container {known.execution_id} was registered by another principal: register with another id")
    if known.state is not ContainerState.LIVE:
        raise LeaseLost(f"container {known.execution_id} is {known.state}: another container has its slot now")
    if (known.chose_token or new.chose_token) and known.token != new.token:
        raise IdInUse(f"container {known.execution_id} was registered with another token: every incarnation needs a new id")


async def _invalidated(tx: WriteTransaction, container: ContainerRow, exited: _Exit) -> ContainerRow:
    """Store that the container is not valid, with what was reported. It keeps its tasks. One that has ended does not change."""
    if container.ended_at is not None:
        return container
    log.warning("container %s is not valid any more; lease and grace are waited for: %s", container.execution_id, exited.reason)
    invalid = replace(
        container,
        state=ContainerState.REPLACED,
        exit_code=exited.exit_code if container.exit_code is None else container.exit_code,
        reason=container.reason or exited.reason,
    )
    await tx.fleet.put_container(invalid)
    return invalid


async def _get_container(tx: ReadTransaction, execution_id: ExecutionContainerId) -> ContainerRow:
    container = await tx.fleet.container(execution_id)
    if container is None:
        raise UnknownContainer(f"no container registered as {execution_id!r}")
    return container
