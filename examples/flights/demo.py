"""`make demo`: a year of flights through two containers of Spark, checked against a plain count. Exits 0 only if all is exact."""

from __future__ import annotations

import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import httpx
import typer

from coordinator.core.errors import SluiceError
from coordinator.streams.log import Log
from coordinator.wire import RunDetail
from examples.flights.check import check, closed_windows, told
from examples.flights.data import BY_CARRIER, DELAYS, FLIGHTS, PARTITIONS, Flight, FlightsMissing, load_flights, time_text
from examples.flights.launch import EndedEarly, SluiceRun, sluice_run
from examples.flights.replay import Replay
from examples.flights.watch import RunWatch, is_held, is_started, offsets_read

JOB_FILE = Path(__file__).with_name("job.py")
_SHORT_RUN = "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A run of two minutes does not earn back what the JVM's optimising compiler costs it; a job that runs for months leaves this out."""
_MARK = ".flights-demo"
_LOOK_SECONDS = 0.5
_PIPE_SECONDS = 5.0


class TooSlow(Exception):
    """Something did not happen in its time."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What the demo looks at while it runs."""

    run: SluiceRun
    watch: RunWatch
    log: Log
    replay: Replay

    def look(self) -> RunDetail | None:
        """The run as it is. Raises EndedEarly if `sluice run` or the run has ended."""
        self.run.must_run()
        detail = self.watch.detail()
        if detail is not None and detail.state.ended:
            raise EndedEarly(f"the run is {detail.state}: {detail.reason}\n{self.run.tail()}")
        return detail


class Line:
    """The one line of progress: rewritten on a terminal, now and then on a pipe."""

    def __init__(self) -> None:
        self._tty = sys.stdout.isatty()
        self._next = 0.0

    def show(self, text: str) -> None:
        if self._tty:
            print(f"\r\x1b[K{text}", end="", flush=True)
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + _PIPE_SECONDS
            print(text, flush=True)

    def end(self, text: str) -> None:
        """A line that stays."""
        print(f"\r\x1b[K{text}" if self._tty else text, flush=True)


def wait_for(
    scene: Scene, reached: Callable[[RunDetail], bool], what: str, timeout_seconds: float, show: Callable[[RunDetail], None]
) -> None:
    """Look at the run until it is so. Raises TooSlow, EndedEarly."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        detail = scene.look()
        if detail is not None:
            show(detail)
            if reached(detail):
                return
        if time.monotonic() > deadline:
            raise TooSlow(f"{what}: not within {timeout_seconds:g} s\n{scene.run.tail()}")
        time.sleep(_LOOK_SECONDS)


def progress_text(scene: Scene, detail: RunDetail) -> str:
    at = scene.replay.progress
    routed, counted = sum(offsets_read(detail, "route", FLIGHTS).values()), sum(offsets_read(detail, "hourly", BY_CARRIER).values())
    held = f" · {at.held_seconds:.1f} s held back" if at.held_seconds else ""
    windows = sum(scene.log.latest(DELAYS).values())
    return f"{time_text(at.reached)[:10]} · {at.rows:,} replayed · {routed:,} routed · {counted:,} counted · {windows:,} windows{held}"


def is_consumed(scene: Scene, detail: RunDetail) -> bool:
    """Both stages have committed all that is in their streams."""
    return (
        scene.replay.progress.complete
        and offsets_read(detail, "route", FLIGHTS) == scene.log.latest(FLIGHTS)
        and offsets_read(detail, "hourly", BY_CARRIER) == scene.log.latest(BY_CARRIER)
    )


@contextmanager
def replaying(replay: Replay) -> Iterator[list[BaseException]]:
    """The replay on a thread of its own; what it raised, if it did."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            replay.run()
        except (SluiceError, httpx.HTTPError, OSError) as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="replay")
    thread.start()
    try:
        yield failed
    finally:
        replay.stop()
        thread.join()


