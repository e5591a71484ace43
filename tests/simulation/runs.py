"""A seed from its beginning to its end: faults at random moments, then rest, then the checks."""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from sluice.randomness import drawn_from
from tests.simulation.faults import FAULTS, heal
from tests.simulation.loop import main_process, simulated
from tests.simulation.world import World

FAULTS_OF_A_SEED = 20

SETTLES_WITHIN = 900
"""Virtual seconds in which, after the last fault, everything is read and drained."""


@dataclass
class Outcome:
    """`broken`: the invariants that did not hold."""

    seed: int
    broken: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    trace: Sequence[str] = ()
    virtual_seconds: float = 0.0
    requests: int = 0
    drains: int = 0


def run_seed(seed: int, faults: int = FAULTS_OF_A_SEED) -> Outcome:
    """The same seed gives the same outcome in every process."""
    chance, outcome = Random(seed), Outcome(seed)
    shared_memory = Path("/dev/shm")
    directory = Path(tempfile.mkdtemp(prefix="simulation-", dir=shared_memory if shared_memory.is_dir() else None))
    logging.disable(logging.CRITICAL)
    world: World | None = None
    try:
        with drawn_from(chance), simulated(chance) as loop:
            settings = {
                "commit_interval_seconds": chance.choice((0, 1, 5, 3600)),
                "max_replay": chance.choice((3, 8)),
                "restart_delay_seconds": 1.0,
            }
            world = World(loop, chance, directory, settings)
            context = main_process()
            task = loop.create_task(_live(world, outcome, faults), context=context)
            loop.run_until_complete(task)
    except Exception as error:
        outcome.broken.append(f"{type(error).__name__}: {error}")
    finally:
        logging.disable(logging.NOTSET)
        if world is not None:
            outcome.trace, outcome.virtual_seconds = world.trace, world.loop.time()
            outcome.requests, outcome.drains = world.network.requests, world.checked_drains
            outcome.broken += [*world.ledger.faults, *world.broken, *world.network.broken]
        shutil.rmtree(directory, ignore_errors=True)
    return outcome


async def _live(world: World, outcome: Outcome, faults: int) -> None:
    await world.start_coordinator()
    world.log.create("in", 2)
    await world.deploy(world.chance.choice((1, 2)))
    producer = asyncio.ensure_future(_produce(world))
    for _ in range(faults):
        await asyncio.sleep(world.chance.expovariate(1 / 8))
        name = world.chance.choice(sorted(FAULTS))
        outcome.faults[name] += 1
        world.say(f"fault: {name}")
        await FAULTS[name](world)
        if world.ledger.faults or world.broken or world.network.broken:
            return
    producer.cancel()
    await heal(world)
    async with asyncio.timeout(SETTLES_WITHIN):
        await _settle(world)


async def _produce(world: World) -> None:
    while True:
        await asyncio.sleep(world.chance.expovariate(1 / 3))
        world.produce(world.chance.randrange(1, 30))


async def _settle(world: World) -> None:
    """All is read and drained."""
    world.say("faults are over")
    while world.drained_of_input != world.log.latest("in"):
        run = await world.until_answered(lambda: world.operator().run(world.run_id))
        if run.state.ended:
            await world.deploy(world.chance.choice((1, 2)))
        await asyncio.sleep(20)
        await world.drain()
