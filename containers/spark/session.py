"""The driver's one Spark session: its master, its settings, and whether it is alive.

What depends on the version of Spark is tested against the pinned one (`tests/spark`).
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import copy_context
from datetime import timedelta
from pathlib import Path
from signal import Signals
from subprocess import TimeoutExpired
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext, cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import readwriter
from pyspark.sql.utils import ForeachBatchFunction

from containers.errors import SparkGone, SparkNotStarted
from containers.settings import ContainerSettings
from containers.spark.cds import CLASS_PATH, ClassArchive, present
from containers.spark.executors import SharedPath, SharedPaths
from containers.spark.systems.registry import Connections, jars_for
from containers.state.checkpoint import check_writable
from containers.worker_python import plain_environment, worker_python
from sluice.clock import Clock
from sluice.core.errors import BadSettings
from sluice.job import Job

log = logging.getLogger(__name__)

LAUNCHED_BY_JVM = "PYSPARK_GATEWAY_PORT"
"""The environment variable by which spark-submit's JVM tells the Python that it starts how to reach it."""


class Session:
    """The Spark session of a container, and the check that its executors see the same paths. Methods block."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._shared_paths: SharedPaths | None = None

    @classmethod
    def start(cls, job: Job, settings: ContainerSettings, connections: Connections, config: Mapping[str, str]) -> Session:
        """Raises DiskUnwritable, BadSettings, JarsUnavailable, SparkNotStarted."""
        for directory in (settings.state_directory, settings.scratch_directory):
            check_writable(directory)
        archive = present(os.environ) if settings.class_archive else None
        name, conf = f"{job.name} {settings.processor_id}", spark_conf(settings, connections, config)
        spark = start_session(name, settings.master, settings.scratch_directory, conf, settings.sockets_dir, archive, beside=job.directory)
        return cls(spark)

    def check_shared_paths(self, settings: ContainerSettings, connections: Connections, clock: Clock) -> None:
        """Check, unless the driver is the executor, what executors read or write at paths of the driver. Raises PathNotShared,
        ExecutorsMissing."""
        master = str(self.spark.sparkContext.master)
        if is_local(master):
            return
        paths = [SharedPath(settings.state_directory, "SLUICE_STATE_DIR")]
        paths += [
            SharedPath(Path(connection["path"]), "the coordinator's SLUICE_LOG_DIR", of_one_machine=True)
            for connection in connections.values()
            if connection.get("type") == "log"
        ]
        self._shared_paths = SharedPaths(self.spark, paths, clock, settings.executors_timeout)
        self._shared_paths.check(executors_asked(master, dict(self.spark.sparkContext.getConf().getAll())))

    def check(self) -> None:
        """Raises SparkGone; PathNotShared for an executor that has joined since."""
        check_alive(self.spark)
        if self._shared_paths is not None:
            self._shared_paths.look_at_newcomers()

    def close(self) -> None:
        if self._shared_paths is not None:
            self._shared_paths.close()
        self.spark.stop()


def spark_conf(settings: ContainerSettings, connections: Connections, config: Mapping[str, str]) -> dict[str, str]:
    """Settings of the run ("spark.…" in its config), then the container's own, then the jars of its systems. Raises BadSettings,
    JarsUnavailable."""
    conf = {name: value for name, value in config.items() if name.startswith("spark.")} | settings.spark_conf
    submitted = submitted_conf()
    jars = jars_for(connections, submitted | conf)
    if jars and submitted:
        raise BadSettings(f"spark-submit has started its JVM without the Kafka connector: give it --jars {jars['spark.jars']}")
    return conf | jars


class BatchFunction(ForeachBatchFunction):
    """A user's foreachBatch function, as the JVM calls it. Py4J answers for an Exception; anything else that is raised (sys.exit) would end
    its thread without an answer, for which the query would wait for ever. That thread is Py4J's: what is logged on it is about what the
    stage's function, which made this, was about."""

    def __init__(self, session: SparkSession, func: Callable[[DataFrame, int], None]) -> None:
        super().__init__(session, func)
        self._about = copy_context()

    def call(self, jdf: Any, batch_id: int) -> None:
        try:
            self._about.copy().run(super().call, jdf, batch_id)
        except Exception:
            raise
        except BaseException as error:
            raise RuntimeError(f"the batch function raised {type(error).__name__}: {error}") from error


LAST_BREATH = timedelta(seconds=5)
"""How long a JVM that hung up is waited for, to know its exit code."""

OUT_OF_MEMORY = 3
"""How a JVM with ExitOnOutOfMemoryError exits."""


def submitted_conf() -> dict[str, str]:
    """What spark-submit was told, if it started this process: its master is the one to use, and its settings win over Sluice's own."""
    if LAUNCHED_BY_JVM not in os.environ:
        return {}
    SparkContext._ensure_initialized()
    told = dict(SparkConf().getAll())
    if told.get("spark.app.name") == Path(sys.argv[0]).name:  # nobody gave a name
        del told["spark.app.name"]
    return told


