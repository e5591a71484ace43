"""Joins a quarter of a year of departures and weather in two Spark containers and compares the result with a batch join. Exits 0 only if
it is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from examples.flights.data import YEAR_STARTS, Flight, time_text
from examples.harness.demo import DemoDefinition, DemoOptions, DemoRun, fresh, run_and_exit, run_demo
from examples.harness.streams import Streams
from examples.weather.check import batch_join, check, summary
from examples.weather.data import (
    DEPARTURES,
    DEPARTURES_BY_ORIGIN,
    JOINED,
    PARTITIONS,
    WEATHER,
    WEATHER_BY_ORIGIN,
    Weather,
    load_departures,
    load_weather,
)
from examples.weather.replay import READERS as INPUT_READERS
from examples.weather.replay import feeds_of
from sluice.wire.runs import RunDetail

JOB_FILE = Path(__file__).with_name("job.py")
MARK = ".weather-demo"
READERS = {**INPUT_READERS, DEPARTURES_BY_ORIGIN: "join", WEATHER_BY_ORIGIN: "join"}


def progress_text(demo_run: DemoRun, detail: RunDetail) -> str:
    at = demo_run.replay.progress
    waited = f" · {at.waited_seconds:.1f} s waited" if at.waited_seconds else ""
    return (
        f"{time_text(at.reached)[:10]} · {at.rows:,} replayed · {demo_run.read(detail, DEPARTURES):,} departures and "
        f"{demo_run.read(detail, WEATHER):,} hours of weather routed · {demo_run.written(JOINED):,} joined{waited}"
    )


def checked(departures: Sequence[Flight], weather: Sequence[Weather], streams: Streams) -> tuple[bool, str]:
    report = check(streams, departures, weather)
    return report.exact, summary(report)


def demo_definition(departures: Sequence[Flight], weather: Sequence[Weather]) -> DemoDefinition:
    return DemoDefinition(
        job_file=JOB_FILE,
        feeds=feeds_of(departures, weather),
        begins=YEAR_STARTS,
        readers=READERS,
        output=JOINED,
        due=batch_join(departures, weather).due,
        progress=progress_text,
        check=partial(checked, departures, weather),
    )


def main(
    seconds_per_month: Annotated[float, typer.Option(min=0, help="0 = as fast as the readers allow.")] = 5.0,
    containers: Annotated[int, typer.Option(min=1, max=PARTITIONS)] = 2,
    month_limit: Annotated[int, typer.Option(min=1, max=12, help="Replay only the first N months.")] = 3,
    max_lead_days: Annotated[
        int, typer.Option(min=1, max=9, help="Maximum lead of the replay over its slowest reader; the watermark is 10 days behind.")
    ] = 7,
    port: Annotated[int, typer.Option(help="Port of the coordinator; 0 = any free port.")] = 0,
    home: Annotated[Path, typer.Option(help="Work directory; it is emptied at the start.")] = Path(".sluice/weather"),
    late: Annotated[
        float, typer.Option(min=0, help="Start the last container this many seconds after the others. The lead is then unlimited.")
    ] = 0,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the work directory. It is always kept after a failure.")] = False,
) -> None:
    """Join departures with the weather at their origin in two containers and check every row."""

    def demo() -> bool:
        definition = demo_definition(load_departures(month_limit), load_weather(month_limit))
        options = DemoOptions(containers, port, seconds_per_month, timedelta(days=max_lead_days), late=late)
        return run_demo(definition, fresh(home, MARK), options)

    run_and_exit(demo, home, keep)


if __name__ == "__main__":
    typer.run(main)
