"""Facts about the pinned Spark on which Sluice relies, one per test."""

from __future__ import annotations

import textwrap
from pathlib import Path
from threading import Event, Timer

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from containers.spark.session import pickle_by_value
from containers.spark.task import StageTask
from containers.state.checkpoint import inspect
from sluice.job import Input, Output, load_job
from tests.spark.conftest import Bench

pytestmark = pytest.mark.spark

IN, OUT = Input("in"), Output("out")


class SlowSink:
    """A user's sink: signals that a batch has begun and blocks it until it is released."""

    def __init__(self) -> None:
        self.begun = Event()
        self.go = Event()
        self.batches: list[tuple[int, int]] = []

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        self.begun.set()
        assert self.go.wait(60)
        self.batches.append((batch_id, batch.count()))

    def stage(self, task: StageTask) -> DataStreamWriter:
        return task.read(IN).writeStream.foreachBatch(self)


class LetGo(Event):
    """Replaces "forced": its first wait releases the blocked batch, so that the stop has begun before the batch ends."""

    def __init__(self, sink: SlowSink) -> None:
        super().__init__()
        self._sink = sink

    def wait(self, timeout: float | None = None) -> bool:
        self._sink.go.set()
        return super().wait(timeout)


def test_a_stop_between_batches_lets_the_running_batch_finish_and_commit(bench: Bench) -> None:
    grant, sink = bench.grant("in"), SlowSink()
    bench.feed(range(10), batch=0)
    query = bench.start(grant, sink.stage)
    assert sink.begun.wait(60)
    assert bench.stop(query, LetGo(sink))
    planned, committed = bench.batches(grant)
    assert planned == committed
    assert sink.batches == [(0, 10)]
    assert not query.isActive


def test_a_forced_stop_leaves_a_batch_that_the_next_start_runs_again(bench: Bench) -> None:
    grant, sink = bench.grant("in"), SlowSink()
    bench.feed(range(10), batch=0)
    query = bench.start(grant, sink.stage)
    assert sink.begun.wait(60)
    forced = Event()
    forced.set()
    Timer(1, sink.go.set).start()  # Spark's stop waits for the user's function to return, and cannot interrupt it
    assert not bench.stop(query, forced)
    planned, committed = bench.batches(grant)
    assert (planned, committed) == ([0], [])
    again = SlowSink()
    again.go.set()
    bench.run_until_read(grant, again.stage)
    assert again.batches[0] == (0, 10)


def test_a_lineage_that_is_written_before_the_start_becomes_the_id_of_the_query(bench: Bench) -> None:
    grant = bench.grant("in", lineage="0b6a1c1e-74c8-4a3e-8f0e-2f5cbb6a9a11")
    query = bench.start(grant, lambda task: task.write(task.read(IN).select("value"), OUT, value="value"))
    assert str(query.id) == grant.lineage
    found = inspect(bench.stores.directory(grant.task, grant.stage))
    assert found is not None
    assert found.lineage == grant.lineage


def test_state_is_in_rocksdb_with_changelogs_and_continues_after_a_restart(bench: Bench) -> None:
    def totals(task: StageTask) -> DataStreamWriter:
        rows = task.read(IN).groupBy((F.col("value").cast("string").cast("int") % 2).alias("parity")).count()
        return task.write(rows, OUT).outputMode("update")

    grant = bench.grant("in")
    bench.feed(range(10), batch=0)
    bench.run_until_read(grant, totals)
    bench.feed(range(10), batch=1)
    bench.run_until_read(grant, totals)
    assert bench.values("out")[-2:] in (
        ['{"parity":1,"count":10}', '{"parity":0,"count":10}'],
        ['{"parity":0,"count":10}', '{"parity":1,"count":10}'],
    )
    assert list(bench.stores.directory(grant.task, grant.stage).rglob("*.changelog"))


def test_functions_of_a_job_file_that_was_loaded_by_path_run_in_the_workers(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "job.py"
    file.write_text(
        textwrap.dedent(
            """
            from pyspark.sql import functions as F
            from sluice import Job

            job = Job("pickled")
            numbers, out = job.input("in"), job.output("out")
            FACTOR = 3

            def times(n):
                return int(n) * FACTOR

            @job.stage(reads=numbers, writes=out)
            def multiply(task):
                return task.write(task.read(numbers).select(F.udf(times, "int")(F.col("value").cast("string")).alias("n")), out, value="n")
            """
        ).replace('value="n"', 'value=F.col("n").cast("string")')
    )
    job = load_job(file)
    import sys

    pickle_by_value(sys.modules["sluice_job"])
    bench.feed(range(5), batch=0)
    bench.run_until_read(bench.grant("in"), job.stages[0].function)
    assert sorted(map(int, bench.values("out"))) == [0, 3, 6, 9, 12]
