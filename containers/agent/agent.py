"""The agent: one event loop on a thread of its own inside the driver, from registration to exit code.

Order of a life: ask for the run, register (from here on the heart beats), open Spark, run the slot's tasks (`containers/agent/slot.py`),
and then wait for whatever ends it: a stop (SIGTERM, a notice), the verdict of the heart, or a failure that restarts could not mend.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta

from prometheus_client.metrics_core import Metric

from containers.agent.alignment import Aligner
from containers.agent.drain import DrainNews
from containers.agent.heartbeat import LeaseKeeper, LeaseRanOut, Replaced, RunOver
from containers.agent.lifecycle import EXIT_FAILED, EXIT_LEASE_LOST, EXIT_OK, RETRY, ContainerLifecycle, ExitReason
from containers.agent.metrics import ContainerCollector, Exposition, Meters, backup_metrics, expose
from containers.agent.progress import Reports
from containers.agent.queries import Queries
from containers.agent.slot import Slot
from containers.agent.stage import RestartPolicy
from containers.agent.task import TaskContext
from containers.engine import Engine, StageStart
from containers.settings import ContainerSettings
from containers.state.backup import Backup
from containers.state.context import StateContext
from containers.state.recovery import Snapshot
from containers.state.standby import Standby
from sluice.blobs.port import BlobStore
from sluice.client import CoordinatorClient, Refused
from sluice.clock import Clock
from sluice.core.errors import BlobUnavailable, LeaseLost, SluiceError, StaleRun, Unavailable
from sluice.core.ids import Epoch, Generation, Instant, TaskName
from sluice.core.lease import Trust
from sluice.core.placement import replicas_of
from sluice.core.snapshot import BlobStoreName
from sluice.deploy import check_job
from sluice.job import Job
from sluice.wire import agents as wire_agents
from sluice.wire import runs as wire_runs

log = logging.getLogger(__name__)

EXPOSE_WITHIN = timedelta(seconds=10)
"""The machine's name is looked up on the way."""

POLL = timedelta(seconds=20)
"""How long one poll for notices is held."""


