"""The process of an attached script: signals, children that it forks, and its end. Each script is a process of its own, without Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from containers.agent.lifecycle import EXIT_LEASE_LOST
from tests.support.processes import ROOT

ATTACHED = """
import multiprocessing
import os
import select
import signal
import socket
import sys
import time
from datetime import timedelta
from types import SimpleNamespace

from containers.attached import messages
from containers.attached.app import App
from sluice.clock import SystemClock
from sluice.core.ids import JobName

looked = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)


class Queries:
    # The list of the JVM's queries, which is empty. Each process that reads it is recorded.
    def elements(self):
        os.write(looked, f"{os.getpid()}\\n".encode())
        return self

    def hasMoreElements(self):
        return False


state = SimpleNamespace(activeStreamingQueries=Queries)
spark = SimpleNamespace(_jsparkSession=SimpleNamespace(sharedState=lambda: state))
ours, theirs = socket.socketpair()


def attach(*, ends_script=False):
    app = App(spark, JobName("orders"), (), SystemClock(), timedelta(seconds=60))
    ours.sendall(messages.encode("granted", job="orders", run="run-1", generation=1))
    app.start(theirs, ends_script=ends_script)
    app.handle_end()
    return app


def received():
    # The kinds of the messages that the script has sent until now.
    data = b""
    while select.select([ours], [], [], 0.2)[0] and (read := ours.recv(65536)):
        data += read
    return [messages.decode(line)["kind"] for line in data.splitlines()]
"""


def run(script: str, tmp_path: Path) -> tuple[subprocess.CompletedProcess[str], list[int]]:
    """Run the script. Returns also the pids of the processes that have looked for queries."""
    looked = tmp_path / "looked"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", ATTACHED + script, str(looked)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    return done, [int(pid) for pid in looked.read_text().split()] if looked.exists() else []


def test_a_pool_of_forked_processes_ends_without_stopping_the_queries_of_the_script(tmp_path: Path) -> None:
    done, looked = run(
        """
app = attach()
with multiprocessing.get_context("fork").Pool(2) as pool:
    for _ in range(2):
        pool.apply_async(time.sleep, (60,))  # a worker that waits for work may end before it gets a signal
    time.sleep(0.5)
print("script", os.getpid(), flush=True)
""",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert set(looked) == {int(done.stdout.split()[1])}


def test_a_forked_child_gets_the_handler_that_the_script_had_set(tmp_path: Path) -> None:
    done, looked = run(
        """
signal.signal(signal.SIGTERM, lambda number, frame: os._exit(7))
app = attach()
child = os.fork()
if not child:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
_, status = os.waitpid(child, 0)
print("child", os.waitstatus_to_exitcode(status), flush=True)
print("script", os.getpid(), flush=True)
""",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "child 7" in done.stdout
    assert set(looked) == {int(done.stdout.split()[-1])}


def test_a_forked_child_that_ends_does_not_report_the_end_of_the_script(tmp_path: Path) -> None:
    done, _ = run(
        """
app = attach()
child = os.fork()
if not child:
    sys.exit(0)
os.waitpid(child, 0)
print("after the child:", *received(), flush=True)
app.close()
print("after the script:", *received(), flush=True)
""",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    child, script = done.stdout.splitlines()
    assert "ending" not in child
    assert "ending" in script


def test_an_observed_script_goes_on_when_its_lease_is_lost_and_its_supervisor_has_ended(tmp_path: Path) -> None:
    script = """
attach(ends_script=ENDS)
ours.sendall(messages.encode("lost", why="another one has replaced it"))
ours.shutdown(socket.SHUT_RDWR)
time.sleep(1)
print("it goes on", flush=True)
"""
    observed, _ = run(script.replace("ENDS", "False"), tmp_path)
    assert (observed.returncode, observed.stdout) == (0, "it goes on\n")
    assert "this script is not protected any more" in observed.stderr
    protected, _ = run(script.replace("ENDS", "True").replace('"lost"', '"unknown"'), tmp_path)
    assert (protected.returncode, protected.stdout) == (EXIT_LEASE_LOST, "")
