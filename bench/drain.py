"""The time from the request of a drain to DRAINED, compared with the flushes alone in plain Spark. The job has eight tasks, on the log and
`local[2]`.

* one, two: an idle job of one stage, and of two stages, with all windows open; the second stage reads what the first flushes.
* loaded: the job of one stage while 1,000 rows a second arrive; what arrives after the drain has begun stays for the next run.
* million: one stage with 1,000,000 rows of open state.
* upgrade: `sluice upgrade` upgrades the job of one stage while rows arrive. Measured until the first output of the new version,
  whose containers start when the old ones have drained.

Each case is measured in a run of its own, alternating with the same queries in plain Spark (`bench/drain_bare.py`): their state is emptied
by the same batches, each of which restarts the query; the queries were stopped before the clock starts. The drain also stops between
batches, backs up the state to a blob store on disk before and after, and does everything else that a drain does. Its durations are the
coordinator's, by phase. Flink 2.2 takes 0.9 s for `stop --drain` of a job with eight subtasks on such a machine.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from bench.drain_job import PARTITIONS
from bench.drain_upgrade import first_output_after
from bench.harness import BenchFailed, Result, note
from examples.harness.launch import SluiceRun, sluice_run
from examples.harness.watch import RunWatch, is_started, offsets_read
from sluice.core.drain import Phase
from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Log, Record, Writer
from sluice.wire.drains import DrainDetail
from tests.support.processes import ROOT, wait_for

NAME = "drain"
SHARE = float(os.environ.get("BENCH_SHARE", "1"))
"""Scale of rows and turns: 1 is the real benchmark; a smaller scale is for a quick test."""
TURNS = int(os.environ.get("BENCH_DRAIN_TURNS", max(1, round(3 * SHARE))))
"""How often each case is measured. One turn takes about ten minutes."""
IDLE_ROWS = 4_000
MANY_ROWS = round(1_000_000 * SHARE)
IDLE_SECONDS = 14.0
"""Pause after the last batch: longer than the commit interval, so that everything is backed up when the drain begins."""
LOADED_SECONDS = 10.0
PATIENCE = 600.0
MOST_SECONDS: Mapping[str, float] = {"one": 1.2, "loaded": 1.2, "two": 2.5}
JOB = ROOT / "bench" / "drain_job.py"
WRITER = Writer(Lineage("bench"), "bench", Generation(1))
APPENDED = 50_000
SECONDS_APART = 7
"""Interval of rows in event time: rows of the same name never share a window."""


@dataclass(frozen=True, slots=True)
class Case:
    """`arriving`: rows a second while the job is drained."""

    stages: int
    rows: int
    arriving: int = 0


CASES: Mapping[str, Case] = {
    "one": Case(1, IDLE_ROWS),
    "loaded": Case(1, IDLE_ROWS, arriving=1000),
    "two": Case(2, IDLE_ROWS),
    "million": Case(1, MANY_ROWS),
}


@dataclass
class Measured:
    """Seconds of each turn: of the drain, of its phases, and of the flushes in plain Spark."""

    drain: list[float] = field(default_factory=list)
    phases: list[Mapping[str, float]] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)

    def phase(self, phase: Phase) -> float:
        return statistics.median(each.get(phase, 0.0) for each in self.phases)


def run() -> Result:
    """Raises BenchFailed."""
    found = {name: Measured() for name in CASES}
    for turn in range(TURNS):
        for name, case in CASES.items():
            measured = found[name]
            with place(case) as (home, log):
                detail = drained(home, log, case)
            measured.phases.append({each.phase: each.seconds for each in detail.phases})
            assert detail.ended_at is not None
            measured.drain.append((detail.ended_at - detail.requested_at).total_seconds())
            reported = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in measured.phases[-1].items() if seconds)
            note(f"{turn + 1}/{TURNS} {name}: {measured.drain[-1]:.2f} s ({reported})")
            with place(case) as (home, log):
                measured.bare.append(bare(home, log, case))
            note(f"{turn + 1}/{TURNS} {name}: bare flushes {measured.bare[-1]:.2f} s")
    with place(CASES["one"]) as (home, log):
        upgrade = upgraded(home, log)
    note(f"upgrade: {upgrade:.1f} s until the first output of the new version")
    return judged(found, upgrade)


def judged(found: Mapping[str, Measured], upgrade: float) -> Result:
    """`ratio`: the flushes of an idle job of one stage in plain Spark, as a fraction of its drain."""
    figures: dict[str, float] = {"turns": TURNS, "upgrade_first_output_s": round(upgrade, 1)}
    for name, measured in found.items():
        figures[f"{name}_s"] = round(statistics.median(measured.drain), 2)
        for phase in (Phase.STOPPING, Phase.FLUSHING, Phase.COMMITTING):
            figures[f"{name}_{phase.lower()}_s"] = round(measured.phase(phase), 2)
        figures[f"{name}_bare_s"] = round(statistics.median(measured.bare), 2)
    one = statistics.median(found["one"].drain)
    return Result(
        name=NAME,
        figures=figures,
        ratio=round(statistics.median(found["one"].bare) / one, 3),
        target=f"a job of eight tasks and one stage is drained within {MOST_SECONDS['one']:g} s, idle and under load, one of two stages "
        f"within {MOST_SECONDS['two']:g} s",
        met=all(statistics.median(found[name].drain) <= most for name, most in MOST_SECONDS.items()),
    )


@contextmanager
def place(case: Case) -> Iterator[tuple[Path, Log]]:
    """A home directory whose log has the rows."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as made:
        home = Path(made) / "home"
        log = Log(home / "log")
        for stream, partitions in (("seen", PARTITIONS), ("counts", 1)):
            log.create(stream, partitions)
        for first in range(0, case.rows, APPENDED):
            append(log, range(first, min(first + APPENDED, case.rows)))
        yield home, log


