"""`sluice.attach`: the part of Sluice in the process of a script that was not written for it.

Threads serve the agent (`containers.attached.port`), and one lists the queries of the JVM every half second. The script's own threads are
not used, and its triggers stay as they are. Under `sluice exec` the agent is that command; otherwise it is a process that is started here
(`containers.attached.agent_process`). If the agent ends, or does not renew the lease, this process and its JVM are killed.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from containers.attached import agent_socket
from containers.attached.agent_process import command
from containers.attached.attachable import check_deploy_mode, is_observed
from containers.attached.batch_context import BatchContext, running_batch, runs_batch
from containers.attached.checkpoints.directories import Checkpoint, ScriptDirectories
from containers.attached.checkpoints.plans import Plans
from containers.attached.claim import Request
from containers.attached.driver_drains import DriverDrains
from containers.attached.kafka_columns import CannotWrite
from containers.attached.port import (
    UNPROTECTED,
    Beginning,
    Grant,
    Made,
    NotGranted,
    Wanted,
    agent_methods,
    driver_methods,
)
from containers.attached.script_report import ScriptReport
from containers.attached.stops import Stops
from containers.errors import PathNotShared
from containers.rpc.connection import Connection, ConnectionLost
from containers.rpc.socket_link import SocketLink
from containers.settings import read_container_settings
from containers.spark.scripts.active_queries import (
    SPARK_ERRORS,
    ActiveQueries,
    ActiveQuery,
    process_of_jvm,
    session_of,
    stop_all,
)
from containers.spark.scripts.drain import undrainable
from containers.spark.scripts.file_sinks import skipped_batches
from containers.supervision import processes
from containers.supervision.exit_report import EXIT_FAILED, EXIT_LEASE_LOST
from sluice.clock import Clock, SystemClock
from sluice.core.errors import SluiceError
from sluice.core.ids import ExecutionContainerId, Instant, JobName, Lineage, RunId, StageName
from sluice.logconfig import read_log_settings
from sluice.randomness import new_uuid
from sluice.wire.agents import MAX_QUERIES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from containers.attached.kafka_writer import KafkaWriters

log = logging.getLogger("sluice")

T = TypeVar("T")

UNKNOWN_RUN = "unknown"
"""Instead of the run in settings that are read before there is one."""

LOCAL = "http://127.0.0.1:8180"

POLL = timedelta(seconds=0.5)
"""How often the queries are listed."""

SEEN_WITHIN = timedelta(seconds=10)
"""How long a query that was refused at its start waits until the reason was logged and sent."""

AFTER_QUERIES = timedelta(seconds=10)
"""How long after a SIGTERM the script may continue when its queries have ended."""

INTERRUPTED = timedelta(seconds=5)
"""How long after the stop timeout a SIGTERM waits for batches that were interrupted. A function of `foreachBatch` need not end then."""

AFTER_JVM = timedelta(seconds=30)
"""How long a script may continue when its JVM has ended."""

LAST_STEP = timedelta(seconds=10)
"""How long a script that ends waits for the last steps of its drain to be sent."""

MAX_REASONS = 100
"""How many reasons why it cannot be drained a query may have. See `sluice.wire.agents.QueryBody`."""


def attach(
    spark: SparkSession,
    job: JobName,
    *,
    coordinator: str | None,
    wait: bool,
    replace: bool,
    observe: bool,
    stop_timeout: timedelta,
) -> App:
    """See `sluice.script.attach`, which has checked the session and the name."""
    observed = observe or is_observed(
        os.environ, sys.modules, interactive=hasattr(sys, "ps1") or bool(sys.flags.interactive), program=sys.argv[0] if sys.argv else ""
    )
    with _attaching:
        if _attached:
            (known,) = _attached
            if known.job != job:
                raise NotGranted(f"this process is attached as job {known.job} already")
            return known
        check_deploy_mode(spark.sparkContext.getConf().get("spark.submit.deployMode") or "", observed=observed)
        url = coordinator or os.environ.get("SLUICE_COORDINATOR_URL", LOCAL)
        _check_settings(url)
        app = _attach(spark, job, url, wait, replace, observed, stop_timeout)
        _attached.append(app)
        return app


def _check_settings(url: str) -> None:
    """Check the settings that the agent and `app.checkpoint` read from the environment. Raises BadSettings: in the script, so that its
    error names the setting."""
    read_log_settings()
    read_container_settings(coordinator_url=url, run_id=UNKNOWN_RUN)


_attaching = threading.Lock()
_attached: list[App] = []


def _attach(spark: SparkSession, job: JobName, url: str, wait: bool, replace: bool, observed: bool, stop_timeout: timedelta) -> App:
    python = processes.process(os.getpid())
    jvm = processes.process(process_of_jvm(spark))
    drivers = tuple(each.id for each in (python, jvm) if each is not None)
    app = App(spark, job, drivers, SystemClock(), stop_timeout)
    try:
        connected = agent_socket.connect(os.environ)
    except OSError as error:
        raise NotGranted(f"the agent of this command cannot be reached: {error.strerror}") from error
    if connected is not None:
        app.start(connected, ends_script=True)
    elif os.environ.get(UNPROTECTED):
        log.warning("NO LEASE: another copy of %s may run elsewhere", job)
        app.start(None, ends_script=False)
    else:
        container = ExecutionContainerId(f"container-{new_uuid().hex}")
        request = Request(job, container, socket.gethostname(), replace=replace, wait=wait)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            agent = command(request, drivers, url, stop_timeout, observed=observed)
            subprocess.Popen(agent, stdin=theirs.fileno(), stdout=2, start_new_session=True)
        app.start(ours, ends_script=not observed)
    app.handle_end()
    return app


class App:
    """An attached script. `job` and `run` are its names in `sluice status`; `run` is None without a coordinator."""

    def __init__(
        self, spark: SparkSession, job: JobName, drivers: Sequence[processes.ProcessId], clock: Clock, stop_timeout: timedelta
    ) -> None:
        """Call `attach` instead of this."""
        self.job = job
        self._spark = spark
        self._pid = os.getpid()
        self._queries = ActiveQueries(spark)
        self._report = ScriptReport(
            socket.gethostname(),
            clock,
            lambda query: undrainable(spark, query),
            lambda query: {} if self._kafka is None else self._kafka.writes_of(query.id),
            lambda: [each.url for each in list(self._checkpoints.values())],
        )
        self._drivers = drivers
        self._clock = clock
        self._stop_timeout = stop_timeout
        self._socket: socket.socket | None = None
        self._agent: Connection | None = None
        self._grant: Grant | None = None
        self._refused = ""
        self._lease_ends: float | None = None
        self._ends_script = False
        self._ending = False
        self._jvm_ended_at: float | None = None
        self._stopping = threading.Event()
        self._stopped = threading.Event()
        self._forced = threading.Event()
        self._stops: Stops[ActiveQuery] = Stops(lambda queries, within, forced: stop_all(queries, within, forced, self._plans.pause))
        self._stop_of_batch: futures.Future[Sequence[str]] | None = None
        """The last stop that a batch has begun."""
        self._stop_of_batch_lock = threading.Lock()
        self._terminated = False
        """Whether a SIGTERM has stopped the queries, or stops them."""
        self._agent_ended = False
        self._directories: ScriptDirectories | None = None
        self._making = threading.Lock()
        """Held while something is made that is made once."""
        self._preparing: dict[str, threading.Lock] = {}
        """By the name of a checkpoint: it is made ready by one thread."""
        self._reported: set[str] = set()
        """The starts of queries that were listed."""
        self._refused_starts: set[str] = set()
        """Those of them that were refused, and whose reason was logged and sent."""
        self._checkpoints: dict[StageName, Checkpoint] = {}
        self._named: set[str] = set()
        """The ids of queries that `_name_function` has logged."""
        self._plans = Plans(
            lambda stage, batch: str(self._call("keep_plan", stage, batch)),
            lambda lineage: next((each for each in ActiveQueries(spark).find() if each.id == lineage), None),
        )
        self._error = ""
        self._kafka: KafkaWriters | None = None
        self.drains = DriverDrains(
            spark,
            ActiveQueries(spark),
            self._report.stage_of,
            self._stopped.set,
            clock,
            stop_timeout,
            on_start=self._on_start,
            repeated=self._plans.kept_paused,
            lacks_plans=self._plans.lacks,
            forced=self._forced,
        )

    @property
    def run(self) -> RunId | None:
        return None if self._grant is None else self._grant.run

    def batch_context(self) -> BatchContext:
        """The batch that runs now: lineage, number and generation, by which a sink can write each batch once. Call it in the function of
        `foreachBatch`, in the thread in which Spark calls the function, and before the function writes: on a checkpoint of
        `app.checkpoint`, it returns when the blob stores have what the batch reads. Raises NoBatch elsewhere, PlanNotKept, and NotGranted
        without a coordinator, because there is no generation then."""
        context = running_batch(session_of(self._spark), self._granted().generation)
        self._plans.keep(Lineage(context.lineage), context.batch)
        return context

    def kafka_writer(self, rows: DataFrame, topic: str, options: Mapping[str, str] | None = None) -> DataStreamWriter:
        """A writer of a streaming query whose batches are in the Kafka topic once each. Each batch is one transaction. The script sets
        `checkpointLocation`, which is required, and trigger and name, and starts it.

        `rows`: the columns `value` and optionally `key`, `headers` and `partition`, with the types that they have in Spark's sink.
        `options`: properties of Kafka's clients with the prefix "kafka.", as "kafka.bootstrap.servers"; without them,
        SLUICE_KAFKA_BOOTSTRAP and SLUICE_KAFKA_PROPERTIES, as in containers. Raises CannotWrite, BadSettings, and NotGranted without a
        coordinator. The query fails with LeaseLost if another driver has taken over."""
        self._granted()
        with self._making:
            return self._writers().writer(rows, topic, options or {})

    def _granted(self) -> Grant:
        """Raises NotGranted."""
        if self._grant is None:
            raise NotGranted(
                f"{self.job} runs without a coordinator, so that another copy may write at the same time: it has no generation"
            )
        return self._grant

    def _writers(self) -> KafkaWriters:
        """Call it with the lock `_making`."""
        if self._kafka is None:
            try:
                found: Any = import_module("containers.attached.kafka_writer")
            except ImportError as error:  # other scripts need no pyarrow
                raise CannotWrite(f"kafka_writer needs {error.name}: pip install {error.name}") from error
            context, stopping = self.batch_context, self._stopping
            self._kafka = found.KafkaWriters(self._spark, self.job, self._clock, context, self._confirm, stopping=stopping)
        writers: KafkaWriters = self._kafka
        return writers

    def checkpoint(self, name: str, *, adopt: str | None = None) -> str:
        """The URL of a checkpoint directory for `option("checkpointLocation", …)`, below SLUICE_STATE_DIR (default: `state` below
        SLUICE_HOME, `.sluice`). It is the same at each start of the script, until a drain has flushed the query. Then it is a new one,
        whose first query begins exactly at the drained offsets, whatever `startingOffsets` says. It is backed up to the job's blob stores
        while the script runs. If this machine does not have it, or has an older one, the newest snapshot is restored. Use a name for each
        query.

        `adopt`: the URL or the path of a checkpoint that the query has used before without Sluice. It is copied if the job has never had a
        checkpoint of this name; stop the former query first.

        Blocks. Raises NotGranted without a coordinator, BadName, CheckpointRefused, CheckpointUnreadable, PathNotShared if executors run on
        other machines and do not share the directory, and DrainUnfinished if a drain has failed while it flushed the query."""
        if self._grant is None:
            raise NotGranted(f"{self.job} runs without a coordinator, which knows where its checkpoints begin: use a directory of your own")
        with self._making:
            if self._directories is None:
                home = Path(os.environ.get("SLUICE_HOME") or ".sluice")
                state = Path(os.environ.get("SLUICE_STATE_DIR") or home / "state").absolute()
                self._directories = ScriptDirectories(state, self.job, self, self._clock, self.drains.listen)
            directories = self._directories
            one_thread = self._preparing.setdefault(name, threading.Lock())
        with one_thread:
            found = directories.checkpoint(session_of(self._spark), name, adopt)
            if found.made.lineage is not None:
                self._plans.add(found.made.lineage, found.stage, found.made.replay)
            self._checkpoints[found.stage] = found
        return found.url

    # --- the agent -------------------------------------------------------------------------------------------------

    def start(self, connected: socket.socket | None, *, ends_script: bool) -> None:
        """Wait until the job may be run. `connected`: the socket to the agent. `ends_script`: this process is killed if the agent has
        ended. Raises NotGranted."""
        self._ends_script = ends_script
        if connected is not None:
            methods: Mapping[str, Callable[..., Any]] = {
                "refused": self._on_refused,
                "renewed": self._on_renewed,
                "stop": self._on_stop,
                "drain": self.drains.begin,
                "pause_queries": self.drains.pause_queries,
                "feeders": self.drains.feeders,
                "flush": self.drains.flush,
                "leave": self.drains.leave,
                "refuse": self._report.refuse_reported,
                "lost": self._on_lease_lost,
            }
            self._socket = connected
            self._agent = Connection(SocketLink(connected), agent_methods(), driver_methods(), methods, self._on_agent_end)
            self._agent.start()
            try:
                self._grant = self._ask_for_grant(self._agent)
            except BaseException:  # Ctrl-C in a notebook ends only the cell: the agent must not take the lease later
                self._ending = True  # the end of the connection does not end the process
                self._agent.close()
                raise
        threading.Thread(target=self._watch, name="sluice-queries", daemon=True).start()

    def _ask_for_grant(self, agent: Connection) -> Grant:
        """Raises NotGranted."""
        try:
            grant: Grant = agent.call("attach", self.job)
        except ConnectionLost:
            raise NotGranted(self._refused or "the agent has ended: standard error has more") from None
        except SluiceError as error:
            raise NotGranted(str(error)) from error
        self._grant = grant
        if self._agent_ended:  # meanwhile: `_on_agent_end` may have seen no grant
            raise NotGranted("the agent has ended: standard error has more")
        return grant

    def _tell(self, method: str, *values: object) -> None:
        if self._agent is not None:
            self._agent.tell(method, *values)

    def _call(self, method: str, *values: object) -> Any:
        """Raises ConnectionLost, and what the method raises."""
        if self._agent is None:
            raise ConnectionLost(f"{self.job} runs without an agent")
        return self._agent.call(method, *values)

    def _confirm(self) -> None:
        """See `containers.attached.port.Agent.confirm`."""
        self._call("confirm")

    def beginning(self, stage: StageName) -> Beginning:
        """See `containers.attached.port.Agent`. Raises NotGranted if the agent has ended."""
        return self._asked(Beginning, "beginning", stage)

    def prepare(self, wanted: Wanted) -> Made:
        """See `containers.attached.port.Agent`. Raises NotGranted if the agent has ended."""
        return self._asked(Made, "prepare", wanted)

    def _asked(self, kind: type[T], method: str, *values: object) -> T:
        try:
            found = self._call(method, *values)
        except ConnectionLost:
            raise NotGranted(f"the agent of {self.job} has ended") from None
        assert isinstance(found, kind)
        return found

    def _on_refused(self, why: str) -> None:
        self._refused = why

    def _on_renewed(self, ends_at: Instant) -> None:
        self._lease_ends = ends_at

    def _on_stop(self, within: timedelta, sigterm: bool) -> None:
        self._terminated |= sigterm
        threading.Thread(target=self._stop_and_say, args=(within,), name="sluice-stop", daemon=True).start()

    def _on_lease_lost(self, why: str) -> None:
        log.error("%s: another copy of %s may run; stop this one", why, self.job)
        self._ends_script = False
        self.drains.abandon(timedelta(0))

    def _on_agent_end(self) -> None:
        self._agent_ended = True
        if self._grant is not None and not self._ending:
            self._without_agent("the agent of this script has ended")

    def _without_agent(self, why: str) -> None:
        """Kill the driver, because no other process would end it before another copy starts. If it must not be ended, log an error
        instead, and let queries continue that are paused for a drain: no process takes it further."""
        if not self._ends_script:
            log.error("%s: this script is not protected any more", why)
            self.drains.abandon(timedelta(0))
            return
        log.error("%s: the driver is killed", why)
        for each in self._drivers:
            if each.pid != os.getpid():
                processes.kill(each)
        os._exit(EXIT_LEASE_LOST)

    def _expired(self) -> bool:
        return self._lease_ends is not None and self._clock.elapsed() >= self._lease_ends

    def _take_unread(self) -> None:
        """Wait up to a second until the other thread has taken what the agent has sent. After a long call that kept the interpreter,
        such as `sorted`, renewals of the lease are still unread. Other processes enforce the lease meanwhile."""
        empty = 0
        for _ in range(20):
            threading.Event().wait(0.05)
            empty = 0 if self._has_unread() else empty + 1
            if empty == 2:  # what was read last has been taken, too
                return

    def _has_unread(self) -> bool:
        if self._socket is None:
            return False
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError:
            return False

    # --- the queries -----------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._ending:
            if self._ends_script and self._expired():
                self._take_unread()
                if self._expired():
                    self._without_agent("the lease has expired")
            try:
                self._look()
            except SPARK_ERRORS as error:
                log.debug("the queries are not known now: %s", error)
                self._check_jvm()
            except Exception:  # a script must not lose its lease because of a report
                log.exception("the queries cannot be listed")
            threading.Event().wait(POLL.total_seconds())

    def _check_jvm(self) -> None:
        """End a script that goes on without its JVM, for example because it repeats what fails. It has no queries any more, and holds the
        lease."""
        if self._ending or all(each.pid == self._pid or processes.runs(each) for each in self._drivers):
            return
        now = self._clock.elapsed()
        if self._jvm_ended_at is None:
            self._jvm_ended_at = now
            log.error("the JVM of this script has ended, for example because it was killed")
        elif self._ends_script and now >= self._jvm_ended_at + AFTER_JVM.total_seconds():
            why = f"the JVM has ended, and the script has not ended within {AFTER_JVM.total_seconds():g} s"
            log.error("%s: it is ended", why)
            self._ending = True
            self._tell("ending", why)
            if self._agent is not None:
                self._agent.close()
            os._exit(EXIT_FAILED)

    def _look(self) -> None:
        active = self._queries.find()
        if self._kafka is not None:
            self._kafka.renew({each.id for each in active})
        self._check_executors()
        new = [each for each in active if each.run_id not in self._reported]
        refused = self._report.update(active)
        if self._refuse_emptied(new):
            refused = [*refused, *self._report.update(active)]
        for query, why in refused:
            log.error("query %s is stopped: %s", query.name or query.checkpoint, why)
        due = self._report.due()
        if due is not None:
            self._tell("queries", with_unlisted(due, len(active)))
        self._reported = {each.run_id for each in active}
        self._refused_starts &= self._reported
        self._refused_starts |= {query.run_id for query, _ in refused}  # last: a query that waits for this ends, and perhaps the script
        for query, _ in refused:
            query.stop(timedelta(0), self._forced)
        for query in new:
            self._check_sink(query)
            self._name_function(query)
        if self._stopped.is_set():
            self._stops.run_if_none_runs(self._find_free, self._stop_timeout)

    def _on_start(self, query: ActiveQuery) -> None:
        """Called on the thread of a query that starts, before it reads its checkpoint. Batches that were planned before run again also if
        the query is paused for a drain: the drain ends after the last batch that the sink has."""
        if not self._check_sink(query):
            self._plans.repeat(session_of(self._spark), query)
            return
        query.end_at_start()
        until = self._clock.elapsed() + SEEN_WITHIN.total_seconds()
        while query.run_id not in self._refused_starts and self._clock.elapsed() < until:  # otherwise its error is not reported
            threading.Event().wait(POLL.total_seconds() / 10)

    def _check_sink(self, query: ActiveQuery) -> bool:
        """Refuse a query on a checkpoint of ours whose sink would skip batches. Returns whether it is refused."""
        stage = next((each.stage for each in list(self._checkpoints.values()) if each.made.lineage == query.id), None)
        why = "" if stage is None else skipped_batches(session_of(self._spark), query)
        if stage is not None and why:
            self._report.refuse(stage, why, query.run_id)
        return bool(why)

    def _refuse_emptied(self, new: Sequence[ActiveQuery]) -> bool:
        """Refuse the queries among these whose checkpoint a drain has flushed. Returns whether there are some."""
        found = [(stage, why) for each in new if (stage := self._report.stage_of(each)) and (why := self.drains.refused_start(each))]
        for stage, why in found:
            self._report.refuse(stage, why)
        return bool(found)

    def _name_function(self, query: ActiveQuery) -> None:
        """Log a query whose batches have numbers that its function may know from before. What the function remembers cannot be seen."""
        found = next((each for each in list(self._checkpoints.values()) if each.made.lineage == query.id and each.begins_again), None)
        if found is None or query.id in self._named or not query.calls_function:
            return
        self._named.add(query.id)
        log.warning(
            "query %s begins %s: numbers of its batches come again, and a foreachBatch that remembers them without the id of the query "
            "skips these batches (app.batch_context().lineage is the id; app.kafka_writer keeps it)",
            query.name or query.checkpoint,
            found.begins_again,
        )

    def _check_executors(self) -> None:
        """Stop the queries whose checkpoints a new executor does not share."""
        try:
            if self._directories is not None:
                self._directories.check_new_executors()
        except PathNotShared as error:
            for stage in list(self._checkpoints):
                self._report.refuse(stage, str(error))

    def stop(self, within: timedelta | None = None) -> Sequence[str]:
        """Pause all queries between two batches before any of them ends, then end them, so that `awaitTermination` returns. Queries that
        are started later are stopped, too. Blocks; during another stop, until that one has ended, too. Returns the checkpoints of the
        queries whose batch took longer than `within` (default: the `stop_timeout` of `attach`) and was interrupted.

        In the function of `foreachBatch` it begins the stop and returns nothing at once, because the stop waits for the batch. Call it in
        the thread in which Spark calls the function: a function that waits for another thread in this call would wait for ever."""
        deadline = self._stop_timeout if within is None else within
        if not self._in_batch():
            return self._begin_stop(deadline).result()
        with self._stop_of_batch_lock:
            if self._stop_of_batch is None or self._stop_of_batch.done():
                log.info("a batch stops the queries between two batches")
                self._stop_of_batch = self._begin_stop(deadline)
        return ()

    def _in_batch(self) -> bool:
        if threading.current_thread() is threading.main_thread():
            return False  # Spark calls no function there, and a signal may have interrupted a request of this thread to the JVM
        try:
            return runs_batch(session_of(self._spark))
        except SPARK_ERRORS as error:
            log.debug("there is no batch: %s", error)
            return False

    def _begin_stop(self, within: timedelta) -> futures.Future[Sequence[str]]:
        """Begin a stop on a thread of its own. A signal may interrupt the main thread at any time, and its handler may wait for a stop: on
        that thread the stop would wait for a lock, or use a connection to the JVM, that the interrupted code has."""
        stopping: futures.Future[Sequence[str]] = futures.Future()

        def run() -> None:
            try:
                stopping.set_result(self._stop(within))
            except BaseException as error:
                log.exception("the queries cannot be stopped")
                stopping.set_exception(error)

        try:
            threading.Thread(target=run, name="sluice-stop", daemon=True).start()
        except RuntimeError:  # Python ends, and starts no threads any more
            run()
        return stopping

    def _stop(self, within: timedelta) -> Sequence[str]:
        self._stopping.set()
        try:
            with self.drains.abandoned(within):
                return [each.checkpoint for each in self._stops.run(self._queries.find, within)]
        except SPARK_ERRORS as error:
            log.debug("there are no queries to stop: %s", error)
            return ()
        finally:
            self._stopped.set()

    def _find_free(self) -> Sequence[ActiveQuery]:
        """The active queries that no drain ends."""
        return [each for each in self._queries.find() if not self.drains.holds(each)]

    def _stop_and_say(self, within: timedelta) -> None:
        log.info("stopping the queries between two batches")
        self._tell("stopped", self._stop(within))

    # --- the end of the script -------------------------------------------------------------------------------------

    def handle_end(self) -> None:
        """Install a handler of SIGTERM, if this is the main thread, and report the end of the script to the agent."""
        atexit.register(self.close)
        before = sys.excepthook

        def remember(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
            self._error = f"{kind.__name__}: {error}".splitlines()[0]
            before(kind, error, traceback)

        sys.excepthook = remember
        former = signal.getsignal(signal.SIGTERM)
        if threading.current_thread() is threading.main_thread() and former is not signal.SIG_IGN:
            signal.signal(signal.SIGTERM, lambda number, frame: self._terminate(number, frame, former))

    def close(self) -> None:
        """Tell the agent that the script ends. Does nothing in a child of `fork`, which inherits the connection."""
        if os.getpid() != self._pid:
            return
        self.drains.await_report(LAST_STEP)
        self._ending = True
        self._tell("ending", self._error)
        if self._kafka is not None:
            self._kafka.close()
        if self._agent is not None:
            self._agent.close()  # which sends what was not sent yet

    def _terminate(self, number: int, frame: FrameType | None, former: Callable[[int, FrameType | None], Any] | int | None) -> None:
        """Stop the queries between batches, then call the script's own handler. A script without a handler ends as it does when its queries
        are stopped; if it does not, it is ended after AFTER_QUERIES. A second SIGTERM ends it as if it were not attached. Under
        `sluice exec` the first one arrives as the message `stop`.

        A child of `fork` inherits this handler, but not the queries: a worker of `multiprocessing` that is ended must not stop them."""
        signal.signal(number, signal.SIG_DFL if former is None else former)  # first: a second SIGTERM may arrive at any time
        if self._terminated or os.getpid() != self._pid:
            os.kill(os.getpid(), number)
            return
        self._terminated = True
        was_stopped = self._stopped.is_set()
        stopping = [self._begin_stop(self._stop_timeout)]
        within = min(self._stop_timeout.total_seconds() + INTERRUPTED.total_seconds(), threading.TIMEOUT_MAX)
        if callable(former):
            futures.wait(stopping, within)
            former(number, frame)
            return

        def end() -> None:
            in_time = futures.wait(stopping, within).done
            if in_time and not was_stopped:
                threading.Event().wait(AFTER_QUERIES.total_seconds())
            os.kill(os.getpid(), number)

        threading.Thread(target=end, name="sluice-end", daemon=True).start()


def with_unlisted(reports: Sequence[dict[str, Any]], active: int) -> Sequence[dict[str, Any]]:
    """The reports, in which the first running query says so if there are more running queries than are reported: a drain would wait for
    them in vain. `active`: how many run."""
    running = [place for place, each in enumerate(reports) if each["active"]]
    if active <= MAX_QUERIES or not running:
        return reports
    why = f"the script runs {active} queries, of which only {MAX_QUERIES} are reported: no drain can wait for the others"
    return [
        {**each, "undrainable": [why, *each["undrainable"]][:MAX_REASONS]} if place == running[0] else each
        for place, each in enumerate(reports)
    ]
