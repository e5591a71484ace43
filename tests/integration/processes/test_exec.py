"""`sluice exec`: a command runs at most once at a time, whatever is killed, frozen or started twice.

The commands are shell scripts. Each writes a line to a file when it starts, and its processes write to another one as long as they live, so
that two that run at the same time are found.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest

from tests.support.coordinators import Running, running
from tests.support.processes import ROOT, SLUICE, await_line, completed, kill_whole, start, wait_for
from tests.support.script_peers import LONG, DriverPeer
from tests.support.terminal import at_terminal

SHORT_LEASE = ("--lease-seconds", "15", "--heartbeat-seconds", "1")
"""For tests that wait for its end. The others must not lose a lease because the machine is busy."""


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("exec") / "home") as found:
        yield found


@pytest.fixture(scope="module")
def short_leases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("short") / "home", *SHORT_LEASE) as found:
        yield found


class Executions:
    """Starts of one job, each with a log of its own."""

    def __init__(self, coordinator: Running, directory: Path) -> None:
        self.coordinator = coordinator
        self.directory = directory
        self.job = f"orders-{uuid4().hex[:8]}"
        self.environment = {"SLUICE_COORDINATOR_URL": str(coordinator.http.base_url), "JOB": self.job, "LIVES": str(directory)}
        self.started: list[subprocess.Popen[bytes]] = []

    def command(self, script: str, *options: str) -> list[str]:
        return [*SLUICE, "exec", "--job", self.job, *options, "--", "bash", "-c", script]

    def start(self, script: str, *options: str) -> tuple[subprocess.Popen[bytes], Path]:
        log = self.directory / f"exec-{len(self.started)}.log"
        process = start(self.command(script, *options), log, environment=self.environment, new_session=True)
        self.started.append(process)
        return process, log

    def driver(self, script: str = "", *options: str) -> tuple[subprocess.Popen[bytes], int]:
        """Start a command that runs until it is ended. Returns its agent and its pid, when it has started."""
        process, log = self.start(f"{script}\necho pid $$.; exec sleep 1000", *options)
        return process, int(await_line(process, log, r"^pid (\d+)\."))

    def attach(self, script: str, before: str = "env") -> tuple[subprocess.Popen[bytes], Path]:
        """Start a driver that has attached, and then runs this script. `before`: the command that starts it."""
        (self.directory / "driver.py").write_text(ATTACHED + script)
        process, log = self.start(f'exec {before} PYTHONPATH={ROOT} JOB={self.job} "{sys.executable}" "{self.directory}/driver.py"')
        await_line(process, log, r"^(attached)\.")
        return process, log

    def run(self, script: str, *options: str) -> subprocess.CompletedProcess[str]:
        return completed(self.command(script, *options), environment={**os.environ, **self.environment})

    def sluice(self, *arguments: str) -> str:
        environment = {**os.environ, **self.environment}
        done = completed([*SLUICE, *arguments], environment=environment)
        done.check_returncode()
        return done.stdout

    def current(self) -> dict[str, Any]:
        run = self.coordinator.http.get("/runs", params={"job": self.job, "limit": 1}).json()["runs"][0]["runId"]
        found: dict[str, Any] = self.coordinator.http.get(f"/runs/{run}").json()
        return found

    def end(self) -> None:
        for each in self.started:
            if each.poll() is None:
                with_children = psutil.Process(each.pid).children(recursive=True)
                kill_whole(each)
                for child in with_children:
                    if child.is_running():
                        child.kill()


@contextmanager
def executing(coordinator: Running, directory: Path) -> Iterator[Executions]:
    found = Executions(coordinator, directory)
    try:
        yield found
    finally:
        found.end()


@pytest.fixture
def executions(coordinator: Running, tmp_path: Path) -> Iterator[Executions]:
    with executing(coordinator, tmp_path) as found:
        yield found


@pytest.fixture
def short_executions(short_leases: Running, tmp_path: Path) -> Iterator[Executions]:
    with executing(short_leases, tmp_path) as found:
        yield found


def ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def await_end(pid: int) -> None:
    wait_for(f"the end of process {pid}", lambda: ended(pid))


def test_input_output_and_exit_code_are_those_of_the_command(executions: Executions) -> None:
    command = executions.command("cat; echo ValueError: no such table >&2; exit 7")
    environment = {**os.environ, **executions.environment}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600, input="records")
    assert (done.returncode, done.stdout) == (7, "records")
    assert "ValueError: no such table\n" in done.stderr
    (container,) = executions.current()["incarnations"]
    assert (container["exitCode"], container["state"]) == (7, "EXITED")
    assert container["reason"] == "the command exited with code 7: ValueError: no such table"


def test_the_reason_is_the_uncaught_error_although_a_long_plan_follows_it(executions: Executions) -> None:
    raising = "raise RuntimeError('[STREAM_FAILED] no room\\n' + '+- StreamingRelation of an Error\\n' * 200)"
    assert executions.run(f'{sys.executable} -c "{raising}"').returncode == 1
    (container,) = executions.current()["incarnations"]
    assert container["reason"] == "the command exited with code 1: RuntimeError: [STREAM_FAILED] no room"


def test_an_error_that_was_handled_long_before_the_end_is_not_the_reason(executions: Executions) -> None:
    handled = "import sys, traceback\ntry:\n    1 / 0\nexcept ArithmeticError:\n    traceback.print_exc()\n"
    script = handled + "for n in range(60):\n    print('batch', n, file=sys.stderr)\nsys.exit('no such topic')\n"
    assert executions.run(f'{sys.executable} -c "{script}"').returncode == 1
    (container,) = executions.current()["incarnations"]
    assert container["reason"] == "the command exited with code 1: no such topic"


def test_the_exit_code_of_a_command_that_a_signal_ended_is_that_of_a_shell(executions: Executions) -> None:
    assert executions.run("kill -9 $$").returncode == 128 + 9


@pytest.mark.parametrize(("script", "code"), [("/nowhere/orders", 127), ("/etc/hostname", 126)])
def test_a_command_that_cannot_be_started_has_the_exit_code_of_a_shell(executions: Executions, script: str, code: int) -> None:
    command = [*SLUICE, "exec", "--job", executions.job, "--", script]
    done = completed(command, environment={**os.environ, **executions.environment})
    assert done.returncode == code
    assert script in done.stderr


def test_a_signal_reaches_the_command(executions: Executions) -> None:
    process, log = executions.start("trap 'echo got it; exit 5' TERM; echo ready.; while true; do sleep 0.1; done")
    await_line(process, log, r"(ready)\.")
    process.send_signal(signal.SIGTERM)
    assert process.wait(600) == 5
    assert "got it" in log.read_text()


def test_a_signal_to_the_process_group_reaches_the_command_once_and_none_of_its_children(executions: Executions) -> None:
    child = "trap 'echo child got it' TERM; while true; do sleep 0.1; done"
    process, log = executions.start(f"trap 'echo parent got it; exit 5' TERM; ({child}) & echo ready.; while true; do sleep 0.1; done")
    await_line(process, log, r"(ready)\.")
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(600) == 5
    assert log.read_text().count("got it") == 1
    assert "parent got it" in log.read_text()


@pytest.mark.parametrize("attempt", range(5))
def test_a_signal_that_arrives_while_the_command_is_started_reaches_it(executions: Executions, attempt: int) -> None:
    """The command sends it at once, perhaps before the agent has been notified that the command runs."""
    done = executions.run("trap 'exit 5' TERM; kill -TERM $PPID; while true; do sleep 0.1; done")
    assert done.returncode == 5


def test_ctrl_c_reaches_the_command_once(executions: Executions) -> None:
    script = "trap 'echo interrupted.' INT; trap 'exit 4' QUIT; echo ready.; while true; do sleep 0.1; done"
    with at_terminal(
        ["env", "--default-signal=INT,QUIT", *executions.command(script)],
        SLUICE_COORDINATOR_URL=executions.environment["SLUICE_COORDINATOR_URL"],
    ) as terminal:
        terminal.until("ready.")
        terminal.press_ctrl_c()
        terminal.until("interrupted.")
        os.killpg(os.getpgid(terminal.process.pid), signal.SIGQUIT)
        assert terminal.process.wait(600) == 4
        assert terminal.text.count("interrupted.") == 1


def test_a_second_start_waits_for_the_end_of_the_first(executions: Executions) -> None:
    first, driver = executions.driver()
    second, log = executions.start(f"test -e /proc/{driver} && echo together.; echo started.")
    await_line(second, log, r"waiting: (job .* is running)")
    assert executions.run("echo started.", "--no-wait").returncode == 1
    assert not ended(driver)
    first.send_signal(signal.SIGTERM)
    assert second.wait(600) == 0
    assert "started." in log.read_text()
    assert "together." not in log.read_text()


def test_commands_that_are_started_at_the_same_time_run_one_at_a_time(executions: Executions) -> None:
    script = 'mkdir "$LIVES/running" || echo together.; sleep 0.3; rmdir "$LIVES/running"; echo done.'
    started = [executions.start(script) for _ in range(3)]
    assert [process.wait(600) for process, _ in started] == [0, 0, 0]
    assert [log.read_text().count("done.") for _, log in started] == [1, 1, 1]
    assert not any("together." in log.read_text() for _, log in started)


def test_a_start_that_replaces_another_ends_it_first(executions: Executions) -> None:
    first, driver = executions.driver()
    second, log = executions.start(f"test -e /proc/{driver} && echo together.; echo started.", "--replace")
    assert second.wait(600) == 0
    assert first.wait(600) == 3
    assert "together." not in log.read_text()
    assert "started." in log.read_text()


LEAVES_SESSION = "setsid bash -c '(setsid sleep 1001 & echo child $!.)'"


def test_all_processes_end_when_the_supervisor_is_killed(executions: Executions) -> None:
    process, driver = executions.driver(LEAVES_SESSION)
    child = int(await_line(process, executions.directory / "exec-0.log", r"child (\d+)\."))
    process.kill()
    await_end(driver)
    await_end(child)
    assert executions.run("echo again").stdout == "again\n"


def test_all_processes_end_when_the_supervisor_is_stopped(short_executions: Executions) -> None:
    process, driver = short_executions.driver(LEAVES_SESSION)
    child = int(await_line(process, short_executions.directory / "exec-0.log", r"child (\d+)\."))
    process.send_signal(signal.SIGSTOP)
    try:
        await_end(driver)
        await_end(child)
        assert short_executions.run("echo again").stdout == "again\n"
        assert process.wait(600) == -signal.SIGKILL
    finally:
        process.send_signal(signal.SIGCONT)


def test_a_stopped_driver_loses_the_lease(short_executions: Executions) -> None:
    process, driver = short_executions.driver()
    os.kill(driver, signal.SIGSTOP)
    assert process.wait(600) == 3
    assert ended(driver)
    log = (short_executions.directory / "exec-0.log").read_text()
    assert f"process {driver} (sleep) of the driver is stopped" in log


def test_a_guardian_that_is_killed_is_replaced(executions: Executions) -> None:
    process, driver = executions.driver()

    def guardian() -> psutil.Process | None:
        for each in psutil.Process(process.pid).children():
            with suppress(psutil.NoSuchProcess):  # it has just ended
                if "containers.supervision.guardian" in each.cmdline():
                    return each
        return None

    first = wait_for("the guardian", guardian)
    first.kill()
    second = wait_for("another guardian", lambda: (found := guardian()) and found.pid != first.pid and found)
    assert isinstance(second, psutil.Process)
    process.kill()
    await_end(driver)


def test_everything_ends_when_the_coordinator_does_not_return(tmp_path: Path) -> None:
    with running(tmp_path / "home", *SHORT_LEASE) as alone, executing(alone, tmp_path) as executions:
        process, driver = executions.driver(LEAVES_SESSION)
        child = int(await_line(process, tmp_path / "exec-0.log", r"child (\d+)\."))
        alone.process.kill()
        assert process.wait(600) == 3
        assert ended(driver)
        assert ended(child)


def test_a_process_that_the_command_leaves_behind_is_ended_before_the_slot_is_free(executions: Executions) -> None:
    done = executions.run("(setsid sleep 1002 & echo $!)")
    assert done.returncode == 0
    assert ended(int(done.stdout))
    assert "run the driver in the foreground" in done.stderr


ATTACHED = """
import os
import signal
import socket
import subprocess
import time

