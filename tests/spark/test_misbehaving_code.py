"""User code that Spark alone would wait for, or go on without, for ever."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from containers.job import Input
from containers.spark import check_alive
from containers.stagetask import StageTask
from coordinator.core.errors import SparkGone
from tests.spark.conftest import Bench

pytestmark = pytest.mark.spark

IN = Input("in")


@pytest.mark.parametrize("end", [SystemExit("enough"), KeyboardInterrupt(), GeneratorExit()])
def test_a_batch_function_that_ends_more_than_itself_fails_its_query(bench: Bench, end: BaseException) -> None:
    def ends(batch: DataFrame, batch_id: int) -> None:
        raise end

    def stage(task: StageTask) -> DataStreamWriter:
        return task.read(IN).writeStream.foreachBatch(ends)

    bench.feed(range(10), batch=0)
    query = bench.start(bench.grant("in"), stage)
    with pytest.raises(StreamingQueryException, match=f"the batch function raised {type(end).__name__}"):
        query.awaitTermination(60)


def test_the_jvm_is_one_that_does_not_outlive_an_out_of_memory_error(spark: SparkSession) -> None:
    assert spark._jvm is not None
    arguments = spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
    assert "-XX:+ExitOnOutOfMemoryError" in list(arguments)


def test_a_session_that_runs_gives_a_sign_of_life(spark: SparkSession) -> None:
    check_alive(spark)


def test_a_session_that_user_code_has_stopped_gives_none() -> None:
    stopped = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=None))
    with pytest.raises(SparkGone, match="the Spark session was stopped"):
        check_alive(stopped)  # type: ignore[arg-type]
