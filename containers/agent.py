"""The agent: one event loop on a thread of its own inside the driver, from registration to exit code.

Order of a life: ask for the run, register (from here on the heart beats), open Spark, acquire each task of the slot, run its stages, and
then wait for whatever ends it: a stop (SIGTERM, a notice), the verdict of the heart, or a failure that restarts could not mend.

    0  stopped in order, or the run is over
    1  failure: the reason is logged and told to the coordinator
    3  lease lost: the process ends at once, without touching anything that the next holder may use
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from containers.backupmetrics import backup_metrics
from containers.backupplace import BackupPlace
from containers.backups import Backup
from containers.client import Coordinator, Refused
from containers.draining import Draining
from containers.engine import Engine, Start
from containers.exposition import ContainerCollector, Exposition, expose
from containers.heartbeat import Heart, LeaseRanOut, Replaced, RunOver
from containers.job import Job
from containers.meters import Meters
from containers.pacing import Pacer
from containers.queries import Queries
from containers.reports import Reports
from containers.settings import ContainerSettings
from containers.stagerunner import RestartPolicy
from containers.starts import check_job, offered, starts_of
from coordinator import wire
from coordinator.blobs.port import BlobStore
from coordinator.clock import Clock
from coordinator.core.drain import Phase
from coordinator.core.errors import BlobUnavailable, CoordinatorUnreachable, LeaseLost, OurTrouble, SluiceError, StaleRun
from coordinator.core.ids import Epoch, Generation, Instant, TaskName
from coordinator.core.lease import Trust
from coordinator.core.model import TaskModel
from coordinator.core.recovery import Snapshot
from coordinator.core.snapshot import BlobStoreName
from coordinator.logs import about

log = logging.getLogger(__name__)

T = TypeVar("T")

EXIT_OK, EXIT_FAILED, EXIT_LEASE_LOST = 0, 1, 3

RETRY = timedelta(seconds=1)
EXPOSE_WITHIN = timedelta(seconds=10)
"""The machine's name is looked up on the way."""

POLL = timedelta(seconds=20)
"""How long one poll for notices is held."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Why the container ends, and how."""

    exit_code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Held:
    task: TaskName
    generation: Generation


