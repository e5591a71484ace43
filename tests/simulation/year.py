"""`python -m tests.simulation.year`: a year of one coordinator and three jobs, with heartbeats half a day apart.

Time jumps by a day, and runs for some seconds after each jump: heartbeats are sent, chores run once, batches are read and backed up.
Each job is upgraded every week by a drain, whose output is checked. Containers are killed and stopped, runs scaled and stopped, snapshots
pinned and garbage collected. The coordinator is never started again. Printed are, for each month, the rows of its database, the objects in
its memory, and the resident memory of the process. Rows may not grow after the fourth month, when all that is old is deleted, and objects
not after the eighth, when the caches are full.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import resource
import shutil
import sqlite3
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, cast

from coordinator.store.copies import database_file
from sluice.randomness import drawn_from
from tests.simulation.loop import collect_quietly, main_process, silent, simulated
from tests.simulation.runs import unexpected_errors
from tests.simulation.world import World
from tests.support.agents import NO_ADDRESS

JOBS = ("delays", "rushes", "totals")
JUMP = 86_400
"""Seconds of a jump."""

AWAKE = 4
"""Seconds between two jumps."""

MONTH = 30
"""Days."""

ROWS_SETTLED_AFTER = 4 * MONTH
"""Days after which no table grows: the history is kept for a month, and what is deleted in steps takes some more."""

CACHES_FULL_AFTER = 8 * MONTH
"""Days after which the coordinator's caches of runs and samples are full: they keep a hundred runs, and seven months have as many."""

GROWTH, SLACK = 1.2, 30
"""The most that a count may be at the end: this factor of the largest count before, and so many more."""

MOST_TURNS = 20_000_000
"""Of the loop."""

TRACE_LINES = 2000

SETTINGS: Mapping[str, Any] = {
    "lease_seconds": 400_000,
    "heartbeat_seconds": 40_000,
    "margin_seconds": 4000,
    "grace_seconds": 400,
    "failover_after_seconds": 500_000,
    "log_retention_seconds": 86_400,
    "drain_hard_seconds": 7200,
}


@dataclass
class Size:
    """At the end of a month. `rows`: by table. `objects`: of the coordinator's classes, in memory. `resident`: in MiB."""

    day: int
    rows: Mapping[str, int]
    objects: int
    resident: float


@dataclass
class Year:
    broken: list[str] = field(default_factory=list)
    sizes: list[Size] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)
    trace: Sequence[str] = ()


