"""Queries that wait for input between two batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from math import inf
from pathlib import Path
from threading import Event
from time import monotonic, sleep
from uuid import uuid4

import pandas as pd
import pytest
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.streaming.state import GroupStateTimeout

from containers.spark.caps import natural_watermark
from containers.spark.gate import PausedQuery, pause
from containers.spark.input_gate import BatchLimit, InputGates, InputWatcher, Waits, input_gates
from containers.spark.installation import GatedStarts
from containers.spark.listener import BatchDone, Listener
from containers.spark.query import RowLimit, SourceLimits, start_query, stop_between_batches
from containers.spark.systems.registry import EndsOfSystems
from containers.spark.task import StageTask
from containers.spark.watermark import Capping, WatermarkGate
from containers.state.offsets.offsetlog import from_millis
from sluice.clock import SystemClock
from sluice.core.batchsize import BatchSizes
from sluice.core.ids import Lineage, StageName
from sluice.core.watermarks import Cap, NoCap
from tests.spark.conftest import SOON, Bench
from tests.spark.drainworld import OUT, Drained, events, windowed
from tests.spark.operators import EVENTS, grouped

pytestmark = pytest.mark.spark

NEVER = timedelta(hours=1)
"""Queries of these tests run no batch merely because time has passed."""

WAITING = "Getting offsets from the gate that waits for input"


def await_true(condition: Callable[[], object]) -> None:
    end = monotonic() + SOON.total_seconds()
    while not condition():
        assert monotonic() < end
        sleep(0.02)


@dataclass
class Gated:
    """Queries on a log or on topics that wait for input, as in the engine."""

    bench: Bench
    gates: InputGates
    starts: GatedStarts
    done: list[BatchDone] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)
    cap: Cap = NoCap.FREE

    def start(self, drained: Drained, waits: Waits, *, capped: bool = False) -> StreamingQuery:
        bench, grant, name = self.bench, drained.grant, f"{self.bench.root.name}/{len(self.bench.queries)}"
        directory = bench.stores.prepare(grant.task, grant.stage, grant.lineage, None)
        writer = drained.stage(bench.task(grant))
        capping = Capping(lambda latest: [self.cap], natural_watermark(directory), lambda: 0)
        query: StreamingQuery = self.starts.start(
            name,
            lambda: start_query(bench.spark, writer, name, directory, timedelta(0)),
            first=[lambda execution: self.gates.new_gate(name, [bench.stream_id("in")], waits, execution)],
            last=[lambda execution: WatermarkGate(bench.spark, execution, capping)] if capped else [],
        )
        bench.queries.append(query)
        return query

    @property
    def rows(self) -> int:
        """The number of rows that were read."""
        return sum(each.rows for each in self.done)

    def await_rows(self, rows: int) -> None:
        await_true(lambda: self.rows == rows)

    def await_waiting(self, query: StreamingQuery) -> None:
        await_true(lambda: query.status["message"] == WAITING or not query.isActive)
        assert query.isActive, query.exception()

    def pause(self, query: StreamingQuery, limit: RowLimit | None = None) -> PausedQuery:
        paused = pause(self.bench.spark, query, SOON, Event(), limit)
        assert paused is not None
        self.bench.endings.callback(paused.end, SOON, Event())
        return paused


@contextmanager
def gating(bench: Bench, limit: BatchLimit | None = None) -> Iterator[Gated]:
    gates, ends, starts = InputGates(bench.spark, limit), EndsOfSystems(bench.systems(), SystemClock()), GatedStarts(bench.spark)
    watcher = InputWatcher(gates.exchange, ends.latest, ends.close)
    made = Gated(bench, gates, starts)
    listener = Listener(made.done.append, lambda ended: None, made.idle.append, starts.on_started)
    bench.spark.streams.addListener(listener)
    watcher.start()
    try:
        yield made
    finally:
        gates.close()
        watcher.join(timedelta(seconds=60))
        bench.spark.streams.removeListener(listener)


@pytest.fixture
def gated(bench: Bench) -> Iterator[Gated]:
    with gating(bench) as made:
        yield made


@pytest.fixture
def log_first_gated(log_first: Bench) -> Iterator[Gated]:
    with gating(log_first) as made:
        yield made


@pytest.fixture
def either_gated(either: Bench) -> Iterator[Gated]:
    with gating(either) as made:
        yield made


def test_a_query_waits_until_records_arrive_and_reads_them(either_gated: Gated) -> None:
    gated = either_gated
    query = gated.start(Drained(gated.bench, windowed), Waits(timedelta(0), longest=NEVER))
    gated.await_waiting(query)
    for batch in range(2):
        gated.bench.feed(EVENTS, batch=batch)
        gated.await_rows((batch + 1) * len(EVENTS))
        gated.await_waiting(query)
    assert gated.bench.stop(query)


def test_a_batch_without_data_runs_at_once_and_closes_windows(gated: Gated) -> None:
    gated.bench.feed(EVENTS, batch=0)
    drained = Drained(gated.bench, windowed)
    query = gated.start(drained, Waits(timedelta(0), longest=NEVER))
    await_true(drained.output)  # the window to 1010, which the watermark of 1014 closes
    assert gated.bench.stop(query)


def test_a_waiting_query_can_be_stopped_by_spark(gated: Gated) -> None:
    query = gated.start(Drained(gated.bench, windowed), Waits(timedelta(0), longest=NEVER))
    gated.await_waiting(query)
    query.stop()
    assert not query.isActive
    assert query.exception() is None


def test_a_waiting_query_can_be_paused_resumed_and_drained(log_first_gated: Gated) -> None:
    gated = log_first_gated
    drained = Drained(gated.bench, windowed)
    query = gated.start(drained, Waits(timedelta(0), longest=NEVER))
    gated.await_waiting(query)
    paused = gated.pause(query)
    gated.bench.feed(EVENTS, batch=0)
    assert paused.gate.reached.wait(SOON.total_seconds())
    assert not gated.rows
    paused.resume()
    gated.await_rows(len(EVENTS))
    gated.await_waiting(query)
    paused = gated.pause(query)
    flusher = drained.flusher(paused=paused)
    flusher.advance(drained.ends())
    assert flusher.flush().rows_left == 0
    assert paused.end(SOON, Event())
    assert query.exception() is None
    assert drained.counted() == len(EVENTS)


def test_opening_the_gate_lets_a_capped_watermark_rise(gated: Gated) -> None:
    gated.bench.feed(EVENTS, batch=0)
    gated.cap = from_millis(1_000_000)
    drained = Drained(gated.bench, windowed)
    query = gated.start(drained, Waits(timedelta(0), longest=NEVER), capped=True)
    gated.await_rows(len(EVENTS))
    gated.await_waiting(query)
    assert not drained.output()
    gated.cap = NoCap.FREE
    gated.gates.open(str(query.name))
    await_true(drained.output)
    assert gated.bench.stop(query)


def test_a_query_with_timers_of_processing_time_runs_batches_without_new_records(gated: Gated) -> None:
    gated.bench.feed(EVENTS, batch=0)
    stage = grouped(GroupStateTimeout.ProcessingTimeTimeout)
    query = gated.start(Drained(gated.bench, stage), Waits(timedelta(milliseconds=50), timed=True, longest=NEVER))
    await_true(lambda: len(gated.done) > 2)
    assert gated.rows == len(EVENTS)
    assert gated.bench.stop(query)


def test_a_query_with_an_interval_begins_no_batch_before_the_interval_ends_and_stops_at_once(gated: Gated) -> None:
    gated.bench.feed(EVENTS, batch=0)
    query = gated.start(Drained(gated.bench, windowed), Waits(NEVER, longest=NEVER))
    gated.await_rows(len(EVENTS))
    gated.await_waiting(query)
    gated.bench.feed(EVENTS, batch=1)
    assert gated.bench.stop(query)
    assert gated.rows <= 2 * len(EVENTS)
    assert query.exception() is None


@pytest.mark.long
def test_a_query_that_is_paced_reads_later_and_in_fewer_batches(gated: Gated) -> None:
    gated.bench.feed(EVENTS, batch=0)
    second = Drained(gated.bench, windowed)
    second.grant = replace(second.grant, stage=StageName("second"), lineage=Lineage(str(uuid4())))
    paced, other = (gated.start(each, Waits(timedelta(0), longest=NEVER)) for each in (Drained(gated.bench, windowed), second))

    def batches(query: StreamingQuery) -> list[int]:
        return [each.rows for each in gated.done if each.query == query.name and each.rows]

    gated.await_rows(2 * len(EVENTS))
    gated.gates.pace(str(paced.name), NEVER)
    gated.await_waiting(paced)
    for batch in (1, 2):
        gated.bench.feed(EVENTS, batch=batch)
        await_true(lambda batch=batch: len(batches(other)) == batch + 1)  # type: ignore[misc]
    assert batches(paced) == [len(EVENTS)]
    gated.gates.pace(str(paced.name), timedelta(0))
    await_true(lambda: batches(paced) == [len(EVENTS), 2 * len(EVENTS)])
    assert gated.bench.stop(paced)
    assert gated.bench.stop(other)


def test_the_duration_of_a_batch_does_not_include_the_wait_for_input(gated: Gated) -> None:
    query = gated.start(Drained(gated.bench, windowed), Waits(timedelta(0), longest=NEVER))
    gated.await_waiting(query)
    began = monotonic()
    await_true(lambda: monotonic() - began >= 1)
    waited = monotonic() - began
    gated.bench.feed(EVENTS, batch=0)
    gated.await_rows(len(EVENTS))
    elapsed = monotonic() - began
    (batch,) = [each for each in gated.done if each.rows]
    assert 0 < batch.duration_ms / 1000 <= elapsed - waited
    assert min(batch.parts_ms.values()) >= 0
    progress = next(each for each in query.recentProgress if each["batchId"] == batch.batch)
    assert 0 < progress["durationMs"]["triggerExecution"] / 1000 <= elapsed - waited
    assert 0 <= progress["durationMs"]["latestOffset"] <= progress["durationMs"]["triggerExecution"]


def test_a_waiting_query_reports_that_it_is_idle(gated: Gated) -> None:
    interval = "spark.sql.streaming.noDataProgressEventInterval"
    gated.bench.spark.conf.set(interval, "100")
    try:
        query = gated.start(Drained(gated.bench, windowed), Waits(timedelta(0), longest=timedelta(milliseconds=100)))
    finally:
        gated.bench.spark.conf.unset(interval)
    await_true(lambda: str(query.runId) in gated.idle)
    assert gated.bench.stop(query)


@dataclass
class Blocked:
    """A query whose batches with rows create the file `begun` when they begin, and end when the file `end` has been created."""

    query: StreamingQuery
    begun: Path
    end: Path


def started(gated: Gated, at: Path, name: str) -> Blocked:
    begun, end = at / name, at / f"end of {name}"

    def work(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            begun.touch()
            while not end.exists():
                sleep(0.01)
            yield frame[["k"]]

    def stage(task: StageTask) -> DataStreamWriter:
        return task.write(events(task).coalesce(1).mapInPandas(work, "k string"), OUT).outputMode("append")

    drained = Drained(gated.bench, stage)
    drained.grant = replace(drained.grant, stage=StageName(name), lineage=Lineage(str(uuid4())))
    return Blocked(gated.start(drained, Waits(timedelta(0), longest=NEVER)), begun, end)


def running_and_queued(gated: Gated, at: Path) -> tuple[Blocked, Blocked]:
    """A query in a batch, and one that could begin a batch, and waits."""
    gated.bench.feed(EVENTS, batch=0)
    running = started(gated, at, "running")
    await_true(running.begun.exists)
    queued = started(gated, at, "queued")
    gated.await_waiting(queued.query)
    return running, queued


ONE_AT_A_TIME = BatchLimit(1, idle_cores=inf, stall=NEVER)


def test_no_more_batches_run_at_a_time_than_the_limit(bench: Bench, tmp_path: Path) -> None:
    with gating(bench, ONE_AT_A_TIME) as gated:
        running, queued = running_and_queued(gated, tmp_path)
        queued.end.touch()
        assert not queued.begun.exists()
        running.end.touch()
        gated.await_rows(2 * len(EVENTS))
        waits = {each.query: each.parts_ms["waitForCore"] for each in gated.done if each.rows}
        assert waits[str(queued.query.name)] > waits[str(running.query.name)]
        assert gated.bench.stop(running.query)
        assert gated.bench.stop(queued.query)


@pytest.mark.parametrize(
    "limit", [replace(ONE_AT_A_TIME, idle_cores=-inf), replace(ONE_AT_A_TIME, stall=timedelta(milliseconds=100))], ids=["idle", "stalled"]
)
def test_a_batch_above_the_limit_begins_while_cores_are_idle_or_if_none_has_ended_for_a_while(
    limit: BatchLimit, bench: Bench, tmp_path: Path
) -> None:
    with gating(bench, limit) as gated:
        gated.bench.feed(EVENTS, batch=0)
        queries = [started(gated, tmp_path, name) for name in ("first", "second")]
        await_true(lambda: all(each.begun.exists() for each in queries))
        for each in queries:
            each.end.touch()
        gated.await_rows(2 * len(EVENTS))
        assert all(gated.bench.stop(each.query) for each in queries)


def test_a_query_that_waits_for_a_core_is_paused_without_a_batch(bench: Bench, tmp_path: Path) -> None:
    with gating(bench, ONE_AT_A_TIME) as gated:
        running, queued = running_and_queued(gated, tmp_path)
        limit = RowLimit(BatchSizes(1000, SOON), SourceLimits(bench.spark, queued.query._jsq.streamingQuery()).set)
        paused = gated.pause(queued.query, limit)
        assert paused.gate.reached.wait(SOON.total_seconds())
        assert not queued.begun.exists()
        paused.resume()
        running.end.touch()
        await_true(queued.begun.exists)
        queued.end.touch()
        gated.await_rows(2 * len(EVENTS))
        assert gated.bench.stop(running.query)
        assert gated.bench.stop(queued.query)


def test_a_query_that_waits_for_a_core_is_stopped_without_a_batch(bench: Bench, tmp_path: Path) -> None:
    with gating(bench, ONE_AT_A_TIME) as gated:
        running, queued = running_and_queued(gated, tmp_path)
        limit = RowLimit(BatchSizes(1000, SOON), SourceLimits(bench.spark, queued.query._jsq.streamingQuery()).set)
        assert stop_between_batches(bench.spark, queued.query, SOON, Event(), limit)
        assert not queued.begun.exists()
        running.end.touch()
        assert gated.bench.stop(running.query)


def test_a_query_that_waits_for_a_core_can_be_stopped_by_spark(bench: Bench, tmp_path: Path) -> None:
    with gating(bench, ONE_AT_A_TIME) as gated:
        running, queued = running_and_queued(gated, tmp_path)
        queued.query.stop()
        assert not queued.query.isActive
        assert queued.query.exception() is None
        assert not queued.begun.exists()
        running.end.touch()
        assert gated.bench.stop(running.query)


def test_a_query_that_is_stopped_in_a_batch_gives_its_core_to_the_next(bench: Bench, tmp_path: Path) -> None:
    with gating(bench, ONE_AT_A_TIME) as gated:
        running, queued = running_and_queued(gated, tmp_path)
        queued.end.touch()
        running.query.stop()
        gated.await_rows(len(EVENTS))
        assert gated.bench.stop(queued.query)


def test_a_session_with_a_local_master_runs_as_many_batches_at_a_time_as_it_has_cores(bench: Bench) -> None:
    gates = input_gates(bench.spark)
    assert gates is not None
    assert gates.limit == BatchLimit(bench.spark.sparkContext.defaultParallelism)
    gates.close()
