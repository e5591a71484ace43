"""The embedded log with real Spark: exact reads, bounded batches, exactly-once appends, fencing, and separate histories."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from pyspark.sql.streaming.readwriter import DataStreamWriter

from containers.errors import StateNotLocal
from containers.spark.systems import log_source
from containers.spark.task import StageTask
from sluice.core.ids import Generation, Lineage, RunId, Ssp
from sluice.job import Input, Intermediate, Output
from sluice.streams.log import Record, Writer, partition_of
from tests.spark.conftest import Bench

pytestmark = pytest.mark.spark

IN, MID, OUT = Input("in"), Intermediate("mid", 2), Output("out")


def copy(task: StageTask) -> DataStreamWriter:
    return task.write(task.read(IN).selectExpr("cast(value as string) v"), OUT, value="v")


def route(task: StageTask) -> DataStreamWriter:
    rows = task.read(IN).selectExpr("cast(cast(value as string) as int) n").selectExpr("n", "n % 7 as k")
    return task.write(rows, MID, key="k")


def test_every_record_is_read_once_across_a_restart(bench: Bench) -> None:
    grant = bench.grant("in")
    bench.feed(range(500), batch=0)
    bench.run_until_read(grant, copy)
    bench.feed(range(500, 900), batch=1)
    bench.run_until_read(grant, copy)
    assert sorted(map(int, bench.values("out"))) == list(range(900))


def test_new_partitions_of_a_stream_are_read_from_their_starts_and_replayed_exactly(bench: Bench) -> None:
    grant = bench.grant("in")
    bench.feed(range(100), batch=0)
    bench.run_until_read(grant, copy)
    bench.log.grow("in", 4)
    records = [Record(json.dumps(n).encode(), partition=n % 4) for n in range(100, 300)]
    bench.log.append("in", records, writer=Writer(Lineage("grown"), "feeder", Generation(1)), batch=0, headers=None, now_micros=1)
    bench.log.trim("in", {2: 5})
    longer = replace(grant, starts={**grant.starts, Ssp("log", "in", 2): 5, Ssp("log", "in", 3): 2})
    bench.run_until_read(longer, copy)
    expected = sorted([*range(100), *(n for n in range(100, 300) if n % 4 < 2), *range(122, 300, 4), *range(111, 300, 4)])
    assert sorted(map(int, bench.values("out"))) == expected
    _, committed = bench.batches(grant)
    directory = bench.stores.directory(grant.task, grant.stage)
    (directory / "commits" / str(committed[-1])).unlink()
    bench.log.grow("in", 8)
    longest = replace(longer, starts={**longer.starts, **{Ssp("log", "in", p): 0 for p in (4, 5, 6, 7)}})
    bench.run_until_read(longest, copy)
    assert sorted(map(int, bench.values("out"))) == expected
    assert json.loads((directory / "offsets" / str(committed[-1])).read_text().splitlines()[-1])["in"].keys() == {"0", "1", "2", "3"}


def test_no_batch_reads_more_than_max_rows(bench: Bench) -> None:
    bench.max_rows = 100
    bench.feed(range(450), batch=0)
    query = bench.start(bench.grant("in"), copy)
    query.processAllAvailable()
    sizes = [progress.numInputRows for progress in query.recentProgress]
    assert sum(sizes) == 450
    assert max(sizes) <= 100


def test_the_columns_are_the_same_in_every_system(bench: Bench) -> None:
    rows = bench.task(bench.grant("in")).read(IN)
    assert rows.columns == ["key", "value", "stream", "partition", "offset", "timestamp", "headers"]
    assert rows.isStreaming


def test_a_batch_that_runs_twice_is_in_the_output_once(bench: Bench) -> None:
    grant = bench.grant("in")
    bench.feed(range(100), batch=0)
    bench.run_until_read(grant, copy)
    _, committed = bench.batches(grant)
    (bench.stores.directory(grant.task, grant.stage) / "commits" / str(committed[-1])).unlink()
    (bench.stores.directory(grant.task, grant.stage) / "commits" / f".{committed[-1]}.crc").unlink(missing_ok=True)
    bench.feed(range(100, 150), batch=1)
    bench.run_until_read(grant, copy)
    assert sorted(map(int, bench.values("out"))) == list(range(150))


def test_records_with_the_same_key_share_a_partition_and_rows_are_written_as_json(bench: Bench) -> None:
    bench.feed(range(50), batch=0)
    bench.run_until_read(bench.grant("in"), route)
    seen = 0
    for partition in (0, 1):
        for rows in bench.log.read("mid", partition, 0, 1000):
            for _, _, key, value, _ in rows:
                seen += 1
                assert json.loads(value or b"")["k"] == int(key or b"")
                assert partition_of(key, 2, 0) == partition
    assert seen == 50


def test_an_intermediate_stream_that_has_grown_is_written_only_in_the_partitions_that_tasks_read(bench: Bench) -> None:
    bench.log.grow("mid", 4)
    bench.feed(range(40), batch=0)
    bench.run_until_read(bench.grant("in"), route)
    assert [end > 0 for end in bench.log.latest("mid").values()] == [True, True, False, False]


def test_an_older_generation_cannot_append_and_its_lease_is_lost(bench: Bench) -> None:
    old = bench.grant("in")
    bench.feed(range(10), batch=0)
    bench.run_until_read(old, copy)
    bench.task(replace(old, generation=Generation(2))).fence(["out"])
    bench.feed(range(10, 20), batch=1)
    query = bench.start(old, copy)
    with pytest.raises(Exception, match="generation 1 may not append"):
        query.processAllAvailable()
    assert bench.lost
    assert sorted(map(int, bench.values("out"))) == list(range(10))


def test_records_of_another_history_and_control_records_never_reach_user_code(bench: Bench) -> None:
    bench.feed([1, 2], batch=0, stream="mid", headers={"sluice-run": "origin"})
    bench.feed([3, 4], batch=1, stream="mid", headers={"sluice-run": "another"})
    bench.feed([5, 6], batch=2, stream="mid")
    bench.feed([7, 8], batch=3, stream="mid", headers={"sluice-run": "origin", "sluice-control": "drain"})
    bench.run_until_read(bench.grant("mid"), lambda task: task.write(task.read(MID).selectExpr("cast(value as string) v"), OUT, value="v"))
    assert sorted(bench.values("out")) == ["1", "2"]


def test_records_of_an_earlier_history_whose_state_was_kept_are_read_again(bench: Bench) -> None:
    bench.feed([1, 2], batch=0, stream="mid", headers={"sluice-run": "kept"})
    bench.feed([3, 4], batch=1, stream="mid", headers={"sluice-run": "another"})
    bench.feed([5, 6], batch=2, stream="mid", headers={"sluice-run": "kept", "sluice-control": "drain"})
    bench.feed([7, 8], batch=3, stream="mid", headers={"sluice-run": "origin"})
    grant = replace(bench.grant("mid"), earlier_histories=(RunId("kept"),))
    bench.run_until_read(grant, lambda task: task.write(task.read(MID).selectExpr("cast(value as string) v"), OUT, value="v"))
    assert sorted(bench.values("out")) == ["1", "2", "7", "8"]


def test_a_record_of_this_history_is_recognised_by_one_of_its_headers(bench: Bench) -> None:
    bench.feed([1, 2], batch=0, stream="mid", headers={"sluice-run": "origin", "of-the-user": "x"})
    bench.feed([3, 4], batch=1, stream="mid", headers={"of-the-user": "origin"})
    bench.run_until_read(bench.grant("mid"), lambda task: task.write(task.read(MID).selectExpr("cast(value as string) v"), OUT, value="v"))
    assert sorted(bench.values("out")) == ["1", "2"]


def test_a_stage_reads_what_the_stage_before_it_writes(bench: Bench) -> None:
    bench.feed(range(30), batch=0)
    bench.run_until_read(bench.grant("in", stage="one"), route)
    second = bench.grant("mid", stage="two", lineage="6f0c9a52-3f5b-4e58-9c53-0d8e7a1f3b02")
    bench.run_until_read(second, lambda task: task.write(task.read(MID).selectExpr("cast(value as string) v"), OUT, value="v"))
    assert sorted(json.loads(value)["n"] for value in bench.values("out")) == list(range(30))


def test_fencing_returns_the_last_batch_that_the_lineage_wrote(bench: Bench) -> None:
    grant = bench.grant("in")
    bench.feed(range(10), batch=0)
    bench.run_until_read(grant, copy)
    planned, _ = bench.batches(grant)
    assert bench.task(grant).fence(["out", "mid"]) == planned[-1]
    assert bench.task(replace(grant, lineage=Lineage("fresh"))).fence(["out"]) == -1


def test_a_checkpoint_without_the_reported_batch_is_refused(bench: Bench) -> None:
    grant = bench.grant("in")
    bench.feed(range(10), batch=0)
    bench.run_until_read(grant, copy)
    planned, _ = bench.batches(grant)
    with pytest.raises(StateNotLocal, match="ends at batch 0"):
        bench.stores.prepare(grant.task, grant.stage, grant.lineage, planned[-1] + 1)


def test_readers_do_not_share_spark_s_state_of_a_data_source(bench: Bench) -> None:
    """Spark modifies this state from the threads of all queries that share it. It is corrupted when they start at the same time."""
    manager = bench.spark._jsparkSession.sessionState().dataSourceManager()
    jvm = bench.spark._jvm
    assert jvm is not None
    identity = jvm.java.lang.System.identityHashCode
    names = {
        log_source.register(bench.spark, reader) for reader in ("job/Partition 0/a/in", "job/Partition 0/b/in", "job/Partition 1/a/in")
    }
    kept = {identity(manager.lookupDataSource(name).dataSourceCls().envVars()) for name in names}
    assert len(names) == len(kept) == 3


def test_queries_that_start_at_once_all_read_everything(bench: Bench) -> None:
    bench.feed(range(100), batch=0)
    grants = [bench.grant("in", stage=f"stage{n}", lineage=f"6f0c9a52-3f5b-4e58-9c53-0d8e7a1f3c{n:02}") for n in range(3)]
    with ThreadPoolExecutor(len(grants)) as threads:
        for query in list(threads.map(lambda grant: bench.start(grant, copy), grants)):
            query.processAllAvailable()
    assert sorted(map(int, bench.values("out"))) == sorted(list(range(100)) * len(grants))
