"""The process of the agent with real processes, signals and a real coordinator. Scripts with an engine without Spark are the driver."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

import httpx
import psutil
import pytest

from sluice.deploy import deploy_request
from tests.integration.processes.test_exec import await_end, ended
from tests.support.agents import two_stages
from tests.support.coordinators import Running, running
from tests.support.processes import ROOT, SLUICE, await_line, completed, wait_for

pytestmark = pytest.mark.real_time

AGENT = """
import asyncio, sys
from containers.agent_process import AgentProcess
from containers.settings import read_container_settings
from sluice import logconfig
from sluice.clock import SystemClock

stamp = logconfig.configure(logconfig.read_log_settings())

async def run():
    return await AgentProcess(read_container_settings(), SystemClock(), stamp).run([sys.executable, "-P", *sys.argv[1:]])

reason = asyncio.run(run())
print(f"exit {reason.exit_code}: {reason.reason}", flush=True)
sys.exit(reason.exit_code)
"""

DRIVER = """
import asyncio, os, signal, socket, subprocess, sys, threading, time
from containers.rpc.engine_server import EngineServer
from containers.rpc.socket_link import SocketLink
from tests.support.agents import two_stages
from tests.support.engines import FakeEngine

for each in (signal.SIGTERM, signal.SIGINT):
    signal.signal(each, lambda *_: None)
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()


async def engine(**given):
    return FakeEngine(**given)


def child(*command):
    return subprocess.Popen(command).pid


def serve(describe=lambda: two_stages(JOB).description(), **given):
    def make_engine(run):
        return asyncio.run_coroutine_threadsafe(engine(**given), loop).result()

    connected = socket.socket(fileno=int(os.environ["SLUICE_AGENT_FD"]))
    EngineServer(SocketLink(connected), describe, make_engine, lambda: os._exit(1), lambda slot: None, os._exit).run()


def started(start):
    print(f"started {os.getpid()}.", flush=True)