from containers.attached.agent_socket import connect
from containers.attached.port import Flushed
from containers.engine import Position
from tests.support.script_peers import DriverPeer

connected = connect(os.environ)
at = Position(4, {})
answers = {"pause_queries": lambda drain, needed: {"counts": at}, "feeders": dict, "flush": lambda *_: Flushed(at)}
agent = DriverPeer(connected, **answers)
agent.attach(os.environ["JOB"])
print("attached.", flush=True)
"""

DRAINED = """
agent.queries({"stage": "counts", "checkpoint": "s3a://states/counts", "queryId": "1"})
agent.next("leave")
agent.tell("ending", "")
agent.connection.close()
time.sleep(4)  # some heartbeats: the lease ends
subprocess.Popen(["sh", "-c", "sleep 2; echo the JVM has ended."])
"""


def test_after_a_drain_the_jvm_has_time_to_end_after_its_python(short_executions: Executions) -> None:
    process, log = short_executions.attach(DRAINED)
    http, run = short_executions.coordinator.http, short_executions.current()["runId"]
    wait_for("the drain", lambda: http.post("/drain", json={"runId": run}).status_code == 202)
    wait_for("the end of the run", lambda: short_executions.current()["state"] == "DRAINED")
    (container,) = short_executions.current()["incarnations"]
    name = container["executionContainerId"]
    assert http.post(f"/containers/{name}/invalidate", json={"reason": "its run has ended"}).status_code == 200  # as after a restart
    assert process.wait(600) == 0
    assert short_executions.current()["state"] == "DRAINED"
    assert "the JVM has ended." in log.read_text()
    assert "were killed" not in log.read_text()


STOPPED = """
signal.signal(signal.SIGTERM, lambda *_: os._exit(5))
while True:
    print("stop", agent.next("stop")[1], flush=True)
