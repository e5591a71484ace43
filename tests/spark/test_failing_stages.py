"""How Spark's error texts are read: the user's line, the same error again, and state of another version of a stage."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue
from types import ModuleType

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from containers.agent.failures import check_state_fits, headline, similar
from containers.errors import StateIncompatible
from containers.spark.listener import Listener, QueryEnded
from containers.spark.operators import LogicalPlan, check_stateless
from containers.spark.task import StageTask
from sluice.core.errors import BadJobFile
from sluice.core.ids import StageName
from sluice.core.jobmodels.graph import Stage
from sluice.job import Input
from tests.spark.conftest import Bench

pytestmark = pytest.mark.spark

IN = Input("in")

JOB = """
def write(batch, batch_id):
    rows = batch.count()
    rows / 0


def halve(value):
    return 1 / 0
"""


@pytest.fixture
def job(tmp_path: Path) -> ModuleType:
    file = tmp_path / "jobs" / "delays.py"
    file.parent.mkdir()
    file.write_text(JOB)
    spec = importlib.util.spec_from_file_location("delays", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.__name__ = "__main__"  # so that functions are pickled by value, as those of a job file are
    for each in (module.write, module.halve):
        each.__module__ = "__main__"
    return module


@pytest.fixture
def ends(bench: Bench) -> Iterator[Queue[QueryEnded]]:
    found: Queue[QueryEnded] = Queue()
    listener = Listener(lambda batch: None, found.put)
    bench.spark.streams.addListener(listener)
    yield found
    bench.spark.streams.removeListener(listener)


def read_all(batch: DataFrame, batch_id: int) -> None:
    batch.collect()


def error_of(ends: Queue[QueryEnded]) -> str:
    error = ends.get(timeout=60).error
    assert error is not None
    return error


def test_an_error_of_a_batch_function_begins_with_the_line_that_raised_it_and_is_the_same_at_each_attempt(
    bench: Bench, ends: Queue[QueryEnded], job: ModuleType
) -> None:
    def stage(task: StageTask) -> DataStreamWriter:
        return task.read(IN).writeStream.foreachBatch(job.write)

    bench.feed(range(10), batch=0)
    found = []
    for _ in range(2):
        bench.start(bench.grant("in"), stage)
        found.append(headline(error_of(ends), Path(str(job.__file__)).parent))
    assert found[0] == f"{job.__file__}:4 in write: ZeroDivisionError: division by zero"
    assert found[0] == found[1]


def test_an_error_of_a_function_in_a_python_worker_begins_with_its_line_too(bench: Bench, ends: Queue[QueryEnded], job: ModuleType) -> None:
    def stage(task: StageTask) -> DataStreamWriter:
        halved = F.udf(job.halve, "int")(F.col("offset"))
        return task.read(IN).select(halved).writeStream.foreachBatch(read_all)

    bench.feed(range(10), batch=0)
    found = []
    for _ in range(2):
        bench.start(bench.grant("in"), stage)
        found.append(headline(error_of(ends), Path(str(job.__file__)).parent))
    assert found[0].startswith(f"{job.__file__}:8 in halve: ZeroDivisionError: division by zero")
    assert similar(found[0]) == similar(found[1])


def counting(key: str) -> Callable[[StageTask], DataStreamWriter]:
    def stage(task: StageTask) -> DataStreamWriter:
        counts = task.read(IN).groupBy(F.expr(key).alias("key")).count()
        return counts.writeStream.foreachBatch(read_all).outputMode("update")

    return stage


def test_the_error_for_state_with_another_schema_names_sluice_upgrade(bench: Bench, ends: Queue[QueryEnded]) -> None:
    bench.feed(range(10), batch=0)
    bench.run_until_read(bench.grant("in"), counting("partition"))
    ends.get(timeout=60)
    bench.feed(range(10), batch=1)
    bench.start(bench.grant("in"), counting("named_struct('p', partition, 's', stream)"))
    with pytest.raises(StateIncompatible, match="sluice upgrade JOBFILE"):
        check_state_fits(error_of(ends))


def test_a_stage_that_is_declared_stateless_and_keeps_state_is_refused(bench: Bench) -> None:
    task = bench.task(bench.grant("in"))
    counts, plain = LogicalPlan.of(counting("partition")(task)).operators, LogicalPlan.of(task.read(IN).writeStream).operators
    declared = Stage(StageName("count"), ("in",), stateful=False)
    check_stateless(declared, plain)
    check_stateless(Stage(StageName("count"), ("in",)), counts)
    with pytest.raises(BadJobFile, match=r"stage count is declared with stateful=False, but its query keeps state \(aggregation\)"):
        check_stateless(declared, counts)
