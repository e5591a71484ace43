"""Processes that the fork server forks, compared with those that are started."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from containers.spark.start import fork_client, fork_server
from containers.spark.start.fork_client import accepted
from containers.spark.start.fork_server import SET_BY_SPARK, ForkServer, refusal
from containers.worker_python import worker_python
from tests.support.processes import wait_for

CLIENT = Path(fork_client.__file__)

PROBE = """
import faulthandler, json, os, random, resource, signal, sys
import numpy
import beside
try:
    import helper
except ImportError:
    helper = None
seen = {
    "argv": sys.argv, "path": sys.path, "environment": dict(os.environ), "directory": os.getcwd(), "safe": sys.flags.safe_path,
    "main": sys.modules["__main__"].__spec__.name, "helper": helper and helper.__file__, "read": sys.stdin.read(),
    "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0], "executable": sys.executable, "hash": hash("a"),
    "signals": {str(each): str(signal.getsignal(each)) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)},
    "descriptors": sorted(int(each) for each in os.listdir("/proc/self/fd"))[:-1],
    "through": sys.stdout.write_through, "named": __name__,
}
drawn = [random.random(), float(numpy.random.rand())]
print(json.dumps({"seen": seen, "parent": os.getppid(), "drawn": drawn}))
print("to standard error", file=sys.stderr)
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory `installed` that is on PYTHONPATH, and `job`, that of the job file."""
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / "probe.py").write_text(PROBE)
    (tmp_path / "installed" / "beside.py").touch()
    (tmp_path / "a job's").mkdir()
    (tmp_path / "a job's" / "helper.py").touch()
    (tmp_path / "a job's" / "json.py").write_text("raise AssertionError")
    (tmp_path / "working").mkdir()
    return tmp_path


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A directory with a short path: that of a socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


@pytest.fixture
def server(place: Path, sockets: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkServer]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(place / "installed"), os.environ.get("PYTHONPATH")])))
    for name in SET_BY_SPARK:
        monkeypatch.delenv(name, raising=False)
    started = fork_server.start(sockets, place / "spark", place / "a job's", ("numpy", "no_such_module"))
    assert started is not None
    wait_for("the end of the server's imports", lambda: is_forking(started, place))
    yield started
    started.close()


def is_forking(server: ForkServer, place: Path) -> bool:
    """Whether the next process is a fork. While the server imports modules on a busy machine, processes may start without it."""
    (place / "installed" / "parent.py").write_text("import os\nprint(os.getppid())")
    return run(programs(server, place)[1], place, "-m", "parent").stdout == f"{server.pid}\n"


def programs(server: ForkServer, place: Path) -> tuple[str, str]:
    """Spark's Python without and with the server."""
    (place / "plain").mkdir(exist_ok=True)
    return worker_python(place / "plain", place / "a job's"), worker_python(place, place / "a job's", server.client)


def environment(place: Path, **changes: str) -> dict[str, str]:
    """As the JVM sets it: with entries of PYTHONPATH that are Spark's, and repeated."""
    path = f"{place}/spark/jars/core.jar:{os.environ['PYTHONPATH']}:{os.environ['PYTHONPATH']}"
    return {**os.environ, **SET_BY_SPARK, "PYTHONPATH": path, "SPARK_X": "a=b\nc", **changes}


def run(program: str, place: Path, *words: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *words],
        cwd=place / "working",
        env=environment(place) if env is None else env,
        input="from the pipe",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def probed(program: str, place: Path, **changes: str) -> Any:
    done = run(program, place, "-m", "probe", "a b", "*", "", env=environment(place, **changes))
    assert (done.returncode, done.stderr) == (0, "to standard error\n")
    return json.loads(done.stdout)


def test_a_forked_process_is_like_one_that_was_started(server: ForkServer, place: Path) -> None:
    plain, forked = programs(server, place)
    started, made = probed(plain, place), probed(forked, place)
    assert made["seen"] == started["seen"]
    assert (made["parent"] == server.pid, started["parent"] == server.pid) == (True, False)
    assert made["seen"]["helper"] == str(place / "a job's" / "helper.py")


