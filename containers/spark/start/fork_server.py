"""A process that forks Spark's Python processes, with their modules imported.

Spark starts a Python process for each source of each query, and one for each kind of function, which forks its workers. Each imports
PySpark, PyArrow and numpy again: half a second of CPU time, in 12 processes for a container of eight tasks on the embedded log. The server
imports the modules once, while the JVM starts. Spark then starts `fork_client`, and the server forks for it. The processes share the memory
of these modules. A module of PySpark that it has not imported is imported for the first process that needs it.

A forked process differs from one that was started only in its parent, and in its name in lists of processes. It has the client's
arguments, environment, working directory, standard streams and limit of open files. The server refuses a request if variables that Python
or a native library reads at its start differ from its own. The client then becomes plain Python. It does so too if the server does not
accept its connection.

The server ends with the container's driver, at the end of its standard input, and deletes its socket. A process whose client was killed is
killed. Processes that were forked continue when the server ends, and so do their clients.

Each reason why processes are not forked is in the container's log once: the server writes it, and the driver does when the server has ended
too early. A client writes nothing, because that would be a line for each process. So nothing is written while a server hangs; if it
continues, it writes that processes have not waited for it.

Python's own `multiprocessing.forkserver` forks only for its parent.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sluice.installed_spark import find_pyspark

log = logging.getLogger(__name__)

MODULES = ("pyspark.daemon", "pyspark.sql.worker.lookup_data_sources")
"""What the first Python process of each session runs."""

MODULES_OF_LOG = (
    *MODULES,
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "containers.spark.systems.log_source",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.worker",
)
"""What a session runs that reads the embedded log, in order."""

OPTIONAL_MODULES = ("pandas",)
"""Imported if the driver has imported them, as job files that use them do."""

SET_BY_SPARK: Mapping[str, str] = {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "YES", "OMP_NUM_THREADS": "1"}
"""Variables of Spark's Python processes, unless they are set otherwise. Some of these processes do not have all of them."""

_OF_EACH_PROCESS = (
    *("PYTHONPATH", "PYTHONSAFEPATH", "PYTHON_DAEMON_", "PYTHON_DATA_SOURCE_", "PYTHON_FAULTHANDLER_"),
    *("PYTHON_TRACEBACK_", "PYTHON_UDF_", "PYTHON_UNIX_", "PYTHON_WORKER_"),
)
"""Variables, or their beginnings, that PySpark reads when a process runs."""

_READ_AT_START = (
    *("PYTHON", "PYSPARK_ENABLE_NAMEDTUPLE_PATCH", "LD_", "DYLD_", "LC_", "LANG", "TZ", "MALLOC_", "GLIBC_", "ARROW_", "NPY_", "NUMPY_"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "VECLIB_", "NUMEXPR_"),
)
"""Beginnings of variables that Python, PySpark, or a native library reads when it is loaded."""

SLOWER = "Python processes of Spark start more slowly"

_REQUEST_SECONDS = 5.0
_PAUSE_SECONDS = 0.1
_ENDS_WITHIN = 5.0
_LONGEST_REQUEST = 4 << 20


@dataclass(frozen=True, slots=True)
class Request:
    """A process that is to be started. `files`: the limit of open files. `ignores_interrupts`: whether SIGINT is ignored. `streams`: file
    descriptors of standard input, output and error."""

    files: int
    ignores_interrupts: bool
    directory: str
    module: str
    arguments: Sequence[str]
    environment: Mapping[bytes, bytes]
    streams: Sequence[int]


def parsed(body: bytes, streams: Sequence[int]) -> Request:
    """Parts of the body are separated by NUL: the limit of open files, "1" if SIGINT is ignored, the number of words, the working
    directory, the words (the module and its arguments), and the environment as NAME=VALUE. Raises ValueError."""
    files, ignores, count, directory, *rest = body.split(b"\0")
    words = [os.fsdecode(each) for each in rest[: int(count)]]
    environment = dict(each.split(b"=", 1) for each in rest[int(count) :])
    module, *arguments = words
    return Request(int(files), ignores == b"1", os.fsdecode(directory), module, arguments, environment, streams)


def path_entries(path: str, spark: Path) -> list[str]:
    """The entries of a PYTHONPATH that are not Spark's own, which its launcher adds. It also repeats entries, and follows links."""
    own = (spark, spark.resolve())
    return [each for each in dict.fromkeys(path.split(os.pathsep)) if each and not any(map(Path(each).is_relative_to, own))]


