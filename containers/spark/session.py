"""The driver's Spark session: its master, its settings, and whether the JVM is alive.

The parts that depend on the version of Spark are tested against the pinned version (`tests/spark`).
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from datetime import timedelta
from pathlib import Path
from subprocess import TimeoutExpired
from types import ModuleType
from typing import Any

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext, cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import readwriter
from pyspark.sql.utils import ForeachBatchFunction

from containers.engine import JvmUsage
from containers.errors import SparkNotStarted, SparkStopped, signal_name
from containers.jars import check_java, java
from containers.secrets import ResolvedConfig, resolve_secrets
from containers.settings import ContainerSettings
from containers.spark import local_files
from containers.spark.executors import SharedPath, SharedPaths
from containers.spark.jvm import JvmBeans
from containers.spark.masters import executors_requested, is_local, is_loopback
from containers.spark.start import fork_server
from containers.spark.start.cds import CLASS_PATH, ClassArchive, find_archive
from containers.spark.start.fork_server import ForkServer
from containers.spark.start.java_properties import property_text
from containers.spark.start.jvm_log import configuration, is_configured
from containers.spark.systems.registry import Connections, jars_for
from containers.start_times import Part, StartTimes
from containers.state.checkpoint import check_writable
from containers.worker_python import plain_environment, worker_python
from sluice.clock import Clock
from sluice.core.errors import BadSettings
from sluice.installed_spark import check_version, installed_spark
from sluice.job import Job

log = logging.getLogger(__name__)

LAUNCHED_BY_JVM = "PYSPARK_GATEWAY_PORT"
"""An environment variable that the JVM of spark-submit sets for the Python process that it starts: the port of the JVM."""


class Session:
    """The Spark session of a container, and the check that its executors see the same paths. Methods block."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._beans = JvmBeans(spark)
        self._shared_paths: SharedPaths | None = None

    @classmethod
    def start(cls, job: Job, settings: ContainerSettings, connections: Connections, config: ResolvedConfig, times: StartTimes) -> Session:
        """`times` gets the parts of the start. Raises JavaMissing, DiskUnwritable, BadSettings, JarsUnavailable, SparkNotStarted,
        SparkUnsupported."""
        if LAUNCHED_BY_JVM not in os.environ:
            check_java(os.environ)
        for directory in (settings.state_directory, settings.scratch_directory):
            check_writable(directory)
        archive = find_archive(os.environ) if settings.class_archive else None
        name, own = f"{job.name} {settings.processor_id}", resolve_secrets(settings.spark_conf, os.environ, settings.secrets_dir)
        conf = spark_conf(own.values, connections, config.values)
        spark = start_session(
            name,
            settings.master,
            settings.scratch_directory,
            conf,
            settings.sockets_dir,
            archive,
            job_directory=job.directory,
            log_place=settings.log_place,
            jvm_log=settings.jvm_log,
            java_permissions=settings.java_permissions,
            forked=_forked(connections) if settings.fork_python else None,
            secret=config.secret | own.secret,
            on_jvm=lambda: times.ended(Part.JVM),
        )
        times.ended(Part.SESSION)
        check_version(str(spark.version))  # a JVM that spark-submit has started may be of another installation
        return cls(spark)

    def check_shared_paths(self, settings: ContainerSettings, connections: Connections, clock: Clock) -> None:
        """Check that executors share the paths of the driver that they read or write, unless the driver is the only executor. Raises
        PathNotShared, ExecutorsMissing."""
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
        self._shared_paths.check(executors_requested(master, dict(self.spark.sparkContext.getConf().getAll())))

    def check(self) -> JvmUsage:
        """Raises SparkStopped; PathNotShared for an executor that has joined since."""
        check_alive(self.spark)
        if self._shared_paths is not None:
            self._shared_paths.check_new_executors()
        return self._beans.usage()

    def close(self) -> None:
        if self._shared_paths is not None:
            self._shared_paths.close()
        self.spark.stop()
        _close_fork_server()


def spark_conf(own: Mapping[str, str], connections: Connections, config: Mapping[str, str]) -> dict[str, str]:
    """Settings of the run ("spark.…" in its config), then the container's own, then the jars of its systems. Raises BadSettings,
    JarsUnavailable."""
    conf = {name: value for name, value in config.items() if name.startswith("spark.")} | dict(own)
    submitted = submitted_conf()
    jars = jars_for(connections, submitted | conf)
    if jars and submitted:
        raise BadSettings(f"spark-submit has started its JVM without the Kafka connector: give it --jars {jars['spark.jars']}")
    return conf | jars


