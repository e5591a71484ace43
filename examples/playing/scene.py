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

from examples.playing.launch import SluiceRun, sluice_run, starting_late
from examples.playing.replay import Feed, Replay, StreamNotOurs
from examples.playing.streams import Streams, System
from examples.playing.topics import Topics
from examples.playing.watch import RunWatch, is_held, is_started, offsets_read
from sluice.core.errors import SluiceError
from sluice.streams.log import Log
from sluice.wire.runs import RunDetail
from tests.support.processes import EndedEarly, ProcessFailed, TooSlow, wait_for
from tests.support.servers import kafka

SHORT_RUN = "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A run of two minutes does not earn back what the JVM's optimising compiler costs it; a job that runs for months leaves this out."""

_LOOK_SECONDS = 0.5
_PIPE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Scene:
    """What a demo looks at while it runs. `readers`: every stream that is read -> the stage that reads it."""

    run: SluiceRun
    watch: RunWatch
    log: Streams
    replay: Replay
    readers: Mapping[str, str]

    def look(self) -> RunDetail | None:
        """The run as it is. Raises EndedEarly if `sluice run` or the run has ended."""
        self.run.must_run()
        detail = self.watch.detail()
        if detail is not None and detail.state.ended:
            raise EndedEarly(f"the run is {detail.state}: {detail.reason}\n{self.run.tail()}")
        return detail

    def read(self, detail: RunDetail, stream: str) -> int:
        """How many records of the stream are read."""
        return sum(offsets_read(detail, self.readers[stream], stream).values())

    def written(self, stream: str) -> int:
        return sum(self.log.latest(stream).values())

    def is_consumed(self, detail: RunDetail) -> bool:
        """All is replayed, and the stages have committed all that is in their streams."""
        return self.replay.progress.complete and all(
            offsets_read(detail, stage, stream) == self.log.latest(stream) for stream, stage in self.readers.items()
        )


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


def await_run(
    scene: Scene, reached: Callable[[RunDetail], bool], what: str, timeout_seconds: float, show: Callable[[RunDetail], None]
) -> None:
    """Look at the run until it is so. Raises TooSlow, EndedEarly."""

    def look() -> bool:
        detail = scene.look()
        if detail is None:
            return False
        show(detail)
        return reached(detail)

    wait_for(what, look, timeout_seconds, every=_LOOK_SECONDS, told=scene.run.tail)


def wait_until_ready(scene: Scene, line: Line, late: float) -> float:
    """Until the queries run; the seconds that it took. Raises TooSlow, EndedEarly."""
    started = time.monotonic()
    await_run(scene, is_held, "every task has a container", 120 + late, lambda detail: line.show(f"starting {len(detail.tasks)} tasks"))
    try:
        await_run(scene, is_started, "every query has run", 60, lambda detail: line.show(f"starting {len(detail.tasks)} tasks' queries"))
    except TooSlow:  # a query need not run a batch before there is a row: the rows will tell
        line.end("some queries have not reported a batch yet; going on")
    return time.monotonic() - started


@contextmanager
def replaying(replay: Replay) -> Iterator[list[BaseException]]:
    """The replay on a thread of its own; what it raised, if it did."""
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
class Pace:
    """How a demo goes: of how many containers, on which port (0 = any), how fast, and how far ahead of the slowest reader at most.
    `lose_disk`: half way the job is stopped, its local state deleted, and it goes on from what it has backed up. `drain`: in the end it is
    drained instead of stopped, which brings out what is still open. `late`: the last container starts so many seconds after the others, and
    the lead is not bounded, so that the others read all that they can meanwhile."""

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
            raise ValueError("with --late there must be a container that does not start late: use --containers 2")


@dataclass(frozen=True, slots=True)
class Show:
    """A demo's own part. `begins`: when its first day begins, in seconds since 1970; `readers`: every stream that is read -> the stage that
    reads it; `due`: how many records the output must have in the end; `progress`: a line; `check`: whether all is exact, and what to say.
    """

    job_file: Path
    feeds: Sequence[Feed[Any]]
    begins: int
    readers: Mapping[str, str]
    output: str
    due: int
    progress: Callable[[Scene, RunDetail], str]
    check: Callable[[Streams], tuple[bool, str]]


def play(show: Show, scene: Scene, line: Line, failed: list[BaseException], until: Callable[[RunDetail], bool], late: float = 0) -> None:
    """From the first container's start until it is so; a container may be `late` by so many seconds. Raises TooSlow, EndedEarly, or what
    the replay raised."""

    def tell(detail: RunDetail) -> None:
        line.show(show.progress(scene, detail))
        if failed:
            raise failed[0]

    took = wait_until_ready(scene, line, late)
    line.end(f"ready after {took:.1f} s")
    await_run(scene, until, "all is read", 1800, tell)
    if scene.replay.progress.complete:
        try:
            await_run(scene, lambda _: scene.written(show.output) >= show.due, f"all of {show.output} is there", 60, tell)
        except TooSlow:
            line.end(f"some of {show.output} is missing; the check names it")


@dataclass(frozen=True, slots=True)
class Place:
    """Empty streams, and what `sluice run` must be told to find them."""

    streams: Streams
    environment: Mapping[str, str]


