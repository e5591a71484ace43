"""`make demo`: a year of flights through two Spark containers, checked against a plain count. Exits 0 only if the output is exact."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from examples.flights.check import WATERMARK, check, closed_windows, summary
from examples.flights.data import BY_CARRIER, DELAYS, FLIGHTS, PARTITIONS, YEAR_STARTS, Flight, load_flights, time_text
from examples.flights.replay import flights_feed
from examples.harness.demo import DemoDefinition, DemoOptions, DemoRun, fresh, run_and_exit, run_demo
from examples.harness.streams import HOMES, Home, Streams, System
from examples.harness.topics import Topics
from sluice.wire.runs import RunDetail

JOB_FILE = Path(__file__).with_name("job.py")
MARK = ".flights-demo"
AFTER_A_DRAIN = timedelta(days=-36_500)
"""A watermark after all flights: every window is closed."""

READERS = {FLIGHTS: "route", BY_CARRIER: "hourly"}


def progress_text(demo_run: DemoRun, detail: RunDetail) -> str:
    at = demo_run.replay.progress
    waited = f" · {at.waited_seconds:.1f} s waited" if at.waited_seconds else ""
    return (
        f"{time_text(at.reached)[:10]} · {at.rows:,} replayed · {demo_run.read(detail, FLIGHTS):,} routed · "
        f"{demo_run.read(detail, BY_CARRIER):,} counted · {demo_run.written(DELAYS):,} windows{waited}"
    )


def checked(flights: list[Flight], home_of: Home, watermark: timedelta, streams: Streams) -> tuple[bool, str]:
    report = check(streams, flights, watermark=watermark, home_of=home_of)
    if not isinstance(streams, Topics):
        return report.exact, summary(report)
    confirmed = {BY_CARRIER: streams.confirmed(BY_CARRIER), DELAYS: streams.confirmed(DELAYS)}
    counted = ", ".join(f"{count:,} records in {stream}" for stream, count in confirmed.items())
    exact = report.exact and list(confirmed.values()) == [report.flights, report.emitted]
    return exact, f"{summary(report)}\na consumer of librdkafka reads {counted}"


def main(
    seconds_per_month: Annotated[float, typer.Option(min=0, help="0 = as fast as the readers allow.")] = 5.0,
    containers: Annotated[int, typer.Option(min=1, max=PARTITIONS)] = 2,
    month_limit: Annotated[int, typer.Option(min=1, max=12, help="Replay only the first N months.")] = 12,
    max_lead_days: Annotated[
        int, typer.Option(min=1, max=29, help="Maximum lead of the replay over its slowest reader; the watermark is 30 days behind.")
    ] = 25,
    port: Annotated[int, typer.Option(help="Port of the coordinator; 0 = any free port.")] = 0,
    home: Annotated[Path, typer.Option(help="Work directory; it is emptied at the start.")] = Path(".sluice/demo"),
    system: Annotated[
        System, typer.Option(help="System of all streams: the embedded log, or a Kafka broker that the demo starts.")
    ] = "log",
    lose_disk: Annotated[bool, typer.Option(help="Delete the local state half way, and continue from the blob store.")] = True,
    drain: Annotated[bool, typer.Option(help="Drain the job at the end, which closes all open windows.")] = True,
    late: Annotated[
        float, typer.Option(min=0, help="Start the last container this many seconds after the others. The lead is then unlimited.")
    ] = 0,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the work directory. It is always kept after a failure.")] = False,
    stay: Annotated[bool, typer.Option("--stay", help="Serve the web pages of what has happened until Ctrl-C.")] = False,
) -> None:
    """Replay a year of flights through two containers and check every row and every window."""

    def demo() -> bool:
        flights = load_flights(month_limit)
        home_of = HOMES[system]
        watermark = AFTER_A_DRAIN if drain else WATERMARK
        due = len(closed_windows(flights, home_of=home_of))
        options = DemoOptions(containers, port, seconds_per_month, timedelta(days=max_lead_days), system, lose_disk, drain, late)
        definition = DemoDefinition(
            JOB_FILE,
            [flights_feed(flights)],
            YEAR_STARTS,
            READERS,
            DELAYS,
            due,
            progress_text,
            partial(checked, flights, home_of, watermark),
        )
        return run_demo(definition, fresh(home, MARK), options)

    run_and_exit(demo, home, keep, port if stay else None)


if __name__ == "__main__":
    typer.run(main)
