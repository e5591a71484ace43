"""An attached script and its agent, which is this test: what the script reports, and what it does after a request to stop."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any
from uuid import uuid4

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from containers.attached.app import App
from containers.attached.port import Beginning, DrainInterrupted, Made, NotGranted
from containers.spark.jvm import java
from containers.spark.scripts.checkpoint import LOCK_AFTER, ScriptCheckpoint
from sluice.clock import SystemClock
from sluice.core.ids import JobName, Lineage
from tests.attached.test_active_queries import Script, nothing, script
from tests.support.processes import TooSlow, wait_for
from tests.support.script_peers import AgentPeer

pytestmark = pytest.mark.spark


class ScriptAgent(AgentPeer):
    """The agent of a script, and the script's end."""

    def __init__(self, spark: SparkSession, **answers: Callable[..., Any]) -> None:
        self.app = App(spark, JobName("orders"), (), SystemClock(), timedelta(seconds=60))
        self.theirs, ours = socket.socketpair()
        super().__init__(ours, **answers)

    def grant(self, generation: int = 3) -> None:
        self.may_run(generation)
        self.app.start(self.theirs, ends_script=False)

    def stop(self, within: timedelta = timedelta(seconds=60)) -> None:
        self.tell("stop", within, False)

    def stage(self, root: Path, **expected: object) -> dict[str, Any]:
        """The first reported query under this directory that is as expected."""
        while True:
            for each in self.next("queries"):
                if str(root) in each["checkpoint"] and expected.items() <= each.items():
                    return dict(each)


@pytest.fixture
def agent(spark: SparkSession) -> Iterator[ScriptAgent]:
    made = ScriptAgent(spark)
    yield made
    made.app.close()
    made.close()


@pytest.fixture
def orders(spark: SparkSession, tmp_path: Path) -> Iterator[Script]:
    with script(spark, tmp_path) as made:
        yield made


def test_queries_are_reported_and_stopped_also_those_that_start_later(agent: ScriptAgent, orders: Script) -> None:
    agent.grant()
    assert agent.app.run == "run-1"
    orders.feed("one")
    query = orders.start("counts", nothing)
    reported = agent.stage(orders.root, batchId=0)
    assert (reported["stage"], reported["queryId"], reported["active"], reported["metrics"]["rows"]) == ("counts", query.id, True, 3)
    agent.stop()
    assert agent.next("stopped") == ()
    assert not query.isActive
    again = orders.start("counts", nothing)
    wait_for("the end of the restarted query", lambda: not again.isActive)
    assert orders.batches("counts", "offsets") == orders.batches("counts", "commits")


def test_a_query_whose_checkpoint_another_job_uses_is_stopped(agent: ScriptAgent, orders: Script) -> None:
    agent.grant()
    orders.feed("one")
    query = orders.start("counts", nothing)
    other = orders.start("other", nothing)
    agent.stage(orders.root, stage="counts")
    agent.tell("refuse", "counts", "job copies uses the checkpoint")
    refused = agent.stage(orders.root, stage="counts", active=False)
    assert refused["error"] == "job copies uses the checkpoint"
    assert not query.isActive
    assert other.isActive