class Agent:
    """One incarnation of a slot. `make_engine` builds the engine once the run is known; `on_renewed` tells the watchdog of the lease."""

    def __init__(
        self,
        job: Job,
        settings: ContainerSettings,
        coordinator: CoordinatorClient,
        clock: Clock,
        make_engine: Callable[[wire_runs.RunDetail], Engine],
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
        self._life = ContainerLifecycle(clock, timedelta(seconds=settings.connect_timeout_seconds), on_lease_lost)
        self._queries: Queries | None = None
        self._slot: Slot | None = None
        self._reports = Reports(coordinator, settings.run, timedelta(seconds=settings.report_seconds))
        self._meters = Meters(settings.trigger, clock)
        self._backups = StateContext(job, settings, coordinator, clock, open_blobs)
        self._standby = Standby(self._backups, settings.id, timedelta(seconds=settings.standby_seconds))
        self._snapshots: dict[str, Snapshot] = {}
        self._drains = DrainNews(self._life, coordinator, settings.run, self._backups, self._pause_queries, self._after_drain)
        self._heart: LeaseKeeper | None = None
        self._exposition: Exposition | None = None

    # --- what may end it -------------------------------------------------------------------------------------------

    def stop_requested(self) -> None:
        """SIGTERM: stop between batches; a second one does not wait for batches."""
        if self._life.over:
            log.warning("told to stop again: running batches are interrupted")
            if self._queries is not None:
                self._queries.hurry()
        self._life.end(ExitReason(EXIT_OK, "told to stop"))

    # --- the life --------------------------------------------------------------------------------------------------

    async def run(self) -> ExitReason:
        """Until the end; the caller exits with its code."""
        tell = False
        try:
            run = await self._life.reach(lambda: self._coordinator.run(self._settings.run))
            if run.state.ended:
                return ExitReason(EXIT_OK, f"the run is over: {run.state}")
            check_job(self._job, run)
            await self._expose()
            registered = await self._register(run)
            tell = True
            self._drains.begin(run.drain)
            await self._work(run, registered)
            ending = await self._life.ending
            tell = await self._wind_down()
        except LeaseLost as lost:
            ending = ExitReason(EXIT_LEASE_LOST, str(lost))
        except SluiceError as error:
            stale = isinstance(error, StaleRun)
            self._life.end(ExitReason(EXIT_OK, str(error)) if stale else ExitReason(EXIT_FAILED, f"{error.title()} {error}"))
            ending = self._life.ending.result()
        except Exception as error:
            log.error("the agent failed", exc_info=error)
            ending = ExitReason(EXIT_FAILED, f"{type(error).__name__}: {error}")
        finally:
            await self._life.end_background()
            await self._backups.close()
            if self._exposition is not None:
                self._exposition.close()
        if tell:
            await self._say_goodbye(ending)
        return ending

    async def _expose(self) -> None:
        """Show metrics. Without them the container works just as well."""
        host, port, name = self._settings.metrics_host, self._settings.metrics_port, self._settings.host
        collector = ContainerCollector(
            self._meters, self._settings.trigger, self._lease_left, lambda: len(self._held), self._clock, self._backup_metrics
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

    def _backup_metrics(self) -> Iterable[Metric]:
        return backup_metrics(self._backups.meters, self._backups.requests, self._standby.meters)

    def _lease_left(self) -> timedelta | None:
        return self._heart.left if self._heart else None

    @property
    def _held(self) -> Mapping[TaskName, Generation]:
        return self._slot.held if self._slot is not None else {}

    async def _register(self, run: wire_runs.RunDetail) -> wire_agents.RegisterReply:
        request = wire_agents.RegisterRequest(
            processor_id=self._settings.processor_id,
            execution_container_id=self._settings.id,
            host=self._settings.host,
            metrics_address=self._exposition.address if self._exposition else None,
        )
        sent = self._clock.elapsed()

        async def ask() -> wire_agents.RegisterReply:
            nonlocal sent
            sent = self._clock.elapsed()
            return await self._coordinator.register(self._settings.run, request)

        reply = await self._life.reach(ask)
        epoch = Epoch(reply.epoch)
        trust = Trust(sent, timedelta(seconds=reply.lease_seconds), timedelta(seconds=reply.margin_seconds))
        self._heart = heart = LeaseKeeper(
            self._coordinator,
            self._settings.id,
            epoch,
            trust,
            timedelta(seconds=reply.heartbeat_seconds),
            self._clock,
            random.random,
            self._on_renewed,
            on_version=self._hear_of_model,
        )
        log.info("slot %s of run %s, epoch %d, lease %g s", self._settings.processor_id, run.run_id, epoch, reply.lease_seconds)
        self._life.in_background(self._beat(heart), "heartbeat")
        self._life.in_background(self._listen(), "notices")
        self._life.in_background(self._reports.run(), "progress")
        return reply

    async def _beat(self, heart: LeaseKeeper) -> None:
        match await heart.run():
            case Replaced():
                self._life.lose_lease("the coordinator holds this container for replaced or lost")
            case LeaseRanOut(last_error=error):
                self._life.lose_lease(f"the lease ran out while the coordinator was unreachable: {error}")
            case RunOver(state=state):
                self._life.end(ExitReason(EXIT_OK, f"the run is over: {state}"))

    async def _listen(self) -> None:
        """Notices as they come. Those from before the registration are read too: a stop may be among them."""
        seq = 0
        while True:
            asked = self._clock.elapsed()
            try:
                found = await self._coordinator.notices(self._settings.run, seq, POLL)
            except (Unavailable, Refused) as error:
                log.debug("no notices: %s", error)
                await asyncio.sleep(RETRY.total_seconds())
                continue
            for notice in found:
                seq = notice.seq
                if notice.kind in ("STOP", "ENDED"):
                    self._life.end(ExitReason(EXIT_OK, f"the run is to stop: {notice.detail.get('reason', '')}"))
                elif notice.kind == "DRAIN":
                    await self._drains.hear(notice.detail)
                elif notice.kind == "MODEL":
                    self._hear_of_model(notice.detail.get("version"))
                elif notice.kind == "BACKUP":
                    await self._adopt_backup()
            if not found and self._clock.elapsed() - asked < RETRY.total_seconds():  # a coordinator that is going down holds no polls
                await asyncio.sleep(RETRY.total_seconds())

    def _hear_of_model(self, version: object) -> None:
        if self._slot is not None and isinstance(version, int):
            self._slot.hear(version)

    def _pause_queries(self) -> None:
        if self._queries is not None:
            self._life.in_background(self._queries.pause(self._settings.stop_timeout), "drain")

    def _after_drain(self) -> None:
        if self._slot is not None:
            self._slot.look_again()

    async def _adopt_backup(self) -> None:
        """Use the blob stores that the run names now. One that cannot be used changes nothing: the others go on."""
        try:
            await self._backups.adopt(await self._life.reach(lambda: self._coordinator.run(self._settings.run)))
        except SluiceError as error:
            log.error("the run's new blob stores are not used: %s %s", error.title(), error)

    async def _open_blobs(self, run: wire_runs.RunDetail) -> None:
        """A blob store that does not answer is waited for as the coordinator is."""
        give_up = self._clock.elapsed() + self._settings.connect_timeout_seconds
        while not self._life.over:
            try:
                await self._backups.adopt(run)
                return
            except BlobUnavailable as error:
                if self._clock.elapsed() >= give_up:
                    raise
                log.warning("waiting for the blob store: %s", error)
                await self._life.pause(RETRY)

    @property
    def backing_up_to(self) -> Sequence[BlobStoreName]:
        return list(self._backups.destinations.to)

    def _backup_of(self, run: wire_runs.RunDetail) -> Callable[[StageStart], Backup | None]:
        def backup_of(start: StageStart) -> Backup | None:
            return Backup(self._backups, start, self._snapshots.get(start.query)) if run.restore_from else None

        return backup_of

    async def _work(self, run: wire_runs.RunDetail, registered: wire_agents.RegisterReply) -> None:
        """Open Spark, then run the slot's tasks, each as soon as it is free."""
        policy = RestartPolicy(self._settings.max_restarts, timedelta(seconds=self._settings.restart_delay_seconds))
        await self._open_blobs(run)
        queries = self._queries = Queries(
            self._make_engine(run),
            policy,
            self._clock,
            self._reports,
            self._life.lose_lease,
            self._pacer_of(run),
            self._backup_of(run),
            self._meters,
        )
        await self._life.unless_over(queries.open())
        if self._life.over:
            return
        self._life.in_background(self._feel_pulse(queries), "Spark")
        place = TaskContext(
            life=self._life,
            job=self._job,
            coordinator=self._coordinator,
            run=run,
            execution_id=self._settings.id,
            epoch=Epoch(registered.epoch),
            queries=queries,
            reports=self._reports,
            drains=self._drains,
            snapshots=self._snapshots,
            stop_within=self._settings.stop_timeout,
        )
        self._slot = Slot(place, self._settings.processor, registered.job_model_version)
        self._life.in_background(self._slot.follow(), "job model")
        if replicas_of(run.config):
            self._life.in_background(self._standby.run(), "standby")

    async def _feel_pulse(self, queries: Queries) -> None:
        self._life.end(ExitReason(EXIT_FAILED, await queries.until_spark_is_gone(self._settings.spark_timeout)))

    def _pacer_of(self, run: wire_runs.RunDetail) -> Callable[[StageStart], Aligner | None]:
        """Aligned are the stages that feed another one, in a run that asks for it."""
        intermediate = {stream.name for stream in run.streams if stream.role == "intermediate"}

        def pacer_of(start: StageStart) -> Aligner | None:
            if run.max_event_skew_seconds is None or intermediate.isdisjoint(start.declared.stage.writes):
                return None
            return Aligner(self._coordinator, self._settings.run, start)

        return pacer_of

    # --- the end ---------------------------------------------------------------------------------------------------

    async def _wind_down(self) -> bool:
        """Stop every query between batches, tell the last progress, give back the tasks whose queries have ended. After a lost lease:
        nothing. Whether all have ended: while one may still act, nobody is told that this container is gone."""
        if self._life.ending.result().exit_code == EXIT_LEASE_LOST:
            return False
        late = await self._queries.stop(self._settings.stop_timeout) if self._queries is not None else set()
        if late:
            log.warning("this container's exit is left for its watchdog to tell: %s may still act", ", ".join(sorted(late)))
        try:
            await self._reports.flush()
            for task, generation in self._held.items():
                if task not in late:
                    await self._coordinator.release(self._settings.run, task, generation)
        except SluiceError as error:
            log.warning("not everything could be told to the coordinator: %s", error)
        return not late

    async def _say_goodbye(self, ending: ExitReason) -> None:
        """Tell the exit. If nobody hears it, the watchdog tells it when the process is gone, or the lease runs out."""
        try:
            async with asyncio.timeout(5):
                await self._coordinator.exited(self._settings.id, ending.exit_code, ending.reason)
        except (SluiceError, TimeoutError) as error:
            log.warning("the coordinator was not told of the end: %s", error or "no answer")
