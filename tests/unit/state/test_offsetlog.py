from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from containers.errors import CheckpointUnreadable
from containers.spark.flush import PendingTimers, next_batch_time
from containers.state.offsets.offsetlog import (
    END_OF_TIME,
    OffsetSeq,
    adds_partitions,
    all_positions_in,
    entries_up_to,
    first_entry,
    flush_entry,
    millis,
    parse,
    with_new_partitions,
)
from sluice.core.ids import Ssp, StreamId

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
ORDERS, PRICES = StreamId("log", "orders"), StreamId("kafka", "prices")
READS = [ORDERS, PRICES]
METADATA = {"batchWatermarkMs": 5000, "batchTimestampMs": 7000, "conf": {"spark.sql.shuffle.partitions": "1"}, "later": "unknown"}
SOURCES = ('{"orders": {"0": 3, "1": 4}}', '{"prices":{"0":10}}', '"a source of others"', "-")
TEXT = "\n".join(["v1", json.dumps(METADATA, separators=(",", ":")), *SOURCES])


def orders(partition: int) -> Ssp:
    return Ssp("log", "orders", partition)


def prices(partition: int) -> Ssp:
    return Ssp("kafka", "prices", partition)


def plan() -> OffsetSeq:
    return parse(TEXT, "offsets/4")


def test_a_plan_that_was_read_is_written_as_it_was() -> None:
    assert plan().text == TEXT
    assert plan().watermark == datetime.fromtimestamp(5, UTC)
    assert plan().timestamp == datetime.fromtimestamp(7, UTC)
    assert plan().positions(READS) == {orders(0): 3, orders(1): 4, prices(0): 10}


@pytest.mark.parametrize("version", ["v2", "", "v1x", "{}"])
def test_another_version_of_the_format_is_refused_and_named(version: str) -> None:
    with pytest.raises(CheckpointUnreadable, match=r"offsets/4 is an offset-log entry of version .*another version of Spark"):
        parse("\n".join([version, *TEXT.splitlines()[1:]]), "offsets/4")


@pytest.mark.parametrize(
    "text", ["v1", "v1\n[]\n{}", "v1\n{}\n{}", 'v1\n{"batchWatermarkMs":"x","batchTimestampMs":1}\n{}', "v1\nnot json\n{}"]
)
def test_text_that_is_not_an_offset_log_entry_is_refused(text: str) -> None:
    with pytest.raises(CheckpointUnreadable, match="offsets/4"):
        parse(text, "offsets/4")


def test_a_plan_without_sources_is_refused() -> None:
    with pytest.raises(CheckpointUnreadable, match="without sources"):
        parse("\n".join(TEXT.splitlines()[:2]), "offsets/4")


def test_a_flush_reads_nothing_and_is_late_enough_for_all_windows() -> None:
    made = flush_entry(plan(), NOON)
    assert made.sources == SOURCES
    assert (made.watermark, made.timestamp) == (END_OF_TIME, NOON)
    assert made.metadata["conf"] == METADATA["conf"]
    assert made.metadata["later"] == "unknown"


def test_neither_the_time_nor_the_watermark_of_a_flush_decreases() -> None:
    assert flush_entry(plan().at(NOON), NOON - timedelta(days=1)).timestamp == NOON
    wrong = datetime(5000, 1, 1, tzinfo=UTC)
    assert flush_entry(plan().at(NOON, wrong), NOON).watermark > wrong


def test_the_rest_keeps_the_watermark_and_leaves_other_sources_where_they_are() -> None:
    (made,) = entries_up_to(plan(), {orders(0): 5, orders(1): 4}, READS, 100, NOON)
    assert made.sources == ('{"orders": {"0": 5, "1": 4}}', *SOURCES[1:])
    assert made.watermark == plan().watermark
    assert made.timestamp == NOON


def test_the_rest_of_a_stream_that_the_plan_does_not_know_is_refused() -> None:
    with pytest.raises(CheckpointUnreadable, match="fares"):
        list(entries_up_to(plan(), {Ssp("log", "fares", 0): 5}, READS, 100, NOON))


def test_nothing_remains_once_everything_was_read() -> None:
    assert list(entries_up_to(plan(), {orders(0): 3, orders(1): 2, prices(0): 10}, READS, 100, NOON)) == []


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40), st.integers(1, 15))
def test_batches_of_the_rest_are_bounded_never_go_back_and_end_at_the_ends(first: int, second: int, third: int, max_rows: int) -> None:
    ends = {orders(0): first, orders(1): second, prices(0): third}
    at = plan().positions(READS)
    goal = {ssp: max(at[ssp], end) for ssp, end in ends.items()}
    for made in entries_up_to(plan(), ends, READS, max_rows, NOON):
        now = made.positions(READS)
        assert 0 < sum(now.values()) - sum(at.values()) <= max_rows
        assert all(now[ssp] >= at[ssp] for ssp in at)
        at = now
    assert at == goal


def of_sources(*lines: str) -> OffsetSeq:
    return parse("\n".join([*TEXT.splitlines()[:2], *lines]), "offsets/4")