def play(scene: Scene, flights: list[Flight], line: Line) -> None:
    """From the first container's start to the last window. Raises TooSlow, EndedEarly, or what the replay raised."""
    started = time.monotonic()
    wait_for(scene, is_held, "every task has a container", 120, lambda detail: line.show(f"starting {len(detail.tasks)} tasks"))
    try:
        wait_for(scene, is_started, "every query has run", 60, lambda detail: line.show(f"starting {len(detail.tasks)} tasks' queries"))
    except TooSlow:  # a query need not run a batch before there is a row: the flights will tell
        line.end("some queries have not reported a batch yet; going on")
    line.end(f"ready after {time.monotonic() - started:.1f} s; replaying {len(flights):,} flights")

    def show(detail: RunDetail) -> None:
        line.show(progress_text(scene, detail))
        if failed:
            raise failed[0]

    with replaying(scene.replay) as failed:
        wait_for(scene, lambda detail: is_consumed(scene, detail), "all flights are counted", 1800, show)
    closed = len(closed_windows(flights))
    try:
        wait_for(scene, lambda _: sum(scene.log.latest(DELAYS).values()) >= closed, "all windows are closed", 60, show)
    except TooSlow:
        line.end("windows are missing; the check names them")


def fresh(home: Path) -> Path:
    """An empty directory for this demo. Raises ValueError for one that holds anything but an earlier demo."""
    if home.exists() and any(home.iterdir()) and not (home / _MARK).exists():
        raise ValueError(f"{home} has something in it that is not this demo's: name another --home")
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    (home / _MARK).touch()
    return home.absolute()


def show_all(home: Path, flights: list[Flight], seconds_per_month: float, max_lead: timedelta, containers: int, port: int) -> bool:
    """Run it, stop it, check it; whether all is exact. Raises what `play` raises."""
    line, log = Line(), Log(home / "log")
    log.create(FLIGHTS, PARTITIONS)
    started = time.monotonic()
    with sluice_run(JOB_FILE, home, containers=containers, port=port, config=[_SHORT_RUN]) as run:
        coordinator, run_id = run.where(60)
        line.end(f"run {run_id} on {coordinator}, {containers} containers")
        watch = RunWatch(coordinator, run_id)
        replay = Replay(log, flights, seconds_per_month=seconds_per_month, max_lead=max_lead, consumed=watch.routed)
        play(Scene(run, watch, log, replay), flights, line)
        line.end(f"all counted after {time.monotonic() - started:.1f} s, {replay.progress.held_seconds:.1f} s held back; stopping")
        code = run.stop()
    if code != 0:
        line.end(f"sluice run ended with exit code {code}, not 0\n{run.tail()}")
    report = check(log, flights)
    line.end(told(report))
    line.end(f"{'exact' if report.exact else 'NOT exact'}, {time.monotonic() - started:.1f} s")
    return report.exact and code == 0


def main(
    seconds_per_month: Annotated[float, typer.Option(min=0, help="0 = as fast as the readers allow.")] = 5.0,
    containers: Annotated[int, typer.Option(min=1, max=PARTITIONS)] = 2,
    month_limit: Annotated[int, typer.Option(min=1, max=12, help="Replay only the first N months.")] = 12,
    max_lead_days: Annotated[
        int, typer.Option(min=1, max=29, help="The replay's lead over its slowest reader; the watermark is 30 days behind.")
    ] = 25,
    port: Annotated[int, typer.Option(help="The coordinator's; 0 = any free one.")] = 0,
    home: Annotated[Path, typer.Option(help="Work directory, emptied at the start.")] = Path(".sluice/demo"),
    keep: Annotated[bool, typer.Option("--keep", help="Leave the work directory; a failure leaves it anyway.")] = False,
) -> None:
    """Replay a year of flights through two containers and check every row and every window."""
    for each in (signal.SIGTERM, signal.SIGINT):  # SIGINT too: a shell's background job begins with it ignored
        signal.signal(each, signal.default_int_handler)
    try:
        flights, home = load_flights(month_limit), fresh(home)
        exact = show_all(home, flights, seconds_per_month, timedelta(days=max_lead_days), containers, port)
    except KeyboardInterrupt:
        print("\ninterrupted; everything is stopped", file=sys.stderr)
        raise SystemExit(130) from None
    except (FlightsMissing, TooSlow, EndedEarly, SluiceError, httpx.HTTPError, OSError, ValueError) as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    if exact and not keep:
        shutil.rmtree(home, ignore_errors=True)
    else:
        print(f"the work directory is {home}")
    raise SystemExit(0 if exact else 1)


if __name__ == "__main__":
    typer.run(main)
