"""The queries of all sessions of a JVM: found, read, and stopped between batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread, Timer
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from containers.spark.scripts.active_queries import ActiveQueries, ActiveQuery, process_of_jvm, stop_all
from tests.support.processes import wait_for

pytestmark = pytest.mark.spark

SOON = timedelta(seconds=60)


class Script:
    """Queries over one session, as a script starts them."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.root = root
        self.checkpoints = root / "checkpoints"
        self.started: list[StreamingQuery] = []
        (root / "in").mkdir()

    def feed(self, name: str, rows: int = 3) -> None:
        part = self.root / "in" / f".{name}"
        part.write_text("".join(f"{n}\n" for n in range(rows)))
        part.rename(part.with_name(name))

    def start(self, name: str, batch: Callable[[DataFrame, int], None], **trigger: Any) -> StreamingQuery:
        lines = self.spark.readStream.text(str(self.root / "in"))
        writer = lines.writeStream.foreachBatch(batch).option("checkpointLocation", str(self.checkpoints / name))
        self.started.append((writer.trigger(**trigger) if trigger else writer).start())
        return self.started[-1]

    def batches(self, name: str, kind: str) -> list[str]:
        return sorted(each.name for each in (self.checkpoints / name / kind).iterdir() if each.name.isdigit())


@contextmanager
def script(spark: SparkSession, root: Path) -> Iterator[Script]:
    made = Script(spark.newSession(), root)
    yield made
    for query in made.started:
        query.stop()


@pytest.fixture
def orders(spark: SparkSession, tmp_path: Path) -> Iterator[Script]:
    with script(spark, tmp_path) as made:
        yield made


def found(queries: ActiveQueries, script: Script, *names: str) -> list[ActiveQuery]:
    """The active queries of the script with these checkpoint names, as soon as all are active."""

    def look() -> list[ActiveQuery] | None:
        active = {each.checkpoint.rpartition("/")[2]: each for each in queries.find() if str(script.root) in each.checkpoint}
        return [active[name] for name in names] if active.keys() >= set(names) else None

    return wait_for(f"queries {names}", look)


def nothing(rows: DataFrame, batch: int) -> None:
    rows.collect()


def test_queries_of_another_session_are_found_and_their_batches_read_once(spark: SparkSession, orders: Script) -> None:
    orders.feed("one")
    query = orders.start("counts", nothing)
    queries = ActiveQueries(spark)
    (counts,) = found(queries, orders, "counts")
    query.processAllAvailable()
    assert (counts.id, counts.run_id) == (query.id, query.runId)
    first = wait_for("the first batch", lambda: [each for each in counts.new_progress() if each is not None])
    assert [(each.batch, each.rows) for each in first] == [(0, 3)]
    orders.feed("two", rows=5)
    query.processAllAvailable()
    second = wait_for("the second batch", lambda: [each for each in counts.new_progress() if each is not None])
    assert [(each.batch, each.rows) for each in second] == [(1, 5)]
    query.stop()
    wait_for("the end of the query", lambda: not [each for each in queries.find() if each.run_id == query.runId])


def test_a_failed_query_has_its_error(spark: SparkSession, orders: Script) -> None:
    def fails(rows: DataFrame, batch: int) -> None:
        raise ValueError("no such currency")

    orders.feed("one")
    go = Event()

    def batch(rows: DataFrame, batch: int) -> None:
        assert go.wait(60)
        fails(rows, batch)

    query = orders.start("counts", batch)
    (counts,) = found(ActiveQueries(spark), orders, "counts")
    assert counts.error is None
    go.set()
    with pytest.raises(StreamingQueryException):
        query.awaitTermination(60)
    assert "no such currency" in str(counts.error)


