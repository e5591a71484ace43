"""Runs a demo: a new work directory, the replay and the job, one line of progress, an exit code."""

from __future__ import annotations

import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import httpx

from examples.harness.launch import SluiceRun, sluice_run, starting_late
from examples.harness.replay import Feed, Replay, StreamNotOurs
from examples.harness.streams import Streams, System
from examples.harness.topics import Topics
from examples.harness.watch import RunWatch, is_assigned, is_started, offsets_read
from sluice.core.errors import SluiceError
from sluice.streams.log import Log
from sluice.wire.runs import RunDetail
from tests.support.processes import SLUICE, WAIT_SECONDS, EndedEarly, ProcessFailed, TooSlow, await_line, end, start, tail, wait_for
from tests.support.servers import kafka

SHORT_RUN = "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a run of two minutes the JVM's optimising compiler costs more than it saves. Omit this for a job that runs for months."""

_LOOK_SECONDS = 0.5
_PIPE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class DemoRun:
    """The run that a demo watches. `readers`: stream -> the stage that reads it."""

    run: SluiceRun
    watch: RunWatch
    log: Streams
    replay: Replay
    readers: Mapping[str, str]

    def look(self) -> RunDetail | None:
        """The current state of the run. Raises EndedEarly if `sluice run` or the run has ended."""
        self.run.must_run()
        detail = self.watch.detail()
        if detail is not None and detail.state.ended:
            raise EndedEarly(f"the run is {detail.state}: {detail.reason}\n{self.run.tail()}")
        return detail

    def read(self, detail: RunDetail, stream: str) -> int:
        """The number of records of the stream that were read."""
        return sum(offsets_read(detail, self.readers[stream], stream).values())

    def written(self, stream: str) -> int:
        return sum(self.log.latest(stream).values())

    def is_consumed(self, detail: RunDetail) -> bool:
        """Everything is replayed, and the stages have committed all records of their streams."""
        return self.replay.progress.complete and all(
            offsets_read(detail, stage, stream) == self.log.latest(stream) for stream, stage in self.readers.items()
        )


class Line:
    """The progress line: rewritten on a terminal, printed from time to time on a pipe."""

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
        """Print a line that stays."""
        print(f"\r\x1b[K{text}" if self._tty else text, flush=True)


def await_run(
    demo_run: DemoRun, reached: Callable[[RunDetail], bool], what: str, timeout_seconds: float, show: Callable[[RunDetail], None]
) -> None:
    """Poll the run until `reached` holds. Raises TooSlow, EndedEarly."""

    def look() -> bool:
        detail = demo_run.look()
        if detail is None:
            return False
        show(detail)
        return reached(detail)

    wait_for(what, look, timeout_seconds, every=_LOOK_SECONDS, details=demo_run.run.tail)


def wait_until_ready(demo_run: DemoRun, line: Line, late: float) -> float:
    """Wait until the queries run. Returns the seconds it took. Raises TooSlow, EndedEarly."""
    started = time.monotonic()
    await_run(
        demo_run,
        is_assigned,
        "every task has a container",
        WAIT_SECONDS + late,
        lambda detail: line.show(f"starting {len(detail.tasks)} tasks"),
    )
    try:
        await_run(demo_run, is_started, "every query has run", 60, lambda detail: line.show(f"starting {len(detail.tasks)} tasks' queries"))
    except TooSlow:  # A query may not run a batch before there are rows; the replay shows whether it works.
        line.end("some queries have not reported a batch yet; continuing")
    return time.monotonic() - started


