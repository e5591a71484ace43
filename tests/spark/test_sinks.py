"""The sinks of examples/sinks write each row once, wherever the container is killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from containers.spark.systems.port import Grant
from containers.spark.task import StageTask
from examples.sinks.files import one_file_a_batch
from examples.sinks.postgres import MARKERS, insert_once, upsert
from sluice.core.ids import Generation
from sluice.job import Input
from tests.spark.conftest import Bench
from tests.support.servers import Postgres

pytestmark = pytest.mark.spark

IN = Input("in")
Function = Callable[[DataFrame, int], None]


class Killed(Exception):
    """Simulates the end of the process."""


def killed_after(function: Function, batch: int) -> Function:
    """The batch is written, and not committed."""

    def write(rows: DataFrame, number: int) -> None:
        function(rows, number)
        if number == batch:
            raise Killed

    return write


def killed_before(function: Function, batch: int) -> Function:
    """The batch is planned, and not written."""

    def write(rows: DataFrame, number: int) -> None:
        if number == batch:
            raise Killed
        function(rows, number)

    return write


def run(bench: Bench, grant: Grant, sink: Callable[[StageTask], Function], kill: Callable[[Function], Function] | None = None) -> None:
    """Let the stage read everything, after a first run that is killed."""

    def stage(task: StageTask) -> DataStreamWriter:
        numbers = task.read(IN).select(F.col("value").cast("string").cast("long").alias("number"))
        write = sink(task)
        return task.foreach_batch(numbers, write if kill is None else kill(write))

    if kill is None:
        bench.run_until_read(grant, stage)
        return
    query = bench.start(grant, stage)
    with pytest.raises(StreamingQueryException):
        query.processAllAvailable()


def fetch(url: str, *statements: str) -> list[Any]:
    """Execute the statements; the rows of the last one."""

    async def execute() -> list[Any]:
        connection = await asyncpg.connect(url)
        try:
            for statement in statements[:-1]:
                await connection.execute(statement)
            return [tuple(row) for row in await connection.fetch(statements[-1])]
        finally:
            await connection.close()

    return asyncio.run(execute())


@pytest.fixture
def database(postgres_server: Postgres) -> str:
    return postgres_server.new_database().replace("+asyncpg", "")


@pytest.mark.parametrize("kill", [killed_before, killed_after])
def test_rows_and_a_marker_in_one_transaction_are_in_postgresql_once(
    bench: Bench, database: str, kill: Callable[[Function, int], Function]
) -> None:
    fetch(database, MARKERS, "CREATE TABLE numbers (number bigint)", "SELECT 1")

    def sink(task: StageTask) -> Function:
        return insert_once(task, f"job/stage/{task.name}", database, "numbers")

    bench.feed(range(10), 0)
    run(bench, bench.grant("in"), sink, lambda function: kill(function, 0))
    bench.feed(range(10, 20), 1)
    run(bench, bench.grant("in"), sink)
    assert fetch(database, "SELECT number FROM numbers ORDER BY number") == [(number,) for number in range(20)]


def test_a_former_owner_of_the_task_adds_no_row_to_postgresql(bench: Bench, spark: SparkSession, database: str) -> None:
    fetch(database, MARKERS, "CREATE TABLE numbers (number bigint)", "SELECT 1")
    rows, grant = spark.range(3).withColumnRenamed("id", "number"), bench.grant("in")
    present, former = bench.task(replace(grant, generation=Generation(2))), bench.task(grant)
    insert_once(present, "writer", database, "numbers")(rows, 0)
    with pytest.raises(Exception, match="under generation 2"):
        insert_once(former, "writer", database, "numbers")(rows, 1)
    assert fetch(database, "SELECT count(*) FROM numbers") == [(3,)]


def test_an_upsert_leaves_the_newest_row_of_each_key_in_postgresql(bench: Bench, database: str) -> None:
    fetch(database, "CREATE TABLE totals (number bigint PRIMARY KEY, generation bigint, batch bigint)", "SELECT 1")

    def sink(task: StageTask) -> Function:
        return upsert(task, database, "totals", "number")

    bench.feed([1, 2, 3], 0)
    run(bench, bench.grant("in"), sink, lambda function: killed_after(function, 0))
    bench.feed([3, 4], 1)
    run(bench, bench.grant("in", generation=2), sink)
    found = fetch(database, "SELECT number, generation FROM totals ORDER BY number")
    assert found == [(1, 2), (2, 2), (3, 2), (4, 2)], "the batch that ran again was written by the second owner, with the same rows"


def test_an_upsert_of_a_former_owner_replaces_no_later_row(bench: Bench, spark: SparkSession, database: str) -> None:
    fetch(database, "CREATE TABLE totals (number bigint PRIMARY KEY, total bigint, generation bigint, batch bigint)", "SELECT 1")
    grant = bench.grant("in")
    present, former = bench.task(replace(grant, generation=Generation(2))), bench.task(grant)
    upsert(present, database, "totals", "number")(spark.createDataFrame([(1, 20)], "number long, total long"), 7)
    upsert(former, database, "totals", "number")(spark.createDataFrame([(1, 10), (2, 10)], "number long, total long"), 8)
    assert fetch(database, "SELECT number, total FROM totals ORDER BY number") == [(1, 20), (2, 10)]


def test_a_file_for_each_batch_has_each_row_once(bench: Bench, spark: SparkSession, tmp_path: Path) -> None:
    directory = tmp_path / "files"
    directory.mkdir()
    (directory / ".left-over.parquet.1").write_bytes(b"PAR1")
    bench.feed(range(10), 0)
    run(bench, bench.grant("in"), lambda task: one_file_a_batch(task, directory), lambda function: killed_after(function, 0))
    bench.feed(range(10, 20), 1)
    run(bench, bench.grant("in"), lambda task: one_file_a_batch(task, directory))
    assert sorted(row.number for row in spark.read.parquet(str(directory)).collect()) == list(range(20))