def test_forked_processes_draw_different_random_numbers(server: ForkServer, place: Path) -> None:
    _, forked = programs(server, place)
    first, second = (probed(forked, place)["drawn"] for _ in range(2))
    assert not set(first) & set(second)


@pytest.mark.parametrize("ending", ["sys.exit(3)", "sys.exit('why')", "1 / 0", "os._exit(7)", "os.kill(os.getpid(), 9)", "os.abort()", ""])
def test_a_client_ends_as_its_process_does(server: ForkServer, place: Path, ending: str) -> None:
    (place / "installed" / "ends.py").write_text(f"import os, sys\nprint('ended', flush=True)\n{ending}\n")
    plain, forked = (run(program, place, "-m", "ends") for program in programs(server, place))
    assert (forked.returncode, forked.stdout) == (plain.returncode, plain.stdout)
    assert forked.stderr.splitlines()[-1:] == plain.stderr.splitlines()[-1:]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_the_client_ends_the_process(server: ForkServer, place: Path, number: signal.Signals) -> None:
    (place / "installed" / "waits.py").write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(1000)\n")
    with subprocess.Popen([programs(server, place)[1], "-m", "waits"], env=environment(place), stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        process = psutil.Process(int(client.stdout.readline()))
        client.send_signal(number)
        assert client.wait(300) == -number
    wait_for("the end of the process", lambda: not process.is_running(), 300)
    assert probed(programs(server, place)[1], place)["parent"] == server.pid


@pytest.mark.parametrize(
    "changes", [{"PYTHONHASHSEED": "5"}, {"OMP_NUM_THREADS": "4"}, {"LC_ALL": "C"}, {"PYTHONPATH": "@/installed:/other"}]
)
def test_a_process_is_started_plainly_if_a_variable_that_is_read_at_the_start_is_another(
    request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str], place: Path, changes: dict[str, str]
) -> None:
    server = request.getfixturevalue("server")  # after `capfd`, so that its output is captured
    changes = {name: value.replace("@", str(place)) for name, value in changes.items()}
    plain, forked = programs(server, place)
    made = probed(forked, place, **changes)
    assert made["parent"] != server.pid
    assert made["seen"] == probed(plain, place, **changes)["seen"]
    probed(forked, place, **changes)
    (said,) = (line for line in capfd.readouterr().err.splitlines() if next(iter(changes)) in line)  # a busy server says more
    assert said.startswith("Python processes of Spark start more slowly: ")


