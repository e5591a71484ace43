"""Wall time and CPU time from the launch of a container to the output of its first batch, with and without the class archive of `sluice
class-archive`, alternately; and the time from the end of a container to the output of the first batch of a spare one, which takes its slot.

The parts of the start, with the archive, are those of the container's log (`docs/operating.md`). They begin with the agent's process,
which starts the driver. The processes are not pinned to cores.
"""

from __future__ import annotations

import os
import re
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bench.cpu import measuring
from bench.crew import Crew, crew
from bench.harness import BenchFailed, Result, note
from containers.errors import ClassArchiveUnavailable
from containers.spark.start.cds import ensure_archive
from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Log, Record, Writer
from tests.support.processes import ROOT, end, must_run, wait_for

NAME = "start"
JOB = ROOT / "bench" / "growth_job.py"
TURNS = 5
KEYS = 100
MOST = 0.8
MOST_SPARE = 5.0
"""Seconds until a spare container has taken over."""
PATIENCE = 120.0
LOOK_SECONDS = 0.02
FIRST_BATCH = re.compile(r"first batch [\d.]+ s after the start of the process: (.*)\n")
"""The line of a container's log."""


@dataclass(frozen=True, slots=True)
class Durations:
    """Seconds until the first output, and CPU seconds that all processes of the container had used by then. `parts`: the seconds of each
    part, as the container has logged them."""

    wall: float
    cpu: float
    parts: Mapping[str, float] = field(default_factory=dict)


def run() -> Result:
    began = time.monotonic()
    try:
        file = ensure_archive(os.environ).file
    except ClassArchiveUnavailable as error:
        raise BenchFailed(str(error)) from error
    note(f"the archive has {file.stat().st_size >> 20} MiB; it was created within {time.monotonic() - began:.1f} s")
    without, with_it = [], []
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as place, crew(Path(place), JOB, {}) as here:
        log = Log(here.home / "log")
        log.create("events", 1)
        log.create("counts", 1)
        here.deploy(start="earliest")
        for turn in range(TURNS):
            without.append(measure_case(here, log, turn * 2, "false"))
            with_it.append(measure_case(here, log, turn * 2 + 1, "true"))
            note(f"first output after {without[-1].wall:.1f} s without the archive, {with_it[-1].wall:.1f} s with it")
        spare = [measure_spare(here, log, 2 * TURNS + turn) for turn in range(TURNS)]
    return judged(without, with_it, spare, file.stat().st_size)


def judged(without: Sequence[Durations], with_it: Sequence[Durations], spare: Sequence[float], size: int) -> Result:
    wall, wall_with = (statistics.median(each.wall for each in found) for found in (without, with_it))
    cpu, cpu_with = (statistics.median(each.cpu for each in found) for found in (without, with_it))
    return Result(
        name=NAME,
        figures={
            "archive_mib": size >> 20,
            "first_output_s": round(wall_with, 2),
            "without_s": round(wall, 2),
            "cpu_s": round(cpu_with, 2),
            "without_cpu_s": round(cpu, 2),
            **{f"{part}_s": round(statistics.median(each.parts.get(part, 0.0) for each in with_it), 2) for part in with_it[0].parts},
            "spare_s": round(statistics.median(spare), 2),
            "spare_longest_s": round(max(spare), 2),
        },
        ratio=round(wall_with / wall, 3),
        target=f"with the archive of classes a container's first output comes within {MOST:g} of the time without; that of a spare one "
        f"within {MOST_SPARE:g} s",
        met=wall_with <= MOST * wall and statistics.median(spare) <= MOST_SPARE,
    )


def feed(log: Log, turn: int) -> None:
    writer = Writer(Lineage("bench"), "bench", Generation(1))
    records = [Record(b"", key=f"key-{n}".encode()) for n in range(KEYS)]
    log.append("events", records, writer=writer, batch=turn, now_micros=time.time_ns() // 1000)


def measure_spare(here: Crew, log: Log, turn: int) -> float:
    """Seconds from the end of a container to the output of the first batch of the spare one. Its first records are read by the container
    that ends, so that both have run a batch of the query."""
    first, before = here.start_container(), log.latest("counts")[0]
    feed(log, 2 * turn)
    wait_for("the first output", lambda: log.latest("counts")[0] != before, PATIENCE, every=LOOK_SECONDS)
    spare = here.start_container(SLUICE_SPARE="true")
    said = here.container_log(spare)
    wait_for("a spare with Spark", lambda: "waiting for a slot" in said.read_text(), PATIENCE)
    end(first.process)
    here.containers.remove(first)
    began, before = time.monotonic(), log.latest("counts")[0]
    feed(log, 2 * turn + 1)

    def written() -> bool:
        must_run(spare.process, said)
        return log.latest("counts")[0] != before

    wait_for("the output of the spare", written, PATIENCE, every=LOOK_SECONDS)
    found = time.monotonic() - began
    note(f"output of the spare after {found:.1f} s")
    end(spare.process)
    return found


def measure_case(here: Crew, log: Log, turn: int, archive: str) -> Durations:
    feed(log, turn)
    before = log.latest("counts")[0]
    began = time.monotonic()
    container = here.start_container(SLUICE_CLASS_ARCHIVE=archive)
    said = here.container_log(container)

    def written() -> bool:
        must_run(container.process, said)
        return log.latest("counts")[0] != before

    with measuring(psutil.Process(container.process.pid)) as cpu:
        wait_for("the first output", written, PATIENCE, every=LOOK_SECONDS)
        wall, used = time.monotonic() - began, cpu.seconds()
    parts = wait_for("the line about the start", lambda: parts_of(said.read_text()), PATIENCE, every=LOOK_SECONDS)
    end(container.process)
    return Durations(wall, used, parts)


def parts_of(text: str) -> Mapping[str, float]:
    """The parts of the start in a container's log; none while it has not logged them."""
    found = FIRST_BATCH.search(text)
    parts = (part.rsplit(" ", 1) for part in found[1].split(", ")) if found else ()
    return {name: float(seconds) for name, seconds in parts}