@contextmanager
def replaying(replay: Replay) -> Iterator[list[BaseException]]:
    """Runs the replay in a thread. Yields a list that gets the error if it fails."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            replay.run()
        except (StreamNotOurs, SluiceError, httpx.HTTPError, OSError) as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="replay")
    thread.start()
    try:
        yield failed
    finally:
        replay.stop()
        thread.join()


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """How a demo runs: the number of containers, the port (0 = any), the pace, and the maximum lead over the slowest reader.

    `lose_disk`: the job is stopped half way, its local state is deleted, and it continues from its backup. `drain`: at the end the job is
    drained instead of stopped, which closes all open windows. `late`: the last container starts this many seconds after the others, and the
    lead is unlimited, so that the others read as much as they can meanwhile.
    """

    containers: int
    port: int
    seconds_per_month: float
    max_lead: timedelta
    system: System = "log"
    lose_disk: bool = False
    drain: bool = False
    late: float = 0

    def __post_init__(self) -> None:
        if self.late and self.containers < 2:
            raise ValueError("--late needs a container that does not start late: use --containers 2")


@dataclass(frozen=True, slots=True)
class DemoDefinition:
    """The part that differs between demos.

    `begins`: start of its first day, in seconds since 1970. `readers`: stream -> the stage that reads it. `due`: number of records that the
    output must have at the end. `progress` returns the progress line. `check` returns whether the output is exact, and a summary.
    """

    job_file: Path
    feeds: Sequence[Feed[Any]]
    begins: int
    readers: Mapping[str, str]
    output: str
    due: int
    progress: Callable[[DemoRun, RunDetail], str]
    check: Callable[[Streams], tuple[bool, str]]


def replay_until(
    definition: DemoDefinition,
    demo_run: DemoRun,
    line: Line,
    failed: list[BaseException],
    until: Callable[[RunDetail], bool],
    late: float = 0,
) -> None:
    """Follow the run from the start of the containers until `until` holds; a container may start `late` seconds after the others. Raises
    TooSlow, EndedEarly, or the error of the replay.
    """

    def show(detail: RunDetail) -> None:
        line.show(definition.progress(demo_run, detail))
        if failed:
            raise failed[0]

    took = wait_until_ready(demo_run, line, late)
    line.end(f"ready after {took:.1f} s")
    await_run(demo_run, until, "all input is read", 1800, show)
    if demo_run.replay.progress.complete:
        try:
            await_run(
                demo_run,
                lambda _: demo_run.written(definition.output) >= definition.due,
                f"all of {definition.output} has been written",
                WAIT_SECONDS,
                show,
            )
        except TooSlow:
            line.end(f"records of {definition.output} are missing; the check names them")


@dataclass(frozen=True, slots=True)
class DemoStreams:
    """Empty streams, and the environment variables with which `sluice run` finds them."""

    streams: Streams
    environment: Mapping[str, str]


@contextmanager
def streams_at(system: System, home: Path) -> Iterator[DemoStreams]:
    """The embedded log in `home`, or a Kafka broker that is started there. Raises NotInstalled, BrokerUnavailable."""
    if system == "log":
        yield DemoStreams(Log(home / "log"), {})
        return
    with kafka(home / "kafka") as bootstrap, closing(Topics(bootstrap)) as topics:
        yield DemoStreams(topics, {"SLUICE_KAFKA_BOOTSTRAP": bootstrap})


def run_demo(definition: DemoDefinition, home: Path, options: DemoOptions) -> bool:
    """Run the demo, stop it, and check the output. Returns whether the output is exact. Raises what `replay_until` raises."""
    with streams_at(options.system, home) as streams:
        return _run_demo(definition, home, options, streams)


def _run_demo(definition: DemoDefinition, home: Path, options: DemoOptions, streams: DemoStreams) -> bool:
    line, log = Line(), streams.streams
    for feed in definition.feeds:
        log.create(feed.stream, feed.partitions)
    started = time.monotonic()
    watches: list[RunWatch] = []
    readers = {feed.stream: definition.readers[feed.stream] for feed in definition.feeds}
    replay = Replay(
        log,
        definition.feeds,
        begins=definition.begins,
        seconds_per_month=options.seconds_per_month,
        max_lead=options.max_lead,
        consumed=None if options.late else lambda: watches[-1].read(readers) if watches else None,
    )
    half = sum(len(feed.rows) for feed in definition.feeds) // 2
    parts: list[Callable[[DemoRun, RunDetail], bool]] = [lambda demo_run, detail: demo_run.is_consumed(detail)]
    if options.lose_disk:
        parts.insert(0, lambda demo_run, _: demo_run.replay.progress.rows >= half)
    code = 0
    with replaying(replay) as failed:
        line.end(f"replaying {' and '.join(f'{len(feed.rows):,} {feed.stream}' for feed in definition.feeds)}")
        for number, until in enumerate(parts):
            if number:
                shutil.rmtree(home / "state")
                line.end(f"stopped half way and deleted the local state, {home / 'state'}; starting again from the blob store")
            with ExitStack() as stack:
                run = stack.enter_context(_running(definition, home, options, streams, "checkpoint" if number else "earliest"))
                late = 0 if number else options.late
                if late:
                    stack.enter_context(starting_late(run, options.containers - 1, late))
                coordinator, run_id = run.where(WAIT_SECONDS)
                line.end(
                    f"run {run_id} on {coordinator}, {options.containers} containers" + (f", the last {late:g} s late" if late else "")
                )
                line.end(f"pages {coordinator}/ui/")
                watches.append(RunWatch(coordinator, run_id))
                demo_run = DemoRun(run, watches[-1], log, replay, definition.readers)
                replay_until(definition, demo_run, line, failed, partial(until, demo_run), late)
                draining = options.drain and number == len(parts) - 1
                line.end(
                    f"{replay.progress.rows:,} replayed after {time.monotonic() - started:.1f} s; {'draining' if draining else 'stopping'}"
                )
                code = code or (drained(run, watches[-1], line) if draining else run.stop())
            if code != 0:
                line.end(f"sluice run ended with exit code {code}, not 0\n{run.tail()}")
    exact, reported = definition.check(log)
    line.end(reported)
    line.end(f"{'exact' if exact else 'NOT exact'}, {time.monotonic() - started:.1f} s, {replay.progress.waited_seconds:.1f} s waited")
    return exact and code == 0


def drained(run: SluiceRun, watch: RunWatch, line: Line) -> int:
    """Drain the run, which then ends by itself. Returns its exit code. Raises TooSlow."""
    requested = time.monotonic()
    uuid = watch.drain()
    while (code := run.wait(_LOOK_SECONDS)) is None:
        if (reported := watch.draining(uuid)) is not None:
            line.show(f"drain {uuid}: {reported}")
        if time.monotonic() > requested + 300:
            raise TooSlow(f"the drain: not within 300 s\n{run.tail()}")
    line.end(f"drained and ended within {time.monotonic() - requested:.1f} s")
    return code


def _running(
    definition: DemoDefinition, home: Path, options: DemoOptions, streams: DemoStreams, start: str
) -> AbstractContextManager[SluiceRun]:
    return sluice_run(
        definition.job_file,
        home,
        containers=options.containers,
        port=options.port,
        config=[SHORT_RUN],
        system=options.system,
        environment=streams.environment,
        start_from=start,
    )


def fresh(home: Path, mark: str) -> Path:
    """Empty the directory of a demo and put a file `mark` in it. Raises ValueError if it contains anything but an earlier run of this
    demo.
    """
    if home.exists() and any(home.iterdir()) and not (home / mark).exists():
        raise ValueError(f"{home} contains files that are not of this demo: choose another --home")
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    (home / mark).touch()
    return home.absolute()


def serve_pages(home: Path, port: int) -> None:
    """Start the coordinator of the demo's home again, and print the address of its pages. Returns after Ctrl-C or SIGTERM. Raises
    EndedEarly, TooSlow."""
    log = home / "pages.log"
    process = start([*SLUICE, "coordinator", "--home", str(home), "--port", str(port)], log, new_session=True)
    try:
        print(f"pages {await_line(process, log, COORDINATOR_LINE)}/ui/ until Ctrl-C", flush=True)
        process.wait()
        raise EndedEarly(f"the coordinator has ended\n{tail(log)}")
    except KeyboardInterrupt:
        return
    finally:
        end(process)


COORDINATOR_LINE = r"coordinator on ([^,\s]+)"


def run_and_exit(demo: Callable[[], bool], home: Path, keep: bool, serve_on: int | None = None) -> NoReturn:
    """Run a demo and exit: with 0 if its output is exact, 1 if it is not or the demo fails, 130 after Ctrl-C or SIGTERM. The work directory
    is deleted if the output is exact, unless `keep` is set. With `serve_on`, a port (0 = any), the pages are served after the demo."""
    for each in (signal.SIGTERM, signal.SIGINT):  # SIGINT too, because a shell starts background jobs with SIGINT ignored
        signal.signal(each, signal.default_int_handler)
    try:
        exact = demo()
        if serve_on is not None:
            serve_pages(home, serve_on)
    except KeyboardInterrupt:
        print("\ninterrupted; everything is stopped", file=sys.stderr)
        raise SystemExit(130) from None
    except (ModuleNotFoundError, ProcessFailed, StreamNotOurs, SluiceError, httpx.HTTPError, OSError, ValueError) as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    if exact and not keep:
        shutil.rmtree(home, ignore_errors=True)
    else:
        print(f"the work directory is {home.absolute()}")
    raise SystemExit(0 if exact else 1)
