"""The limits of a query's watermark, and the progress of the query as a feeder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from containers.engine import StateSize
from containers.errors import CheckpointUnreadable
from containers.spark.caps import CommittedBatch, StageCaps, UnreadSince, natural_watermark
from containers.spark.operators import Watermarks
from containers.state.offsets.offsetlog import from_micros
from sluice.core.ids import Ssp, StreamId
from sluice.core.watermarks import FeederProgress, NoCap, ProgressSource, WatermarkStep
from tests.support.fakes import FakeClock

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
IN, MID = StreamId("log", "in"), StreamId("log", "mid")
MINUTE = timedelta(minutes=1)
WINDOWS = Watermarks(MINUTE, {"in": MINUTE, "mid": MINUTE}, stateful=True, emits_state=True)
STATELESS = Watermarks(MINUTE, {"in": MINUTE, "mid": MINUTE}, stateful=False, emits_state=False)
PLAIN = Watermarks(None, {}, stateful=False, emits_state=False)


def at(minutes: float) -> datetime:
    return NOON + minutes * MINUTE


def ssp(stream: StreamId, partition: int) -> Ssp:
    return Ssp(stream.system, stream.stream, partition)


def millis(minutes: float) -> int:
    return int(at(minutes).timestamp() * 1000)


class Checkpoint:
    """The limits of a query that reads `in` and `mid`, each with two partitions."""

    def __init__(self, directory: Path, clock: FakeClock) -> None:
        self.directory = directory
        self._clock = clock
        (directory / "offsets").mkdir(parents=True)
        (directory / "commits").mkdir()
        (directory / "metadata").write_text('{"id": "lineage"}')
        self.batch = -1
        self.steps: Mapping[StreamId, Sequence[WatermarkStep]] | None = {}

    def commit(self, watermark: float, natural: float, mid: Sequence[int] = (0, 0), inputs: Sequence[int] = (0, 0)) -> None:
        self.batch += 1
        metadata = json.dumps({"batchWatermarkMs": millis(watermark), "batchTimestampMs": 0, "conf": {}})
        ends = [json.dumps({name: {str(p): end for p, end in enumerate(each)}}) for name, each in (("in", inputs), ("mid", mid))]
        (self.directory / "offsets" / str(self.batch)).write_text("\n".join(["v1", metadata, *ends]))
        (self.directory / "commits" / str(self.batch)).write_text(f'v1\n{{"nextBatchWatermarkMs":{millis(natural)}}}')

    def caps(
        self,
        watermarks: Watermarks = WINDOWS,
        reads: Sequence[StreamId] = (MID,),
        timed: Sequence[StreamId] = (),
        writes_event_time: bool = False,
    ) -> StageCaps:
        return StageCaps(
            self.directory,
            watermarks,
            reads,
            [stream for stream in reads if stream == MID],
            {ssp(stream, partition): 0 for stream in reads for partition in range(2)},
            timed,
            lambda: self.steps,
            writes_event_time,
            self._clock,
        )


@pytest.fixture
def checkpoint(tmp_path: Path, clock: FakeClock) -> Checkpoint:
    return Checkpoint(tmp_path / "stage", clock)


def ends(*of: int, stream: StreamId = IN) -> dict[Ssp, int]:
    return {ssp(stream, partition): end for partition, end in enumerate(of)}


def batch(
    watermark: float | None = None, rows: int = 0, latest: Mapping[Ssp, int] | None = None, written: float | None = None, **read: float
) -> CommittedBatch:
    """`read`: the newest event times of the partitions of `in`, as `p0` and `p1`."""
    return CommittedBatch(
        None if watermark is None else at(watermark),
        StateSize(rows, 0, 0, 0),
        latest or {},
        None if written is None else at(written),
        {ssp(IN, int(name[1:])): at(newest) for name, newest in read.items()},
    )


# --- caps ------------------------------------------------------------------------------------------------------------


def test_the_watermark_is_held_until_the_coordinator_has_sent_steps(checkpoint: Checkpoint) -> None:
    checkpoint.commit(0, 30)
    assert checkpoint.caps().caps(dict) == [NoCap.HOLD]


def test_a_coordinator_that_knows_no_caps_limits_nothing(checkpoint: Checkpoint) -> None:
    checkpoint.commit(0, 30)
    checkpoint.steps = None
    assert checkpoint.caps().caps(dict) == []


def test_a_step_counts_once_a_committed_batch_ends_beyond_it(checkpoint: Checkpoint) -> None:
    checkpoint.steps = {MID: [WatermarkStep(at(20), timedelta(0), ends(5, 7, stream=MID))]}
    checkpoint.commit(0, 30, mid=(5, 6))
    caps = checkpoint.caps()
    assert caps.caps(dict) == [NoCap.HOLD]
    checkpoint.commit(0, 30, mid=(5, 7))
    assert caps.caps(dict) == [at(19)]


def test_a_stream_without_a_watermark_above_it_limits_nothing(checkpoint: Checkpoint) -> None:
    assert not checkpoint.caps(PLAIN).limited
    assert not checkpoint.caps(Watermarks(MINUTE, {}, stateful=True, emits_state=True)).limited
    assert checkpoint.caps().limited


def test_a_query_that_reads_one_partition_of_an_input_has_no_caps(checkpoint: Checkpoint, clock: FakeClock) -> None:
    one = StageCaps(checkpoint.directory, WINDOWS, [IN], [], {ssp(IN, 0): 0}, [], dict, False, clock)
    assert not one.limited
    assert checkpoint.caps(reads=[IN]).limited


def test_of_several_partitions_with_unread_records_the_slowest_holds(checkpoint: Checkpoint) -> None:
    caps = checkpoint.caps(reads=[IN], timed=[IN])
    checkpoint.commit(0, 30, inputs=(10, 10))
    assert caps.caps(lambda: ends(10, 11)) == [NoCap.HOLD], "nothing was read from it since the start"
    caps.committed(batch(0, p0=40, p1=20))
    assert caps.caps(lambda: ends(11, 11)) == [at(19)]
    assert caps.caps(lambda: ends(11, 10)) == [at(39)]
    assert caps.caps(lambda: ends(10, 10)) == [NoCap.FREE]


def test_without_an_event_time_old_unread_records_of_several_partitions_hold(checkpoint: Checkpoint, clock: FakeClock) -> None:
    caps = checkpoint.caps(reads=[IN])
    checkpoint.commit(0, 30, inputs=(10, 10))
    assert caps.caps(lambda: ends(10, 11)) == [NoCap.HOLD], "it is not known since when"
    clock.advance(10)
    checkpoint.commit(0, 30, inputs=(10, 11))
    assert caps.caps(lambda: ends(10, 50)) == [NoCap.FREE], "the other 39 have just come"
    clock.advance(10)
    assert caps.caps(lambda: ends(10, 50)) == [NoCap.HOLD]


def test_unread_records_are_old_once_they_were_seen_long_enough_ago(clock: FakeClock) -> None:
    unread = UnreadSince(clock, timedelta(seconds=10))
    assert not unread.is_old(ends(5, 5), ends(5, 5))
    for _ in range(9):
        clock.advance(1)
        unread.is_old(ends(5, 5), ends(5, 9))
    clock.advance(1)
    assert not unread.is_old(ends(5, 5), ends(5, 9))
    clock.advance(1)
    assert unread.is_old(ends(5, 5), ends(5, 9))
    assert not unread.is_old(ends(5, 9), ends(5, 12))


# --- the query as a feeder -------------------------------------------------------------------------------------------


def test_a_stateful_query_has_come_as_far_as_the_watermark_of_its_last_batch(checkpoint: Checkpoint) -> None:
    caps = checkpoint.caps(reads=[IN])
    checkpoint.commit(10, 30)
    assert caps.committed(batch(10, rows=3)) == FeederProgress(at(11), MINUTE, ProgressSource.WATERMARK, pending=True)


def test_state_that_is_never_appended_holds_no_reader(checkpoint: Checkpoint) -> None:
    caps = checkpoint.caps(Watermarks(MINUTE, {"in": MINUTE}, stateful=True, emits_state=False), reads=[IN])
    checkpoint.commit(10, 30)
    assert not caps.progress.pending
    assert not caps.committed(batch(10, rows=3)).pending


def test_a_stateless_query_has_come_as_far_as_what_it_has_read(checkpoint: Checkpoint) -> None:
    caps = checkpoint.caps(STATELESS, reads=[IN], timed=[IN])
    checkpoint.commit(10, 30, inputs=(1, 1))
    assert caps.committed(batch(10, latest=ends(1, 1), p0=31, p1=20)) == FeederProgress(at(31), MINUTE, ProgressSource.WATERMARK)
    assert caps.committed(batch(10, latest=ends(1, 2))) == FeederProgress(at(20), MINUTE, ProgressSource.WATERMARK)


def test_event_times_beyond_the_calendar_are_no_errors(checkpoint: Checkpoint) -> None:
    """Milliseconds read as seconds are in the year 50,000, which Spark accepts."""
    caps = checkpoint.caps(STATELESS, reads=[IN])
    checkpoint.commit(10, 20)
    (checkpoint.directory / "commits" / "0").write_text(f'v1\n{{"nextBatchWatermarkMs":{10**15}}}')
    newest = caps.committed(batch(10, latest=ends(0, 0))).event_time
    assert newest is not None
    assert newest.year == 9999
    assert from_micros(-(10**18)).year == from_micros(-(10**17)).year == 1


def test_a_write_that_names_the_event_time_has_come_as_far_as_the_newest_that_it_wrote(checkpoint: Checkpoint) -> None:
    caps = checkpoint.caps(PLAIN, reads=[MID], writes_event_time=True)
    assert caps.progress == FeederProgress(None, timedelta(0), ProgressSource.COLUMN)
    checkpoint.commit(0, 0)
    assert caps.committed(batch(written=5)).event_time == at(5)
    assert caps.committed(batch(written=3)).event_time == at(5)
    assert caps.committed(batch()).event_time == at(5)


def test_with_several_partitions_it_has_not_come_further_than_the_slowest_that_has_unread_records(checkpoint: Checkpoint) -> None:
    caps = checkpoint.caps(PLAIN, reads=[IN], timed=[IN], writes_event_time=True)
    checkpoint.commit(0, 0, inputs=(10, 10))
    assert caps.committed(batch(written=40, latest=ends(10, 20), p0=40)).event_time is None
    assert caps.committed(batch(written=30, latest=ends(10, 20), p1=7)).event_time == at(7)
    assert caps.committed(batch(latest=ends(10, 10))).event_time == at(40)


def test_a_batch_that_runs_again_shows_no_progress_because_the_ends_of_its_partitions_are_unknown(checkpoint: Checkpoint) -> None:
    caps = checkpoint.caps(PLAIN, [IN], timed=[IN], writes_event_time=True)
    checkpoint.commit(0, 0, inputs=(10, 0))
    assert caps.committed(batch(written=40, latest={}, p0=40)).event_time is None
    checkpoint.commit(0, 0, inputs=(10, 10))
    assert caps.committed(batch(written=7, latest=ends(10, 20), p1=7)).event_time == at(7)


def test_while_the_ends_of_several_partitions_are_unknown_the_watermark_is_held(checkpoint: Checkpoint) -> None:
    for timed in ([IN], []):
        assert checkpoint.caps(reads=[IN], timed=timed).caps(lambda: ends(0)) == [NoCap.HOLD]


def test_a_query_with_neither_has_no_progress(checkpoint: Checkpoint) -> None:
    caps = checkpoint.caps(PLAIN, reads=[IN])
    assert caps.committed(batch(written=None)) == FeederProgress(None, timedelta(0), ProgressSource.NONE)


def test_after_a_restart_a_query_has_come_as_far_as_its_checkpoint(checkpoint: Checkpoint) -> None:
    checkpoint.commit(10, 30)
    assert checkpoint.caps(reads=[IN]).progress == FeederProgress(at(11), MINUTE, ProgressSource.WATERMARK, pending=True)
    assert checkpoint.caps(STATELESS, reads=[IN]).progress == FeederProgress(at(11), MINUTE, ProgressSource.WATERMARK)


def test_a_checkpoint_without_batches_has_no_watermark(checkpoint: Checkpoint) -> None:
    assert checkpoint.caps().planned() == natural_watermark(checkpoint.directory) == 0
    checkpoint.commit(10, 30)
    assert (checkpoint.caps().planned(), natural_watermark(checkpoint.directory)) == (millis(10), millis(30))


@pytest.mark.parametrize("text", ["", "v1", "v1\n{}", "v1\nno json", "v1\n[]"])
def test_a_commit_log_entry_that_cannot_be_read_is_named(checkpoint: Checkpoint, text: str) -> None:
    checkpoint.commit(10, 30)
    (checkpoint.directory / "commits" / "0").write_text(text)
    with pytest.raises(CheckpointUnreadable, match="commits/0"):
        natural_watermark(checkpoint.directory)
