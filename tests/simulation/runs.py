"""One seed: faults at random times, then a time without faults, then the checks."""

from __future__ import annotations

import asyncio
import gc
import logging
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from sluice.core.errors import Bug, SluiceError
from sluice.randomness import drawn_from
from tests.simulation.fault_injection import FAULTS, KAFKA_FAULTS, POSTGRESQL_FAULTS, heal, lose_markers
from tests.simulation.impostors import impostor
from tests.simulation.loop import Killed, collect_quietly, main_process, silent, simulated
from tests.simulation.world import HARD_DEADLINE, World
from tests.support.agents import NO_ADDRESS
from tests.support.databases import create_migrated

FAULTS_OF_A_SEED = 20

EVENT_TIMES = "event_times"
"""Among the kinds of faults: records have event times. Drawn by half of the seeds without chosen kinds."""

PACES = (0.3, *[1.0] * 3, *[3.0] * 6)
"""Factors for the intervals of the coordinator's chores. With short intervals a seed takes several times as long, since chores take time
even when they have nothing to do."""

PAUSES = (2, 4, 8)
"""The average number of seconds between two faults of a seed."""

OTHERS = 3
"""How many other faults are tried, one after another, if one finds nothing to act on."""

OURS = ("containers", "coordinator", "sluice")
"""Packages whose log is looked at."""

EARLY = {"gc_grace_seconds": 60, "gc_every_seconds": 10}
"""Settings of the coordinator where garbage is collected within a seed."""

SHORT_COMMITS = {"commit_max_delay_seconds": 5, "commit_timeout_seconds": 20}
"""Settings of the containers there: a backup that takes longer than the grace period might lose its blobs."""

DRAINED_WITHIN = HARD_DEADLINE + 300
"""Virtual seconds in which a drain that was requested before the end of the faults ends: its hard deadline, after the first container has
registered, for which the longest lease must end."""

SETTLES_WITHIN = 900
"""Virtual seconds in which, after the last fault, everything is read and drained."""