def refusal(wanted: Mapping[str, str], own: Mapping[str, str], spark: Path) -> str | None:
    """Why a process with the environment `wanted` cannot be forked from one with the environment `own`; None if it can."""
    for name in sorted(wanted.keys() | own.keys()):
        read = name.startswith(_READ_AT_START) and not name.startswith(_OF_EACH_PROCESS)
        if not read or wanted.get(name) == own.get(name):
            continue
        if name in wanted or name not in SET_BY_SPARK:
            return f"{name} is {wanted.get(name)!r}, and {own.get(name)!r} in the server"
    if path_entries(wanted.get("PYTHONPATH", ""), spark) != path_entries(own.get("PYTHONPATH", ""), spark):
        return "PYTHONPATH differs"
    return None


# --- in the driver ---------------------------------------------------------------------------------------------------


class ForkServer:
    """The server of this process. `client`: arguments before those of Python that start a client of it."""

    def __init__(self, address: Path, process: subprocess.Popen[bytes]) -> None:
        self.client = (sys.executable, "-I", "-S", str(Path(__file__).with_name("fork_client.py")), str(address))
        self._address = address
        self._process = process
        self._closing = False
        threading.Thread(target=self._await_end, name="sluice-fork-server", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """End the server. Processes that it has forked continue."""
        self._closing = True
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._address.unlink(missing_ok=True)

    def _await_end(self) -> None:
        code = self._process.wait()
        if not self._closing:
            how = f"was ended by signal {-code}" if code < 0 else f"has ended with exit code {code}"
            log.warning("%s: the server that forks them %s", SLOWER, how)


def start(sockets: Path, spark: Path, job_directory: Path | None, modules: Sequence[str]) -> ForkServer | None:
    """Start a server with a socket in the directory `sockets`, which other users cannot access. `spark`: the installation of PySpark.
    `job_directory`: last on the path of each process. `modules`: what it imports first. None if it cannot be started; Spark's processes
    then start plainly."""
    address = sockets / f"fork-{os.getpid()}"
    wanted = [each for each in OPTIONAL_MODULES if each in sys.modules]
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        address.unlink(missing_ok=True)
        listening.bind(str(address))
        listening.listen(128)
        words = [str(listening.fileno()), str(spark), "" if job_directory is None else str(job_directory), *modules, *wanted]
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, *words],
            stdin=subprocess.PIPE,
            env={**SET_BY_SPARK, **os.environ, "PYTHONUNBUFFERED": SET_BY_SPARK["PYTHONUNBUFFERED"]},
            pass_fds=[listening.fileno()],
        )
    except OSError as error:
        log.info("%s: there is no server that forks them: %s", SLOWER, error)
        return None
    finally:
        listening.close()
    return ForkServer(address, process)


# --- the server ------------------------------------------------------------------------------------------------------


def import_modules(modules: Iterable[str]) -> None:
    for each in modules:
        with suppress(Exception, SystemExit):  # a process that needs it fails by itself
            importlib.import_module(each)


class _NotForked(Exception):
    """Why no process is forked for a request."""


class _Server:
    """`clients`: the connection of the client of each process."""

    def __init__(self, listening: socket.socket, spark: Path) -> None:
        self._listening = listening
        self._spark = spark
        self._own = dict(os.environ)
        self._clients: dict[int, socket.socket] = {}
        self._said: set[str] = set()
        self._woken, self._wakes = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wakes, False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server ends with the driver

    def look(self, timeout: float | None) -> Request | None:
        """Do what there is to do. Waits for it at most `timeout` seconds; None: until the server is to end, by SystemExit. In a forked
        process: returns what this process is to be."""
        while True:
            connections = {each.fileno(): process for process, each in self._clients.items()}
            ready = _readable([0, self._woken, self._listening.fileno(), *connections], timeout)
            if 0 in ready and not os.read(0, 1):
                Path(self._listening.getsockname()).unlink(missing_ok=True)  # the driver may have been killed
                raise SystemExit(0)
            if self._woken in ready:
                self._reap()
            for each in ready:
                if connections.get(each) in self._clients:
                    self._gone(connections[each])
            if self._listening.fileno() in ready and (found := self._accept()) is not None:
                return found
            if timeout is not None and not ready:
                return None

    def _gone(self, process: int) -> None:
        """The client sends nothing: it has ended."""
        self._clients.pop(process).close()
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)

    def _reap(self) -> None:
        with suppress(BlockingIOError):
            while os.read(self._woken, 512):
                pass
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                self._tell(self._clients.pop(ended[0], None), f"ended {os.waitstatus_to_exitcode(ended[1])}")

    def _accept(self) -> Request | None:
        try:
            connection, _ = self._listening.accept()
        except OSError as error:  # too many open files: some of the processes will end
            self._say(f"{SLOWER}: the server that forks them cannot accept a connection: {error.strerror}")
            time.sleep(_PAUSE_SECONDS)
            return None
        connection.settimeout(_REQUEST_SECONDS)
        request = None
        try:
            connection.sendall(b"accepted\n")
            request = _received(connection)
            why = refusal({os.fsdecode(name): os.fsdecode(value) for name, value in request.environment.items()}, self._own, self._spark)
            if why is None:
                import_modules(each for each in (request.module, *request.arguments[:1]) if each.startswith("pyspark."))
                return self._fork(connection, request)
        except _NotForked as error:
            why = str(error)
        except (OSError, ValueError):
            why = "one has ended, or has not waited until the server that forks them had time for it"
        self._say(f"{SLOWER}: {why}")
        self._tell(connection, "refused")
        if request is not None:
            for each in request.streams:
                os.close(each)
        return None

    def _fork(self, connection: socket.socket, request: Request) -> Request | None:
        """Raises _NotForked if the system refuses."""
        with warnings.catch_warnings():
            # Python 3.12 warns of threads, also of those of a library that supports forks.
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                process = os.fork()
            except OSError as error:
                raise _NotForked(f"the system refuses a process: {error.strerror}") from error
        if process == 0:
            signal.set_wakeup_fd(-1)
            for each in (self._listening, connection, *self._clients.values()):
                each.close()
            os.close(self._woken)
            os.close(self._wakes)
            return request
        for stream in request.streams:
            os.close(stream)
        self._clients[process] = connection
        with suppress(OSError):  # a client that has ended: the next look notices it
            connection.sendall(f"started {process}\n".encode())
        return None

    def _say(self, line: str) -> None:
        """Write a line into the container's log, once."""
        if line not in self._said:
            self._said.add(line)
            with suppress(OSError):
                print(line, file=sys.stderr, flush=True)

    @staticmethod
    def _tell(connection: socket.socket | None, line: str) -> None:
        if connection is not None:
            with suppress(OSError):
                connection.sendall(f"{line}\n".encode())
            connection.close()


