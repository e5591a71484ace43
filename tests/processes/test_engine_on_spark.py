"""The port of a real driver: the engine on Spark over the socket, without a coordinator. The tests share the driver; each has a task."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest

from containers.engine import Bound, Callbacks, RunOfJob, StageStart
from containers.rpc.codec import OtherProcessFailed
from containers.rpc.connection import ConnectionLost
from containers.rpc.interface import AGENT_FD
from containers.rpc.remote_engine import RemoteEngine
from containers.rpc.socket_link import SocketLink
from containers.state.offsets.batch_waits import BatchInterrupted
from sluice.core.ids import Generation, Lineage, RunId, Ssp, StreamId, TaskName
from sluice.core.jobmodels.graph import Stage
from sluice.streams.log import Log, Record, Writer
from tests.support.processes import ROOT, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow]

JOB = """
import os

from sluice import Job

job = Job("port")
numbers, out = job.input("numbers"), job.output("out")
other, another = job.output("other"), job.output("another")


@job.stage(reads=numbers, writes=out)
def copied(task):
    print("in the driver", flush=True)
    return task.write(task.read(numbers).selectExpr("cast(value as string) v"), out, value="v")


@job.stage(reads=numbers, writes=other)
def counted(task):
    def count(rows, batch):
        print(f"generation {task.generation} counts {rows.count()}.", flush=True)

    return task.foreach_batch(task.read(numbers), count)


@job.stage(reads=numbers, writes=another)
def broken(task):
    raise ZeroDivisionError("by zero")