class BatchFunction(ForeachBatchFunction):
    """A user's foreachBatch function, as the JVM calls it. Py4J returns an Exception to the JVM. Anything else that is raised (sys.exit)
    would end the Py4J thread without an answer, and the query would wait forever. So it is raised as an Exception. Records that are logged
    on that thread get the log context of the stage's function, which created this object."""

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


EXIT_CODE_WITHIN = timedelta(seconds=5)
"""How long to wait for the exit code of a JVM that has closed its connection."""

OUT_OF_MEMORY = 3
"""The exit code of a JVM with ExitOnOutOfMemoryError."""


def submitted_conf() -> dict[str, str]:
    """The settings given to spark-submit, if it started this process: its master is used, and its settings override Sluice's own."""
    if LAUNCHED_BY_JVM not in os.environ:
        return {}
    SparkContext._ensure_initialized()
    given = dict(SparkConf().getAll())
    if given.get("spark.app.name") == Path(sys.argv[0]).name:  # no name was given
        del given["spark.app.name"]
    return given


def start_session(
    app_name: str,
    master: str,
    local_dir: Path,
    settings: Mapping[str, str],
    sockets: Path | None = None,
    archive: ClassArchive | None = None,
    job_directory: Path | None = None,
    log_place: str = "",
    jvm_log: Path | None = None,
    java_permissions: bool = True,
    forked: Sequence[str] | None = fork_server.MODULES_OF_LOG,
    secret: Collection[str] = (),
    on_jvm: Callable[[], None] = lambda: None,
) -> SparkSession:
    """Start the driver's session; see `session_settings`. `job_directory`: that of the job file, from which the Python processes of a local
    master can import. `log_place`: where the container's log is, for error messages. `jvm_log`: see `containers.spark.start.jvm_log`.
    `java_permissions`: see `containers.spark.local_files`. `forked`: the modules that the fork server imports while the JVM starts, with a
    local master and `sockets`; None: no fork server. `secret`: names of settings that the JVM gets in a file, because PySpark passes
    settings as arguments, which every user of the machine can read. `on_jvm` is called when the JVM has started. Blocks for some seconds
    while the JVM starts, and for a minute if no master answers. Raises SparkNotStarted, BadSettings."""
    submitted = submitted_conf()
    master = submitted.get("spark.master", master)
    temporary = local_dir / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    client = _fork_server(sockets, job_directory, forked) if forked is not None and is_local(master) else ()
    os.environ["PYSPARK_DRIVER_PYTHON"] = here = worker_python(local_dir.absolute(), job_directory, client)
    if here == sys.executable:
        _close_fork_server()
    if is_local(master):
        os.environ["PYSPARK_PYTHON"] = here
        of_jvm = plain_environment(job_directory) if here == sys.executable else {}
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        of_jvm = plain_environment(None)
    readwriter.ForeachBatchFunction = BatchFunction  # type: ignore[attr-defined]
    hidden = {} if LAUNCHED_BY_JVM in os.environ else {name: settings[name] for name in secret if name in settings}
    logging = None
    if jvm_log is not None and not submitted and not is_configured(settings, os.environ):
        logging = local_dir / "log4j2.properties"
        logging.write_text(configuration(jvm_log.absolute()), encoding="ascii")
    of_session = session_settings(master, submitted, settings, sockets, archive, temporary, logging)
    options: dict[str, Any] = {
        "spark.app.name": app_name,
        "spark.master": master,
        "spark.local.dir": str(local_dir),
        "spark.sql.warehouse.dir": str(local_dir / "warehouse"),
        **{name: value for name, value in of_session.items() if name not in hidden},
    }
    try:
        with _environment(of_jvm), _properties_file(hidden, local_dir):
            # As `getOrCreate` does, which would not say when the JVM has started.
            SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(list(options.items())))
            on_jvm()
            spark = SparkSession.builder.config(map=options).getOrCreate()
        spark.sparkContext.setLogLevel("WARN")
        _write_no_checksums(spark)
        if java_permissions:
            local_files.install(spark)
    except BadSettings:
        _close_fork_server()
        raise
    except (Py4JError, PySparkException) as error:
        _close_fork_server()
        log.warning("Spark did not start", exc_info=error)
        logs = f"the container's log{f' ({log_place})' if log_place else ''}{f' and in {jvm_log}' if logging else ''}"
        why = f"{_start_error(error)}; Spark's messages are in {logs}"
        raise SparkNotStarted(f"there is no session under the master {master}: {why}") from error
    return spark