"""


@pytest.mark.parametrize("requested", [False, True])
def test_the_first_sigterm_makes_the_driver_stop_its_queries_and_a_second_one_reaches_it(executions: Executions, requested: bool) -> None:
    """`requested`: `sluice stop` has made the driver stop its queries before, and they have not ended yet."""
    process, log = executions.attach(STOPPED)
    if requested:
        assert executions.coordinator.http.post(f"/runs/{executions.current()['runId']}/stop").status_code == 202
        await_line(process, log, r"^(stop False)")
    process.send_signal(signal.SIGTERM)
    await_line(process, log, r"^(stop True)")
    process.send_signal(signal.SIGTERM)
    assert process.wait(600) == 5


def test_after_a_stop_nothing_starts_until_it_is_started_again(executions: Executions) -> None:
    process, driver = executions.driver()
    executions.sluice("stop", executions.job)
    assert process.wait(600) == 128 + signal.SIGTERM
    assert ended(driver)
    assert executions.current()["state"] == "STOPPED"
    refused = executions.run("echo started", "--no-wait")
    assert (refused.returncode, refused.stdout) == (1, "")
    waiting, log = executions.start("echo started.")
    await_line(waiting, log, r"(sluice start)")
    executions.sluice("start", executions.job)
    assert waiting.wait(600) == 0
    assert "started." in log.read_text()


def test_a_command_that_does_not_stop_is_killed(executions: Executions) -> None:
    process, log = executions.start("trap '' TERM; echo ready.; while true; do sleep 0.1; done", "--stop-timeout", "1")
    await_line(process, log, r"(ready)\.")
    executions.sluice("stop", executions.job)
    assert process.wait(600) == 128 + signal.SIGKILL


def test_a_job_of_a_job_file_is_not_run_as_a_command(executions: Executions) -> None:
    body = {"job": executions.job, "containers": 1, "stages": [{"name": "count", "reads": ["lines"]}]}
    inputs = [{"name": "lines", "system": "log", "stream": f"lines-{executions.job}"}]
    executions.sluice("streams", "create", inputs[0]["stream"], "--home", str(executions.coordinator.log.with_name("home")))
    assert executions.coordinator.http.post("/runs", json={**body, "inputs": inputs}).status_code == 201
    done = executions.run("echo started")
    assert (done.returncode, done.stdout) == (1, "")
    assert "is run from a job file" in done.stderr


def test_without_a_coordinator_the_command_runs_only_if_an_option_allows_it(tmp_path: Path) -> None:
    environment = {**os.environ, "SLUICE_COORDINATOR_URL": "http://127.0.0.1:9"}
    command = [*SLUICE, "exec", "--job", "orders", "--without-coordinator", "--", "echo", "started"]
    done = completed(command, environment=environment)
    assert (done.returncode, done.stdout) == (0, "started\n")
    assert "NO LEASE" in done.stderr
    command[command.index("--without-coordinator")] = "--no-wait"
    refused = completed(command, environment=environment)
    assert (refused.returncode, refused.stdout) == (1, "")


@pytest.mark.parametrize(("program", "code"), [("/nowhere/orders", 127), ("no-such-program", 127), ("/etc/hostname", 126)])
def test_a_command_that_cannot_be_started_has_the_exit_code_of_a_shell_also_without_a_coordinator(program: str, code: int) -> None:
    environment = {**os.environ, "SLUICE_COORDINATOR_URL": "http://127.0.0.1:9"}
    command = [*SLUICE, "exec", "--job", "orders", "--without-coordinator", "--", program]
    done = completed(command, environment=environment)
    assert done.returncode == code
    assert f"sluice: {program}: " in done.stderr
    assert "Traceback" not in done.stderr


CANCELLED = """
import asyncio, pathlib, sys
from datetime import timedelta
from containers.attached.agent_process import run_command
from containers.attached.claim import Request