def run_year(seed: int = 0, days: int = 365) -> Year:
    """The same seed gives the same year in every process, but for the resident memory."""
    chance, year = Random(seed), Year()
    directory = Path(tempfile.mkdtemp(prefix="year-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    gc.freeze()
    try:
        with silent():
            _run(chance, directory, year, days)
            logging.disable(logging.CRITICAL)
            collect_quietly()
    finally:
        logging.disable(logging.NOTSET)
        shutil.rmtree(directory, ignore_errors=True)
    return year


def _run(chance: Random, directory: Path, year: Year, days: int) -> None:
    worlds: list[World] = []
    with drawn_from(chance), unexpected_errors() as unexpected, simulated(chance, MOST_TURNS) as loop:
        settings = {"commit_interval_seconds": 3600, "report_seconds": 4.0, "metrics_host": NO_ADDRESS, "max_replay": 3}
        for name in JOBS:
            world = World(loop, chance, directory, settings, name=name, beside=worlds[0] if worlds else None, pace=3.0)
            world.trace = cast("list[str]", deque(maxlen=TRACE_LINES))
            worlds.append(world)
        worlds[0].coordinator_settings |= SETTINGS
        try:
            loop.run_until_complete(loop.create_task(_live(worlds, year, days), context=main_process()))
        except Exception as error:
            year.broken.append(f"{type(error).__name__}: {error}")
        year.trace = list(worlds[0].trace)  # before the coroutines that are dropped run their `finally` blocks
        for world in worlds:
            world.close()
        year.broken += worlds[0].network.broken + unexpected + [each for world in worlds for each in (*world.ledger.faults, *world.broken)]


async def _live(worlds: Sequence[World], year: Year, days: int) -> None:
    first = worlds[0]
    await first.start_coordinator()
    for number, world in enumerate(worlds):
        world.log.create(world.streams[0], 2)
        await world.deploy(2 if number == 0 else 1)
    for day in range(days):
        for number, world in enumerate(worlds):
            world.produce(20)
            await _event(world, day + 2 * number, 2 if number == 0 else 1, year)
            world.containers = [each for each in world.containers if each.running]
        await asyncio.sleep(AWAKE)
        if first.network.broken or any(world.broken or world.ledger.faults for world in worlds):
            return
        if day % MONTH == MONTH - 1:
            year.sizes.append(_measure(first, day + 1))
            print(_line(year.sizes[-1]), flush=True)
        first.loop.jump(JUMP)
    for world in worlds:
        await world.read_input()
        if (phase := await world.drain()) != "DRAINED":
            world.broken.append(f"the last drain of {world.job_name}: {phase}")


async def _event(world: World, day: int, containers: int, year: Year) -> None:
    """What happens to a job on this day. `containers`: of its deployments."""
    running = [slot.container for _, slot in sorted(world.slots.items()) if slot.container is not None and slot.container.running]
    match day % 28:
        case 0 | 7 | 14 | 21:
            phase = await world.drain("DEFAULT" if day % 2 else "KEEP_STATE")
            year.events[f"drain {phase}"] += 1
            await world.deploy(containers)
        case 3 | 17 if running:
            year.events["stop of a container"] += 1
            running[0].process.context().run(world.loop.call_soon, running[0].agent.stop_requested)
        case 10 if running:
            year.events["kill of a container"] += 1
            world.kill(running[0], "by a fault")
        case 12:
            year.events["scale"] += 1
            await world.scale(1 + day % 2)
        case 16:
            year.events["pin"] += 1
            await world.pin()
        case 19:
            await world.unpin()
            await world.collect("run")
            year.events["collection"] += 1
        case 24:
            year.events["stop of a run"] += 1
            await world.operator().stop_run(world.run_id, "by hand")
            await asyncio.sleep(20)
            await world.deploy(containers)
        case _:
            pass


def _measure(world: World, day: int) -> Size:
    with closing(sqlite3.connect(database_file(world.database_url))) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        rows = {name: connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in tables}
    gc.collect()
    objects = sum(type(each).__module__.startswith("coordinator.") for each in gc.get_objects())
    return Size(day, rows, objects, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def _line(size: Size) -> str:
    largest = ", ".join(f"{name} {count}" for name, count in Counter(size.rows).most_common(6))
    return f"day {size.day}: {sum(size.rows.values())} rows ({largest}), {size.objects} objects, at most {size.resident:.0f} MiB resident"


def grown(sizes: Sequence[Size]) -> Sequence[str]:
    """What has grown although everything old is deleted."""
    if not sizes or sizes[-1].day <= ROWS_SETTLED_AFTER + MONTH:
        return []
    found, last = [], sizes[-1]
    before = [each for each in sizes if ROWS_SETTLED_AFTER - MONTH <= each.day <= CACHES_FULL_AFTER]
    for name, rows in sorted(last.rows.items()):
        most = max(each.rows[name] for each in before)
        if rows > GROWTH * most + SLACK:
            found.append(f"the table {name} had at most {most} rows until day {CACHES_FULL_AFTER}, and has {rows}")
    full = [each.objects for each in sizes if abs(each.day - CACHES_FULL_AFTER) <= MONTH]
    if full and last.objects > GROWTH * max(full) + SLACK:
        found.append(f"the coordinator had {max(full)} objects after {CACHES_FULL_AFTER} days, and has {last.objects}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="year", description="Simulate a year of three jobs.")
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began, cpu = time.monotonic(), time.process_time()
    year = run_year(options.seed, options.days)
    broken = [*year.broken, *grown(year.sizes)]
    if year.broken:
        print("\n".join(year.trace[-60:]))
    print("\n".join(broken))
    print(f"{', '.join(f'{what}: {count}' for what, count in sorted(year.events.items()))}")
    print(
        f"{options.days} days in {time.monotonic() - began:.0f} s ({time.process_time() - cpu:.0f} s of a processor), {len(broken)} broken"
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