_fork_servers: list[ForkServer] = []
"""That of the present session: a process has one session at a time."""


def _close_fork_server() -> None:
    while _fork_servers:
        _fork_servers.pop().close()


def _forked(connections: Connections) -> Sequence[str]:
    reads_log = any(each.get("type") == "log" for each in connections.values())
    return fork_server.MODULES_OF_LOG if reads_log else fork_server.MODULES


def _fork_server(sockets: Path | None, job_directory: Path | None, modules: Sequence[str]) -> Sequence[str]:
    """Start a fork server instead of the present one. Returns how to start a client; nothing if there is no server."""
    _close_fork_server()
    package, spark = Path(pyspark.__file__).parent, installed_spark(os.environ)
    if sockets is None or spark is None:
        return ()
    home = spark.home if package.is_relative_to(spark.home) else package
    started = fork_server.start(sockets.absolute(), home, job_directory, modules)
    if started is None:
        return ()
    _fork_servers.append(started)
    return started.client


@contextmanager
def _environment(added: Mapping[str, str]) -> Iterator[None]:
    """Add variables for the JVM that is started in the block. Processes that user code starts later do not inherit them."""
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


SUBMIT_ARGS = "PYSPARK_SUBMIT_ARGS"
"""A variable with the arguments of spark-submit, by which PySpark starts its JVM. The last one is the program, "pyspark-shell"."""


@contextmanager
def _properties_file(settings: Mapping[str, str], directory: Path) -> Iterator[None]:
    """Make the JVM that is started in the block read these settings from a file that only this user can read. Raises BadSettings."""
    if not settings:
        yield
        return
    arguments = os.environ.get(SUBMIT_ARGS, "pyspark-shell")
    if "--properties-file" in arguments:
        raise BadSettings(
            f"{SUBMIT_ARGS} has a --properties-file, and secrets in the config need one: use SLUICE_SPARK_CONF for its settings"
        )
    fd, file = tempfile.mkstemp(".conf", "secret-", directory)  # of mode 0600
    try:
        with os.fdopen(fd, "w", encoding="ascii") as opened:
            opened.writelines(f"{property_text(name)}={property_text(value)}\n" for name, value in settings.items())
        with _environment({SUBMIT_ARGS: f"--properties-file {shlex.quote(file)} --load-spark-defaults {arguments}"}):
            yield
    finally:
        Path(file).unlink(missing_ok=True)


def _write_no_checksums(spark: SparkSession) -> None:
    """Disable Hadoop's hidden checksum files. Hadoop writes one for every file on a local disk, and starts a process (chmod) for each.
    Without them a small batch takes a fifth less time. Spark's own checksums of its state are kept, and a backup hashes everything."""
    jvm: Any = spark._jvm
    jvm.org.apache.hadoop.fs.FileSystem.getLocal(spark.sparkContext._jsc.hadoopConfiguration()).setWriteChecksum(False)


STOPPED_CONTEXT = "on a stopped SparkContext"


def _start_error(error: Exception) -> str:
    if "JAVA_GATEWAY_EXITED" in str(error):
        return f"{java(os.environ)} has ended before Spark answered: Spark needs Java 17 or 21 (JAVA_HOME)"
    if STOPPED_CONTEXT in str(error):
        return "it did not answer, or has refused the connection (SLUICE_SPARK_MASTER)"
    lines = str(error).splitlines()
    return next((line.removeprefix(": ") for line in lines if line.startswith(": ")), lines[0] if lines else type(error).__name__)


def check_alive(spark: SparkSession) -> None:
    """Call the JVM. Blocks while it hangs. Raises SparkStopped if it has ended, or the session was stopped."""
    try:
        context = spark.sparkContext._jsc
        stopped = context is None or bool(context.sc().isStopped())
    except (Py4JError, OSError) as error:
        raise SparkStopped(_exit_of_jvm(spark, error)) from error
    if stopped:
        raise SparkStopped("the Spark session was stopped: by user code, or by Spark after a failure that is in its log")