def start_session(
    app_name: str,
    master: str,
    local_dir: Path,
    settings: Mapping[str, str],
    sockets: Path | None = None,
    archive: ClassArchive | None = None,
    beside: Path | None = None,
) -> SparkSession:
    """The driver's one session; see `session_settings`. `beside`: the directory of the job file, whose helper modules the Python processes
    of a local master find. Blocks for some seconds while the JVM starts, a minute where no master answers. Raises SparkNotStarted."""
    submitted = submitted_conf()
    master = submitted.get("spark.master", master)
    local_dir.mkdir(parents=True, exist_ok=True)
    os.environ["PYSPARK_DRIVER_PYTHON"] = here = worker_python(local_dir.absolute(), beside)
    if is_local(master):
        os.environ["PYSPARK_PYTHON"] = here
        of_jvm = plain_environment(beside) if here == sys.executable else {}
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        of_jvm = plain_environment(None)
    readwriter.ForeachBatchFunction = BatchFunction  # type: ignore[attr-defined]
    builder = SparkSession.builder.appName(app_name).master(master).config("spark.local.dir", str(local_dir))
    builder = builder.config("spark.sql.warehouse.dir", str(local_dir / "warehouse"))
    for name, value in session_settings(master, submitted, settings, sockets, archive).items():
        builder = builder.config(name, value)
    try:
        with _environment(of_jvm):
            spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("WARN")
        _write_no_checksums(spark)
    except (Py4JError, PySparkException) as error:
        log.warning("Spark did not start", exc_info=error)
        why = f"{_why_not(error)}; Spark's own words are in the container's log"
        raise SparkNotStarted(f"there is no session under the master {master}: {why}") from error
    return spark


@contextmanager
def _environment(added: Mapping[str, str]) -> Iterator[None]:
    """Add it for the JVM that is started meanwhile. Processes that user code starts later do not inherit it from this one."""
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _write_no_checksums(spark: SparkSession) -> None:
    """Hadoop writes a hidden checksum file beside every file on a local disk, and starts a process (chmod) for each: without them a small
    batch takes a fifth less. Spark's own checksums of its state stay, and a backup hashes everything."""
    jvm: Any = spark._jvm
    jvm.org.apache.hadoop.fs.FileSystem.getLocal(spark.sparkContext._jsc.hadoopConfiguration()).setWriteChecksum(False)


STOPPED_CONTEXT = "on a stopped SparkContext"


def _why_not(error: Exception) -> str:
    if STOPPED_CONTEXT in str(error):
        return "it did not answer, or has turned us away (SLUICE_SPARK_MASTER)"
    lines = str(error).splitlines()
    return next((line.removeprefix(": ") for line in lines if line.startswith(": ")), lines[0] if lines else type(error).__name__)


def check_alive(spark: SparkSession) -> None:
    """Ask the JVM something. Blocks while it hangs. Raises SparkGone when it has ended, or the session was stopped."""
    try:
        context = spark.sparkContext._jsc
        stopped = context is None or bool(context.sc().isStopped())
    except (Py4JError, OSError) as error:
        raise SparkGone(_last_of(spark, error)) from error
    if stopped:
        raise SparkGone("the Spark session was stopped: by user code, or by Spark after a failure that its log tells of")


def _last_of(spark: SparkSession, error: Exception) -> str:
    process = getattr(spark.sparkContext._gateway, "proc", None)
    if process is None:  # the JVM is not our child: spark-submit started it, and us
        return f"Spark's JVM does not answer any more: {error}"
    try:
        code = process.wait(LAST_BREATH.total_seconds())
    except TimeoutExpired:
        return f"Spark's JVM does not answer any more: {error}"
    if code < 0:
        return f"Spark's JVM was ended by {Signals(-code).name}"
    if code == OUT_OF_MEMORY:
        return "Spark's JVM ended with exit code 3: it was out of memory (spark.driver.memory is its heap)"
    return f"Spark's JVM ended with exit code {code}"


def pickle_whole(module: ModuleType) -> None:
    """Send the job file's functions to the workers by value: they cannot import a file that was loaded by path."""
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


_LOCAL = re.compile(r"local(\[[^\]]*\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,")
_LOOPBACK = re.compile(r"localhost|127(\.\d+){3}|::1")
_UNASKED = 2
"""Spark's own default of `spark.executor.instances`, on Kubernetes and YARN."""


def is_local(master: str) -> bool:
    """Whether the executor is the driver itself: nothing of a query then runs in another process than it and its Python workers."""
    return _LOCAL.fullmatch(master) is not None