@dataclass
class Outcome:
    """`broken`: the invariants that did not hold."""

    seed: int
    plan: Sequence[PlannedFault] = ()
    broken: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    trace: Sequence[str] = ()
    virtual_seconds: float = 0.0
    turns: int = 0
    requests: int = 0
    drains: int = 0
    watermarks: Sequence[int] = ()
    """Those of batches that have read records with event times, in milliseconds since 1970."""
    transactions: Counter[str] = field(default_factory=Counter)
    """What happened to transactions on Kafka, and how often."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """`after`: seconds after the previous fault. `number`: determines, with the seed, the random choices of this fault. `instead`: the
    faults that are tried if it finds nothing to act on."""

    number: int
    after: float
    name: str
    instead: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """What a seed runs on. `kafka`: its streams are in Kafka, otherwise in the embedded log. `postgresql`: its database is PostgreSQL,
    otherwise SQLite. `pace`: the factor for the intervals of the coordinator's chores; None: drawn by the seed. `standby`: slots keep
    copies of the state of others. `removal`: the job is removed at the end. `early`: garbage collection deletes blobs after a minute.
    `event_times`: records have event times, and no row may be dropped as late."""

    kafka: bool
    postgresql: bool
    pace: float | None
    standby: bool = False
    removal: bool = False
    early: bool = False
    event_times: bool = False


def place_of(seed: int, kinds: Collection[str], without: Collection[str] = ()) -> Place:
    """Drawn by the seed. If kinds of faults are given, it follows from them."""
    if kinds:
        kafka, postgresql = not KAFKA_FAULTS.isdisjoint(kinds), not POSTGRESQL_FAULTS.isdisjoint(kinds)
        return Place(kafka, postgresql, None, event_times=EVENT_TIMES in kinds)
    event_times = EVENT_TIMES not in without and Random(f"event times of {seed}").random() < 0.5
    chance = Random(f"place of {seed}")
    kafka, postgresql, pace = chance.random() < 0.35, chance.random() < 0.35, chance.choice(PACES)
    return Place(kafka, postgresql, pace, chance.random() < 0.3, chance.random() < 0.3, chance.random() < 0.3, event_times)


def plan_faults(seed: int, count: int, kinds: Collection[str] = (), without: Collection[str] = ()) -> Sequence[PlannedFault]:
    """The faults of a seed, of these kinds, or of all that may happen where it runs, `without` some. Each is independent of the others, so
    that a seed may be run with only some of them."""
    chance, place = Random(f"faults of {seed}"), place_of(seed, kinds)
    elsewhere = (frozenset() if place.kafka else KAFKA_FAULTS) | (frozenset() if place.postgresql else POSTGRESQL_FAULTS)
    pause, names = chance.choice(PAUSES), sorted(set(kinds) - {EVENT_TIMES} or FAULTS.keys() - elsewhere - set(without))
    return [
        PlannedFault(number, chance.expovariate(1 / pause), chance.choice(names), chance.choices(names, k=OTHERS))
        for number in range(count)
    ]


def kinds_of(plan: Sequence[PlannedFault]) -> Collection[str]:
    """The kinds of faults that may happen."""
    return {name for each in plan if each.name for name in (each.name, *each.instead)}


def run_seed(
    seed: int,
    faults: int = FAULTS_OF_A_SEED,
    only: Collection[int] | None = None,
    kinds: Collection[str] = (),
    without: Collection[str] = (),
) -> Outcome:
    """The same seed gives the same outcome in every process. `only`: the numbers of the faults that happen, of those that are planned; None
    for all. `kinds`: of faults that are planned; all if empty. `without`: kinds that did not exist when the seed was first run."""
    planned = plan_faults(seed, faults, kinds, without)
    plan = [each if only is None or each.number in only else replace(each, name="") for each in planned]
    chance, outcome = Random(seed), Outcome(seed, plan=plan)
    shared_memory = Path("/dev/shm")
    directory = Path(tempfile.mkdtemp(prefix="simulation-", dir=shared_memory if shared_memory.is_dir() else None))
    if not gc.get_freeze_count():
        gc.freeze()  # modules and classes stay; collections would look at all of them again and again
    collects = gc.isenabled()
    gc.disable()  # a seed needs less than 100 MB, and collections would take a tenth of its time
    try:
        with silent():  # also what was left of earlier seeds
            _run_seed(chance, directory, outcome, place_of(seed, kinds, without))
            logging.disable(logging.CRITICAL)
            collect_quietly()
    finally:
        if collects:
            gc.enable()
        logging.disable(logging.NOTSET)
        shutil.rmtree(directory, ignore_errors=True)
    return outcome


class _Unexpected(logging.Handler):
    """Collects what the code under test logs with an error that is a bug, or not one of its own: a case that it does not handle."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        arguments = record.args if isinstance(record.args, tuple) else ()
        error = record.exc_info[1] if record.exc_info else next((each for each in arguments if isinstance(each, Bug)), None)
        ours = record.name.partition(".")[0] in OURS
        own = isinstance(error, (SluiceError, Killed)) and not isinstance(error, Bug)
        if ours and error is not None and not own:
            self.found.append(f"{record.name} logs {record.getMessage()!r}: {error!r}")


@contextmanager
def unexpected_errors() -> Iterator[list[str]]:
    """What was logged in the block; nothing is printed."""
    handler, root = _Unexpected(), logging.getLogger()
    former, level = root.handlers, root.level
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    try:
        yield handler.found
    finally:
        root.handlers = former
        root.setLevel(level)


def _run_seed(chance: Random, directory: Path, outcome: Outcome, place: Place) -> None:
    """Run the seed in a function of its own, so that no reference to the world is left."""
    # Ids and secrets have a source of their own: a change of how many the code draws leaves the rest of a seed as it was.
    with drawn_from(Random(f"ids of {outcome.seed}")), unexpected_errors() as unexpected, simulated(chance) as loop:
        settings = {
            "commit_interval_seconds": chance.choice((0, 1, 5, 3600)),
            "max_replay": chance.choice((3, 8)),
            "restart_delay_seconds": 1.0,
            "report_seconds": 3.0,
            "metrics_host": NO_ADDRESS,
        }
        world = World(
            loop,
            chance,
            directory,
            settings | (SHORT_COMMITS if place.early else {}),
            authentication=impostor.__name__ in kinds_of(outcome.plan),
            kafka=place.kafka,
            postgresql=place.postgresql,
            pace=place.pace,
            event_times=place.event_times,
        )
        if place.early:
            world.coordinator_settings |= EARLY
        if place.standby:
            world.config["standby.replicas"] = "1"
        if lose_markers.__name__ in kinds_of(outcome.plan):  # a search finds no batch whose records were trimmed
            world.coordinator_settings["log_retention_seconds"] = 3600
        try:
            loop.run_until_complete(loop.create_task(_live(world, outcome, place), context=main_process()))
        except Exception as error:
            outcome.broken.append(f"{type(error).__name__}: {error}")
        # Copied before the loop ends, because the coroutines that are dropped then run their `finally` blocks.
        world.close()
        outcome.trace, outcome.virtual_seconds, outcome.turns = [*world.trace], loop.time(), loop.turns
        outcome.requests, outcome.drains = world.network.requests, world.checked_drains
        outcome.watermarks = world.ledger.watermarks
        if world.brokers is not None:
            outcome.transactions = world.brokers.happened
        outcome.broken += [*world.ledger.faults, *world.broken, *world.network.broken, *unexpected]
        outcome.broken += [each for each in loop.errors if each.startswith("Task exception")]