def test_the_offsets_of_a_source_of_two_streams_are_one_document() -> None:
    (made,) = entries_up_to(of_sources('{"orders":{"0":3},"prices":{"0":10}}'), {orders(0): 5}, READS, 100, NOON)
    (line,) = made.sources
    assert json.loads(line) == {"orders": {"0": 5}, "prices": {"0": 10}}
    assert made.positions(READS) == {orders(0): 5, prices(0): 10}


def test_of_two_sources_of_one_stream_the_one_that_is_behind_counts_and_catches_up() -> None:
    lines = '{"orders": {"0": 100, "1": 7}}', '{"orders": {"0": 5000, "1": 7}, "prices": {"0": 10}}'
    last = of_sources(*lines)
    assert last.positions(READS) == {orders(0): 100, orders(1): 7, prices(0): 10}
    assert last.to_catch_up(READS) == {orders(0): 5000}
    first, *between, made = entries_up_to(last, last.to_catch_up(READS), READS, 1000, NOON)
    assert len(between) == 3
    assert [json.loads(line)["orders"]["0"] for line in first.sources] == [1100, 5000]
    assert [json.loads(line) for line in made.sources] == [
        {"orders": {"0": 5000, "1": 7}},
        {"orders": {"0": 5000, "1": 7}, "prices": {"0": 10}},
    ]
    assert made.to_catch_up(READS) == {}


def test_sources_that_share_the_partitions_of_a_stream_keep_their_parts() -> None:
    (made,) = entries_up_to(of_sources('{"orders": {"0": 3}}', '{"orders": {"1": 4}}'), {orders(0): 5, orders(1): 4}, READS, 100, NOON)
    assert made.sources == ('{"orders": {"0": 5}}', '{"orders": {"1": 4}}')


@pytest.mark.parametrize("text", ['{"orders": {"0": 3}}{"prices": {"0": 1}}', "{", '{"orders": {"0": "x"}}', '{"orders": {"x": 1}}'])
def test_offsets_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(CheckpointUnreadable, match="these offsets cannot be read"):
        of_sources(text).positions(READS)
    with pytest.raises(CheckpointUnreadable):
        all_positions_in(text, "log")


def test_all_streams_of_a_source_are_read_but_nothing_else() -> None:
    assert all_positions_in('{"a": {"0": 1}, "b": {}}', "kafka") == {Ssp("kafka", "a", 0): 1}
    assert all_positions_in("-", "kafka") == {}
    for text in ("7", "[]", '{"a": 1}', "null"):
        with pytest.raises(CheckpointUnreadable, match="not the offsets of streams"):
            all_positions_in(text, "kafka")


def test_the_first_plan_begins_where_the_stage_begins() -> None:
    made = first_entry(json.dumps(METADATA), [ORDERS, None], {orders(1): 7, orders(0): 2, prices(0): 1})
    assert made.sources == ('{"orders": {"0": 2, "1": 7}}', "-")


def test_time_moves_to_the_last_timer_at_once_where_no_state_expires() -> None:
    later = NOON + timedelta(hours=1)
    assert next_batch_time(PendingTimers(NOON, later)) == later + timedelta(milliseconds=1)
    assert next_batch_time(PendingTimers(NOON, later, expires_first=later + timedelta(hours=1))) == later + timedelta(milliseconds=1)


def test_time_moves_to_the_last_timer_before_the_first_state_expires() -> None:
    before, expires, later = (NOON + timedelta(minutes=minutes) for minutes in (1, 2, 3))
    assert next_batch_time(PendingTimers(NOON, later, before, expires, later)) == before + timedelta(milliseconds=1)


def test_a_timer_whose_state_has_expired_already_fires_by_itself() -> None:
    assert next_batch_time(PendingTimers(NOON, NOON, None, NOON, NOON)) == NOON + timedelta(milliseconds=1)


def test_state_without_timers_expires() -> None:
    assert next_batch_time(PendingTimers(expires_first=NOON, expires_last=NOON)) == NOON + timedelta(milliseconds=1)
    assert next_batch_time(PendingTimers()) is None


def test_milliseconds_are_whole() -> None:
    assert millis(datetime.fromtimestamp(1.0019, UTC)) == 1001


# --- new partitions -----------------------------------------------------------------------------------------


def test_a_plan_is_widened_by_the_partitions_it_does_not_know_and_reads_nothing() -> None:
    starts = {orders(0): 0, orders(2): 0, prices(0): 0, prices(1): 5, Ssp("kafka", "others", 0): 3}
    found = with_new_partitions(plan(), starts, READS, NOON)
    assert found is not None
    assert found.positions(READS) == {**plan().positions(READS), orders(2): 0, prices(1): 5}
    assert found.sources[2:] == SOURCES[2:]
    assert (found.watermark, found.timestamp) == (plan().watermark, NOON)
    assert adds_partitions(plan(), found, starts, READS)
    assert not adds_partitions(found, found, starts, READS)
    assert with_new_partitions(found, starts, READS, NOON) is None


def test_partitions_that_begin_at_0_need_no_plan() -> None:
    assert with_new_partitions(plan(), {prices(1): 0}, READS, NOON) is None
    assert not adds_partitions(plan(), plan(), {prices(0): 3}, READS)