job, url = sys.argv[1:]


async def main():
    command = ["bash", "-c", "echo $$ >pid; exec sleep 1000"]
    running = asyncio.create_task(run_command(Request(job, f"container-{job}", "here"), command, url, timedelta(seconds=60)))
    while not pathlib.Path("pid").exists() or not pathlib.Path("pid").read_text():
        await asyncio.sleep(0.1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


asyncio.run(main())
"""


def test_a_command_whose_agent_is_cancelled_is_ended_before_its_end_is_reported(executions: Executions, tmp_path: Path) -> None:
    """As when `sluice upgrade` fails."""
    command = [sys.executable, "-c", CANCELLED, executions.job, executions.environment["SLUICE_COORDINATOR_URL"]]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False, timeout=600)
    assert done.returncode == 0
    pid = int((tmp_path / "pid").read_text())
    try:
        assert ended(pid)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert [each["state"] for each in executions.current()["incarnations"]] == ["EXITED"]


def test_a_script_attaches_although_its_command_has_removed_the_environment(executions: Executions) -> None:
    process, _ = executions.attach("", "env -i bash -c 'exec env \"$@\"' bash")
    assert process.wait(600) == 0


def test_a_process_that_the_command_has_not_started_is_not_attached(executions: Executions) -> None:
    process, _ = executions.driver('echo "socket $SLUICE_EXEC_SOCKET."')
    name = await_line(process, executions.directory / "exec-0.log", r"^socket (\S+)\.$")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(f"\0{name}")
        peer = DriverPeer(connection)
        assert peer.next("refused") == "it is not a process of this command"
        assert peer.ended.wait(LONG)
        peer.connection.close()
