"""A quarter of a year of departures and weather, joined by two containers of Spark, checked against one plain join. Exits 0 only if all is
exact."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from examples.flights.data import YEAR_STARTS, Flight, time_text
from examples.playing.scene import Pace, Scene, Show, fresh, perform, run_show
from examples.playing.streams import Streams
from examples.weather.check import batch_join, check, told
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


def progress_text(scene: Scene, detail: RunDetail) -> str:
    at = scene.replay.progress
    held = f" · {at.held_seconds:.1f} s held back" if at.held_seconds else ""
    return (
        f"{time_text(at.reached)[:10]} · {at.rows:,} replayed · {scene.read(detail, DEPARTURES):,} departures and "
        f"{scene.read(detail, WEATHER):,} hours of weather routed · {scene.written(JOINED):,} joined{held}"
    )


def checked(departures: Sequence[Flight], weather: Sequence[Weather], streams: Streams) -> tuple[bool, str]:
    report = check(streams, departures, weather)
    return report.exact, told(report)


def show_of(departures: Sequence[Flight], weather: Sequence[Weather]) -> Show:
    return Show(
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
        int, typer.Option(min=1, max=9, help="The replay's lead over its slowest reader; the watermark is 10 days behind.")
    ] = 7,
    port: Annotated[int, typer.Option(help="The coordinator's; 0 = any free one.")] = 0,
    home: Annotated[Path, typer.Option(help="Work directory, emptied at the start.")] = Path(".sluice/weather"),
    late: Annotated[
        float, typer.Option(min=0, help="Start the last container so many seconds after the others. The lead is then not bounded.")
    ] = 0,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the work directory; a failure leaves it anyway.")] = False,
) -> None:
    """Join departures with the weather at their origin in two containers and check every row."""

    def demo() -> bool:
        show = show_of(load_departures(month_limit), load_weather(month_limit))
        pace = Pace(containers, port, seconds_per_month, timedelta(days=max_lead_days), late=late)
        return run_show(show, fresh(home, MARK), pace)

    perform(demo, home, keep)


if __name__ == "__main__":
    typer.run(main)