JOB = os.environ["JOB"]
"""

WAITS = "\nwhile True: time.sleep(600)\n"
SERVES = "serve(on_start=started)" + WAITS

SHORT_LEASE = ("--lease-seconds", "12", "--heartbeat-seconds", "1", "--margin-seconds", "2", "--grace-seconds", "2")
"""For tests that wait for its end."""

SETTINGS = {"SLUICE_CRASH_LOOP_BACKOFF_SECONDS": "0", "SLUICE_BACKUP_STORES": "[]", "SLUICE_RESTORE_FROM": "[]"}
"""Containers fail in turn, and their engine has no directories."""


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("agents") / "home", *SHORT_LEASE, **SETTINGS) as found:
        yield found


class Containers:
    """Containers of one job."""

    def __init__(self, coordinator: Running, root: Path) -> None:
        self.http: httpx.Client = coordinator.http
        self.root = root
        self.job = f"delays-{uuid4().hex[:8]}"
        self.started: list[subprocess.Popen[bytes]] = []
        names = (f"in-{self.job}", f"mid-{self.job}", f"out-{self.job}")
        home = str(coordinator.log.with_name("home"))
        completed([*SLUICE, "streams", "create", names[0], "--home", home]).check_returncode()
        request = deploy_request(two_stages(self.job, streams=names), 1, "log", "checkpoint", {})
        answer = self.http.post("/runs", json=request.model_dump(mode="json", by_alias=True))
        assert answer.status_code == 201, answer.text
        self.run: str = answer.json()["runId"]
        self.names = names

    def start(
        self, script: str, *, agent: str = AGENT, errors: int | None = None, **variables: str
    ) -> tuple[subprocess.Popen[bytes], Path]:
        file = self.root / f"driver-{len(self.started)}.py"
        file.write_text(DRIVER.replace("two_stages(JOB)", f"two_stages(JOB, streams={self.names!r})") + script)
        own = {
            "SLUICE_RUN_ID": self.run,
            "EXECUTION_ENV_CONTAINER_ID": f"c/{len(self.started)}-{self.job}",
            "SLUICE_COORDINATOR_URL": str(self.http.base_url),
            "SLUICE_HOME": str(self.root / "home"),
            "SLUICE_SPARK_TIMEOUT_SECONDS": "2",
            "JOB": self.job,
            "PYTHONPATH": str(ROOT),
        }
        log = self.root / f"container-{len(self.started)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-c", agent, str(file)],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                env={**os.environ, **own, **variables},
            )
        self.started.append(process)
        return process, log

    def ready(self, script: str = SERVES, **variables: Any) -> tuple[subprocess.Popen[bytes], int]:
        """A container and the pid of its driver, once its queries have started."""
        process, log = self.start(script, **variables)
        return process, int(await_line(process, log, r"^started (\d+)\."))

    def last(self) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get(f"/runs/{self.run}").json()["incarnations"][-1]
        return found

    def await_report(self) -> tuple[int, str]:
        """The exit code and the first line of the reason that the last container has reported."""
        found = wait_for("the report", lambda: found if (found := self.last())["exitCode"] is not None else None)
        return found["exitCode"], found["reason"].splitlines()[0]

    def log(self) -> str:
        return (self.root / f"container-{len(self.started) - 1}.log").read_text()

    def end(self) -> None:
        for each in self.started:
            found = [each.pid] + ([] if each.poll() is not None else [c.pid for c in psutil.Process(each.pid).children(recursive=True)])
            for pid in found:
                if psutil.pid_exists(pid):
                    os.kill(pid, signal.SIGKILL)
            each.wait()


@pytest.fixture
def containers(coordinator: Running, tmp_path: Path) -> Iterator[Containers]:
    made = Containers(coordinator, tmp_path)
    yield made
    made.end()


# --- the end of the driver -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "name"), [(signal.SIGKILL, "SIGKILL"), (signal.SIGRTMIN + 1, "signal 35")])
def test_a_driver_that_was_killed_is_a_failure_that_names_the_signal(containers: Containers, number: int, name: str) -> None:
    process, driver = containers.ready()
    os.kill(driver, number)
    assert process.wait(600) == 1
    assert containers.await_report() == (1, f"its driver was killed by {name}")


def test_a_driver_that_ends_by_itself_has_failed_with_any_exit_code(containers: Containers) -> None:
    process, _ = containers.start(f"serve(on_start=lambda start: os._exit(0)){WAITS}")
    assert process.wait(600) == 1
    assert containers.await_report()[1].startswith("its driver exited with code 0 without a reason: ")


def test_a_driver_that_cannot_start_is_a_failure_without_a_lease(containers: Containers) -> None:
    process, _ = containers.start("sys.exit(7)")
    assert process.wait(600) == 1
    assert "exit 1: its driver exited with code 7 without a reason" in containers.log()
    assert containers.http.get(f"/runs/{containers.run}").json()["incarnations"] == []


def test_a_job_file_that_cannot_be_loaded_ends_the_container_with_its_error(containers: Containers) -> None:
    script = "from sluice.core.errors import BadJobFile\ndef fails(): raise BadJobFile('no such stage')\nserve(fails)" + WAITS
    process, _ = containers.start(script)
    assert process.wait(600) == 1
    assert "no such stage" in containers.log()


LEAVES = "print('left', child('setsid', 'bash', '-c', 'setsid sleep 1001 & echo child $!.; sleep 1002'), flush=True)\n"


def test_processes_that_the_driver_leaves_behind_are_ended_before_the_exit_is_reported(containers: Containers) -> None:
    process, _ = containers.ready(LEAVES + SERVES)
    child = int(await_line(process, containers.root / "container-0.log", r"child (\d+)\."))
    process.terminate()
    assert process.wait(600) == 0
    assert containers.await_report() == (0, "stop requested")
    assert ended(child)


def test_a_container_of_a_run_that_has_ended_ends_with_its_driver(containers: Containers) -> None:
    assert containers.http.post(f"/runs/{containers.run}/stop").status_code == 202
    process, log = containers.start("print('driver', os.getpid(), flush=True)\n" + SERVES)
    driver = int(await_line(process, log, r"^driver (\d+)$"))
    assert process.wait(600) == 0
    assert ended(driver)
    assert list((containers.root / "home" / "spark").iterdir()) == []


def test_orphans_of_the_driver_that_have_ended_are_reaped(containers: Containers) -> None:
    orphans = "for _ in range(5): subprocess.run(['sh', '-c', 'sleep 0.1 &'], check=True)\n"
    process, _ = containers.ready(orphans + SERVES)

    def zombies() -> int:
        return sum(each.status() == psutil.STATUS_ZOMBIE for each in psutil.Process(process.pid).children())

    wait_for("no zombies", lambda: zombies() == 0)


@pytest.mark.parametrize("end", ["os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_the_driver_has_its_own_directory_for_sockets_which_is_deleted_when_it_ends(containers: Containers, end: str) -> None:
    mark = "open(os.environ['SLUICE_SOCKETS_DIR'] + '/.left.sock', 'w').close()"
    tell = "print('sockets', oct(os.stat(os.environ['SLUICE_SOCKETS_DIR']).st_mode)[-3:], os.environ['SLUICE_SOCKETS_DIR'], flush=True)"
    process, log = containers.start(f"{mark}; {tell}; {end}")
    mode, directory = await_line(process, log, r"^sockets (.+)$").split()
    assert mode == "700"
    process.wait(600)
    assert not Path(directory).exists()


def test_the_driver_starts_without_a_directory_for_sockets_if_none_can_be_created(containers: Containers, tmp_path: Path) -> None:
    full = f"import tempfile; tempfile.tempdir = {str(tmp_path / 'nowhere')!r}\n"
    process, log = containers.start("print('sockets', os.environ.get('SLUICE_SOCKETS_DIR'), flush=True); os._exit(0)", agent=full + AGENT)
    assert await_line(process, log, r"^sockets (\w+)$") == "None"


@pytest.mark.long
def test_a_container_deletes_the_directories_of_containers_without_a_process_and_no_others(containers: Containers) -> None:
    makes = "os.makedirs(os.environ['SLUICE_HOME'] + '/spark/' + os.environ['EXECUTION_ENV_CONTAINER_ID'] + '/blockmgr')\n"
    dead, _ = containers.ready(makes + SERVES, EXECUTION_ENV_CONTAINER_ID="dead")
    for each in [*psutil.Process(dead.pid).children(recursive=True), psutil.Process(dead.pid)]:
        each.kill()
    dead.wait()
    alive, _ = containers.ready(makes + SERVES, EXECUTION_ENV_CONTAINER_ID="alive")
    spark = containers.root / "home" / "spark"
    wait_for("the directories", lambda: sorted(each.name for each in spark.iterdir() if each.is_dir()) == ["alive"])
    alive.terminate()
    assert alive.wait(600) == 0
    assert list(spark.iterdir()) == []


# --- the end of a lease ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suspended", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_driver_that_does_not_answer_loses_the_lease_and_is_ended_with_its_children(containers: Containers, suspended: bool) -> None:
    script = LEAVES + ("serve(on_start=started)" if suspended else "serve(on_start=started, on_check=lambda: time.sleep(600))") + WAITS
    process, driver = containers.ready(script)
    child = int(await_line(process, containers.root / "container-0.log", r"child (\d+)\."))
    if suspended:
        os.kill(driver, signal.SIGSTOP)
    assert process.wait(600) == 3
    assert ended(driver)
    assert ended(child)
    assert containers.await_report()[0] == 3
    assert re.search(
        r"not sent: process \d+ \(python[\d.]*\) of the driver is stopped" if suspended else "not sent: the driver has not",
        containers.log(),
    )


def test_a_driver_is_ended_at_the_end_of_the_lease_although_nobody_reads_the_log(containers: Containers) -> None:
    fills = "threading.Thread(target=lambda: os.write(2, bytes(1 << 20)), daemon=True).start()\n"
    reads, writes = os.pipe()
    try:
        hangs = f"serve(on_start=started, on_check=lambda: time.sleep(600)){WAITS}"
        process, driver = containers.ready(fills + hangs, errors=writes)
        await_end(driver)
        assert containers.await_report()[0] == 3
    finally:
        os.close(reads)
        os.close(writes)
    process.wait(600)


def test_a_driver_whose_agent_is_killed_ends_at_once_with_its_children(containers: Containers) -> None:
    process, driver = containers.ready(LEAVES + SERVES)
    child = int(await_line(process, containers.root / "container-0.log", r"child (\d+)\."))
    process.kill()
    await_end(driver)
    await_end(child)
    assert containers.await_report() == (1, "its agent was killed")
    wait_for("the temporary files to be deleted", lambda: list((containers.root / "home" / "spark").iterdir()) == [])


def test_a_driver_whose_agent_is_suspended_is_ended_with_its_agent_at_the_end_of_the_lease(containers: Containers) -> None:
    process, driver = containers.ready()
    process.send_signal(signal.SIGSTOP)
    assert process.wait(600) == -signal.SIGKILL
    assert ended(driver)
    assert containers.await_report()[0] == 3


def test_a_guardian_that_is_killed_is_replaced(containers: Containers) -> None:
    process, driver = containers.ready()

    def guardian(other_than: int) -> int | None:
        for each in psutil.Process(process.pid).children():
            with suppress(psutil.NoSuchProcess):  # it has just ended
                if "containers.supervision.guardian" in each.cmdline() and each.pid != other_than:
                    return each.pid
        return None

    first = wait_for("the guardian", lambda: guardian(0))
    os.kill(first, signal.SIGKILL)
    wait_for("another guardian", lambda: guardian(first))
    process.kill()
    await_end(driver)
    assert containers.await_report() == (1, "its agent was killed")


# --- requests to stop ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "which", [signal.SIGHUP, pytest.param(signal.SIGTERM, marks=pytest.mark.long), pytest.param(signal.SIGINT, marks=pytest.mark.long)]
)
def test_a_signal_stops_the_container(containers: Containers, which: signal.Signals) -> None:
    process, driver = containers.ready()
    process.send_signal(which)
    assert process.wait(600) == 0
    assert containers.await_report() == (0, "stop requested")
    assert ended(driver)


def test_a_container_that_is_stopped_before_its_driver_has_started_has_not_failed(containers: Containers) -> None:
    process, log = containers.start("print('up.', flush=True)\ntime.sleep(600)\n")
    await_line(process, log, r"^(up)\.")
    process.terminate()
    assert process.wait(600) == 0
    assert "stop requested before the driver had started" in containers.log()


def test_a_second_signal_interrupts_a_stop_that_waits(containers: Containers) -> None:
    waits = "def waits(query, forced):\n    print('stopping.', flush=True)\n    return not forced.wait()\n"
    process, _ = containers.ready(waits + SERVES.replace("on_start=started", "on_start=started, on_stop=waits"))
    process.terminate()
    await_line(process, containers.root / "container-0.log", r"^(stopping)\.")
    process.terminate()
    assert process.wait(600) == 0


def test_a_signal_that_follows_another_one_immediately_has_an_effect(containers: Containers) -> None:
    waits = "def waits(query, forced):\n    return not forced.wait()\n"
    process, _ = containers.ready(waits + SERVES.replace("on_start=started", "on_start=started, on_stop=waits"))
    process.terminate()
    process.send_signal(signal.SIGINT)
    assert process.wait(600) == 0


def unread(pipe: IO[bytes] | None) -> int:
    """How many bytes of a pipe were not read yet."""
    assert pipe is not None
    (number,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
    return int(number)


def test_the_end_of_standard_input_stops_the_container_only_if_its_launcher_requested_that(containers: Containers) -> None:
    other, _ = containers.ready()
    assert other.stdin is not None
    other.stdin.close()
    other.terminate()
    assert other.wait(600) == 0
    process, _ = containers.ready(SLUICE_STOP_WITH_STDIN="1")
    assert process.stdin is not None
    process.stdin.write(b"hello\n")
    process.stdin.flush()
    wait_for("the agent to read it", lambda: unread(process.stdin) == 0)
    assert "exiting" not in containers.log()
    process.stdin.close()
    assert process.wait(600) == 0
    assert containers.await_report() == (0, "stop requested")


def test_an_exit_that_cannot_be_reported_keeps_its_exit_code() -> None:
    ending = {"url": "ftp://nowhere", "container": "c", "exit_code": 3, "reason": "the lease expired"}
    command = [sys.executable, "-P", "-m", "containers.supervision.exit_report"]
    done = subprocess.run(command, input=json.dumps(ending), capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 3
    assert "the lease expired; the exit was not reported: 'ftp://nowhere' is not the URL" in done.stderr
