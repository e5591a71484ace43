"""`app.batch_context()`: a sink that keeps lineage, number and generation with its rows has each row once."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from threading import Thread

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from containers.attached.app import App
from containers.attached.batch_context import BatchContext, NoBatch
from containers.attached.port import NotGranted
from sluice.clock import SystemClock
from sluice.core.ids import JobName
from tests.attached.test_active_queries import Script, script
from tests.attached.test_attached_app import ScriptAgent

pytestmark = pytest.mark.spark


class Superseded(Exception):
    """A later start of the script has written."""


class Sink:
    """A table with rows, and a table with the last batch, in one database."""

    def __init__(self, file: Path) -> None:
        self._file = file
        with self._connect() as connection:
            connection.execute("CREATE TABLE rows (value TEXT)")
            connection.execute("CREATE TABLE marker (lineage TEXT, batch INT, generation INT)")

    def write(self, context: BatchContext, values: list[str]) -> None:
        with self._connect() as connection:
            connection.execute("BEGIN IMMEDIATE")
            lineage, batch, generation = connection.execute("SELECT * FROM marker").fetchone() or ("", -1, 0)
            if generation > context.generation:
                raise Superseded(f"generation {generation} has written")
            if lineage == context.lineage and batch >= context.batch:
                return
            connection.executemany("INSERT INTO rows VALUES (?)", [(value,) for value in values])
            connection.execute("DELETE FROM marker")
            connection.execute("INSERT INTO marker VALUES (?, ?, ?)", (context.lineage, context.batch, context.generation))

    def values(self) -> list[str]:
        with closing(self._connect()) as connection:
            return [value for (value,) in connection.execute("SELECT value FROM rows ORDER BY value")]

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._file, timeout=60)


@pytest.fixture
def orders(spark: SparkSession, tmp_path: Path) -> Iterator[Script]:
    with script(spark, tmp_path) as made:
        yield made


@pytest.fixture
def grant(spark: SparkSession) -> Iterator[Callable[[int], App]]:
    """Starts an attached script under a generation."""
    made: list[ScriptAgent] = []

    def start(generation: int) -> App:
        made.append(ScriptAgent(spark))
        made[-1].grant(generation)
        return made[-1].app

    yield start
    for each in made:
        each.app.close()
        each.close()


def test_a_batch_that_was_written_before_its_script_died_is_not_written_again(
    orders: Script, tmp_path: Path, grant: Callable[[int], App]
) -> None:
    """The script dies between the write and the commit of a batch, and is started again, while a former start writes once more."""
    sink, contexts = Sink(tmp_path / "sink.db"), list[BatchContext]()

    def writing(app: App, dies: bool) -> Callable[[DataFrame, int], None]:
        def write(rows: DataFrame, number: int) -> None:
            context = app.batch_context()
            assert context.batch == number
            contexts.append(context)
            sink.write(context, [row.value for row in rows.collect()])
            if dies:
                raise RuntimeError("the script dies")

        return write

    orders.feed("one", rows=2)
    first = orders.start("counts", writing(grant(3), dies=True))
    with pytest.raises(StreamingQueryException):
        first.awaitTermination(60)
    orders.feed("two", rows=3)
    second = orders.start("counts", writing(grant(4), dies=False))
    second.processAllAvailable()
    second.stop()
    assert contexts == [BatchContext(first.id, 0, 3), BatchContext(first.id, 0, 4), BatchContext(first.id, 1, 4)]
    assert contexts[0].txn_id == contexts[1].txn_id == f"{first.id}/0"
    assert sink.values() == ["0", "0", "1", "1", "2"]
    with pytest.raises(Superseded):
        sink.write(contexts[0], ["late"])


def test_queries_that_run_at_the_same_time_have_contexts_of_their_own(orders: Script, grant: Callable[[int], App]) -> None:
    app, found = grant(3), dict[str, list[BatchContext]]()

    def reading(name: str) -> Callable[[DataFrame, int], None]:
        return lambda rows, number: found.setdefault(name, []).append(app.batch_context())

    orders.feed("one")
    queries = {name: orders.start(name, reading(name)) for name in ("counts", "totals")}
    for query in queries.values():
        query.processAllAvailable()
    assert found == {name: [BatchContext(query.id, 0, 3)] for name, query in queries.items()}


def test_outside_of_a_batch_there_is_no_context(orders: Script, grant: Callable[[int], App]) -> None:
    app, refused = grant(3), list[bool]()

    def ask() -> None:
        with pytest.raises(NoBatch):
            app.batch_context()
        refused.append(True)

    def in_a_thread_of_its_own(rows: DataFrame, number: int) -> None:
        thread = Thread(target=ask)
        thread.start()
        thread.join()

    ask()
    orders.feed("one")
    orders.start("counts", in_a_thread_of_its_own).processAllAvailable()
    assert refused == [True, True]


def test_a_script_without_a_coordinator_has_no_generation(spark: SparkSession) -> None:
    app = App(spark, JobName("orders"), (), SystemClock(), timedelta(seconds=60))
    with pytest.raises(NotGranted, match="without a coordinator"):
        app.batch_context()
