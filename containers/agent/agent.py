"""The agent: from registration to exit code, on one event loop.

It reads the run, registers (heartbeats are sent from then on), opens Spark and runs the slot's tasks (`containers/agent/slot.py`), until
there is a reason to exit: a stop (SIGTERM or a notice), the end of the lease, or a failure that persisted after restarts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta

from prometheus_client.metrics_core import Metric

from containers.agent.drain import DrainParticipant
from containers.agent.failures import RestartPolicy
from containers.agent.heartbeat import LeaseExpired, LeaseKeeper, Replaced, RunEnded, register
from containers.agent.lifecycle import RETRY, ContainerLifecycle, ExitReason, exit_code_of
from containers.agent.metrics import ContainerCollector, Meter, backup_metrics, disk_metrics, jvm_metrics, process_metrics
from containers.agent.metrics_server import MetricsServer, serve_metrics
from containers.agent.notices import BlobsLost, NewBlobStores, NewModel, StopRequested, events
from containers.agent.progress import ProgressReporter
from containers.agent.queries import Queries
from containers.agent.slot import Slot
from containers.agent.spare import TAKE_WITHIN, TAKEN, Vacancies, pause_after
from containers.agent.stage import StageContext
from containers.agent.task import TaskContext
from containers.agent.watermarks import QUIET_INTERVAL as LONGEST_WATERMARKS_INTERVAL
from containers.agent.watermarks import StageWatermarks, WatermarkReporter
from containers.engine import Bound, Engine, RunOfJob, StageStart
from containers.errors import EXIT_REPEATED_FAILURE, DiskFull
from containers.rpc.connection import ConnectionLost
from containers.settings import ContainerSettings
from containers.state.backup import Backup
from containers.state.context import StateContext
from containers.state.standby import Standby
from containers.supervision.exit_report import EXIT_FAILED, EXIT_LEASE_LOST, EXIT_OK, report
from sluice import disks
from sluice.blobs.port import BlobStore
from sluice.client import Refused
from sluice.client.agents import AgentClient
from sluice.clock import Clock
from sluice.core.drain import Mode
from sluice.core.errors import BlobUnavailable, CoordinatorUnreachable, LeaseLost, SluiceError, StaleRun, Unavailable
from sluice.core.ids import Epoch, Generation, Instant, StreamId, TaskName
from sluice.core.jobmodels.placement import replicas_of
from sluice.deploy import check_job
from sluice.disks import LocalDisks
from sluice.job import JobDescription
from sluice.wire import agents as wire_agents
from sluice.wire import drains as wire_drains
from sluice.wire import runs as wire_runs

log = logging.getLogger(__name__)

SERVE_METRICS_WITHIN = timedelta(seconds=10)
"""How long the start of the metrics server may take: it looks up the machine's name."""


def _ignore(_: str) -> None:
    """Used where there is no process of the agent."""


def run_of_job(run: wire_runs.BasicRun) -> RunOfJob:
    """What the engine needs to know of the run."""
    streams = {each.name: Bound(StreamId(each.system, each.stream), each.role == "intermediate", each.partitions) for each in run.streams}
    return RunOfJob(streams, run.systems, run.config)