class Agent:
    """One incarnation of a slot. `make_engine` builds the engine once the run is known; `on_renewed` tells the watchdog of the lease."""

    def __init__(
        self,
        job: Job,
        settings: ContainerSettings,
        coordinator: Coordinator,
        clock: Clock,
        make_engine: Callable[[wire.RunDetail], Engine],
        on_renewed: Callable[[Instant], None],
        on_lease_lost: Callable[[str], None],
        open_blobs: Callable[[str], BlobStore] | None = None,
    ) -> None:
        self._job = job
        self._settings = settings
        self._coordinator = coordinator
        self._clock = clock
        self._make_engine = make_engine
        self._on_renewed = on_renewed
        self._on_lease_lost = on_lease_lost
        self._loop = asyncio.get_running_loop()
        self._ending: asyncio.Future[Ending] = self._loop.create_future()
        self._queries: Queries | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._held: list[Held] = []
        self._reports = Reports(coordinator, settings.run, timedelta(seconds=settings.report_seconds))
        self._meters = Meters(settings.trigger, clock)
        self._backups = BackupPlace(job, settings, coordinator, clock, open_blobs)
        self._snapshots: dict[str, Snapshot] = {}
        self._draining: Draining | None = None
        self._heart: Heart | None = None
        self._exposition: Exposition | None = None

    # --- what may end it -------------------------------------------------------------------------------------------

    def end(self, ending: Ending) -> None:
        """The first reason stands. On the loop's thread."""
        if not self._ending.done():
            log.info("ending: %s", ending.reason)
            self._ending.set_result(ending)

    def stop_requested(self) -> None:
        """SIGTERM: stop between batches; a second one does not wait for batches."""
        if self._ending.done():
            log.warning("told to stop again: running batches are interrupted")
            if self._queries is not None:
                self._queries.hurry()
        self.end(Ending(EXIT_OK, "told to stop"))

    def _in_background(self, work: Awaitable[None], what: str) -> None:
        async def guarded() -> None:
            try:
                await work
            except LeaseLost as lost:
                self._lease_lost(str(lost))
            except StaleRun as stale:
                self.end(Ending(EXIT_OK, str(stale)))
            except SluiceError as error:
                self.end(Ending(EXIT_FAILED, f"{what}: {error.title()} {error}"))
            except Exception as error:
                log.error("%s failed", what, exc_info=error)
                self.end(Ending(EXIT_FAILED, f"{what}: {error}"))

        task = asyncio.create_task(guarded(), name=what)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _lease_lost(self, why: str) -> None:
        """Ends the process: nothing more may be written, so nothing is stopped in order."""
        self._on_lease_lost(why)
        self.end(Ending(EXIT_LEASE_LOST, why))

    # --- the life --------------------------------------------------------------------------------------------------

    async def run(self) -> Ending:
        """Until the end; the caller exits with its code."""
        tell = False
        try:
            run = await self._reach(lambda: self._coordinator.run(self._settings.run))
            if run.state.ended:
                return Ending(EXIT_OK, f"the run is over: {run.state}")
            check_job(self._job, run)
            await self._expose()
            epoch = await self._register(run)
            tell = True
            if run.drain is not None and not run.drain.phase.over and self._draining is None:
                self._begin_drain(run.drain)
            await self._work(run, epoch)
            ending = await self._ending
            tell = await self._wind_down()
        except LeaseLost as lost:
            ending = Ending(EXIT_LEASE_LOST, str(lost))
        except SluiceError as error:
            self.end(Ending(EXIT_OK, str(error)) if isinstance(error, StaleRun) else Ending(EXIT_FAILED, f"{error.title()} {error}"))
            ending = self._ending.result()
        except Exception as error:
            log.error("the agent failed", exc_info=error)
            ending = Ending(EXIT_FAILED, f"{type(error).__name__}: {error}")
        finally:
            await self._end_background()
            await self._backups.close()
            if self._exposition is not None:
                self._exposition.close()
        if tell:
            await self._say_goodbye(ending)
        return ending

    async def _end_background(self) -> None:
        """Cancel what runs beside, and see it end: nothing of it may speak after the goodbye."""
        for task in self._background:
            task.cancel()
        if self._background:
            await asyncio.wait(self._background, timeout=RETRY.total_seconds())

    async def _reach(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask until the coordinator answers, for as long as the settings say."""
        give_up = self._clock.elapsed() + self._settings.connect_timeout_seconds
        while True:
            try:
                return await ask()
            except CoordinatorUnreachable as error:
                if self._clock.elapsed() >= give_up or self._ending.done():
                    raise
                log.warning("waiting for the coordinator: %s", error)
                await self._pause(RETRY)
            except Refused as refused:
                if refused.refused_as == StaleRun.slug:
                    raise StaleRun(str(refused)) from refused
                raise

    async def _pause(self, duration: timedelta) -> None:
        """Wait, but not beyond the end."""
        await asyncio.wait([self._ending], timeout=duration.total_seconds())

    async def _expose(self) -> None:
        """Show metrics. Without them the container works just as well."""
        host, port, name = self._settings.metrics_host, self._settings.metrics_port, self._settings.host
        backups = partial(backup_metrics, self._backups.meters, self._backups.requests)
        collector = ContainerCollector(
            self._meters, self._settings.trigger, self._lease_left, lambda: len(self._held), self._clock, backups
        )
        try:
            async with asyncio.timeout(EXPOSE_WITHIN.total_seconds()):
                self._exposition = await asyncio.to_thread(expose, collector, host, port, name)
        except (OSError, TimeoutError, UnicodeError) as error:
            log.warning(
                "no metrics are shown: %s, port %d: %s (SLUICE_METRICS_HOST, SLUICE_METRICS_PORT)", host, port, error or "no answer"
            )
            return
        log.info("metrics on %s", self._exposition.address or f"port {self._exposition.port}")

    def _lease_left(self) -> timedelta | None:
        return self._heart.left if self._heart else None

    async def _register(self, run: wire.RunDetail) -> Epoch:
        request = wire.RegisterRequest(
            processor_id=self._settings.processor_id,
            execution_container_id=self._settings.id,
            host=self._settings.host,
            metrics_address=self._exposition.address if self._exposition else None,
        )
        sent = self._clock.elapsed()

        async def ask() -> wire.RegisterReply:
            nonlocal sent
            sent = self._clock.elapsed()
            return await self._coordinator.register(self._settings.run, request)

        reply = await self._reach(ask)
        epoch = Epoch(reply.epoch)
        trust = Trust(sent, timedelta(seconds=reply.lease_seconds), timedelta(seconds=reply.margin_seconds))
        self._heart = heart = Heart(
            self._coordinator,
            self._settings.id,
            epoch,
            trust,
            timedelta(seconds=reply.heartbeat_seconds),
            self._clock,
            random.random,
            self._on_renewed,
        )
        log.info("slot %s of run %s, epoch %d, lease %g s", self._settings.processor_id, run.run_id, epoch, reply.lease_seconds)
        self._in_background(self._beat(heart), "heartbeat")
        self._in_background(self._listen(), "notices")
        self._in_background(self._reports.run(), "progress")
        return epoch

    async def _beat(self, heart: Heart) -> None:
        match await heart.run():
            case Replaced():
                self._lease_lost("the coordinator holds this container for replaced or lost")
            case LeaseRanOut(last_error=error):
                self._lease_lost(f"the lease ran out while the coordinator was unreachable: {error}")
            case RunOver(state=state):
                self.end(Ending(EXIT_OK, f"the run is over: {state}"))

    async def _listen(self) -> None:
        """Notices as they come. Those from before the registration are read too: a stop may be among them."""
        seq = 0
        while True:
            asked = self._clock.elapsed()
            try:
                found = await self._coordinator.notices(self._settings.run, seq, POLL)
            except (OurTrouble, Refused) as error:
                log.debug("no notices: %s", error)
                await asyncio.sleep(RETRY.total_seconds())
                continue
            for notice in found:
                seq = notice.seq
                if notice.kind in ("STOP", "ENDED"):
                    self.end(Ending(EXIT_OK, f"the run is to stop: {notice.detail.get('reason', '')}"))
                elif notice.kind == "DRAIN":
                    await self._hear_of_drain(notice.detail)
                elif notice.kind == "BACKUP":
                    await self._adopt_backup()
            if not found and self._clock.elapsed() - asked < RETRY.total_seconds():  # a coordinator that is going down holds no polls
                await asyncio.sleep(RETRY.total_seconds())

    async def _hear_of_drain(self, told: Mapping[str, object]) -> None:
        """The first word of a drain pauses the queries. One that makes no sense, or is about another drain, changes nothing."""
        try:
            uuid, phase = str(told["uuid"]), Phase(str(told["phase"]))
        except (KeyError, ValueError):
            log.warning("a notice of a drain is not understood: %s", str(told)[:200])
            return
        if self._draining is not None and self._draining.uuid == uuid:
            await self._draining.heard(phase)
        elif not phase.over:
            self._in_background(self._look_for_drain(uuid), "drain")

    async def _look_for_drain(self, uuid: str) -> None:
        """Take part in the drain if it is the run's."""
        while not self._ending.done():
            try:
                drain = (await self._coordinator.run(self._settings.run)).drain
                break
            except OurTrouble:
                await self._pause(RETRY)
            except Refused as refused:
                log.warning("a notice of drain %s is left alone: %s", uuid, refused)
                return
        else:
            return
        if drain is None or drain.uuid != uuid or drain.phase.over:
            return
        if self._draining is not None and self._draining.uuid == uuid:  # another look was quicker
            await self._draining.heard(drain.phase)
            return
        self._begin_drain(drain)

    def _begin_drain(self, drain: wire.DrainOfRun) -> None:
        log.info("drain %s: %s", drain.uuid, drain.phase)
        self._draining = Draining(self._coordinator, self._settings.run, self._backups, drain)
        if self._queries is not None:
            self._in_background(self._queries.pause(self._settings.stop_timeout), "drain")

    async def _adopt_backup(self) -> None:
        """Use the blob stores that the run names now. One that cannot be used changes nothing: the others go on."""
        try:
            await self._backups.adopt(await self._reach(lambda: self._coordinator.run(self._settings.run)))
        except SluiceError as error:
            log.error("the run's new blob stores are not used: %s %s", error.title(), error)

    async def _open_blobs(self, run: wire.RunDetail) -> None:
        """A blob store that does not answer is waited for as the coordinator is."""
        give_up = self._clock.elapsed() + self._settings.connect_timeout_seconds
        while not self._ending.done():
            try:
                await self._backups.adopt(run)
                return
            except BlobUnavailable as error:
                if self._clock.elapsed() >= give_up:
                    raise
                log.warning("waiting for the blob store: %s", error)
                await self._pause(RETRY)

    @property
    def backing_up_to(self) -> Sequence[BlobStoreName]:
        return list(self._backups.destinations.to)

    def _backup_of(self, run: wire.RunDetail) -> Callable[[Start], Backup | None]:
        def backup_of(start: Start) -> Backup | None:
            return Backup(self._backups, start, self._snapshots.get(start.query)) if run.restore_from else None

        return backup_of

    async def _work(self, run: wire.RunDetail, epoch: Epoch) -> None:
        """Open Spark, then acquire and start the slot's tasks, each as soon as it is free."""
        model_run, model = await self._reach(lambda: self._coordinator.job_model(self._job.name))
        if model_run != run.run_id:
            raise StaleRun(f"job {self._job.name} has a newer run, {model_run}")
        slot = model.containers.get(self._settings.processor)
        policy = RestartPolicy(self._settings.max_restarts, timedelta(seconds=self._settings.restart_delay_seconds))
        await self._open_blobs(run)
        queries = self._queries = Queries(
            self._make_engine(run),
            policy,
            self._clock,
            self._reports,
            self._lease_lost,
            self._pacer_of(run),
            self._backup_of(run),
            self._meters,
        )
        await self._unless_ending(queries.open())
        if not self._ending.done():
            self._in_background(self._feel_pulse(queries), "Spark")
        for task in slot.tasks.values() if slot and not self._ending.done() else ():
            self._in_background(self._run_task(queries, run, epoch, task), f"task {task.name}")

    async def _feel_pulse(self, queries: Queries) -> None:
        self.end(Ending(EXIT_FAILED, await queries.until_spark_is_gone(self._settings.spark_timeout)))

    def _pacer_of(self, run: wire.RunDetail) -> Callable[[Start], Pacer | None]:
        """Aligned are the stages that feed another one, in a run that asks for it."""
        intermediate = {stream.name for stream in run.streams if stream.role == "intermediate"}

        def pacer_of(start: Start) -> Pacer | None:
            if run.max_event_skew_seconds is None or intermediate.isdisjoint(start.declared.stage.writes):
                return None
            return Pacer(self._coordinator, self._settings.run, start)

        return pacer_of

    async def _unless_ending(self, work: Awaitable[T]) -> None:
        """Wait for the work or for the end, whichever comes first. An exception of the work is raised."""
        task = asyncio.ensure_future(work)
        waited: set[asyncio.Future[Any]] = {task, self._ending}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()

    async def _run_task(self, queries: Queries, run: wire.RunDetail, epoch: Epoch, task: TaskModel) -> None:
        with about(task=task.name):
            acquired = await self._acquire(task.name, epoch)
            if acquired is None:
                return
            self._held.append(Held(task.name, Generation(acquired.generation)))
            if self._ending.done():  # told to stop while the answer was on its way
                return
            self._snapshots |= offered(task.name, acquired)
            if acquired.drain is not None and not acquired.drain.phase.over and self._draining is None:
                self._begin_drain(acquired.drain)
            starts = starts_of(self._job, run, task.name, acquired)
            while not self._ending.done():
                if self._draining is None:
                    await queries.run(starts)  # until the end, or until a drain has paused them
                if (draining := self._draining) is None:  # the end, or a drain that was over while these queries were still being paused
                    continue
                prepared = await queries.prepare(starts)
                if prepared is None or await queries.beside_backups(prepared, draining.take_part(queries, prepared)):
                    return
                if self._draining is draining:
                    log.info("drain %s is over before anything was flushed: the queries go on", draining.uuid)
                    self._draining = None

    async def _acquire(self, task: TaskName, epoch: Epoch) -> wire.AcquireReply | None:
        """Wait for the task for as long as it takes; None when the container ends first."""
        while not self._ending.done():
            reply = await self._reach(lambda: self._coordinator.acquire(self._settings.run, task, self._settings.id, epoch))
            if isinstance(reply, wire.AcquireReply):
                return reply
            log.info("task %s: %s may still act for %.1f s", task, reply.former, reply.wait_seconds)
            await self._pause(min(timedelta(seconds=reply.wait_seconds + 0.05), 2 * RETRY))
        return None

    # --- the end ---------------------------------------------------------------------------------------------------

    async def _wind_down(self) -> bool:
        """Stop every query between batches, tell the last progress, give back the tasks whose queries have ended. After a lost lease:
        nothing. Whether all have ended: while one may still act, nobody is told that this container is gone."""
        if self._ending.result().exit_code == EXIT_LEASE_LOST:
            return False
        late = await self._queries.stop(self._settings.stop_timeout) if self._queries is not None else set()
        try:
            await self._reports.flush()
            for held in self._held:
                if held.task not in late:
                    await self._coordinator.release(self._settings.run, held.task, held.generation)
        except SluiceError as error:
            log.warning("not everything could be told to the coordinator: %s", error)
        return not late

    async def _say_goodbye(self, ending: Ending) -> None:
        """Tell the exit. If nobody hears it, the watchdog tells it when the process is gone, or the lease runs out."""
        with suppress(SluiceError, TimeoutError):
            async with asyncio.timeout(5):
                await self._coordinator.exited(self._settings.id, ending.exit_code, ending.reason)