def test_all_queries_are_held_before_the_first_of_them_ends(spark: SparkSession, orders: Script) -> None:
    """A script that waits for any query may end when one of them has ended. No batch of another query may run at that time."""
    begun, go, events = Event(), Event(), list[str]()

    def slow(rows: DataFrame, batch: int) -> None:
        begun.set()
        assert go.wait(60)
        events.append("the batch has ended")

    orders.feed("one")
    orders.start("slow", slow)
    orders.start("quick", nothing)
    slow_query, quick_query = found(ActiveQueries(spark), orders, "slow", "quick")
    assert begun.wait(60)

    def await_any() -> None:
        orders.spark.streams.awaitAnyTermination()
        events.append("a query has ended")

    waiting = Thread(target=await_any)
    waiting.start()
    interrupted: list[ActiveQuery] = []
    stopping = Thread(target=lambda: interrupted.extend(stop_all([quick_query, slow_query], SOON, Event())))
    stopping.start()
    sources = quick_query.query._jsq.streamingQuery()
    wait_for("the quick query to be held", lambda: "gate" in str(sources.uniqueSources().toString()))
    assert events == []
    go.set()
    stopping.join(60)
    waiting.join(60)
    assert events == ["the batch has ended", "a query has ended"]
    assert interrupted == []
    for name in ("slow", "quick"):
        assert orders.batches(name, "offsets") == orders.batches(name, "commits")
    assert not any(query.isActive for query in orders.started)
    assert [query.exception() for query in orders.started] == [None, None]


def test_no_batch_without_data_follows_a_stop(spark: SparkSession, orders: Script) -> None:
    """The first batch moves the watermark, so Spark would run another one, which closes windows."""
    begun, go = Event(), Event()

    def slow(rows: DataFrame, batch: int) -> None:
        rows.collect()
        begun.set()
        assert go.wait(60)

    orders.feed("one")
    seconds = orders.spark.readStream.text(str(orders.root / "in")).select(F.col("value").cast("long").cast("timestamp").alias("time"))
    counts = seconds.withWatermark("time", "0 seconds").groupBy("time").count()
    query = counts.writeStream.foreachBatch(slow).option("checkpointLocation", str(orders.checkpoints / "counts")).start()
    orders.started.append(query)
    assert begun.wait(60)
    stopping = Thread(target=stop_all, args=(found(ActiveQueries(spark), orders, "counts"), SOON, Event()))
    stopping.start()
    execution = query._jsq.streamingQuery()
    wait_for("the query to be held", lambda: "gate" in str(execution.uniqueSources().toString()))
    go.set()
    stopping.join(60)
    assert not query.isActive
    assert orders.batches("counts", "commits") == orders.batches("counts", "offsets") == ["0"]


def test_a_batch_that_takes_too_long_is_interrupted_and_named(spark: SparkSession, orders: Script) -> None:
    begun, go = Event(), Event()

    def slow(rows: DataFrame, batch: int) -> None:
        begun.set()
        assert go.wait(60)

    orders.feed("one")
    orders.start("slow", slow)
    (query,) = found(ActiveQueries(spark), orders, "slow")
    assert begun.wait(60)
    Timer(1, go.set).start()  # Spark waits for the function of an interrupted batch
    assert stop_all([query], timedelta(0), Event()) == [query]
    assert not query.query.isActive


@pytest.mark.parametrize("trigger", [{"processingTime": "1 hour"}, {"availableNow": True}])
def test_queries_with_other_triggers_stop_between_batches(spark: SparkSession, orders: Script, trigger: dict[str, object]) -> None:
    begun, go = Event(), Event()

    def slow(rows: DataFrame, batch: int) -> None:
        begun.set()
        assert go.wait(60)

    orders.feed("one")
    query = orders.start("slow", slow, **trigger)
    active = found(ActiveQueries(spark), orders, "slow")
    assert begun.wait(60)
    stopping = Thread(target=stop_all, args=(active, SOON, Event()))
    stopping.start()
    go.set()
    stopping.join(60)
    assert not query.isActive
    assert orders.batches("slow", "offsets") == orders.batches("slow", "commits") == ["0"]


def test_the_process_of_the_jvm_is_known(spark: SparkSession) -> None:
    assert Path(f"/proc/{process_of_jvm(spark)}/comm").read_text().strip() == "java"
