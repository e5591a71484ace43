"""A producer that replays the flights into the stream `flights` at a pace, each exactly once, however often it is killed and started again.

One day is one batch of one transaction, numbered by the day, so that a batch that is in the stream already is skipped by the log itself.
The replay leads its slowest reader by at most `max_lead` of event time: a stage behind an intermediate stream sees the skew between its
feeders as lateness, and this bounds it.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from coordinator.core.errors import SluiceError
from coordinator.core.ids import Generation, Lineage
from coordinator.streams.log import Log, Record, Writer
from examples.flights.data import (
    ALL_FLIGHTS,
    FLIGHTS,
    PARTITIONS,
    YEAR_STARTS,
    Flight,
    FlightsMissing,
    days_of,
    encode,
    load_flights,
    partition_of_flight,
    time_text,
)
from examples.flights.watch import RunWatch

Consumed = Callable[[], Mapping[int, int] | None]
"""Partition of `flights` -> the next offset to read; None if it can't be told now. A partition that is not named has not been read."""

WRITER = Writer(lineage=Lineage("flights-replay"), owner="flights-replay", generation=Generation(1))
_DAYS_PER_MONTH = 365 / 12
_POLL_SECONDS = 0.2


class StreamNotOurs(Exception):
    """The stream holds records that this replay did not write."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """How far a replay has come. `reached` is the event time of the newest row in seconds since 1970; `appended` leaves out the rows that
    an earlier replay had appended; `held_seconds` is how long it waited for the slowest reader."""

    rows: int = 0
    appended: int = 0
    reached: int = YEAR_STARTS
    held_seconds: float = 0.0
    complete: bool = False


class Replay:
    """`run` blocks; `stop` ends it between two steps and may be called from anywhere, as may `progress`.

    A pace of 0 seconds per month is as fast as the readers allow. Without `consumed` the lead is not bounded.
    """

    def __init__(
        self,
        log: Log,
        flights: Sequence[Flight],
        *,
        seconds_per_month: float = 5.0,
        max_lead: timedelta = timedelta(days=10),
        consumed: Consumed | None = None,
        poll_seconds: float = _POLL_SECONDS,
    ) -> None:
        if max_lead < timedelta(days=1):
            raise ValueError(f"the lead cannot be bounded by {max_lead}: a step is a day")
        self._log = log
        self._days = days_of(flights)
        self._seconds_per_day = seconds_per_month / _DAYS_PER_MONTH
        self._max_lead = int(max_lead.total_seconds())
        self._consumed = consumed
        self._read: Mapping[int, int] = {}
        self._poll_seconds = poll_seconds
        self._stopping = threading.Event()
        self._times: list[list[int]] = [[] for _ in range(PARTITIONS)]
        """Partition -> event times by offset; the stream begins with us, so a list's index is the offset."""
        self.progress = Replayed()

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> Replayed:
        """Replay to the end or until `stop`. Raises StreamConflict or StreamNotOurs if the stream is not one for this replay."""
        self._log.create(FLIGHTS, PARTITIONS)
        left = self._pass_over(self._log.last_batch(FLIGHTS, WRITER.lineage))
        due = time.monotonic()
        for day, rows in left.items():
            if self._stopping.wait(max(0.0, due - time.monotonic())):
                return self.progress
            held = self._hold(rows[-1].scheduled)
            if self._stopping.is_set():
                return self.progress
            self._append(day, rows)
            due += held + self._seconds_per_day
        self.progress = replace(self.progress, complete=True)
        return self.progress

    def _pass_over(self, last: int | None) -> dict[int, list[Flight]]:
        """The days that are not in the stream yet; those up to `last` are."""
        left = {day: rows for day, rows in self._days.items() if last is None or day > last}
        for day, rows in self._days.items():
            if day not in left:
                self._note(rows, appended=0)
        found = dict(self._log.latest(FLIGHTS))
        if found != {partition: len(times) for partition, times in enumerate(self._times)}:
            raise StreamNotOurs(f"the stream {FLIGHTS} ends at {found}, and a replay of these flights up to day {last} ends elsewhere")
        return left

    def _append(self, day: int, rows: Sequence[Flight]) -> None:
        records = [Record(encode(flight), partition=partition_of_flight(flight)) for flight in rows]
        self._log.append(FLIGHTS, records, writer=WRITER, batch=day, now_micros=time.time_ns() // 1000)
        self._note(rows, appended=len(rows))

    def _note(self, rows: Sequence[Flight], *, appended: int) -> None:
        for flight in rows:
            self._times[partition_of_flight(flight)].append(flight.scheduled)
        before = self.progress
        self.progress = replace(before, rows=before.rows + len(rows), appended=before.appended + appended, reached=rows[-1].scheduled)

    def _hold(self, ahead: int) -> float:
        """Wait until the slowest reader is near enough for a row of event time `ahead`, or until `stop`; the seconds that it took."""
        started, before = time.monotonic(), self.progress.held_seconds
        held = 0.0
        while self._consumed is not None and self._leads_too_far(ahead) and not self._stopping.is_set():
            self._read = self._consumed() or self._read
            if self._leads_too_far(ahead):
                self._stopping.wait(self._poll_seconds)
            held = time.monotonic() - started
            self.progress = replace(self.progress, held_seconds=before + held)
        return held

    def _leads_too_far(self, ahead: int) -> bool:
        return ahead - self._oldest_unread(ahead) > self._max_lead

    def _oldest_unread(self, otherwise: int) -> int:
        """The event time of the oldest row in the stream that, as far as is known, some reader has not committed."""
        return min((times[at] for p, times in enumerate(self._times) if (at := self._read.get(p, 0)) < len(times)), default=otherwise)


def main(
    log_dir: Annotated[Path, typer.Option(help="Directory of the embedded log.")],
    seconds_per_month: Annotated[float, typer.Option(min=0, help="0 = as fast as the readers allow.")] = 5.0,
    month_limit: Annotated[int, typer.Option(min=1, max=12, help="Replay only the first N months.")] = 12,
    max_lead_days: Annotated[int, typer.Option(min=1, help="Never be further ahead of the slowest reader. Needs --run.")] = 10,
    coordinator: Annotated[str, typer.Option(help="URL of the coordinator.")] = "http://127.0.0.1:8180",
    run: Annotated[str | None, typer.Option(help="The run that reads the flights; without it the lead is not bounded.")] = None,
) -> None:
    """Replay the flights into the log. Stopped or killed, it goes on where it was when it is started again."""
    try:
        replay = Replay(
            Log(log_dir),
            load_flights(month_limit),
            seconds_per_month=seconds_per_month,
            max_lead=timedelta(days=max_lead_days),
            consumed=RunWatch(coordinator, run).routed if run else None,
        )
        for each in (signal.SIGTERM, signal.SIGINT):
            # on another thread: a handler that set the event could find its lock taken by the very wait that it interrupted
            signal.signal(each, lambda *_: threading.Thread(target=replay.stop).start())
        done = replay.run()
    except (FlightsMissing, StreamNotOurs, SluiceError) as error:
        typer.echo(f"replay: {error}", err=True)
        raise SystemExit(1) from None
    typer.echo(
        f"{done.appended:,} flights appended, {done.rows:,} of {ALL_FLIGHTS:,} in the stream, up to {time_text(done.reached)}", nl=False
    )
    typer.echo(f", {done.held_seconds:.1f} s waited for readers{'' if done.complete else '; stopped, start again to go on'}")


if __name__ == "__main__":
    typer.run(main)