"""

LONG = timedelta(seconds=600)
IN = Ssp("log", "numbers", 0)
_tasks = count()


@dataclass
class Port:
    """`heard`: the callbacks, with what they were called with. `raises`: what the next callback that blocks raises."""

    engine: RemoteEngine
    process: subprocess.Popen[bytes]
    log: Log
    output: Path
    fed: int = 0
    heard: list[tuple[Any, ...]] = field(default_factory=list)
    raises: list[Exception] = field(default_factory=list)

    def callbacks(self) -> Callbacks:
        def told(name: str) -> Callable[..., None]:
            return lambda *what: self.heard.append((name, *what))

        def asked(name: str) -> Callable[..., None]:
            def ask(*what: Any) -> None:
                self.heard.append((name, *what))
                if name == "before_write" and self.raises:
                    raise self.raises.pop()

            return ask

        blocking = {name: asked(name) for name in ("before_batch", "before_write", "confirm_owner")}
        return Callbacks(**{name: told(name) for name in ("on_batch", "on_end", "on_lease_lost", "on_idle")}, **blocking)

    def start_of(self, stage: str, **changed: Any) -> StageStart:
        task = TaskName(f"Partition {next(_tasks)}")
        writes = {"copied": "out", "counted": "other", "broken": "another"}[stage]
        found = Stage(stage, ("numbers",), (writes,), stateful=False)  # type: ignore[arg-type]
        start = StageStart(found, task, Generation(1), Lineage(str(uuid4())), None, {IN: self.fed}, RunId("r"))
        return replace(start, **changed)

    def feed(self) -> None:
        writer = Writer(Lineage("feeder"), "feeder", Generation(1))
        self.log.append("numbers", [Record(str(self.fed).encode(), partition=0)], writer=writer, batch=self.fed, now_micros=1)
        self.fed += 1

    def rows(self, query: str) -> int:
        """How many rows the batches of the query had."""
        return sum(each[1].rows for each in list(self.heard) if each[0] == "on_batch" and each[1].query == query)

    def hears(self, name: str, about: object) -> tuple[Any, ...]:
        """The first callback of this name about that query or token, once it was called."""

        def found() -> tuple[Any, ...] | None:
            of_batch = name == "on_batch"
            return next((each for each in list(self.heard) if each[0] == name and about in (each[1].query if of_batch else each[1],)), None)

        return wait_for(f"{name} of {about}", found)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Port]:
    root = tmp_path_factory.mktemp("port")
    (root / "job.py").write_text(JOB)
    log = Log(root / "log")
    for each in ("numbers", "out", "other", "another"):
        log.create(each, 1)
    ours, theirs = socket.socketpair()
    environment = {
        **os.environ,
        AGENT_FD: str(theirs.fileno()),
        "SLUICE_RUN_ID": "r",
        "SLUICE_HOME": str(root / "home"),
        "SLUICE_SPARK_MASTER": "local[1]",
        "EXECUTION_ENV_CONTAINER_ID": "c",
    }
    with theirs, (root / "driver.log").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "containers.driver", str(root / "job.py")],
            cwd=ROOT,
            env=environment,
            pass_fds=[theirs.fileno()],
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    made = Port(RemoteEngine(SocketLink(ours)), process, log, root / "driver.log")
    try:
        streams = {each: Bound(StreamId("log", each), False, 1) for each in ("numbers", "out", "other", "another")}
        run = RunOfJob(streams, {"log": {"type": "log", "path": str(root / "log")}}, {})
        made.engine.of_run(run).open(made.callbacks())
        yield made
    finally:
        with suppress(psutil.NoSuchProcess):
            for below in psutil.Process(process.pid).children(recursive=True):
                below.kill()
            process.kill()
        process.wait()
        ours.close()


def test_the_job_is_described_before_a_run_is_known(port: Port) -> None:
    described = port.engine.describe()
    assert (described.name, [each.name for each in described.stages]) == ("port", ["copied", "counted", "broken"])


def test_a_query_reports_its_batch_and_then_its_end_and_may_start_again(port: Port) -> None:
    start = port.start_of("copied")
    token = port.engine.start(start)
    port.feed()
    wait_for("the row", lambda: port.rows(start.query))
    last = [each[1] for each in port.heard if each[0] == "on_batch" and each[1].query == start.query][-1]
    assert (last.rows, dict(last.offsets)) == (1, {IN: port.fed})
    assert port.engine.stop(token, LONG) is True
    assert port.hears("on_end", token) == ("on_end", token, None)
    again = port.engine.start(replace(start, generation=Generation(2)))
    assert again != token
    assert port.engine.stop(again, LONG) is True
    port.engine.forget(start.query)


def test_a_paused_query_runs_no_batch_until_it_is_resumed(port: Port) -> None:
    start = port.start_of("copied")
    token = port.engine.start(start)
    assert port.engine.pause(token, LONG) is True
    port.feed()
    other = port.engine.start(beside := port.start_of("counted", starts={IN: port.fed - 1}))
    wait_for("the row in another query", lambda: port.rows(beside.query))
    assert port.rows(start.query) == 0
    port.engine.resume(token)
    wait_for("the row", lambda: port.rows(start.query))
    assert (port.engine.stop(token, LONG), port.engine.stop(other, LONG)) == (True, True)


def test_a_batch_asks_before_it_is_computed_and_before_it_writes_and_an_answer_may_end_it(port: Port) -> None:
    start = port.start_of("counted", asks=True, generation=Generation(77))
    port.raises.append(BatchInterrupted("the container stops"))
    token = port.engine.start(start)
    port.feed()
    assert port.hears("before_batch", start.query) == ("before_batch", start.query, start.generation, 0)
    assert port.hears("before_write", start.query) == ("before_write", start.query, start.generation, 0)
    (_, _, error) = port.hears("on_end", token)
    assert "the container stops" in error
    assert "generation 77 counts" not in port.output.read_text()
    port.engine.finish(start)  # the same batch, with another answer
    assert "generation 77 counts" in port.output.read_text()


def test_an_error_of_a_stage_has_its_line(port: Port) -> None:
    with pytest.raises(OtherProcessFailed, match="ZeroDivisionError: by zero") as caught:
        port.engine.start(port.start_of("broken"))
    assert 'raise ZeroDivisionError("by zero")' in "".join(caught.value.__notes__)


def test_a_drain_reads_to_the_ends_and_empties(port: Port) -> None:
    start = port.start_of("copied", drain="d")
    token = port.engine.start(start)
    port.feed()
    wait_for("the row", lambda: port.rows(start.query))
    assert port.engine.pause(token, LONG) is True
    written = port.log.latest("out")[0]
    port.feed()
    assert port.engine.ends(start) == {}
    assert port.engine.empty(start, {IN: port.fed}).batch >= 1
    assert port.log.latest("out")[0] == written + 1


def test_the_jvm_answers_and_the_driver_ends_at_once_with_its_agent(port: Port) -> None:
    usage = port.engine.check()
    assert usage is not None
    assert usage.heap_used > 0

    def wait() -> None:
        with suppress(ConnectionLost):
            port.engine.start(port.start_of("copied"))

    threading.Thread(target=wait, daemon=True).start()
    below = psutil.Process(port.process.pid).children(recursive=True)
    port.engine._connection.close()
    assert port.process.wait(600) == 1
    wait_for("the end of its JVM", lambda: not any(each.is_running() and each.name() == "java" for each in below))
    with pytest.raises(ConnectionLost):
        port.engine.check()
