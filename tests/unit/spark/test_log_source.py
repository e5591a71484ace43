from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from containers.errors import OffsetsTrimmed
from containers.spark.systems.log_source import LogStreamReader, Slice
from containers.state.offsets.offsetlog import advance
from sluice.core.errors import UnknownStream
from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Log, Record, Writer

positions = st.dictionaries(st.integers(0, 9), st.integers(0, 1000), max_size=8)
budgets = st.integers(0, 2000)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = Log(tmp_path)
    log.create("s", 3)
    return log


def put(log: Log, batch: int, records: list[Record], headers: Mapping[str, str] | None = None, micros: int = 0) -> None:
    log.append("s", records, writer=Writer(Lineage("l"), "o", Generation(1)), batch=batch, headers=headers, now_micros=micros)


def fill(log: Log, *counts: int, batch: int = 0) -> None:
    put(log, batch, [Record(f"{p}/{n}".encode(), partition=p) for p, count in enumerate(counts) for n in range(count)])


def reader(log: Log, starts: Mapping[int, int], **options: str) -> LogStreamReader:
    return LogStreamReader({"path": str(log.directory), "stream": "s", "starts": json.dumps(starts), **options})


def rows(source: LogStreamReader, *slices: Slice) -> list[dict[str, Any]]:
    return [row for each in slices for batch in source.read(each) for row in batch.to_pylist()]


# --- how far a batch goes --------------------------------------------------------------------------------------------


@given(positions, positions, st.none() | budgets)
def test_a_batch_stays_between_where_it_starts_and_what_is_there(start: dict[int, int], latest: dict[int, int], budget: int | None) -> None:
    end = advance(start, latest, budget)
    assert end.keys() == start.keys()
    assert all(start[p] <= end[p] <= max(start[p], latest.get(p, start[p])) for p in start)


@given(positions, positions, budgets)
def test_a_batch_uses_all_of_its_budget_or_reads_everything(start: dict[int, int], latest: dict[int, int], budget: int) -> None:
    waiting = sum(max(0, latest.get(p, low) - low) for p, low in start.items())
    assert sum(advance(start, latest, budget).values()) - sum(start.values()) == min(budget, waiting)