class Agent:
    """One incarnation of a slot. `make_engine` builds the engine once the run is known; `on_renewed` passes the end of the lease to the
    guardian; `on_lease_lost` ends the driver and this process."""

    def __init__(
        self,
        job: JobDescription,
        settings: ContainerSettings,
        coordinator: AgentClient,
        clock: Clock,
        make_engine: Callable[[wire_runs.BasicRun], Engine],
        on_renewed: Callable[[Instant], None],
        on_lease_lost: Callable[[str], None],
        open_blobs: Callable[[str], BlobStore] | None = None,
        on_token: Callable[[str], None] = _ignore,
        on_slot: Callable[[str], None] = _ignore,
        not_now: Callable[[], str | None] = lambda: None,
        end_driver: Callable[[int], Awaitable[bool]] | None = None,
        driver_pid: int | None = None,
    ) -> None:
        """`on_token` is called with the token that the container gets when it registers, `on_slot` with the slot that a spare takes.
        `not_now` returns why no heartbeat may be sent; None if one may. `end_driver` is called with the exit code, ends the process of the
        engine, and returns whether it has ended. None if the engine is in this process. `driver_pid`: that of the engine's process."""
        self._job = job
        self._settings = settings
        self._coordinator = coordinator
        self._clock = clock
        self._make_engine = make_engine
        self._on_renewed = on_renewed
        self._on_token = on_token
        self._on_slot = on_slot
        self._not_now = not_now
        self._end_driver = end_driver
        self._driver_pid = driver_pid
        self._lifecycle = ContainerLifecycle(clock, timedelta(seconds=settings.connect_timeout_seconds), on_lease_lost)
        self._reporter = ProgressReporter(coordinator, settings.run, timedelta(seconds=settings.report_seconds))
        self._backups = StateContext(job, settings, coordinator, clock, open_blobs)
        self._standby = Standby(self._backups, settings.id, timedelta(seconds=settings.standby_seconds))
        self._drains = DrainParticipant(coordinator, settings.run, self._lifecycle, self._pause_queries, self._after_drain)
        self._queries: Queries | None = None
        self._watermarks: WatermarkReporter | None = None
        self._slot: Slot | None = None
        self._lease: LeaseKeeper | None = None
        self._metrics_server: MetricsServer | None = None

    def stop_requested(self) -> None:
        """Handle SIGTERM: stop between two batches. A second call interrupts running batches."""
        if self._lifecycle.exiting:
            log.warning("second stop request: running batches are interrupted")
            if self._queries is not None:
                self._queries.interrupt_batches()
        self._lifecycle.exit(ExitReason(EXIT_OK, "stop requested"))

    def driver_ended(self, reason: str) -> None:
        """Exit, because the driver has ended, and with it Spark."""
        if self._queries is not None:
            self._queries.driver_ended()
        self._lifecycle.exit(ExitReason(EXIT_FAILED, reason))

    async def run(self) -> ExitReason:
        """Run until there is a reason to exit; the caller exits with its code."""
        report_exit = False
        try:
            reason, report_exit = await self._live()
        except Exception as error:
            reason = await self._reason_of(error)
            report_exit = self._lease is not None
        finally:
            await self._lifecycle.cancel_background()
            await self._backups.close()
            if self._metrics_server is not None:
                self._metrics_server.close()
        if reason.exit_code in (EXIT_FAILED, EXIT_REPEATED_FAILURE) and self._settings.log_place:
            reason = ExitReason(reason.exit_code, f"{reason.reason}\nlog: {self._settings.log_place}")
        if self._end_driver is not None:
            report_exit = await self._end_driver(reason.exit_code) and self._lease is not None
        if report_exit:
            await self._report_exit(reason)
        return reason

    async def _live(self) -> tuple[ExitReason, bool]:
        """From the registration to the stop of the queries. Returns the reason to exit, and whether no query may act any more."""
        run = await self._lifecycle.connect(lambda: self._coordinator.basic_run(self._settings.run))
        if run.state.ended:
            return ExitReason(EXIT_OK, f"the run has ended: {run.state}"), False
        check_job(self._job, run)
        await self._serve_metrics()
        registered = await (self._as_spare(run) if self._settings.spare else self._register(run))
        if registered is not None:
            with self._lifecycle.under_lease():
                await self._work(run, registered)
        reason = await self._lifecycle.exit_reason
        return reason, await self._shut_down() and registered is not None

    async def _reason_of(self, error: Exception) -> ExitReason:
        """Why the container exits after this error, unless there is a reason already."""
        match error:
            case ConnectionLost():
                return await self._lifecycle.exit_reason  # of `driver_ended`
            case LeaseLost():
                return ExitReason(EXIT_LEASE_LOST, str(error))
            case StaleRun():
                self._lifecycle.exit(ExitReason(EXIT_OK, str(error)))
            case SluiceError():
                self._lifecycle.exit(ExitReason(exit_code_of(error), f"{error.title()} {error}"))
            case _:
                log.error("the agent failed", exc_info=error)
                return ExitReason(EXIT_FAILED, f"{type(error).__name__}: {error}")
        return self._lifecycle.exit_reason.result()

    # --- metrics ---------------------------------------------------------------------------------------------------

    async def _serve_metrics(self) -> None:
        """Start the metrics server. If it cannot be started, the container runs without it."""
        host, port, name = self._settings.metrics_host, self._settings.metrics_port, self._settings.host
        collector = ContainerCollector(
            self._meters, self._settings.trigger, self._lease_left, lambda: len(self._owned), self._clock, self._more_metrics
        )
        try:
            async with asyncio.timeout(SERVE_METRICS_WITHIN.total_seconds()):
                self._metrics_server = await asyncio.to_thread(
                    serve_metrics, collector, host, port, name, token_file=self._settings.metrics_token_file
                )
        except (OSError, TimeoutError, UnicodeError) as error:
            log.warning(
                "metrics are not served: %s, port %d: %s (SLUICE_METRICS_HOST, SLUICE_METRICS_PORT)", host, port, error or "no answer"
            )
            return
        log.info("metrics on %s", self._metrics_server.address or f"port {self._metrics_server.port}")

    def _meters(self) -> Sequence[Meter]:
        return self._queries.meters() if self._queries is not None else ()

    def _more_metrics(self) -> Iterable[Metric]:
        yield from backup_metrics(self._backups.meters, self._backups.requests, self._standby.meters)
        yield from disk_metrics(disks.measure(self._settings.disks), self._settings.disk_thresholds)
        yield from process_metrics(self._driver_pid)
        if self._queries is not None and self._queries.engine.jvm is not None:
            yield from jvm_metrics(self._queries.engine.jvm)

    def _lease_left(self) -> timedelta | None:
        return self._lease.left if self._lease else None

    @property
    def _owned(self) -> Mapping[TaskName, Generation]:
        return self._slot.owned if self._slot is not None else {}

    # --- registration, lease, notices ------------------------------------------------------------------------------

    async def _as_spare(self, run: wire_runs.BasicRun) -> wire_agents.RegisterReply | None:
        """Open Spark, wait for a slot without a container, and register in it. None when the container exits first. Raises StaleRun,
        Refused, and what `_open_spark` raises."""
        await self._open_spark(run)
        await self._warm_up()
        log.info("Spark is open: waiting for a slot without a container")
        vacancies = Vacancies()
        while True:
            began = self._clock.elapsed()
            now = await self._lifecycle.until_answered(lambda: self._coordinator.run_with_vacant_slots(self._settings.run))
            if now is None:
                return None
            if now.state.ended or now.stop_requested_at is not None:
                self._lifecycle.exit(ExitReason(EXIT_OK, f"the run {'has ended: ' + now.state if now.state.ended else 'is to stop'}"))
                return None
            look = timedelta(seconds=self._clock.elapsed() - began)
            works = self._why_not_now() is None
            for slot in vacancies.to_take(now.processors, (now.vacant_slots or ()) if works else (), self._clock.elapsed()):
                try:
                    reply = await self._register(now, slot, only_if_free=True)
                except Refused as refused:
                    if refused.refused_as not in TAKEN:
                        raise
                    log.info("slot %s was not taken: %s", slot, refused)
                except CoordinatorUnreachable as error:  # or the slot's containers have failed repeatedly
                    log.warning("slot %s cannot be taken now: %s", slot, error)
                else:
                    self._settings = self._settings.model_copy(update={"processor_id": slot})
                    self._backups.use_slot(slot)
                    self._on_slot(slot)
                    return reply
            await self._lifecycle.pause(pause_after(look))

    async def _warm_up(self) -> None:
        """Prepare Spark for its first batch."""
        if self._queries is not None and not self._lifecycle.exiting:
            try:
                await self._lifecycle.unless_exiting(self._queries.engine.call(lambda engine: engine.warm_up()))
            except Exception as error:  # the first batches are slow then
                log.warning("the small job that prepares Spark has failed", exc_info=error)

    async def _register(self, run: wire_runs.BasicRun, slot: str | None = None, *, only_if_free: bool = False) -> wire_agents.RegisterReply:
        processor = self._settings.processor_id if slot is None else slot
        request = wire_agents.RegisterRequest(
            processor_id=processor,
            execution_container_id=self._settings.id,
            host=self._settings.host,
            metrics_address=self._metrics_server.address if self._metrics_server else None,
            drain_modes=tuple(Mode),
            only_if_free=only_if_free,
        )
        reply, lease = await self._lifecycle.connect(
            lambda: register(
                self._coordinator,
                self._settings.run,
                request,
                self._clock,
                self._renewed,
                self._on_token,
                self._why_not_now,
                on_version=self._on_version,
                on_adopted=self._on_adopted,
            ),
            TAKE_WITHIN if only_if_free else None,
        )
        log.info("slot %s of run %s, epoch %d, lease %g s", processor, run.run_id, reply.epoch, reply.lease_seconds)
        self._lease = lease
        self._lifecycle.in_background(self._keep_lease(lease), "heartbeat")
        self._lifecycle.in_background(self._follow_notices(), "notices")
        self._lifecycle.in_background(self._reporter.run(), "progress")
        return reply

    def _why_not_now(self) -> str | None:
        """Why no heartbeat may be sent: the driver is stopped, or has not answered for long."""
        return self._not_now() or (None if self._queries is None else self._queries.hangs)

    def _renewed(self, ends_at: Instant) -> None:
        self._lifecycle.renewed(ends_at)
        self._on_renewed(ends_at)

    async def _keep_lease(self, lease: LeaseKeeper) -> None:
        match await lease.run():
            case Replaced():
                self._lifecycle.lose_lease("the coordinator considers this container replaced or lost")
            case LeaseExpired(last_error=error):
                self._lifecycle.lose_lease(f"the lease expired: {error}")
            case RunEnded(state=state):
                self._lifecycle.exit(ExitReason(EXIT_OK, f"the run has ended: {state}"))

    async def _follow_notices(self) -> None:
        async for event in events(self._coordinator, self._settings.run, self._clock):
            match event:
                case StopRequested(reason):
                    self._lifecycle.exit(ExitReason(EXIT_OK, f"the run is to stop: {reason}"))
                case wire_drains.DrainNotice():
                    self._drains.advance(event)
                case NewModel(version):
                    self._on_version(version)
                case NewBlobStores():
                    self._lifecycle.in_background(self._backups.adopt_when_possible(), "blob stores")
                case BlobsLost(task, stage, blob_store) if self._queries is not None:
                    self._queries.repair(task, stage, blob_store)

    def _on_version(self, version: int) -> None:
        if self._slot is not None:
            self._slot.on_version(version)

    def _on_adopted(self, version: int) -> None:
        if self._slot is not None:
            self._slot.on_adopted(version)

    def _pause_queries(self) -> None:
        if self._queries is not None:
            self._lifecycle.in_background(self._queries.pause(self._settings.stop_timeout), "drain")

    def _after_drain(self) -> None:
        if self._slot is not None:
            self._slot.check_again()

    # --- work ------------------------------------------------------------------------------------------------------

    async def _open_spark(self, run: wire_runs.BasicRun) -> None:
        """Open the blob stores and Spark. Returns early if there is a reason to exit."""
        await self._open_blob_stores(run)
        context = StageContext(
            policy=RestartPolicy(self._settings.max_restarts, timedelta(seconds=self._settings.restart_delay_seconds)),
            trigger=self._settings.trigger,
            clock=self._clock,
            reporter=self._reporter,
            new_backup=lambda start: Backup(self._backups, start),
            new_watermarks=self._new_watermarks(run),
            job_directory=self._job.directory,
            log_place=self._settings.log_place,
            disks=LocalDisks(self._settings.disks, self._settings.disk_thresholds),
            check_lease=self._lifecycle.check_lease,
        )
        queries = self._queries = Queries(self._make_engine(run), context, self._lifecycle.lose_lease, self._confirm_owner)
        self._watermarks = WatermarkReporter(
            self._coordinator,
            self._settings.run,
            self._clock,
            queries.watermarks,
            queries.engine.limit_watermark,
            min(LONGEST_WATERMARKS_INTERVAL, timedelta(seconds=self._settings.report_seconds)),
        )
        self._lifecycle.in_background(self._probe_spark(queries), "Spark")
        await self._lifecycle.unless_exiting(self._open(queries))

    async def _work(self, run: wire_runs.BasicRun, registered: wire_agents.RegisterReply) -> None:
        """Open Spark, unless it is open, then run the slot's tasks, each as soon as it can be acquired."""
        if self._queries is None:
            self._drains.begin(run.drain)
            await self._open_spark(run)
        else:
            run = await self._lifecycle.connect(lambda: self._coordinator.basic_run(self._settings.run))  # it may have changed meanwhile
            self._drains.begin(run.drain)
            await self._lifecycle.unless_exiting(self._backups.adopt_when_possible())
        if self._lifecycle.exiting:
            return
        assert self._queries is not None
        assert self._watermarks is not None
        queries = self._queries
        self._lifecycle.in_background(self._watermarks.run(), "watermarks")
        tasks = TaskContext(
            lifecycle=self._lifecycle,
            job=self._job,
            coordinator=self._coordinator,
            run=run,
            execution_id=self._settings.id,
            epoch=Epoch(registered.epoch),
            queries=queries,
            reporter=self._reporter,
            drains=self._drains,
            state=self._backups,
            stop_timeout=self._settings.stop_timeout,
        )
        self._slot = Slot(tasks, self._settings.processor, registered.job_model_version)
        self._lifecycle.in_background(self._slot.follow(), "job model")
        if replicas_of(run.config):
            self._lifecycle.in_background(self._standby.run(), "standby")

    async def _open(self, queries: Queries) -> None:
        """Start Spark as soon as the disks have room for its files."""
        while not self._lifecycle.exiting:
            try:
                await queries.open()
                return
            except DiskFull as error:
                log.warning("waiting for room on a disk: %s", error)
                await self._lifecycle.pause(RETRY)

    async def _open_blob_stores(self, run: wire_runs.BasicRun) -> None:
        """Open the run's blob stores. One that does not answer is retried for `connect_timeout_seconds`."""
        give_up = self._clock.elapsed() + self._settings.connect_timeout_seconds
        while not self._lifecycle.exiting:
            try:
                await self._backups.adopt(run)
                return
            except BlobUnavailable as error:
                if self._clock.elapsed() >= give_up:
                    raise
                log.warning("waiting for the blob store: %s", error)
                await self._lifecycle.pause(RETRY)

    async def _confirm_owner(self, task: TaskName, generation: Generation) -> None:
        """See `Callbacks`."""

        async def request() -> bool:
            await self._coordinator.confirm_owner(self._settings.run, task, generation)
            return True

        if not await self._lifecycle.until_answered(request):
            raise Unavailable(f"the container exits before the coordinator has confirmed that it owns task {task}")

    async def _probe_spark(self, queries: Queries) -> None:
        def on_hang(why: str) -> None:
            """A spare has no lease to lose."""
            if self._lease is None:
                self._lifecycle.exit(ExitReason(EXIT_FAILED, why))

        self._lifecycle.exit(ExitReason(EXIT_FAILED, await queries.until_spark_stops(self._settings.spark_timeout, on_hang)))

    def _new_watermarks(self, run: wire_runs.BasicRun) -> Callable[[StageStart], StageWatermarks | None]:
        """Returns a function that makes the watermarks of a stage; None for a stage that neither writes nor reads an intermediate
        stream."""
        intermediate = {stream.name for stream in run.streams if stream.role == "intermediate"}

        def report_soon() -> None:
            if self._watermarks is not None:
                self._watermarks.changed()

        def new_watermarks(start: StageStart) -> StageWatermarks | None:
            stage = start.stage
            reads = not intermediate.isdisjoint(stage.reads)
            if not reads and intermediate.isdisjoint(stage.writes):
                return None
            report_soon()
            return StageWatermarks(start, reads=reads, on_change=report_soon)

        return new_watermarks

    # --- exit ------------------------------------------------------------------------------------------------------

    async def _shut_down(self) -> bool:
        """Stop every query between two batches, report the last progress, and release the tasks whose queries have ended. After a lost
        lease, do nothing. Returns whether the exit may be reported: it may not while a query may still act."""
        if self._lifecycle.exit_reason.result().exit_code == EXIT_LEASE_LOST:
            return False
        acting = await self._queries.stop(self._settings.stop_timeout) if self._queries is not None else set()
        if acting and self._end_driver is None:
            log.warning("%s may still act", ", ".join(sorted(acting)))
        try:
            await self._reporter.flush()
            for task, generation in self._owned.items():
                if task not in acting:
                    await self._coordinator.release(self._settings.run, task, generation)
        except SluiceError as error:
            log.warning("not everything could be reported to the coordinator: %s", error)
        return not acting

    async def _report_exit(self, reason: ExitReason) -> None:
        """Report the exit. If this fails, the lease expires."""
        if not await report(self._coordinator, self._settings.id, reason.exit_code, reason.reason):
            log.warning("the exit was not reported to the coordinator")
