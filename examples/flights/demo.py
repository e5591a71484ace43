"""`make demo`: a year of flights through two containers of Spark, checked against a plain count. Exits 0 only if all is exact."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from examples.flights.check import WATERMARK, check, closed_windows, told
from examples.flights.data import BY_CARRIER, DELAYS, FLIGHTS, PARTITIONS, YEAR_STARTS, Flight, load_flights, time_text
from examples.flights.replay import flights_feed
from examples.playing.scene import Pace, Scene, Show, fresh, perform, run_show
from examples.playing.streams import HOMES, Home, Streams, System
from sluice.wire.runs import RunDetail

JOB_FILE = Path(__file__).with_name("job.py")
MARK = ".flights-demo"
AFTER_A_DRAIN = timedelta(days=-36_500)
"""A watermark beyond all flights: every window is closed."""

READERS = {FLIGHTS: "route", BY_CARRIER: "hourly"}


def progress_text(scene: Scene, detail: RunDetail) -> str:
    at = scene.replay.progress
    held = f" · {at.held_seconds:.1f} s held back" if at.held_seconds else ""
    return (
        f"{time_text(at.reached)[:10]} · {at.rows:,} replayed · {scene.read(detail, FLIGHTS):,} routed · "
        f"{scene.read(detail, BY_CARRIER):,} counted · {scene.written(DELAYS):,} windows{held}"
    )


def checked(flights: list[Flight], home_of: Home, watermark: timedelta, streams: Streams) -> tuple[bool, str]:
    report = check(streams, flights, watermark=watermark, home_of=home_of)
    return report.exact, told(report)


def main(
    seconds_per_month: Annotated[float, typer.Option(min=0, help="0 = as fast as the readers allow.")] = 5.0,
    containers: Annotated[int, typer.Option(min=1, max=PARTITIONS)] = 2,
    month_limit: Annotated[int, typer.Option(min=1, max=12, help="Replay only the first N months.")] = 12,
    max_lead_days: Annotated[
        int, typer.Option(min=1, max=29, help="The replay's lead over its slowest reader; the watermark is 30 days behind.")
    ] = 25,
    port: Annotated[int, typer.Option(help="The coordinator's; 0 = any free one.")] = 0,
    home: Annotated[Path, typer.Option(help="Work directory, emptied at the start.")] = Path(".sluice/demo"),
    system: Annotated[System, typer.Option(help="Of all streams: the embedded log, or a Kafka broker that is started for it.")] = "log",
    lose_disk: Annotated[bool, typer.Option(help="Delete the local state half way, and go on from the blob store.")] = True,
    drain: Annotated[bool, typer.Option(help="Drain the job in the end, which brings out the windows that are still open.")] = True,
    late: Annotated[
        float, typer.Option(min=0, help="Start the last container so many seconds after the others. The lead is then not bounded.")
    ] = 0,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the work directory; a failure leaves it anyway.")] = False,
) -> None:
    """Replay a year of flights through two containers and check every row and every window."""

    def demo() -> bool:
        flights = load_flights(month_limit)
        home_of = HOMES[system]
        watermark = AFTER_A_DRAIN if drain else WATERMARK
        due = len(closed_windows(flights, home_of=home_of))
        pace = Pace(containers, port, seconds_per_month, timedelta(days=max_lead_days), system, lose_disk, drain, late)
        show = Show(
            JOB_FILE,
            [flights_feed(flights)],
            YEAR_STARTS,
            READERS,
            DELAYS,
            due,
            progress_text,
            partial(checked, flights, home_of, watermark),
        )
        return run_show(show, fresh(home, MARK), pace)

    perform(demo, home, keep)


if __name__ == "__main__":
    typer.run(main)
