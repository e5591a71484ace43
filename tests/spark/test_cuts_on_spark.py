"""Frozen copies of a running stateful query: Spark continues from each one, with exactly the rows of its batches."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from containers.spark.task import StageTask
from containers.state.checkpoint import inspect
from containers.state.commits.freeze import FrozenCheckpoint, changelog_chain_of, freeze, needed
from containers.state.commits.upload import CommitSettings
from sluice.core.ids import StageName
from sluice.job import Input
from tests.spark.conftest import Bench
from tests.support.fakes import FakeClock
from tests.support.memory import MemoryBlobs
from tests.support.trees import Place

pytestmark = pytest.mark.spark

IN = Input("in")
BATCHES = 16
RESTARTS = 5
KEYS = 5


class Totals:
    """The state: the count of each key, as of the last batch that ran."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}
        self.batches: list[int] = []
        self.batch_done = Event()

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        self.seen |= {row["key"]: row["count"] for row in batch.collect()}
        self.batches.append(batch_id)
        self.batch_done.set()

    def stage(self, task: StageTask) -> DataStreamWriter:
        rows = task.read(IN).select((F.col("value").cast("string").cast("int") % KEYS).alias("key"))
        return rows.groupBy("key").count().writeStream.outputMode("update").foreachBatch(self)


def small_snapshots(bench: Bench) -> Callable[[], None]:
    """Let Spark write its .zip files and delete old files as often as possible. Restores the settings at the end."""
    wanted = {
        "spark.sql.streaming.stateStore.minDeltasForSnapshot": "2",
        "spark.sql.streaming.stateStore.maintenanceInterval": "100ms",
        "spark.sql.streaming.minBatchesToRetain": "2",
        "spark.sql.shuffle.partitions": "2",
    }
    former = {name: bench.spark.conf.get(name, None) for name in wanted}
    for name, value in wanted.items():
        bench.spark.conf.set(name, value)

    def put_back() -> None:
        for name, value in former.items():
            if value is None:
                bench.spark.conf.unset(name)
            else:
                bench.spark.conf.set(name, value)

    return put_back


def counted(up_to: int) -> dict[int, int]:
    """The totals after the numbers below `up_to` were read."""
    return {key: len(range(key, up_to, KEYS)) for key in range(KEYS)}


def read_until(cut: FrozenCheckpoint) -> int:
    """The number of records that the batches of the frozen copy read, by the last offset-log entry."""
    plan = (cut.directory / "offsets" / str(cut.batch)).read_text()
    return sum(json.loads(plan.splitlines()[2]).get("in", {}).values())


@pytest.fixture
def small(bench: Bench) -> object:
    put_back = small_snapshots(bench)
    yield
    put_back()


def copies_of_a_running_query(bench: Bench, into: Path) -> list[FrozenCheckpoint]:
    """About one frozen copy after each batch while the query runs. The first one may have been made before there was any state."""
    bench.max_rows = 10
    totals, grant = Totals(), bench.grant("in")
    bench.feed(range(10), batch=0)
    query = bench.start(grant, totals.stage, trigger=0.05)
    cuts = []
    for number in range(1, BATCHES):
        assert totals.batch_done.wait(60)
        totals.batch_done.clear()
        bench.feed(range(number * 10, number * 10 + 10), batch=number)
        cuts.append(freeze(bench.stores.directory(grant.task, grant.stage), into / str(number)))
    query.processAllAvailable()
    assert bench.stop(query)
    assert totals.seen == counted(BATCHES * 10)
    found = [cut for cut in cuts if cut.batch is not None]
    assert len(found) > BATCHES / 2
    return found


def some(cuts: list[FrozenCheckpoint]) -> list[FrozenCheckpoint]:
    """Frozen copies of different batches, among them the first and the last."""
    distinct = list({cut.batch: cut for cut in cuts}.values())
    return [distinct[place * (len(distinct) - 1) // (RESTARTS - 1)] for place in range(RESTARTS)]


def continues_from(bench: Bench, directory: Path, name: str) -> Totals:
    """Start a query on a copy of the directory, and let it read the rest in one batch."""
    bench.max_rows = 1000
    grant = replace(bench.grant("in"), stage=StageName(name))
    copy = bench.stores.directory(grant.task, grant.stage)
    shutil.copytree(directory, copy)
    found = inspect(copy)
    assert found is not None
    totals = Totals()
    bench.run_until_read(replace(grant, lineage=found.lineage), totals.stage)
    return totals


def check_the_rest(totals: Totals, cut: FrozenCheckpoint) -> None:
    """The totals of a query that has read the rest of the input from a frozen copy."""
    assert cut.batch is not None
    if read_until(cut) < BATCHES * 10:
        assert totals.batches[0] == cut.batch + 1
    assert counted(BATCHES * 10).items() >= totals.seen.items(), f"cut at batch {cut.batch}"
    assert len(totals.seen) == KEYS or read_until(cut) == BATCHES * 10


@pytest.mark.long  # as the next one, from more copies
def test_a_query_continues_exactly_from_every_frozen_copy_of_a_running_query(bench: Bench, tmp_path: Path, small: object) -> None:
    (tmp_path / "cuts").mkdir()
    cuts = copies_of_a_running_query(bench, tmp_path / "cuts")
    zips = [cut for cut in cuts if list(cut.directory.glob("state/**/*.zip"))]
    assert zips, "the cuts are of all kinds"
    for cut in some(cuts):
        check_the_rest(continues_from(bench, cut.directory, f"cut-{cut.batch}"), cut)


async def test_a_query_continues_exactly_from_a_frozen_copy_that_was_backed_up_and_restored(
    bench: Bench, tmp_path: Path, small: object
) -> None:
    (tmp_path / "cuts").mkdir()
    cuts = copies_of_a_running_query(bench, tmp_path / "cuts")
    clock = FakeClock()
    place = Place(tmp_path / "place", MemoryBlobs(clock), CommitSettings(), clock=clock)
    markers = []
    for cut in some(cuts):
        marker, index = await place.uploader.upload(cut, place.checkpoint(cut.batch or 0), bench.grant("in").generation)
        place.uploader.reported(marker, index)
        markers.append((marker, cut))
    for marker, cut in markers[::-2]:
        await place.restore(marker.index)
        check_the_rest(continues_from(bench, place.store, f"restored-{cut.batch}"), cut)


def test_the_changelogs_of_spark_name_the_versions_they_build_upon(bench: Bench) -> None:
    totals, grant = Totals(), bench.grant("in")
    bench.max_rows = 10
    bench.feed(range(40), batch=0)
    bench.run_until_read(grant, totals.stage)
    directory = bench.stores.directory(grant.task, grant.stage)
    batch = max(int(each.name) for each in (directory / "commits").iterdir() if each.name.isdigit())
    (need,) = needed(batch, (directory / f"commits/{batch}").read_text())
    state = directory / need.directory
    lineage = changelog_chain_of((state / need.version.changelog).read_bytes())
    assert [each.number for each in lineage] == list(range(1, batch + 1))
    assert all((state / each.changelog).exists() for each in lineage)