@given(positions, positions, budgets)
def test_every_partition_gets_its_even_share_however_long_the_queue_of_another(
    start: dict[int, int], latest: dict[int, int], budget: int
) -> None:
    waiting = {p: latest[p] - low for p, low in start.items() if latest.get(p, low) > low}
    end = advance(start, latest, budget)
    assert all(end[p] - start[p] >= min(count, budget // len(waiting)) for p, count in waiting.items())


@given(positions, positions)
def test_without_a_budget_a_batch_reads_everything(start: dict[int, int], latest: dict[int, int]) -> None:
    assert advance(start, latest, None) == {p: max(low, latest.get(p, low)) for p, low in start.items()}


def test_a_slow_partition_beside_an_endless_backlog_is_read_whole() -> None:
    assert advance({0: 0, 1: 5}, {0: 1_000_000, 1: 6}, 10) == {0: 9, 1: 6}


# --- offsets ---------------------------------------------------------------------------------------------------------


def test_the_first_offsets_are_those_that_the_acquire_gave(log: Log) -> None:
    assert reader(log, {2: 7, 0: 3}).initialOffset() == {"s": {"0": 3, "2": 7}}


def test_rows_are_bounded_as_the_options_say(log: Log) -> None:
    limit = reader(log, {0: 0}, maxRows="5").getDefaultReadLimit()
    assert isinstance(limit, ReadMaxRows)
    assert limit.max_rows == 5
    assert isinstance(reader(log, {0: 0}).getDefaultReadLimit(), ReadAllAvailable)


def test_the_latest_offsets_are_bounded_by_the_limit(log: Log) -> None:
    fill(log, 10, 10, 10)
    source = reader(log, {0: 0, 1: 4})
    assert source.latestOffset({"s": {"0": 0, "1": 4}}, ReadMaxRows(6)) == {"s": {"0": 3, "1": 7}}
    assert source.latestOffset({"s": {"0": 0, "1": 4}}, ReadAllAvailable()) == {"s": {"0": 10, "1": 10}}


def test_the_latest_offsets_continue_from_where_spark_is_and_not_from_the_options(log: Log) -> None:
    fill(log, 10)
    assert reader(log, {0: 0}).latestOffset({"s": {"0": 8}}, ReadMaxRows(1)) == {"s": {"0": 9}}


def test_nothing_new_gives_the_same_offsets_so_that_no_batch_is_made(log: Log) -> None:
    fill(log, 2, 3)
    assert reader(log, {0: 0, 1: 0}).latestOffset({"s": {"0": 2, "1": 3}}, ReadMaxRows(5)) == {"s": {"0": 2, "1": 3}}


def test_a_partition_that_the_checkpoint_does_not_know_begins_at_its_start(log: Log) -> None:
    fill(log, 2, 3, 4)
    assert reader(log, {0: 0, 2: 1}).latestOffset({"s": {"0": 2}}, ReadMaxRows(2)) == {"s": {"0": 2, "2": 3}}


def test_the_lag_of_a_query_is_known(log: Log) -> None:
    fill(log, 2, 3)
    assert reader(log, {0: 0, 1: 0}, maxRows="1").reportLatestOffset() == {"s": {"0": 2, "1": 3}}


def test_a_deleted_stream_is_an_error(log: Log) -> None:
    source = LogStreamReader({"path": str(log.directory), "stream": "lost", "starts": '{"0": 0}'})
    with pytest.raises(UnknownStream, match="'lost'"):
        source.latestOffset({"lost": {"0": 0}}, ReadMaxRows(1))


# --- slices ----------------------------------------------------------------------------------------------------------


def spans(source: LogStreamReader, start: Mapping[str, int], end: Mapping[str, int]) -> list[tuple[int, int, int]]:
    return [(s.partition, s.start, s.end) for s in source.partitions({"s": dict(start)}, {"s": dict(end)})]


def test_a_batch_is_planned_from_the_given_offsets_and_never_from_the_options(log: Log) -> None:
    fill(log, 10, 10)
    assert spans(reader(log, {0: 9, 2: 0}, maxRows="1"), {"0": 2, "1": 3}, {"0": 5, "1": 10}) == [(0, 2, 5), (1, 3, 10)]


def test_a_partition_without_new_records_has_no_slice(log: Log) -> None:
    assert spans(reader(log, {0: 0, 1: 0}), {"0": 4, "1": 4}, {"0": 4, "1": 5}) == [(1, 4, 5)]


def test_a_long_stretch_is_cut_into_slices_without_a_gap(log: Log) -> None:
    assert spans(reader(log, {0: 0}), {"0": 7}, {"0": 120_007}) == [(0, 7, 50_007), (0, 50_007, 100_007), (0, 100_007, 120_007)]


def test_a_partition_new_in_a_batch_is_read_from_its_beginning(log: Log) -> None:
    fill(log, 4, 4)
    log.trim("s", {1: 2})
    assert spans(reader(log, {0: 0}), {"0": 4}, {"0": 4, "1": 4}) == [(1, 2, 4)]


def test_a_partition_new_in_a_batch_is_read_from_its_start_and_stops_the_query_when_that_is_gone(log: Log) -> None:
    fill(log, 4, 4)
    assert spans(reader(log, {0: 0, 1: 3}), {"0": 4}, {"0": 4, "1": 4}) == [(1, 3, 4)]
    log.trim("s", {1: 2})
    with pytest.raises(OffsetsTrimmed, match="log stream s partition 1: records 1 to 2 are needed"):
        spans(reader(log, {0: 0, 1: 1}), {"0": 4}, {"0": 4, "1": 4})


def test_records_that_were_trimmed_before_they_were_read_stop_the_query(log: Log) -> None:
    fill(log, 10)
    log.trim("s", {0: 6})
    with pytest.raises(OffsetsTrimmed, match="log stream s partition 0: records 5 to 6 are needed"):
        spans(reader(log, {0: 0}), {"0": 5}, {"0": 8})


def test_trimmed_records_that_were_read_before_are_not_lost(log: Log) -> None:
    fill(log, 10)
    log.trim("s", {0: 6})
    assert spans(reader(log, {0: 0}), {"0": 6}, {"0": 8}) == [(0, 6, 8)]
    assert spans(reader(log, {0: 0}), {"0": 3}, {"0": 3}) == []


# --- records ---------------------------------------------------------------------------------------------------------


def test_a_slice_yields_every_column_of_its_records(log: Log) -> None:
    put(log, 0, [Record(b"v0", key=b"k", partition=1), Record(None, partition=1)], {"sluice-run": "r", "a": "\u00e4"}, micros=1_500_000)
    first, second = rows(reader(log, {1: 0}), Slice(1, 0, 2))
    assert first == {
        "key": b"k",
        "value": b"v0",
        "stream": "s",
        "partition": 1,
        "offset": 0,
        "timestamp": datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC),
        "headers": [{"key": "a", "value": "\u00e4".encode()}, {"key": "sluice-run", "value": b"r"}],
    }
    assert (second["key"], second["value"], second["offset"]) == (None, None, 1)


def test_a_slice_yields_its_own_records_only(log: Log) -> None:
    fill(log, 5, 5)
    assert [row["value"] for row in rows(reader(log, {0: 0, 1: 0}), Slice(1, 2, 4))] == [b"1/2", b"1/3"]


def test_each_record_keeps_its_own_headers(log: Log) -> None:
    for batch, headers in enumerate([{"n": "1"}, {}, {"n": "2"}, {"n": "1"}]):
        put(log, batch, [Record(b"v", partition=0)], headers)
    found = [[(h["key"], h["value"]) for h in row["headers"]] for row in rows(reader(log, {0: 0}), Slice(0, 0, 4))]
    assert found == [[("n", b"1")], [], [("n", b"2")], [("n", b"1")]]


def test_headers_of_records_beyond_the_first_chunk_are_found(log: Log) -> None:
    put(log, 0, [Record(b"v", partition=0)] * 10_000, {"n": "1"})
    put(log, 1, [Record(b"v", partition=0)], {"n": "2"})
    assert [h["value"] for h in rows(reader(log, {0: 0}), Slice(0, 0, 10_001))[-1]["headers"]] == [b"2"]


def test_slices_together_yield_every_record_once(log: Log) -> None:
    fill(log, 30, 0, 12)
    source = reader(log, {0: 0, 1: 0, 2: 0})
    slices = source.partitions(source.initialOffset(), source.latestOffset(source.initialOffset(), ReadAllAvailable()))
    assert sorted(row["value"] for row in rows(source, *slices)) == sorted(
        f"{p}/{n}".encode() for p, c in ((0, 30), (2, 12)) for n in range(c)
    )


@pytest.mark.parametrize("trimmed", [3, 10])
def test_records_trimmed_between_the_plan_and_the_reading_are_missed_and_not_skipped(log: Log, trimmed: int) -> None:
    fill(log, 10)
    source = reader(log, {0: 0})
    (planned,) = source.partitions({"s": {"0": 2}}, {"s": {"0": 10}})
    log.trim("s", {0: trimmed})
    with pytest.raises(OffsetsTrimmed, match="records 2 to 10 are needed and were deleted"):
        rows(source, planned)
