"""The producer of the stream `flights`; see `examples/harness/replay.py`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated

import httpx
import typer

from examples.flights.data import (
    ALL_FLIGHTS,
    FLIGHTS,
    PARTITIONS,
    YEAR_STARTS,
    Flight,
    FlightsMissing,
    encode,
    load_flights,
    partition_of_flight,
    scheduled_of,
    time_text,
)
from examples.harness.replay import Feed, Replay, StreamNotOurs, run_until_signal
from examples.harness.watch import RunWatch
from sluice.core.errors import SluiceError
from sluice.streams.log import Log


def flights_feed(flights: Sequence[Flight]) -> Feed[Flight]:
    return Feed(FLIGHTS, PARTITIONS, flights, scheduled_of, partition_of_flight, encode)


def main(
    log_dir: Annotated[Path, typer.Option(help="Directory of the embedded log.")],
    seconds_per_month: Annotated[float, typer.Option(min=0, help="0 = as fast as the readers allow.")] = 5.0,
    month_limit: Annotated[int, typer.Option(min=1, max=12, help="Replay only the first N months.")] = 12,
    max_lead_days: Annotated[int, typer.Option(min=1, help="Maximum lead over the slowest reader. Needs --run.")] = 10,
    coordinator: Annotated[str, typer.Option(help="URL of the coordinator.")] = "http://127.0.0.1:8180",
    run: Annotated[str | None, typer.Option(help="The run that reads the flights; without it the lead is unlimited.")] = None,
) -> None:
    """Replay the flights into the log. If it is stopped or killed, the next start continues where it stopped."""
    try:
        replay = Replay(
            Log(log_dir),
            [flights_feed(load_flights(month_limit))],
            begins=YEAR_STARTS,
            seconds_per_month=seconds_per_month,
            max_lead=timedelta(days=max_lead_days),
            consumed=partial(RunWatch(coordinator, run).read, {FLIGHTS: "route"}) if run else None,
        )
        done = run_until_signal(replay)
    except (FlightsMissing, StreamNotOurs, SluiceError, httpx.HTTPStatusError) as error:
        typer.echo(f"replay: {error}", err=True)
        raise SystemExit(1) from None
    typer.echo(
        f"{done.appended:,} flights appended, {done.rows:,} of {ALL_FLIGHTS:,} in the stream, up to {time_text(done.reached)}", nl=False
    )
    typer.echo(f", {done.waited_seconds:.1f} s waited for readers{'' if done.complete else '; stopped, start again to continue'}")


if __name__ == "__main__":
    typer.run(main)