def _exit_of_jvm(spark: SparkSession, error: Exception) -> str:
    process = getattr(spark.sparkContext._gateway, "proc", None)
    if process is None:  # the JVM is not a child of this process: spark-submit started both
        return f"Spark's JVM no longer answers: {error}"
    try:
        code = process.wait(EXIT_CODE_WITHIN.total_seconds())
    except TimeoutExpired:
        return f"Spark's JVM no longer answers: {error}"
    if code < 0:
        return f"Spark's JVM was ended by {signal_name(-code)}"
    if code == OUT_OF_MEMORY:
        return "Spark's JVM ended with exit code 3: it was out of memory (spark.driver.memory is its heap)"
    return f"Spark's JVM ended with exit code {code}"


def pickle_by_value(module: ModuleType) -> None:
    """Send functions of the job file to the workers by value: they cannot import a module that was loaded from a path."""
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


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
"""Settings that were tested (docs/spark-facts.md). A job's own settings take precedence."""

LOCAL_CHECKPOINTS: Mapping[str, str] = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""Checkpoints are on a local disk. For each file that it writes there, Spark's default file manager starts processes (chmod, readlink), and
this one only chmod, which `containers.spark.local_files` avoids: 34 ms or 8 ms per file on two cores. Its rename does not exclude other
writers. A checkpoint has only one writer, the task's owner."""

EXIT_ON_OUT_OF_MEMORY = "-XX:+ExitOnOutOfMemoryError"
"""A JVM that continues after an OutOfMemoryError may have lost threads, for which other threads then wait forever. The option is one of the
JVM's defaults, to which Spark adds the job's own `spark.driver.extraJavaOptions`."""

DEFAULT_JAVA_OPTIONS = "spark.driver.defaultJavaOptions"

LOCAL_SETTINGS: Mapping[str, str] = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""Used if all executors are on this machine: no other machine needs to connect to the driver."""

REMOTE_SETTINGS: Mapping[str, str] = {"spark.executor.heartbeat.maxFailures": "3"}
"""Executors exit immediately when their driver does. If its machine is disconnected or suspended, they wait: for ten minutes by Spark's
default of 60, and 42 s (measured) with 3, about as long as a lease."""

LONGEST_SOCKETS_PATH = 60
"""In bytes. The path of a socket must be shorter than 104 on some systems, and Spark's file names take 42."""


def session_settings(
    master: str,
    submitted: Mapping[str, str],
    settings: Mapping[str, str],
    sockets: Path | None,
    archive: ClassArchive | None = None,
    temporary: Path | None = None,
    logging: Path | None = None,
) -> Mapping[str, str]:
    """The job's `settings` override those given to spark-submit (`submitted`), and both override Sluice's own.

    `sockets`: a directory for this session, which the caller deletes afterwards; Spark leaves its sockets there. `archive`: the JVM starts
    with it, unless spark-submit has started the JVM already, or the job has its own class path, for which no archive is valid. `temporary`:
    the directory of the JVM's temporary files. It unpacks native libraries there (15 MB), and does not delete them if it is killed.
    `logging`: the configuration of its log."""
    where = {**(LOCAL_SETTINGS if is_loopback(master) else {}), **({} if is_local(master) else REMOTE_SETTINGS)}
    near = _unix_sockets(sockets) if sockets is not None and is_local(master) else {}
    options, path = [EXIT_ON_OUT_OF_MEMORY], {}
    if temporary is not None and not submitted:
        options.append(_quoted(f"-Djava.io.tmpdir={temporary}"))
    if logging is not None and not submitted:
        options.append(_quoted(f"-Dlog4j2.configurationFile={logging.absolute().as_uri()}"))
    if archive is not None and not submitted and CLASS_PATH not in settings:
        options, path = [*options, archive.use], {CLASS_PATH: archive.class_path}
    defaults = {DEFAULT_JAVA_OPTIONS: " ".join([*options, settings.get(DEFAULT_JAVA_OPTIONS, "")]).rstrip()}
    return {**SETTINGS, **LOCAL_CHECKPOINTS, **where, **near, **path, **submitted, **settings, **defaults}


def _quoted(option: str) -> str:
    """One option of the JVM in a text of several: Spark divides it at spaces that are not quoted."""
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _unix_sockets(directory: Path) -> Mapping[str, str]:
    """Settings that make the JVM and its Python workers connect by sockets in a private directory instead of by TCP ports. A small batch
    then takes a fifth less time (182 ms instead of 228; docs/spark-facts.md). If the path of the directory is too long, they use ports."""
    if len(os.fsencode(directory)) > LONGEST_SOCKETS_PATH:
        return {}
    return {"spark.python.unix.domain.socket.enabled": "true", "spark.python.unix.domain.socket.dir": str(directory)}