def append(log: Log, numbers: range) -> None:
    records = [Record(str(n * SECONDS_APART).encode(), key=f"name-{n}".encode(), partition=n % PARTITIONS) for n in numbers]
    log.append("seen", records, writer=WRITER, batch=numbers.start, now_micros=time.time_ns() // 1000)


@contextmanager
def arriving(log: Log, case: Case) -> Iterator[None]:
    """Rows arrive while the block runs, and for some seconds before it."""
    over = threading.Event()

    def feed() -> None:
        rows = case.arriving // 10
        for first in itertools.count(case.rows, rows):
            append(log, range(first, first + rows))
            if over.wait(0.1):
                return

    feeder = threading.Thread(target=feed, name="feeder")
    if case.arriving:
        feeder.start()
        time.sleep(LOADED_SECONDS)
    try:
        yield
    finally:
        over.set()
        if case.arriving:
            feeder.join()


def environment(case: Case) -> dict[str, str]:
    return {**os.environ, "BENCH_STAGES": str(case.stages)}


# --- the drain -------------------------------------------------------------------------------------------------------


def drained(home: Path, log: Log, case: Case) -> DrainDetail:
    """Run the job until it is idle, and drain it. Returns the durations."""
    with sluice_run(JOB, home, containers=1, port=0, environment=environment(case)) as run:
        try:
            watch = RunWatch(*run.where(60))
            await_idle(run, watch, case)
            with arriving(log, case):
                uuid = watch.drain()
                return ended(run, run.where(0)[0], uuid)
        except httpx.HTTPError as error:
            raise BenchFailed(f"{error}\n{run.tail()}") from error


def await_idle(run: SluiceRun, watch: RunWatch, case: Case) -> None:
    stage = "hours" if case.stages == 1 else "minutes"

    def idle() -> bool:
        run.must_run()
        detail = watch.detail()
        return detail is not None and is_started(detail) and sum(offsets_read(detail, stage, "seen").values()) >= case.rows

    wait_for(f"{case.rows} rows have been read", idle, PATIENCE, every=0.5, details=run.tail)
    time.sleep(IDLE_SECONDS)


def ended(run: SluiceRun, url: str, uuid: str) -> DrainDetail:
    def over() -> DrainDetail | None:
        found = DrainDetail.model_validate_json(httpx.get(f"{url}/drain/{uuid}", trust_env=False).raise_for_status().content)
        return found if found.phase.over else None

    found = wait_for("the end of the drain", over, PATIENCE, every=0.5, details=run.tail)  # polling takes CPU from the drain
    if found.phase is not Phase.DRAINED:
        raise BenchFailed(f"the drain is {found.phase}: {found.reason}\n{run.tail()}")
    return found


def upgraded(home: Path, log: Log) -> float:
    """Run the job until it is idle, and upgrade it. Returns the duration."""
    case = CASES["one"]
    with sluice_run(JOB, home, containers=1, port=0, environment=environment(case)) as run:
        try:
            await_idle(run, RunWatch(*run.where(60)), case)
            return first_output_after(run.where(0)[0], home, log)
        except httpx.HTTPError as error:
            raise BenchFailed(f"{error}\n{run.tail()}") from error


# --- the peer --------------------------------------------------------------------------------------------------------


def bare(home: Path, log: Log, case: Case) -> float:
    """The duration of the same flushes in plain Spark."""
    if case.stages == 2:
        log.create("minutes", PARTITIONS)
    command: Sequence[str] = [sys.executable, "-m", "bench.drain_bare", str(log.directory), str(home / "bare")]
    (home / "bare").mkdir()
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, env=environment(case))
    if done.returncode:
        raise BenchFailed(f"the plain queries failed: {done.stderr[-1000:]}")
    return float(json.loads(done.stdout.splitlines()[-1])["seconds"])