def test_a_process_is_started_plainly_after_the_server_was_killed_and_the_driver_logs_why_once(
    server: ForkServer, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.kill(server.pid, signal.SIGKILL)
    for _ in range(2):
        assert probed(programs(server, place)[1], place)["parent"] != server.pid
    wait_for("the warning", lambda: caplog.messages, 300)
    assert caplog.messages == ["Python processes of Spark start more slowly: the server that forks them was ended by signal 9"]


def test_nothing_is_logged_when_the_driver_ends_the_server(sockets: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = threading.enumerate()  # a session of other tests may have a server
    started = fork_server.start(sockets, sockets, None, ())
    assert started is not None
    (awaits_end,) = [each for each in threading.enumerate() if each not in before and each.name == "sluice-fork-server"]
    started.close()
    wait_for("the end of the thread", lambda: not awaits_end.is_alive(), 300)
    assert (caplog.messages, [*sockets.iterdir()]) == ([], [])


def test_a_process_and_its_client_continue_when_the_server_ends(server: ForkServer, place: Path) -> None:
    """Spark would close the streams of a process whose client has ended."""
    (place / "installed" / "waits.py").write_text(
        "import os, sys\nprint(os.getpid(), flush=True)\nsys.stdin.read()\nprint('read', flush=True)\n"
    )
    words = [programs(server, place)[1], "-m", "waits"]
    with subprocess.Popen(words, env=environment(place), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        process = psutil.Process(int(client.stdout.readline()))
        os.kill(server.pid, signal.SIGKILL)
        wait_for("a new parent", lambda: process.ppid() != server.pid, 300)
        with pytest.raises(subprocess.TimeoutExpired):
            client.wait(0.3)
        client.stdin.close()
        assert client.stdout.read() == b"read\n"
        assert client.wait(300) == 1


def test_a_process_is_started_plainly_if_the_server_ends_before_the_request(
    place: Path, sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(place / "installed"))
    (place / "installed" / "says.py").write_text("print('plainly')")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(sockets / "socket"))
        listening.listen()
        program = worker_python(place, place / "a job's", [sys.executable, "-I", "-S", str(CLIENT), str(sockets / "socket")])
        with subprocess.Popen([program, "-m", "says"], stdout=subprocess.PIPE) as client:
            connection, _ = listening.accept()
            client.send_signal(signal.SIGSTOP)
            connection.sendall(b"accepted\n")
            connection.close()
            client.send_signal(signal.SIGCONT)
            assert client.communicate(timeout=300)[0] == b"plainly\n"


def test_a_process_can_be_forked_in_a_directory_that_was_deleted(server: ForkServer, place: Path) -> None:
    (place / "installed" / "says.py").write_text("import os\nprint(os.getppid())")
    gone = place / "gone"
    gone.mkdir()
    leave = f"cd {gone} && rmdir {gone} && exec {programs(server, place)[1]} -m says"
    done = subprocess.run(["sh", "-c", leave], env=environment(place), capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == f"{server.pid}\n"


DAEMON = """
import os, sys
import numpy

for _ in range(2):
    if os.fork() == 0:
        first = numpy.random.rand()
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.write(writer, repr(numpy.random.rand()).encode())
            os._exit(0)
        print(first, os.read(reader, 100).decode() == repr(numpy.random.rand()), flush=True)
        os._exit(0)
    os.wait()
"""


def test_workers_that_the_daemon_forks_draw_different_numbers_and_nothing_is_said(
    place: Path, sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processes of a worker's own draw the same ones, as in a process that was started. `pyspark` is a package of this test's."""
    (place / "installed" / "pyspark").mkdir()
    (place / "installed" / "pyspark" / "__init__.py").touch()
    (place / "installed" / "pyspark" / "daemon.py").write_text(f"if __name__ == '__main__':\n{textwrap.indent(DAEMON, '    ')}")
    monkeypatch.setenv("PYTHONPATH", f"{place / 'installed'}:{Path(__file__).parents[3]}")
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    server = fork_server.start(sockets, place / "spark", place / "a job's", ("numpy.random", "pyspark.daemon"))
    assert server is not None
    done = run(programs(server, place)[1], place, "-m", "pyspark.daemon", "pyspark.worker")
    server.close()
    assert (done.returncode, done.stderr) == (0, "")
    drawn, repeated = zip(*(each.split() for each in done.stdout.splitlines()), strict=True)
    assert (len(set(drawn)), repeated) == (2, ("True", "True"))


def test_a_client_does_not_wait_forever_for_a_server_that_hangs(server: ForkServer, place: Path) -> None:
    probed(programs(server, place)[1], place)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        assert accepted(server.client[-1], 0.2) is None
    finally:
        os.kill(server.pid, signal.SIGCONT)
    children = psutil.Process(server.pid).children()
    assert children == []  # the abandoned connection did not make a process
    assert probed(programs(server, place)[1], place)["parent"] == server.pid


def is_refused(server: ForkServer, data: bytes) -> None:
    """The server accepts the connection, and refuses what it gets."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(server.client[-1])
        assert connection.recv(100) == b"accepted\n"
        if data:
            socket.send_fds(connection, [data], [0, 1, 2])
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(100) == b"refused\n"


@pytest.mark.parametrize("data", [b"", b"\0\0", b"\0\0\0\5hello", b"\xff\xff\xff\xff", b"\0\0\0\x101\0000\x00999\0/\0a\0b=c\0d"])
def test_a_request_that_is_no_request_does_not_end_the_server(server: ForkServer, place: Path, data: bytes) -> None:
    is_refused(server, data)
    assert probed(programs(server, place)[1], place)["parent"] == server.pid


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "one has ended, or has not waited until the server that forks them had time for it"),
        (b"\xff\xff\xff\xff", "the arguments and the environment of one have more than 4 MiB"),
    ],
)
def test_the_reason_why_a_request_is_refused_is_written_once(
    request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str], data: bytes, why: str
) -> None:
    server = request.getfixturevalue("server")  # after `capfd`, so that its output is captured
    for _ in range(2):
        is_refused(server, data)
    assert capfd.readouterr().err == f"Python processes of Spark start more slowly: {why}\n"


