"""Two streams replayed together: each exactly once, and never too far ahead of the slower reader."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from examples.flights.data import YEAR_STARTS, Flight
from examples.flights.data import decode as decode_flight
from examples.harness.replay import DAY, Consumed, Replay, StreamNotOurs
from examples.weather.data import DEPARTURES, HOUR, MEASURES, PARTITIONS, WEATHER, Weather, decode
from examples.weather.replay import feeds_of
from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Log, Record, Writer

DAYS = 20
FLIGHTS = [Flight(row, YEAR_STARTS + row * 2 * HOUR, "UA", row, None, "EWR", "IAH", None, None) for row in range(DAYS * 12)]
MEASURED = [Weather("EWR", YEAR_STARTS + row * HOUR, *([1.0] * len(MEASURES))) for row in range((DAYS - 2) * 24)]
"""Two days less than there are flights: a day of only one stream is a step, too."""


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "log")


def replay_of(log: Log, consumed: Consumed | None = None, max_lead: timedelta = timedelta(days=5)) -> Replay:
    feeds = feeds_of(FLIGHTS, MEASURED)
    return Replay(log, feeds, begins=YEAR_STARTS, seconds_per_month=0, max_lead=max_lead, consumed=consumed, poll_seconds=0.0005)


def times(log: Log, stream: str) -> dict[int, list[int]]:
    """Partition -> the event times in it, in order."""
    found = {}
    for partition, end in log.latest(stream).items():
        values = [row[3] for rows in log.read(stream, partition, 0, end) for row in rows]
        found[partition] = [decode_flight(value).scheduled if stream == DEPARTURES else decode(value).hour for value in values]
    return found


def assert_all_there_once(log: Log) -> None:
    assert sorted(at for each in times(log, DEPARTURES).values() for at in each) == [flight.scheduled for flight in FLIGHTS]
    assert sorted(at for each in times(log, WEATHER).values() for at in each) == [each.hour for each in MEASURED]
    assert all(each == sorted(each) for stream in (DEPARTURES, WEATHER) for each in times(log, stream).values())


def test_both_streams_have_every_row_once_in_order(log: Log) -> None:
    done = replay_of(log).run()
    assert_all_there_once(log)
    assert (done.rows, done.appended, done.reached) == (len(FLIGHTS) + len(MEASURED), done.rows, FLIGHTS[-1].scheduled)


class Killed(Exception):
    pass


class Dying(Log):
    """A log whose writer is killed before it appends that batch of that stream."""

    def __init__(self, directory: Path, stream: str, batch: int) -> None:
        super().__init__(directory)
        self.last = stream, batch

    def append(self, stream: str, records: Any, *, batch: int, **rest: Any) -> bool:
        if (stream, batch) == self.last:
            raise Killed
        return super().append(stream, records, batch=batch, **rest)


def test_both_streams_are_written_day_by_day(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        replay_of(Dying(tmp_path / "log", DEPARTURES, 7)).run()
    log = Log(tmp_path / "log")
    for stream in (DEPARTURES, WEATHER):
        newest = max(at for each in times(log, stream).values() for at in each)
        assert (newest - YEAR_STARTS) // DAY == 6


def test_a_replay_that_was_killed_between_the_two_streams_of_a_day_continues_there(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        replay_of(Dying(tmp_path / "log", WEATHER, 7)).run()
    log = Log(tmp_path / "log")
    assert sum(log.latest(DEPARTURES).values()) == 8 * 12
    assert sum(log.latest(WEATHER).values()) == 7 * 24
    done = replay_of(log).run()
    assert done.rows - done.appended == 8 * 12 + 7 * 24
    assert_all_there_once(log)


@pytest.mark.parametrize("slow", [DEPARTURES, WEATHER])
def test_the_slower_reader_of_the_two_holds_both_streams_back(log: Log, slow: str) -> None:
    """After every poll the lead is measured in both streams: the time of the newest row minus that of the oldest unread row."""
    leads, steps = list[int](), [0]

    def consumed() -> Mapping[str, Mapping[int, int]]:
        steps[0] += 1
        at = {
            stream: {p: min(end, steps[0]) if stream == slow and p == 1 else end for p, end in log.latest(stream).items()}
            for stream in (DEPARTURES, WEATHER)
        }
        there = {stream: times(log, stream) for stream in at}
        newest = max(max(each) for stream in there.values() for each in stream.values() if each)
        unread = [there[stream][p][next_] for stream in at for p, next_ in at[stream].items() if next_ < len(there[stream][p])]
        leads.append(newest - min(unread, default=newest))
        return at

    done = replay_of(log, consumed).run()
    assert done.complete
    assert max(leads) <= 5 * DAY
    assert max(leads) > 3 * DAY
    assert_all_there_once(log)


def test_a_stream_without_a_reported_offset_counts_as_unread(log: Log) -> None:
    def only_departures() -> Mapping[str, Mapping[int, int]]:
        asked.append(1)
        if len(asked) == 3:
            replay.stop()
        return {DEPARTURES: log.latest(DEPARTURES)}

    asked: list[int] = []
    replay = replay_of(log, only_departures)
    assert not replay.run().complete
    assert replay.progress.reached - YEAR_STARTS <= 5 * DAY


def test_a_stream_with_another_writer_is_refused_by_the_replay(log: Log) -> None:
    log.create(WEATHER, PARTITIONS)
    log.append(WEATHER, [Record(b"x")], writer=Writer(Lineage("other"), "other", Generation(1)), batch=0, now_micros=1)
    with pytest.raises(StreamNotOurs, match="the stream weather ends at"):
        replay_of(log).run()
