"""The agent of an attached script. Here the driver is a shell, and the test uses its end of the connection."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from containers.attached.agent_process import command
from containers.attached.claim import Request
from containers.attached.drivers import TICK_SECONDS
from containers.attached.port import Flushed, Grant
from containers.engine import Position
from containers.supervision.processes import descendants, process, processes
from sluice.core.ids import ExecutionContainerId, JobName
from tests.integration.processes.test_exec import SHORT_LEASE, await_end, ended
from tests.support.coordinators import Running, running
from tests.support.processes import await_line, start, wait_for
from tests.support.script_peers import DriverPeer


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("agent") / "home") as found:
        yield found


@pytest.fixture(scope="module")
def short_leases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("short") / "home", *SHORT_LEASE) as found:
        yield found


class Attended:
    """A driver with a child process, a JVM, which has another parent as under spark-submit, and an agent."""

    def __init__(
        self,
        coordinator: Running,
        root: Path,
        *,
        observed: bool = False,
        wait: bool = True,
        replace: bool = False,
        job: str = "",
        first: str = "",
    ) -> None:
        """`first`: what the driver does first."""
        self.coordinator = coordinator
        self.job = job or f"orders-{uuid4().hex[:8]}"
        log = self.output = root / f"driver-{uuid4().hex[:8]}.log"
        self.driver = start(["bash", "-c", f"{first} sleep 1003 & echo child $!.; wait"], log, new_session=True)
        self.child = int(await_line(self.driver, log, r"child (\d+)\."))
        self.jvm = start(["sleep", "1004"], log, new_session=True, append=True)
        driver, jvm = process(self.driver.pid), process(self.jvm.pid)
        assert driver is not None
        assert jvm is not None
        request = Request(JobName(self.job), ExecutionContainerId(f"container-{uuid4().hex}"), "here", replace=replace, wait=wait)
        self.ours, theirs = socket.socketpair()
        arguments = command(request, (driver.id, jvm.id), str(coordinator.http.base_url), timedelta(seconds=1), observed=observed)
        self.log = root / f"agent-{uuid4().hex[:8]}.log"
        with theirs, self.log.open("wb") as out:
            self.process = subprocess.Popen(arguments, stdin=theirs.fileno(), stdout=out, stderr=out)

    @cached_property
    def peer(self) -> DriverPeer:
        """Its query `counts` is drained at once."""
        at = Position(4, {})
        return DriverPeer(self.ours, pause_queries=lambda drain, needed: {"counts": at}, feeders=dict, flush=lambda *_: Flushed(at))

    def attach(self) -> Grant:
        return self.peer.attach(self.job)

    def say(self, method: str, *values: object) -> None:
        self.peer.tell(method, *values)

    def drain(self) -> None:
        """Drain the script, whose only query this test plays, and wait until the lease has ended with the run."""
        run = self.attach().run
        self.peer.queries({"stage": "counts", "checkpoint": "s3a://states/counts", "queryId": "1"})
        http = self.coordinator.http
        wait_for("the drain", lambda: http.post("/drain", json={"runId": run}).status_code == 202)
        wait_for("the end of the run", lambda: http.get(f"/runs/{run}").json()["state"] == "DRAINED")
        name = self.container()["executionContainerId"]
        assert http.post(f"/containers/{name}/invalidate", json={"reason": "its run has ended"}).status_code == 200  # as after a restart
        time.sleep(3 * TICK_SECONDS + 1)  # a heartbeat

    def container(self) -> dict[str, Any]:
        run = self.coordinator.http.get("/runs", params={"job": self.job, "limit": 1}).json()["runs"][0]["runId"]
        (found,) = self.coordinator.http.get(f"/runs/{run}").json()["incarnations"]
        return dict(found)

    def die(self) -> None:
        """Kill the driver and its JVM."""
        os.kill(self.child, signal.SIGKILL)
        for each in (self.jvm, self.driver):
            each.kill()
            each.wait(600)

    def await_end(self) -> None:
        """Wait until all processes of the driver have been ended."""
        self.driver.wait(600)
        self.jvm.wait(600)
        await_end(self.child)

    def end(self) -> None:
        if "peer" in vars(self):
            self.peer.connection.close()
        self.ours.close()
        for each in (self.driver, self.jvm, self.process):
            if each.poll() is None:
                each.kill()
                each.wait(600)
        if not ended(self.child):
            os.kill(self.child, signal.SIGKILL)


def below(pid: int) -> set[int]:
    return {each.id.pid for each in descendants(processes(), [pid])}


@contextmanager
def attended(coordinator: Running, root: Path, **options: Any) -> Iterator[Attended]:
    made = Attended(coordinator, root, **options)
    try:
        yield made
    finally:
        made.end()


def test_an_agent_that_cannot_be_configured_gives_the_script_the_reason() -> None:
    """The driver checks the same settings before, but its environment may have been changed since."""
    request = Request(JobName("orders"), ExecutionContainerId("container-1"), "here")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        done = subprocess.run(
            command(request, (), "http://127.0.0.1:1", timedelta(seconds=1), observed=False),
            stdin=theirs.fileno(),
            env={**os.environ, "SLUICE_LOG_LEVEL": "LOUD"},
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert "SLUICE_LOG_LEVEL: " in DriverPeer(ours).next("refused")
    assert "Traceback" not in done.stderr


def test_the_end_of_a_script_frees_the_job(coordinator: Running, tmp_path: Path) -> None:
    with attended(coordinator, tmp_path) as script:
        script.attach()
        script.say("ending", "")
        script.die()
        assert script.process.wait(600) == 0
        assert (script.container()["state"], script.container()["exitCode"], script.container()["reason"]) == (
            "EXITED",
            0,
            "the script ended",
        )


def test_the_end_of_a_script_is_read_behind_other_messages_after_the_driver_has_ended(coordinator: Running, tmp_path: Path) -> None:
    with attended(coordinator, tmp_path) as script:
        script.ours.sendall(b'{"version": "%b"}\n' % version("sluice-spark").encode())
        with script.ours.makefile("rb") as lines:
            script.ours.sendall(b'{"call": "attach", "id": 1, "with": ["%b"]}\n' % script.job.encode())
            next(line for line in lines if b"result" in line)
        script.process.send_signal(signal.SIGSTOP)
        script.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**20)
        script.ours.sendall(b'{"tell": "stopped", "with": [[]]}\n' * 10_000)
        script.ours.sendall(b'{"tell": "ending", "with": [""]}\n')
        script.die()
        time.sleep(2 * TICK_SECONDS)
        script.process.send_signal(signal.SIGCONT)
        assert script.process.wait(600) == 0
        assert script.container()["reason"] == "the script ended"


def test_a_driver_that_is_killed_has_failed(coordinator: Running, tmp_path: Path) -> None:
    with attended(coordinator, tmp_path) as script:
        script.attach()
        script.die()
        assert script.process.wait(600) == 1
        assert script.container()["reason"] == "the driver was killed, or ended by os._exit"


def test_a_second_script_waits_for_the_first(coordinator: Running, tmp_path: Path) -> None:
    with attended(coordinator, tmp_path) as first:
        first.attach()
        with attended(coordinator, tmp_path, job=first.job, wait=False) as refused:
            assert "is running" in refused.peer.next("refused")
            assert refused.process.wait(600) == 1
            assert not ended(refused.driver.pid)
        with attended(coordinator, tmp_path, job=first.job) as second:
            wait_for("the second to wait", lambda: "waiting: job" in second.log.read_text())
            first.say("ending", "")
            first.die()
            assert second.attach().generation == 2


def test_a_stopped_driver_loses_the_lease_and_is_ended_with_descendants_that_have_lost_their_parent(
    short_leases: Running, tmp_path: Path
) -> None:
    parent = tmp_path / "parent"
    parent.touch()
    leaves = f"bash -c 'sleep 1005 & echo left $!.; while [ -e {parent} ]; do sleep 0.1; done' &"
    with attended(short_leases, tmp_path, first=leaves) as script:
        left = int(await_line(script.driver, script.output, r"left (\d+)\."))
        try:
            for _ in range(3):
                script.peer.next("renewed")  # heartbeats are as far apart as looks at the processes
            parent.unlink()
            wait_for("the end of its parent", lambda: left not in below(script.driver.pid))
            os.kill(script.driver.pid, signal.SIGSTOP)
            assert script.process.wait(600) == 3
            script.await_end()
            await_end(left)
        finally:
            if not ended(left):
                os.kill(left, signal.SIGKILL)


def test_an_observed_driver_is_notified_that_the_lease_is_lost(short_leases: Running, tmp_path: Path) -> None:
    with attended(short_leases, tmp_path, observed=True) as script:
        script.attach()
        os.kill(script.driver.pid, signal.SIGSTOP)
        assert "lease" in script.peer.next("lost")
        assert script.process.wait(600) == 3
        assert not any(map(ended, (script.driver.pid, script.jvm.pid, script.child)))


def test_a_driver_is_ended_when_its_agent_is_stopped(short_leases: Running, tmp_path: Path) -> None:
    with attended(short_leases, tmp_path) as script:
        script.attach()
        script.process.send_signal(signal.SIGSTOP)
        try:
            script.driver.wait(600)
            script.await_end()
        finally:
            script.process.send_signal(signal.SIGCONT)
        assert script.process.wait(600) in (1, 3)


def test_a_stop_is_passed_to_the_script_which_is_ended_if_it_continues(coordinator: Running, tmp_path: Path) -> None:
    with attended(coordinator, tmp_path) as script:
        run = script.attach().run
        assert coordinator.http.post(f"/runs/{run}/stop").status_code == 202
        assert script.peer.next("stop") == (timedelta(seconds=1), False)
        script.say("stopped", ())
        assert script.driver.wait(600) == -signal.SIGTERM


def test_after_a_drain_the_jvm_has_time_to_end_after_its_script(short_leases: Running, tmp_path: Path) -> None:
    with attended(short_leases, tmp_path) as script:
        script.drain()
        script.say("ending", "")
        os.kill(script.child, signal.SIGKILL)
        script.driver.kill()
        script.driver.wait(600)
        time.sleep(2)
        assert script.jvm.poll() is None
        script.jvm.terminate()
        script.jvm.wait(600)
        assert script.process.wait(600) == 0
        assert "were killed" not in script.log.read_text()


def test_a_script_that_is_replaced_is_ended_before_the_next_one_starts(coordinator: Running, tmp_path: Path) -> None:
    with attended(coordinator, tmp_path) as first:
        first.attach()
        with attended(coordinator, tmp_path, job=first.job, replace=True) as second:
            second.attach()
            assert all(map(ended, (first.driver.pid, first.jvm.pid, first.child)))
            assert first.process.wait(600) == 3