def _readable(descriptors: Sequence[int], timeout: float | None) -> Sequence[int]:
    poll = select.poll()  # `select` has a limit of 1,024
    for each in descriptors:
        poll.register(each, select.POLLIN)
    return [each for each, _ in poll.poll(None if timeout is None else timeout * 1000)]


def _received(connection: socket.socket) -> Request:
    """Raises _NotForked, ValueError, OSError."""
    data, streams, _, _ = socket.recv_fds(connection, 1 << 16, 3)
    try:
        while data and len(data) < (length := 4 + int.from_bytes(data[:4], "big")):
            if length > _LONGEST_REQUEST:
                raise _NotForked(f"the arguments and the environment of one have more than {_LONGEST_REQUEST >> 20} MiB")
            more = connection.recv(1 << 16)
            if not more:
                break
            data += more
        if len(streams) != 3 or len(data) != 4 + int.from_bytes(data[:4], "big"):
            raise ValueError("the request is incomplete")
        return parsed(data[4:], streams)
    except BaseException:
        for each in streams:
            os.close(each)
        raise


def _become(request: Request, base: Sequence[str], job_directory: str) -> None:
    """Run the module in this forked process. `base`: the server's path without PYTHONPATH."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN if request.ignores_interrupts else signal.default_int_handler)
    for number, each in enumerate(request.streams):
        os.dup2(each, number)
        os.close(each)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (request.files, hard))
    if request.directory:
        os.chdir(request.directory)
    os.environ.clear()
    os.environb.update(request.environment)
    entries = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    sys.path[:] = dict.fromkeys([*(str(Path(each).absolute()) for each in entries), *base, *filter(None, [job_directory])])
    sys.argv = [request.module, *request.arguments]
    _seed_numpy(of_workers=bool(request.arguments))  # a daemon, also a user's own, is started with the module of its workers
    sys.modules.pop(request.module, None)  # as in a process that was started with -m
    runpy.run_module(request.module, run_name="__main__", alter_sys=True)


def _seed_numpy(*, of_workers: bool) -> None:
    """Seed numpy's global generator, as its import would in this process, and with `of_workers` in each process that this one forks.
    Python's own generator is seeded in each forked process."""
    if (numpy_random := sys.modules.get("numpy.random")) is None:
        return
    numpy_random.seed()
    daemon = os.getpid()

    def seed_worker() -> None:
        if os.getppid() == daemon:  # not in the forks of a worker, which has imported numpy itself
            numpy_random.seed()

    if of_workers:
        os.register_at_fork(after_in_child=seed_worker)


def main(listening: str, spark: str, job_directory: str, *modules: str) -> None:
    added = {str(Path(each).absolute()) for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each}
    base = [each for each in sys.path if each not in added]
    find_pyspark(os.environ)
    server = _Server(socket.socket(fileno=int(listening)), Path(spark))
    request = None
    for each in modules:
        import_modules([each])
        if (request := server.look(0)) is not None:
            break
    if request is None:
        gc.collect()
        gc.freeze()  # the collector of a forked process does not write to the pages that it shares
        request = server.look(None)
    assert request is not None
    _become(request, base, job_directory)


if __name__ == "__main__":
    main(*sys.argv[1:])
