"""User code that would make plain Spark wait forever, or continue without it."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from containers.errors import SparkStopped
from containers.spark.session import check_alive
from containers.spark.task import StageTask
from sluice.job import Input
from tests.spark.conftest import Bench

pytestmark = pytest.mark.spark

IN = Input("in")


@pytest.mark.parametrize("end", [SystemExit("enough"), KeyboardInterrupt(), GeneratorExit()])
def test_a_batch_function_that_raises_an_exit_or_an_interrupt_fails_its_query(bench: Bench, end: BaseException) -> None:
    def ends(batch: DataFrame, batch_id: int) -> None:
        raise end

    def stage(task: StageTask) -> DataStreamWriter:
        return task.read(IN).writeStream.foreachBatch(ends)

    bench.feed(range(10), batch=0)
    query = bench.start(bench.grant("in"), stage)
    with pytest.raises(StreamingQueryException, match=f"the batch function raised {type(end).__name__}"):
        query.awaitTermination(60)


def test_the_jvm_exits_at_an_out_of_memory_error(spark: SparkSession) -> None:
    assert spark._jvm is not None
    arguments = spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
    assert "-XX:+ExitOnOutOfMemoryError" in list(arguments)


def test_the_check_of_a_running_session_succeeds(spark: SparkSession) -> None:
    check_alive(spark)


def test_the_check_of_a_session_that_user_code_has_stopped_fails() -> None:
    stopped = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=None))
    with pytest.raises(SparkStopped, match="the Spark session was stopped"):
        check_alive(stopped)  # type: ignore[arg-type]


def closed_jvm() -> None:
    raise Py4JNetworkError("Answer from Java side is empty")


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("kill -9 $$", "was ended by SIGKILL"),
        ("exit 3", r"ended with exit code 3: it was out of memory \(spark.driver.memory is its heap\)"),
        ("exit 143", "ended with exit code 143"),
    ],
)
def test_a_jvm_that_has_ended_is_reported_with_its_exit_code(end: str, expected: str) -> None:
    with subprocess.Popen(["/bin/sh", "-c", end]) as jvm:
        gone = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=SimpleNamespace(sc=closed_jvm), _gateway=SimpleNamespace(proc=jvm)))
        with pytest.raises(SparkStopped, match=f"^Spark's JVM {expected}$"):
            check_alive(gone)  # type: ignore[arg-type]


def test_a_jvm_that_another_process_started_is_reported_with_the_error() -> None:
    gone = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=SimpleNamespace(sc=closed_jvm), _gateway=SimpleNamespace(proc=None)))
    with pytest.raises(SparkStopped, match=r"no longer answers: .*Answer from Java side is empty"):
        check_alive(gone)  # type: ignore[arg-type]