class Stubborn:
    """A script that starts its query again whenever it ends, whatever the reason. Its batch fails in the first two starts."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._over = Event()
        self._thread = Thread(target=self._run)
        self.may_go_on = [Event() for _ in range(3)]
        self.starts = list[StreamingQuery]()

    def __enter__(self) -> Stubborn:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for each in self.may_go_on:
            each.set()
        for query in self.starts:
            query.stop()
        self._thread.join(60)

    def _run(self) -> None:
        while not self._over.is_set():
            with suppress(Exception):
                self.starts.append(self._script.start("counts", self._batch(len(self.starts))))
                self.starts[-1].awaitTermination()

    def _batch(self, start: int) -> Callable[[DataFrame, int], None]:
        def batch(rows: DataFrame, number: int) -> None:
            rows.collect()
            assert start >= len(self.may_go_on) or self.may_go_on[start].wait(120)
            if start < 2:
                raise ValueError(f"no such currency in start {start}")

        return batch


def test_a_script_that_restarts_a_failed_query_and_ignores_exceptions_is_reported_as_one_stage_and_stopped(
    agent: ScriptAgent, orders: Script
) -> None:
    agent.grant()
    orders.feed("one")
    with Stubborn(orders) as script:
        for failures in range(2):
            agent.stage(orders.root, stage="counts", active=True, failures=failures)
            script.may_go_on[failures].set()
        failed = agent.stage(orders.root, stage="counts", active=True, failures=2)
        assert "no such currency in start 1" in failed["error"]
        script.may_go_on[2].set()
        running = agent.stage(orders.root, stage="counts", active=True, batchId=0)
        assert {each.id for each in script.starts} == {running["queryId"]}
        agent.stop()
        assert agent.next("stopped") == ()
        wait_for("the restarted query to be stopped, too", lambda: len(script.starts) > 4)
        assert script.starts[3].exception() is None
    assert orders.batches("counts", "offsets") == orders.batches("counts", "commits") == ["0"]


@pytest.mark.parametrize("answer", ["refused", "granted to another job", "the end"])
def test_a_script_that_may_not_run_gets_the_reason(agent: ScriptAgent, answer: str) -> None:
    if answer == "refused":
        agent.tell("refused", "job orders is running")
        agent.connection.close()
        expected = "job orders is running"
    elif answer == "the end":
        agent.connection.close()
        expected = "the agent has ended"
    else:
        agent.app.job = JobName("invoices")
        agent.may_run()
        expected = "another job than invoices"
    with pytest.raises(NotGranted, match=expected):
        agent.app.start(agent.theirs, ends_script=False)


# --- stops that meet others ------------------------------------------------------------------------------------------


LONG = timedelta(days=1)
"""A stop timeout that does not end a stop."""


class Slow:
    """A function of foreachBatch that waits in its first batch."""

    def __init__(self) -> None:
        self.begun, self.may_end = Event(), Event()

    def __call__(self, rows: DataFrame, batch: int) -> None:
        rows.collect()
        self.begun.set()
        assert self.may_end.wait(120)


@pytest.fixture
def slow(orders: Script) -> Iterator[Slow]:
    """The batch that the query `slow` runs. The query `quick` waits for input."""
    made = Slow()
    orders.feed("one")
    orders.start("quick", nothing).processAllAvailable()
    orders.start("slow", made)
    assert made.begun.wait(60)
    yield made
    made.may_end.set()


def await_held(query: StreamingQuery) -> None:
    sources = query._jsq.streamingQuery()
    wait_for("the query to be held", lambda: "gate" in str(sources.uniqueSources().toString()))


@contextmanager
def time_to_hold_again(query: StreamingQuery) -> Iterator[None]:
    """Wait until what is done in this block has put another gate in place, at most two seconds."""

    def gate() -> int:
        spark = SparkSession.active()
        return int(java(spark, "java.lang.System").identityHashCode(query._jsq.streamingQuery().uniqueSources()))

    before = gate()
    yield
    with suppress(TooSlow):
        wait_for("another gate", lambda: gate() != before, 2)


def test_a_stop_during_another_one_waits_for_the_same_batch(agent: ScriptAgent, orders: Script, slow: Slow) -> None:
    """Each would hold the queries in a gate of its own, and wait for one that waits in the gate of the other one."""
    agent.grant()
    agent.stop(LONG)
    await_held(orders.started[0])
    interrupted = list[str]()
    second = Thread(target=lambda: interrupted.extend(agent.app.stop(LONG)), daemon=True)
    with time_to_hold_again(orders.started[0]):
        second.start()
    slow.may_end.set()
    assert agent.next("stopped") == ()
    second.join(60)
    assert interrupted == []
    assert not any(query.isActive for query in orders.started)
    assert orders.batches("slow", "offsets") == orders.batches("slow", "commits") == ["0"]


def test_a_drain_that_is_requested_during_a_stop_does_not_hold_the_queries(
    agent: ScriptAgent, orders: Script, slow: Slow, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    agent.grant()
    agent.stop(LONG)
    await_held(orders.started[0])
    with time_to_hold_again(orders.started[0]):
        agent.drain("d-1")
        wait_for("the message", lambda: "drain d-1" in caplog.text)
    slow.may_end.set()
    try:
        assert agent.next("stopped") == ()
        assert orders.batches("slow", "offsets") == orders.batches("slow", "commits") == ["0"]
    finally:
        agent.app.drains.abandon(timedelta(seconds=60))
        agent.app.drains.close()


def test_a_batch_that_stops_its_script_ends_before_the_queries_do(agent: ScriptAgent, orders: Script) -> None:
    """The stop waits for this batch, so that it cannot wait for the stop."""
    agent.grant()
    returned = list[object]()

    def poisoned(rows: DataFrame, batch: int) -> None:
        returned.extend([agent.app.stop(), agent.app.stop()])

    orders.feed("one")
    orders.start("quick", nothing)
    query = orders.start("counts", poisoned)
    assert query.awaitTermination(60)
    assert returned[:2] == [(), ()]
    assert query.exception() is None
    wait_for("the end of the other query", lambda: not orders.started[0].isActive)
    for name in ("quick", "counts"):
        assert orders.batches(name, "offsets") == orders.batches(name, "commits")


# --- checkpoints that a drain has flushed ----------------------------------------------------------------------------


def half_flushed(orders: Script) -> ScriptCheckpoint:
    """The checkpoint `counts` after its script was killed in the flush of drain d-1: batch 1 is planned, and there is no lock."""
    query = orders.start("counts", nothing)
    query.processAllAvailable()
    query.stop()
    checkpoint = ScriptCheckpoint(orders.spark, str(orders.checkpoints / "counts"))
    checkpoint.mark_emptied("d-1", 0)
    checkpoint.unlock()
    checkpoint.write_offset_log(1, checkpoint.read_offset_log(0))
    return checkpoint


def is_locked(checkpoint: ScriptCheckpoint) -> bool:
    return checkpoint.numbers("offsets")[-1] >= LOCK_AFTER


def test_a_checkpoint_whose_planned_flush_fails_is_locked_again(agent: ScriptAgent, spark: SparkSession, tmp_path: Path) -> None:
    def fails(rows: DataFrame, batch: int) -> None:
        raise ValueError("the sink is full")

    orders = Script(spark, tmp_path)  # in the attached session, whose starts are seen
    orders.feed("one")
    checkpoint = half_flushed(orders)
    checkpoint.mark_emptied("d-1", 0)
    agent.drain("d-1", flushing=True)
    agent.grant()
    pausing = agent.connection.request("pause_queries", "d-1", ["counts"])
    try:
        query = orders.start("counts", fails)
        with pytest.raises(StreamingQueryException, match="the sink is full"):
            query.awaitTermination(60)
        wait_for("the lock", lambda: is_locked(checkpoint))
    finally:
        agent.leave("d-1", end=True)
        assert isinstance(pausing.exception(), DrainInterrupted)
        agent.app.drains.abandon(timedelta(seconds=60))
        agent.app.drains.close()


def test_a_query_that_starts_on_a_flushed_checkpoint_without_a_lock_is_stopped(agent: ScriptAgent, orders: Script) -> None:
    orders.feed("one")
    checkpoint = half_flushed(orders)
    agent.grant()
    query = orders.start("counts", nothing)
    refused = agent.stage(orders.root, stage="counts", active=False)
    assert "drain d-1 has flushed its checkpoint" in refused["error"]
    assert not query.isActive
    assert is_locked(checkpoint)


# --- sinks -----------------------------------------------------------------------------------------------------------


class Checkpoints:
    """Answers a script that asks for its checkpoints."""

    def __init__(self, spark: SparkSession, state: Path) -> None:
        self._state = state
        self._beginning = Beginning(0, "", {}, "")
        self._made = Made()
        self.agent = ScriptAgent(spark, beginning=lambda stage: self._beginning, prepare=lambda wanted: self._made)

    def get(self, name: str, *, drain: int, new_lineage: bool) -> str:
        lineage = str(uuid4())
        directory = self._state / "orders" / f"drain-{drain}" / name
        directory.mkdir(parents=True)
        (directory / "metadata").write_text(json.dumps({"id": lineage}))

        self._beginning = Beginning(drain, "", {}, "")
        self._made = Made(Lineage(lineage), new_lineage=new_lineage)
        return self.agent.app.checkpoint(name)


@pytest.mark.parametrize(
    ("drain", "new_lineage", "begins"),
    [
        (0, False, ""),
        (0, True, "under a new id"),
        (3, False, "after a drain"),
        pytest.param(3, True, "under a new id", marks=pytest.mark.long),
    ],
)
def test_a_function_of_foreach_batch_whose_batches_get_numbers_again_is_named(
    spark: SparkSession,
    orders: Script,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    drain: int,
    new_lineage: bool,
    begins: str,
) -> None:
    monkeypatch.setenv("SLUICE_STATE_DIR", str(tmp_path / "state"))
    checkpoints = Checkpoints(spark, tmp_path / "state")
    agent = checkpoints.agent
    agent.grant()
    for name in ("counts", "rows"):
        location = checkpoints.get(name, drain=drain, new_lineage=new_lineage)
        writer = orders.spark.readStream.text(str(orders.root / "in")).writeStream.option("checkpointLocation", location)
        orders.started.append((writer.foreachBatch(nothing) if name == "counts" else writer.format("noop")).queryName(name).start())
        agent.stage(tmp_path, stage=name)
    named = [each.getMessage() for each in caplog.records if "numbers of its batches come again" in each.getMessage()]
    assert [each.partition(":")[0] for each in named] == ([f"query counts begins {begins}"] if begins else [])
    agent.app.close()
    agent.close()


@pytest.mark.parametrize("left", [False, True])
def test_a_drain_that_follows_another_one_at_once_pauses_the_queries(agent: ScriptAgent, orders: Script, left: bool) -> None:
    """`left`: the driver is informed that the former drain is over. The agent may have been cut off at that time."""
    agent.grant()
    orders.feed("one")
    query = orders.start("counts", nothing)
    query.processAllAvailable()
    try:
        assert agent.pause("d-1", "counts").keys() == {"counts"}
        if left:
            agent.leave("d-1", end=False)
        assert agent.pause("d-2", "counts").keys() == {"counts"}
        agent.leave("d-2", end=False)
        orders.feed("two")
        wait_for("the next batch", lambda: orders.batches("counts", "commits") == ["0", "1"])
    finally:
        agent.app.drains.abandon(timedelta(seconds=60))
        agent.app.drains.close()


@pytest.mark.parametrize("lost", [False, True])
def test_the_queries_of_an_observed_script_continue_when_nobody_moves_their_drain(
    agent: ScriptAgent, orders: Script, caplog: pytest.LogCaptureFixture, lost: bool
) -> None:
    """The lease is lost, or the agent ends, while the queries are paused for a drain."""
    agent.grant()
    orders.feed("one")
    query = orders.start("counts", nothing)
    query.processAllAvailable()
    agent.pause("d-1", "counts")
    if lost:
        agent.tell("lost", "another one has replaced it")
    else:
        agent.connection.close()
    try:
        wait_for("the message", lambda: ("another copy of orders may run" if lost else "is not protected any more") in caplog.text)
        orders.feed("two")
        wait_for("the next batch", lambda: orders.batches("counts", "commits") == ["0", "1"])
        assert query.isActive
    finally:
        agent.app.drains.abandon(timedelta(seconds=60))  # otherwise the query cannot be stopped
        agent.app.drains.close()