def is_loopback(master: str) -> bool:
    """Whether everybody who may call the driver is on its machine: local masters, and standalone ones at a loopback address."""
    if is_local(master) or master.startswith("local-cluster["):
        return True
    hosts = [urlsplit(f"//{each}").hostname or "" for each in master.removeprefix("spark://").split(",")]
    return master.startswith("spark://") and all(_LOOPBACK.fullmatch(host) for host in hosts)


def executors_asked(master: str, conf: Mapping[str, str]) -> int:
    """How many executors a session under that master asks for, as far as its settings say; at least 1. Raises BadSettings."""
    if is_true(conf, "spark.dynamicAllocation.enabled"):
        names = ("minExecutors", "initialExecutors")
        return max(1, *(_count(conf, f"spark.dynamicAllocation.{name}", 1) for name in names))
    if cluster := _LOCAL_CLUSTER.match(master):
        return int(cluster[1])
    if master.startswith("spark://"):
        cores, each = (_count(conf, name, 0) for name in ("spark.cores.max", "spark.executor.cores"))
        return max(1, cores // each) if each else 1
    return max(1, _count(conf, "spark.executor.instances", _UNASKED))


def is_true(conf: Mapping[str, str], name: str) -> bool:
    return conf.get(name, "").strip().lower() == "true"


def _count(conf: Mapping[str, str], name: str, default: int) -> int:
    told = conf.get(name, "").strip() or str(default)
    if not told.isdecimal():
        raise BadSettings(f"{name} must be a whole number, not {told!r}")
    return int(told)


SETTINGS: Mapping[str, str] = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.scheduler.mode": "FAIR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.stopTimeout": "30s",
    "spark.redaction.regex": r"(?i)secret|password|token|access[.]?key|jaas|ssl\.keystore",
    "spark.sql.redaction.options.regex": r"(?i)url|secret|password|token|jaas|ssl\.keystore",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""Settings that were tried (docs/spark-facts.md). A job's own settings take precedence."""

LOCAL_CHECKPOINTS: Mapping[str, str] = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""Checkpoints are on a local disk, where Spark's default starts processes (chmod, readlink) for each file that it writes, and this one only
the chmod: 34 ms against 8 ms a file on two cores. Its rename is not exclusive; a store has one writer, the holder of its task."""

DIE_OF_NO_MEMORY = "-XX:+ExitOnOutOfMemoryError"
"""A JVM that goes on after an OutOfMemoryError has lost threads that nobody misses until something waits for them for ever. The option is
given as one of the JVM's defaults, to which Spark adds the job's own `spark.driver.extraJavaOptions`."""

DEFAULT_JAVA_OPTIONS = "spark.driver.defaultJavaOptions"

LOCAL_SETTINGS: Mapping[str, str] = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""With all executors on this machine nobody else needs to reach the driver."""

ELSEWHERE_SETTINGS: Mapping[str, str] = {"spark.executor.heartbeat.maxFailures": "3"}
"""Executors end at once when their driver does, but where its machine is cut off or frozen they wait for it: for ten minutes by Spark's
default of 60, and 42 s (seen) with 3, about as long as a lease."""

LONGEST_SOCKETS_PATH = 60
"""Bytes. The path of a socket has less than 104 on some systems, and Spark's names for them take 42."""


def session_settings(
    master: str, submitted: Mapping[str, str], settings: Mapping[str, str], sockets: Path | None, archive: ClassArchive | None = None
) -> Mapping[str, str]:
    """The job's `settings` win over what spark-submit was told (`submitted`), and both over Sluice's own.

    `sockets`: a directory of this session's own, which somebody deletes after it; Spark leaves its sockets there. `archive`: the JVM
    begins with it, unless spark-submit has started the JVM already, or the job has a class path of its own, which no archive fits."""
    where = {**(LOCAL_SETTINGS if is_loopback(master) else {}), **({} if is_local(master) else ELSEWHERE_SETTINGS)}
    near = _unix_sockets(sockets) if sockets is not None and is_local(master) else {}
    options, path = [DIE_OF_NO_MEMORY], {}
    if archive is not None and not submitted and CLASS_PATH not in settings:
        options, path = [*options, archive.use], {CLASS_PATH: archive.class_path}
    defaults = {DEFAULT_JAVA_OPTIONS: " ".join([*options, settings.get(DEFAULT_JAVA_OPTIONS, "")]).rstrip()}
    return {**SETTINGS, **LOCAL_CHECKPOINTS, **where, **near, **path, **submitted, **settings, **defaults}


def _unix_sockets(directory: Path) -> Mapping[str, str]:
    """The JVM and its Python workers meet in a directory that nobody else can enter, instead of at ports of the machine, and a small batch
    takes a fifth less (182 ms instead of 228; docs/spark-facts.md). Without a directory whose path is short enough they meet at ports."""
    if len(os.fsencode(directory)) > LONGEST_SOCKETS_PATH:
        return {}
    return {"spark.python.unix.domain.socket.enabled": "true", "spark.python.unix.domain.socket.dir": str(directory)}