async def _live(world: World, outcome: Outcome, place: Place) -> None:
    create_migrated(world.directory / "home")
    await world.start_coordinator()
    world.log.create("in", 2)
    world.keep_streams_open()
    await world.deploy(world.chance.choice((1, 2)))
    producer = asyncio.ensure_future(_produce(world))
    for fault in outcome.plan:
        await asyncio.sleep(fault.after)
        if not fault.name:
            continue
        world.dice = Random(f"fault {fault.number} of {outcome.seed}")
        for name in (fault.name, *fault.instead):
            world.say(f"fault {fault.number}: {name}")
            if await FAULTS[name](world) is not False:
                outcome.faults[name] += 1
                break
        if world.ledger.faults or world.broken or world.network.broken:
            return
    producer.cancel()
    try:
        async with asyncio.timeout(DRAINED_WITHIN):
            await heal(world)
    except TimeoutError:
        world.broken.append(f"drain {world.drain_id} has not ended {DRAINED_WITHIN} s after the last fault")
        return
    try:
        async with asyncio.timeout(SETTLES_WITHIN):
            await _settle(world)
            await world.check_snapshots()
            await world.check_restores()
            if place.removal:
                await world.remove_job()
    except TimeoutError:
        ended = [line for line in world.trace if " ended: " in line][-1:]
        world.broken.append(f"not everything is read and drained {SETTLES_WITHIN} s after the last fault: {', '.join(ended) or 'no end'}")


def fewest_faults(seed: int, kinds: Collection[str] = (), faults: int = FAULTS_OF_A_SEED, seconds: float = 300) -> Outcome:
    """The seed with as few faults as were found to break it, by delta debugging (Zeller and Hildebrandt 2002): halves, quarters and so on
    are left out, as long as something breaks. What happens after a fault that is left out differs, so another invariant may break."""
    began, outcome = time.monotonic(), run_seed(seed, faults, kinds=kinds)
    left, parts = [each.number for each in outcome.plan], 2
    if not outcome.broken:
        return outcome
    while len(left) >= 2 and time.monotonic() - began < seconds:
        size = -(-len(left) // parts)
        for first in range(0, len(left), size):
            fewer = left[:first] + left[first + size :]
            tried = run_seed(seed, faults, fewer, kinds)
            if tried.broken:
                outcome, left, parts = tried, fewer, max(2, parts - 1)
                break
            if time.monotonic() - began > seconds:
                return outcome
        else:
            if size == 1:
                break
            parts = min(len(left), 2 * parts)
    return outcome


async def _produce(world: World) -> None:
    while True:
        await asyncio.sleep(world.chance.expovariate(1 / 6))
        world.produce(world.chance.randrange(1, 30))


async def _settle(world: World) -> None:
    """Wait until everything is read and drained. There is at least one drain after the last fault, whose output is checked."""
    world.say("faults are over")
    await world.check_adopted()
    world.drained_of_input = {}
    while world.drained_of_input != world.log.latest("in"):
        run = await world.until_answered(lambda: world.operator().run(world.run_id))
        if run.state.ended:
            await world.deploy(world.chance.choice((1, 2)))
        await world.read_input()
        if await world.drain() == "FAILED" and not world.drained_again:
            world.broken.append(f"drain {world.drain_id} has failed after the faults")
