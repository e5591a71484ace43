"""The watchdog with real processes and real signals; small scripts replace the driver."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

import pytest

from containers.scratch import session_members
from containers.watchdog import kill_session
from tests.support.engines import soon

pytestmark = pytest.mark.real_time

WATCHDOG = """
import asyncio, sys
from pathlib import Path
from containers.settings import read_container_settings
from containers.watchdog import Watchdog
from sluice.clock import SystemClock
watchdog = Watchdog(Path(sys.argv[1]), read_container_settings(), SystemClock(), driver=[sys.executable])
sys.exit(asyncio.run(watchdog.run()))
"""

DRIVER = """
import os, signal, subprocess, sys, time
from sluice.clock import SystemClock

def tell(text):
    os.write(int(os.environ["SLUICE_WATCHDOG_FD"]), text.encode())

def lease(seconds):
    tell(f"lease {SystemClock().elapsed() + seconds!r}\\n")

def leave(code, why=""):
    tell(f"end {code} {why}\\n")
    os._exit(code)

def child(code="import time; time.sleep(600)", **pipes):
    return subprocess.Popen([sys.executable, "-c", "import signal\\n" + code], **pipes)

def ready():
    print("ready", os.getpid(), flush=True)

"""

IGNORES = "for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(each, signal.SIG_IGN)\n"
STOPS_ON_SIGTERM = "signal.signal(signal.SIGTERM, lambda *_: (print('stop requested', flush=True), leave(0)))\n"
HANGS = "while True: time.sleep(600)\n"
WAITS = "ready()\n" + HANGS

Reports = Queue[tuple[str, dict[str, Any]]]


class Exits(BaseHTTPRequestHandler):
    """The part of a coordinator that receives exit reports."""

    reports: Reports
    authorizations: list[str | None]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.reports.put((self.path, body))
        self.authorizations.append(self.headers.get("Authorization"))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


@dataclass
class Coordinator:
    url: str
    reports: Reports
    authorizations: list[str | None]


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    reported: Reports = Queue()
    authorizations: list[str | None] = []
    received = {"reports": reported, "authorizations": authorizations}
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Exits", (Exits,), received)) as server:
        Thread(target=server.serve_forever).start()
        yield Coordinator(f"http://127.0.0.1:{server.server_port}", reported, authorizations)
        server.shutdown()


class Kennel:
    """Starts watchdogs, each with a driver that runs a script."""

    def __init__(self, directory: Path, url: str) -> None:
        self._file = directory / "driver.py"
        self._url = url
        self.started: list[asyncio.subprocess.Process] = []
        self.sessions: list[int] = []
        self._reader, self._unread = os.pipe()

    async def start(
        self, script: str, *, unread_log: bool = False, watchdog: str = WATCHDOG, **variables: str
    ) -> asyncio.subprocess.Process:
        self._file.write_text(DRIVER + script)
        ours = {
            "SLUICE_RUN_ID": "r1",
            "EXECUTION_ENV_CONTAINER_ID": "c/1",
            "SLUICE_COORDINATOR_URL": self._url,
            "SLUICE_HOME": str(self._file.parent),
        }
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", watchdog, str(self._file)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._unread if unread_log else None,
            env={**os.environ, **ours, **variables},
        )
        self.started.append(process)
        return process

    async def ready(self, script: str, *, unread_log: bool = False, **variables: str) -> tuple[asyncio.subprocess.Process, int]:
        """The watchdog and the PID of its driver, once the driver is ready."""
        process = await self.start(script, unread_log=unread_log, **variables)
        word, pid = (await line(process)).split()
        assert word == "ready"
        self.sessions.append(int(pid))
        return process, int(pid)

    async def clean(self) -> None:
        """End drivers first: they keep the standard output of their watchdogs open, and `wait` waits for its end, too."""
        for session in self.sessions:
            kill_session(session)
        for process in self.started:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        os.close(self._reader)
        os.close(self._unread)


@pytest.fixture
async def kennel(tmp_path: Path, coordinator: Coordinator) -> AsyncIterator[Kennel]:
    made = Kennel(tmp_path, coordinator.url)
    yield made
    await made.clean()


async def line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await soon(process.stdout.readline())).decode().strip()


async def exit_code(process: asyncio.subprocess.Process) -> int:
    return await soon(process.wait())


def last_of(session: int) -> None:
    """Wait for the end of a session. Its leader remains a zombie while the watchdog is suspended, and that raises no event."""
    while session_members(session):
        time.sleep(0.05)


# --- exit codes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [3, *(pytest.param(each, marks=pytest.mark.long) for each in (0, 1))])
async def test_the_driver_s_exit_code_is_the_container_s_and_is_logged_with_its_last_output(
    kennel: Kennel, coordinator: Coordinator, code: int
) -> None:
    process = await kennel.start(f"leave({code}, 'first line\\0 zweite Zeile: ü')")
    assert await exit_code(process) == code
    assert coordinator.reports.get(timeout=300) == (
        "/containers/c%2F1/exit",
        {"exitCode": code, "reason": "first line\n zweite Zeile: ü", "terminated": False},
    )


async def test_the_exit_is_reported_with_the_token_that_the_driver_got(kennel: Kennel, coordinator: Coordinator) -> None:
    process = await kennel.start("tell('token sluice-i.secret.name\\n'); leave(0)")
    assert await exit_code(process) == 0
    assert coordinator.reports.get(timeout=300)[1]["exitCode"] == 0
    assert coordinator.authorizations == ["Bearer sluice-i.secret.name"]


@pytest.mark.parametrize("code", [3, *(pytest.param(each, marks=pytest.mark.long) for each in (0, 7))])
async def test_a_driver_that_ends_without_a_last_report_has_failed_with_any_exit_code(
    kennel: Kennel, coordinator: Coordinator, code: int
) -> None:
    process = await kennel.start(f"lease(600); os._exit({code})")
    assert await exit_code(process) == 1
    reported = coordinator.reports.get(timeout=300)[1]
    assert reported["exitCode"] == 1
    assert reported["reason"].startswith(f"its driver exited with code {code} without a reason: ")


async def test_a_last_report_is_ignored_if_the_driver_ends_in_another_way(kennel: Kennel, coordinator: Coordinator) -> None:
    process = await kennel.start("tell('end 0 stop requested\\n'); os._exit(9)")
    assert await exit_code(process) == 1
    assert coordinator.reports.get(timeout=300)[1]["reason"].startswith("its driver exited with code 9 ")


async def test_the_last_output_is_read_while_a_forked_child_holds_the_pipe(kennel: Kennel, coordinator: Coordinator) -> None:
    process = await kennel.start("if not os.fork(): time.sleep(600)\nleave(0, 'stop requested')")
    assert await exit_code(process) == 0
    assert coordinator.reports.get(timeout=300)[1]["reason"] == "stop requested"


@pytest.mark.parametrize(
    ("number", "name"), [(signal.SIGKILL, "SIGKILL"), (signal.SIGRTMIN, "SIGRTMIN"), (signal.SIGRTMIN + 1, "signal 35")]
)
async def test_a_driver_that_was_killed_is_a_failure_that_names_the_signal(
    kennel: Kennel, coordinator: Coordinator, number: int, name: str
) -> None:
    process, driver = await kennel.ready(WAITS)
    os.kill(driver, number)
    assert await exit_code(process) == 1
    assert coordinator.reports.get(timeout=300)[1] == {"exitCode": 1, "reason": f"its driver was killed by {name}", "terminated": False}


async def test_an_exit_that_cannot_be_reported_keeps_its_exit_code(kennel: Kennel) -> None:
    process = await kennel.start("leave(3)", SLUICE_COORDINATOR_URL="http://127.0.0.1:9")
    assert await exit_code(process) == 3


async def test_the_driver_gets_the_id_of_its_container(kennel: Kennel) -> None:
    process = await kennel.start("print(os.environ['EXECUTION_ENV_CONTAINER_ID'], os.getsid(0) == os.getpid(), flush=True)")
    assert await line(process) == "c/1 True"


@pytest.mark.parametrize("end", ["leave(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
async def test_the_driver_has_its_own_directory_for_sockets_which_is_deleted_when_it_ends(kennel: Kennel, end: str) -> None:
    mark = "open(os.environ['SLUICE_SOCKETS_DIR'] + '/.left.sock', 'w').close()"
    tell = "print(oct(os.stat(os.environ['SLUICE_SOCKETS_DIR']).st_mode)[-3:], os.environ['SLUICE_SOCKETS_DIR'], flush=True)"
    process = await kennel.start(f"{mark}; {tell}; {end}")
    mode, directory = (await line(process)).split()
    assert mode == "700"
    await exit_code(process)
    assert not await asyncio.to_thread(Path(directory).exists)


async def test_the_driver_starts_without_a_directory_for_sockets_if_none_can_be_created(kennel: Kennel, tmp_path: Path) -> None:
    full = f"import tempfile; tempfile.tempdir = {str(tmp_path / 'nowhere')!r}\n"
    process = await kennel.start("print(os.environ.get('SLUICE_SOCKETS_DIR'), flush=True); leave(0)", watchdog=full + WATCHDOG)
    assert await line(process) == "None"
    assert await exit_code(process) == 0


@pytest.mark.long
async def test_a_container_deletes_the_directories_of_containers_without_a_process_and_no_others(kennel: Kennel, tmp_path: Path) -> None:
    makes = "os.makedirs(os.environ['SLUICE_HOME'] + '/spark/' + os.environ['EXECUTION_ENV_CONTAINER_ID'] + '/blockmgr')\n"
    frozen = "held = child('import os; os.kill(os.getpid(), signal.SIGSTOP)')\n"
    here: dict[str, Any] = {"SLUICE_HOME": str(tmp_path), "TMPDIR": str(tmp_path / "tmp")}
    (tmp_path / "tmp").mkdir()
    watchdogs, drivers = {}, {}
    for name, script in {"dead": WAITS, "half": frozen + WAITS, "orphan": IGNORES + WAITS, "alive": WAITS}.items():
        watchdogs[name], drivers[name] = await kennel.ready(makes + script, EXECUTION_ENV_CONTAINER_ID=name, **here)
    for name in ("dead", "half", "orphan"):
        watchdogs[name].kill()
    for name in ("dead", "half"):
        os.kill(drivers[name], signal.SIGKILL)
    await asyncio.to_thread(last_of, drivers["dead"])

    process = await kennel.start("leave(0)", EXECUTION_ENV_CONTAINER_ID="next", **here)
    assert await exit_code(process) == 0
    left = [each for each in (tmp_path / "spark").iterdir() if each.is_dir()]
    assert sorted(each.name for each in left) == ["alive", "half", "orphan"]
    assert len(list((tmp_path / "tmp").iterdir())) == 3


async def test_processes_that_the_driver_leaves_behind_are_killed(kennel: Kennel) -> None:
    process, driver = await kennel.ready("child()\nready()\nleave(0)\n")
    assert await exit_code(process) == 0
    assert session_members(driver) == []


# --- the end of a lease ----------------------------------------------------------------------------------------------


async def test_a_driver_that_hangs_is_killed_with_its_child_processes_when_its_lease_ends(kennel: Kennel, coordinator: Coordinator) -> None:
    process, driver = await kennel.ready(IGNORES + "child(); ready(); lease(0.5)\n" + HANGS)
    assert await exit_code(process) == 3
    assert session_members(driver) == []
    assert coordinator.reports.get(timeout=300)[1] == {
        "exitCode": 3,
        "reason": "killed: its lease expired and it did not stop",
        "terminated": False,
    }


async def test_a_driver_that_is_suspended_is_killed_when_its_lease_ends(kennel: Kennel) -> None:
    process, driver = await kennel.ready("lease(2)\n" + WAITS)
    os.kill(driver, signal.SIGSTOP)
    assert await exit_code(process) == 3


async def test_a_driver_is_killed_when_its_lease_ends_although_the_log_of_the_watchdog_is_not_read(kennel: Kennel) -> None:
    fills = "import threading\nthreading.Thread(target=lambda: os.write(2, bytes(1 << 20)), daemon=True).start()\n"
    process, driver = await kennel.ready(IGNORES + fills + "lease(1); ready()\n" + HANGS, unread_log=True)
    await soon(asyncio.to_thread(last_of, driver))
    process.kill()


async def test_a_driver_that_renews_its_lease_in_time_is_not_killed(kennel: Kennel) -> None:
    process = await kennel.start("lease(1.5); lease(600); time.sleep(2); leave(0)")
    assert await exit_code(process) == 0


async def test_a_renewal_that_arrives_in_pieces_is_accepted(kennel: Kennel) -> None:
    pieces = "until = SystemClock().elapsed() + 0.3\ntell('lea'); time.sleep(0.3); tell(f'se {until!r}'); time.sleep(0.1); tell('\\n')\n"
    process, _ = await kennel.ready("lease(600); ready()\n" + pieces + HANGS)
    assert await exit_code(process) == 3


async def test_a_driver_that_has_no_lease_yet_is_not_killed(kennel: Kennel) -> None:
    process = await kennel.start("tell('hello\\n'); time.sleep(1); leave(7)")
    assert await exit_code(process) == 7


# --- signals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "which", [signal.SIGHUP, *(pytest.param(each, marks=pytest.mark.long) for each in (signal.SIGTERM, signal.SIGINT))]
)
async def test_a_signal_to_stop_reaches_the_driver_as_sigterm(kennel: Kennel, which: signal.Signals) -> None:
    process, _ = await kennel.ready(STOPS_ON_SIGTERM + WAITS)
    process.send_signal(which)
    assert await line(process) == "stop requested"
    assert await exit_code(process) == 0


async def test_a_driver_that_is_stopped_before_it_handles_signals_has_not_failed(kennel: Kennel, coordinator: Coordinator) -> None:
    process, _ = await kennel.ready(WAITS)
    process.terminate()
    assert await exit_code(process) == 0
    assert coordinator.reports.get(timeout=300)[1] == {
        "exitCode": 0,
        "reason": "stop requested before the driver had started",
        "terminated": False,
    }


async def test_a_driver_that_another_process_ends_has_failed(kennel: Kennel) -> None:
    process, driver = await kennel.ready(WAITS)
    os.kill(driver, signal.SIGTERM)
    assert await exit_code(process) == 1


async def test_a_stop_reaches_the_driver_s_python_and_not_what_it_started(kennel: Kennel) -> None:
    counts = (
        "import sys\nseen = []\nsignal.signal(signal.SIGTERM, lambda *_: seen.append(1))\n"
        "print('up', flush=True)\nsys.stdin.readline()\nprint('seen', len(seen), flush=True)\n"
    )
    asks = (
        f"jvm = child({counts!r}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)\njvm.stdout.readline()\n"
        "def stop(*_):\n    answer, _ = jvm.communicate('?\\n')\n    print(answer, end='', flush=True)\n    leave(0)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
    )
    process, _ = await kennel.ready(asks + WAITS)
    process.terminate()
    assert await line(process) == "seen 0"
    assert await exit_code(process) == 0


async def test_each_of_two_stops_is_passed_on(kennel: Kennel) -> None:
    counts = (
        "signals = []\ndef stop(*_):\n    signals.append(1)\n    print(len(signals), flush=True)\n    if len(signals) == 2: leave(0)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
    )
    process, _ = await kennel.ready(counts + WAITS)
    process.terminate()
    assert await line(process) == "1"
    process.terminate()
    assert await line(process) == "2"
    assert await exit_code(process) == 0


# --- the launcher ----------------------------------------------------------------------------------------------------


async def test_the_end_of_standard_input_stops_the_container_if_its_launcher_requested_that(kennel: Kennel) -> None:
    process, _ = await kennel.ready(STOPS_ON_SIGTERM + WAITS, SLUICE_STOP_WITH_STDIN="1")
    assert process.stdin is not None
    process.stdin.close()
    assert await line(process) == "stop requested"
    assert await exit_code(process) == 0


async def test_input_on_standard_input_does_not_stop_the_container(kennel: Kennel) -> None:
    process, _ = await kennel.ready(STOPS_ON_SIGTERM + "ready(); time.sleep(0.5); leave(5)\n", SLUICE_STOP_WITH_STDIN="1")
    assert process.stdin is not None
    process.stdin.write(b"hello\n")
    assert await exit_code(process) == 5


async def test_the_end_of_standard_input_is_ignored_unless_the_launcher_requested_a_stop(kennel: Kennel) -> None:
    process = await kennel.start(STOPS_ON_SIGTERM + "time.sleep(0.5); leave(5)\n")
    assert process.stdin is not None
    process.stdin.close()
    assert await exit_code(process) == 5


async def test_a_driver_notices_the_end_of_its_watchdog(kennel: Kennel) -> None:
    process, _ = await kennel.ready("ready()\nos.read(0, 1)\nprint('alone', flush=True)\n")
    process.kill()
    assert await line(process) == "alone"