@contextmanager
def streams_at(system: System, home: Path) -> Iterator[Place]:
    """The embedded log in `home`, or a Kafka broker that is started there. Raises NotInstalled, BrokerUnavailable."""
    if system == "log":
        yield Place(Log(home / "log"), {})
        return
    with kafka(home / "kafka") as bootstrap, closing(Topics(bootstrap)) as topics:
        yield Place(topics, {"SLUICE_KAFKA_BOOTSTRAP": bootstrap})


def run_show(show: Show, home: Path, pace: Pace) -> bool:
    """Run it, stop it, check it; whether all is exact. Raises what `play` raises."""
    with streams_at(pace.system, home) as place:
        return _run_show(show, home, pace, place)


def _run_show(show: Show, home: Path, pace: Pace, place: Place) -> bool:
    line, log = Line(), place.streams
    for feed in show.feeds:
        log.create(feed.stream, feed.partitions)
    started = time.monotonic()
    watches: list[RunWatch] = []
    readers = {feed.stream: show.readers[feed.stream] for feed in show.feeds}
    replay = Replay(
        log,
        show.feeds,
        begins=show.begins,
        seconds_per_month=pace.seconds_per_month,
        max_lead=pace.max_lead,
        consumed=None if pace.late else lambda: watches[-1].read(readers) if watches else None,
    )
    half = sum(len(feed.rows) for feed in show.feeds) // 2
    acts: list[Callable[[Scene, RunDetail], bool]] = [lambda scene, detail: scene.is_consumed(detail)]
    if pace.lose_disk:
        acts.insert(0, lambda scene, _: scene.replay.progress.rows >= half)
    code = 0
    with replaying(replay) as failed:
        line.end(f"replaying {' and '.join(f'{len(feed.rows):,} {feed.stream}' for feed in show.feeds)}")
        for number, until in enumerate(acts):
            if number:
                shutil.rmtree(home / "state")
                line.end(f"stopped half way, and the local state is deleted: {home / 'state'}; starting again, from the blob store")
            with ExitStack() as stack:
                run = stack.enter_context(_running(show, home, pace, place, "checkpoint" if number else "earliest"))
                late = 0 if number else pace.late
                if late:
                    stack.enter_context(starting_late(run, pace.containers - 1, late))
                coordinator, run_id = run.where(60)
                line.end(f"run {run_id} on {coordinator}, {pace.containers} containers" + (f", the last {late:g} s late" if late else ""))
                watches.append(RunWatch(coordinator, run_id))
                scene = Scene(run, watches[-1], log, replay, show.readers)
                play(show, scene, line, failed, partial(until, scene), late)
                draining = pace.drain and number == len(acts) - 1
                line.end(
                    f"{replay.progress.rows:,} replayed after {time.monotonic() - started:.1f} s; {'draining' if draining else 'stopping'}"
                )
                code = code or (drained(run, watches[-1], line) if draining else run.stop())
            if code != 0:
                line.end(f"sluice run ended with exit code {code}, not 0\n{run.tail()}")
    exact, reported = show.check(log)
    line.end(reported)
    line.end(f"{'exact' if exact else 'NOT exact'}, {time.monotonic() - started:.1f} s, {replay.progress.held_seconds:.1f} s held back")
    return exact and code == 0


def drained(run: SluiceRun, watch: RunWatch, line: Line) -> int:
    """Drain the run, which then ends by itself; its exit code. Raises TooSlow."""
    asked = time.monotonic()
    uuid = watch.drain()
    while (code := run.wait(_LOOK_SECONDS)) is None:
        if (reported := watch.draining(uuid)) is not None:
            line.show(f"drain {uuid}: {reported}")
        if time.monotonic() > asked + 300:
            raise TooSlow(f"the drain: not within 300 s\n{run.tail()}")
    line.end(f"drained and ended within {time.monotonic() - asked:.1f} s")
    return code


def _running(show: Show, home: Path, pace: Pace, place: Place, start: str) -> AbstractContextManager[SluiceRun]:
    return sluice_run(
        show.job_file,
        home,
        containers=pace.containers,
        port=pace.port,
        config=[SHORT_RUN],
        system=pace.system,
        environment=place.environment,
        start_from=start,
    )


def fresh(home: Path, mark: str) -> Path:
    """An empty directory for a demo, with a file `mark` in it. Raises ValueError for one that holds anything but an earlier such demo."""
    if home.exists() and any(home.iterdir()) and not (home / mark).exists():
        raise ValueError(f"{home} has something in it that is not this demo's: name another --home")
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    (home / mark).touch()
    return home.absolute()


def perform(demo: Callable[[], bool], home: Path, keep: bool) -> NoReturn:
    """Run a demo and exit: with 0 if it says that all is exact, 1 if not or if it fails, 130 after Ctrl-C or SIGTERM. The work directory
    goes when all was exact, unless it is to be kept."""
    for each in (signal.SIGTERM, signal.SIGINT):  # SIGINT too: a shell's background job begins with it ignored
        signal.signal(each, signal.default_int_handler)
    try:
        exact = demo()
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
