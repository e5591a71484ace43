"""The paced producer: exactly once, and never too far ahead."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from examples.flights.data import FLIGHTS, PARTITIONS, YEAR_STARTS, Flight, decode, partition_of_flight
from examples.flights.replay import flights_feed
from examples.harness.replay import Consumed, Replay, Replayed, StreamNotOurs
from sluice.core.errors import StreamConflict
from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Log, Record, Writer
from tests.support.processes import WAIT_SECONDS

DAYS = 30
FLIGHTS_A_DAY = 8


@pytest.fixture
def flights() -> list[Flight]:
    """Thirty days of eight flights, at every third hour."""
    rows = range(DAYS * FLIGHTS_A_DAY)
    return [Flight(row, YEAR_STARTS + row * 3 * 3600, "UA", row, None, "EWR", "IAH", row, None) for row in rows]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "log")


def replay_of(
    log: Log,
    flights: list[Flight],
    *,
    seconds_per_month: float = 5,
    max_lead: timedelta = timedelta(days=10),
    consumed: Consumed | None = None,
    poll_seconds: float = 0.2,
) -> Replay:
    return Replay(
        log,
        [flights_feed(flights)],
        begins=YEAR_STARTS,
        seconds_per_month=seconds_per_month,
        max_lead=max_lead,
        consumed=consumed,
        poll_seconds=poll_seconds,
    )


def in_stream(log: Log) -> dict[int, list[Flight]]:
    """Partition -> its contents, in order."""
    latest = log.latest(FLIGHTS)
    return {p: [decode(row[3]) for rows in log.read(FLIGHTS, p, 0, end) for row in rows] for p, end in latest.items()}


def placed(flights: list[Flight]) -> dict[int, list[Flight]]:
    return {p: [flight for flight in flights if partition_of_flight(flight) == p] for p in range(PARTITIONS)}


class Readers:
    """Readers at settable positions; `on_ask` runs at every poll."""

    def __init__(self, log: Log, on_ask: Callable[[int], None] = lambda _: None) -> None:
        self.log = log
        self.at: Mapping[int, int] | None = None
        self.asked = 0
        self.on_ask = on_ask

    def consumed(self) -> Mapping[str, Mapping[int, int]] | None:
        self.asked += 1
        self.on_ask(self.asked)
        return None if self.at is None else {FLIGHTS: self.at}


def test_a_replay_appends_every_flight_once_to_its_partition_in_order(log: Log, flights: list[Flight]) -> None:
    done = replay_of(log, flights, seconds_per_month=0).run()
    assert in_stream(log) == placed(flights)
    assert (done.rows, done.appended, done.reached, done.complete) == (240, 240, flights[-1].scheduled, True)


def test_a_killed_replay_that_is_started_again_neither_loses_nor_repeats(log: Log, flights: list[Flight]) -> None:
    class Killed(Exception):
        pass

    def kill_before_append(stream: str, records: object, *, batch: int, **rest: object) -> bool:
        if batch == 11:
            raise Killed
        return append(stream, records, batch=batch, **rest)  # type: ignore[arg-type]

    append, log.append = log.append, kill_before_append  # type: ignore[method-assign]
    with pytest.raises(Killed):
        replay_of(log, flights, seconds_per_month=0).run()
    log.append = append  # type: ignore[method-assign]
    assert sum(map(len, in_stream(log).values())) == 11 * FLIGHTS_A_DAY
    done = replay_of(log, flights, seconds_per_month=0).run()
    assert in_stream(log) == placed(flights)
    assert (done.rows, done.appended) == (240, 240 - 11 * FLIGHTS_A_DAY)


def test_a_replay_killed_between_its_append_and_its_record_of_it_does_not_repeat_the_batch(log: Log, flights: list[Flight]) -> None:
    first, second = replay_of(log, flights, seconds_per_month=0), replay_of(log, flights, seconds_per_month=0)
    first.run()
    assert second.run().appended == 0
    assert in_stream(log) == placed(flights)


def test_two_replays_at_once_append_every_flight_once(log: Log, flights: list[Flight]) -> None:
    def overtaken(asked: int) -> None:
        readers.at = {p: len(rows) for p, rows in placed(flights).items()}
        if asked == 1:
            overtaking.append(replay_of(log, flights, seconds_per_month=0).run())

    overtaking: list[Replayed] = []
    readers = Readers(log, overtaken)
    slow = replay_of(log, flights, seconds_per_month=0, consumed=readers.consumed).run()
    assert in_stream(log) == placed(flights)
    assert (slow.rows, slow.appended + overtaking[0].appended) == (240, 240)
    assert slow.appended > 0


def test_a_replay_stops_between_two_steps_and_continues_later(log: Log, flights: list[Flight]) -> None:
    readers = Readers(log, lambda _: replay.stop())
    replay = replay_of(log, flights, seconds_per_month=0, consumed=readers.consumed, poll_seconds=5)
    stopped = replay.run()
    assert not stopped.complete
    assert 0 < stopped.rows < len(flights)
    assert replay_of(log, flights, seconds_per_month=0).run().complete
    assert in_stream(log) == placed(flights)


def test_a_replay_is_never_ahead_of_the_slowest_reader_by_more_than_the_bound(log: Log, flights: list[Flight]) -> None:
    """The readers advance one flight per poll, partition 3 last; after every poll the lead is measured in the stream itself."""
    bound, leads = timedelta(days=10).total_seconds(), list[int]()

    def measure(asked: int) -> None:
        latest = log.latest(FLIGHTS)
        readers.at = {p: min(end, asked * (1 if p == 3 else 2)) for p, end in latest.items()}
        newest = max(flight.scheduled for rows in in_stream(log).values() for flight in rows)
        unread = [rows[readers.at[p]].scheduled for p, rows in in_stream(log).items() if readers.at[p] < len(rows)]
        leads.append(newest - min(unread, default=newest))

    readers = Readers(log, measure)
    done = replay_of(log, flights, seconds_per_month=0, consumed=readers.consumed, poll_seconds=0.0005).run()
    assert done.complete
    assert done.waited_seconds > 0
    assert readers.asked > 5
    assert max(leads) <= bound
    assert in_stream(log) == placed(flights)


def test_a_replay_waits_for_readers_without_progress_and_counts_the_time(log: Log, flights: list[Flight]) -> None:
    reached = threading.Event()
    readers = Readers(log, lambda asked: reached.set() if asked == 3 else None)
    replay = replay_of(log, flights, seconds_per_month=0, consumed=readers.consumed, poll_seconds=0.005)
    thread = threading.Thread(target=replay.run)
    thread.start()
    assert reached.wait(WAIT_SECONDS)
    assert replay.progress.reached - flights[0].scheduled <= timedelta(days=10).total_seconds()
    readers.at = {p: len(rows) for p, rows in placed(flights).items()}
    thread.join(WAIT_SECONDS)
    assert replay.progress.complete
    assert replay.progress.waited_seconds >= 0.01


def test_a_replay_with_a_pace_takes_the_expected_time(log: Log, flights: list[Flight]) -> None:
    replay = replay_of(log, flights, seconds_per_month=3600)
    thread = threading.Thread(target=replay.run)
    thread.start()
    replay.stop()
    thread.join(WAIT_SECONDS)
    assert replay.progress.rows <= FLIGHTS_A_DAY


def test_a_stream_with_another_writer_is_refused(log: Log, flights: list[Flight]) -> None:
    log.create(FLIGHTS, PARTITIONS)
    log.append(FLIGHTS, [Record(b"x")], writer=Writer(Lineage("other"), "other", Generation(1)), batch=0, now_micros=1)
    with pytest.raises(StreamNotOurs):
        replay_of(log, flights).run()


def test_a_stream_with_another_count_of_partitions_is_refused(log: Log, flights: list[Flight]) -> None:
    log.create(FLIGHTS, PARTITIONS + 1)
    with pytest.raises(StreamConflict):
        replay_of(log, flights).run()


def test_a_bound_below_a_step_is_refused(log: Log, flights: list[Flight]) -> None:
    with pytest.raises(ValueError, match="a step is a day"):
        replay_of(log, flights, max_lead=timedelta(hours=23))