def test_a_process_is_started_plainly_if_the_system_refuses_to_fork_and_the_reason_is_written_once(
    place: Path, sockets: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (place / "installed" / "refusing.py").write_text(
        "import errno, os\ndef fork():\n    raise OSError(errno.EAGAIN, 'no more processes')\nos.fork = fork\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{place / 'installed'}:{Path(__file__).parents[3]}")
    server = fork_server.start(sockets, place / "spark", place / "a job's", ("refusing",))
    assert server is not None
    for _ in range(2):
        assert probed(programs(server, place)[1], place)["parent"] != server.pid
    server.close()
    assert capfd.readouterr().err == "Python processes of Spark start more slowly: the system refuses a process: no more processes\n"


def test_the_server_ends_with_the_driver(sockets: Path) -> None:
    text = f"""
import os, time
from pathlib import Path
from containers.spark.start import fork_client, fork_server
started = fork_server.start(Path({str(sockets)!r}), Path("/"), None, ())
print(started.pid, flush=True)
time.sleep(1000)
"""
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        server = psutil.Process(int(driver.stdout.readline()))
        driver.kill()
    wait_for("the end of the server", lambda: not server.is_running(), 300)
    assert [*sockets.iterdir()] == []


def test_a_server_whose_socket_has_too_long_a_path_is_not_started(tmp_path: Path) -> None:
    assert fork_server.start(tmp_path / ("long" * 30), tmp_path, None, ()) is None


def test_many_processes_can_be_forked_at_once(server: ForkServer, place: Path) -> None:
    (place / "installed" / "soon.py").write_text("import os, time\ntime.sleep(0.2)\nprint(os.getppid())\n")
    program, env = programs(server, place)[1], environment(place)
    began = [subprocess.Popen([program, "-m", "soon"], env=env, stdout=subprocess.PIPE, text=True) for _ in range(40)]
    parents = {each.communicate(timeout=300)[0] for each in began}
    assert f"{server.pid}\n" in parents
    assert parents <= {f"{server.pid}\n", f"{os.getpid()}\n"}  # plainly, where the machine is so busy that a client waits for too long
    assert {each.returncode for each in began} == {0}


SPARK = Path("/spark")


def test_variables_that_are_not_read_at_the_start_may_differ() -> None:
    wanted = {"SPARK_HOME": "/a", "PYTHON_UDF_BATCH_SIZE": "100", "PYTHONPATH": "/spark/jars/a.jar:/x:/x", "PYTHONSAFEPATH": "1"}
    assert refusal(wanted, {"HOME": "/b", "PYTHONPATH": "/x", **SET_BY_SPARK}, SPARK) is None


def test_entries_of_spark_are_known_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    wanted = {"PYTHONPATH": f"{tmp_path}/real/jars/a.jar:{tmp_path}/link/python/lib/pyspark.zip:/x"}
    assert refusal(wanted, {"PYTHONPATH": "/x"}, tmp_path / "link") is None


@pytest.mark.parametrize("name", ["PYTHONMALLOC", "PYTHON_GIL", "LD_PRELOAD", "TZ", "MKL_NUM_THREADS", "NPY_X", "PYTHONHASHSEED"])
def test_a_variable_that_is_read_at_the_start_is_named(name: str) -> None:
    assert (refusal({name: "x"}, {}, SPARK) or "").startswith(name)
    assert (refusal({name: "x"}, {name: "y"}, SPARK) or "").startswith(name)


def test_a_variable_that_only_the_server_has_is_named_unless_spark_sets_it_for_some_processes() -> None:
    assert refusal({}, SET_BY_SPARK, SPARK) is None
    assert refusal({}, {"LD_PRELOAD": "x"}, SPARK) is not None
