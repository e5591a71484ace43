"""Scripts in virtual time: `python -m tests.simulation.scripts --seeds 100 [--from N]`, `make simulate SCRIPTS=1`.

The agent is the product's (`containers.attached.agent_process`), and so is the coordinator. The driver is a model (`script.py`) with one to
three queries. It is a command that the agent starts, or a script that has started the agent, which may only observe it. Agent, driver and
guardian are processes that are killed and frozen, messages are late, requests are lost, disks too, and operators drain, stop and start the
job. One seed in five has no blob store, and keeps its disks.

Checked are: no other start writes while one has its lease; a batch that runs again has the same records; each record is written once by
each query, unless a lineage began again without a snapshot; a drain has written everything before its offsets, and a new checkpoint begins
there; after the faults everything is read and drained.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from math import inf
from pathlib import Path
from random import Random
from typing import Any

from containers.attached.agent_process import ScriptAgent
from containers.attached.claim import Request, attached_request
from containers.attached.driver_link import DriverLink
from containers.attached.drivers import Outcome
from containers.attached.port import Beginning, Made
from sluice.blobs.counted import Requests
from sluice.blobs.locations import open_blob_store, wrapped
from sluice.blobs.port import BlobStore
from sluice.core.errors import SluiceError
from sluice.core.ids import ExecutionContainerId, Instant, RunId
from sluice.randomness import drawn_from
from sluice.streams.log import Record
from sluice.wire import drains as wire_drains
from tests.simulation.kafka import Brokers
from tests.simulation.link import simulated_link
from tests.simulation.loop import Process, SimulatedLoop, collect_quietly, main_process, silent, simulated
from tests.simulation.network import Way
from tests.simulation.pool import outcomes
from tests.simulation.runs import unexpected_errors
from tests.simulation.script import HELD, JOB, SHAPES, Script, Shape, Sink
from tests.simulation.world import Client, World
from tests.support.databases import create_migrated
from tests.support.faults import Fault, FaultyBlobs

SCRIPTS = (("counts",), ("feed", "alerts"), ("counts", "feed"), ("counts", "feed", "alerts"))
"""The queries of a script."""

STOP_TIMEOUT = timedelta(seconds=30)
LEASE_MARGIN = 5
DRAINED_WITHIN, SETTLES_WITHIN = 1500, 900
FAULTS_OF_A_SEED = 12


@dataclass(eq=False)
class Start:
    """One start of `sluice exec`, or of a script that is `attached` alone. `steps_left`: the driver is killed in this step."""

    world: ScriptWorld
    name: str
    machine: str
    process: Process
    attached: bool = False
    observed: bool = False
    generation: int = 0
    lease_ends: float = float("inf")
    steps_left: int = -1
    ends: bool = False
    """Whether its command has got a SIGTERM."""
    driver: Process = field(default_factory=lambda: Process("no driver", dead=True))
    script: Script | None = None
    life: asyncio.Task[int] | None = None

    @property
    def running(self) -> bool:
        return not self.process.dead and self.life is not None and not self.life.done()

    @property
    def acts(self) -> bool:
        """Whether its driver may act."""
        return not self.driver.dead

    @property
    def holds_lease(self) -> bool:
        """A driver that is only observed is told that it has lost the lease, and not ended."""
        return self.acts and self.generation > 0 and self.world.now < self.lease_ends and not (self.observed and not self.running)

    def start_driver(self, link: DriverLink) -> None:
        """Start a driver, which attaches at once."""
        world = self.world
        self.driver = Process(f"driver of {self.name}")
        near, far = simulated_link(world.loop, world.chance, self.process, self.driver)
        self.script = Script(world, self, self.driver, far, world.disk(self.machine))
        self.driver.context().run(self.script.agent.start)
        link.connect(near)
        self.driver.context().run(world.loop.run_in_executor, None, self.script.run)


class SimulatedProcesses:
    """As `DriverProcesses`. Its guardian is a task of the world."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self.guardian = self
        self.ended = False

    def renewed(self, ends_at: Instant) -> None:
        self._start.lease_ends = ends_at

    def has_token(self, token: str) -> None: ...

    async def watch(self) -> None: ...

    async def close(self) -> None: ...

    def find(self) -> Sequence[Any]:
        return [self] if self._start.acts else []

    def end_all(self) -> tuple[int, bool]:
        self._start.world.loop.kill(self._start.driver)
        return 1, True

    def stopped(self) -> str | None:
        return "its driver is stopped" if self._start.driver.frozen else None


class SimulatedDriver:
    """As `Command`, whose driver may be started again, or as `AttachedScript`."""

    leftovers = timedelta(seconds=10)

    def __init__(self, start: Start) -> None:
        self._start = start
        self._link: Any = None
        self.what, self.observed = "script" if start.attached else "command", start.observed

    @property
    def runs(self) -> bool:
        return self._start.acts

    def open(self, link: DriverLink, found: object, on_sigterm: object) -> None:
        self._link = link
        if self._start.attached:
            self._start.start_driver(link)

    async def given_up(self) -> None:
        await (self._link.driver_ended() if self._start.attached else asyncio.Event().wait())

    def not_granted(self) -> Outcome:
        return Outcome(0, "the script ended before it had the lease")

    async def start(self, environment: Mapping[str, str]) -> None:
        if not self._start.attached:
            self._start.start_driver(self._link)

    async def ended(self) -> None:
        start, again = self._start, True
        while again:
            while start.acts:
                await asyncio.sleep(0.1)
            again = not start.attached and not start.ends and start.world.chance.random() < 0.4
            if again:
                start.world.say(f"the command of {start.name} starts its driver again")
                await self._link.driver_ended()
                start.start_driver(self._link)

    async def outcome(self, error: str | None) -> Outcome:
        return Outcome(137, "killed") if error is None else Outcome(1 if error else 0, error or "the command ended")

    def send(self, number: object) -> None:
        self._start.ends = True
        self._start.world.loop.kill(self._start.driver)


class ScriptWorld(World):
    def __init__(self, loop: SimulatedLoop, chance: Random, directory: Path) -> None:
        super().__init__(loop, chance, directory, {}, pace=1.0, kafka=True)
        names = chance.choice(SCRIPTS)
        self.shapes = [each for each in SHAPES if each.name in names]
        self.stores = chance.random() < 0.8
        self.coordinator_settings["failover_after_seconds"] = 20
        if not self.stores:
            self.coordinator_settings |= {"backup_stores": (), "restore_from": ()}
        self.sinks = {each.name: Sink() for each in SHAPES}
        for topic in ("in", "users", "mid"):
            self.log.create(topic, 1)
        self.suffixes: dict[str, str] = {}
        """Shape -> what an operator has added to its name after an unfinished drain."""
        self.known: set[str] = set()
        """The shapes of which the coordinator knows a batch."""
        self.forgiven: set[str] = set()
        """The shapes that may have written a record twice."""
        self.drained: dict[str, dict[str, Mapping[str, int]]] = {}
        """Folder -> stage -> topic -> where the drain has ended."""
        self.committed: set[str] = set()
        """The stages that have committed a batch before they were flushed."""
        self.new_lineages = 0
        self.starts: list[Start] = []
        self.losing = self.stores
        """Whether disks are lost."""
        self.drains_done = 0

    # --- topics ----------------------------------------------------------------------------------------------------

    @property
    def kafka(self) -> Brokers:
        assert self.brokers is not None
        return self.brokers

    def readable(self, topic: str) -> int:
        return self.kafka.readable(topic)[0]

    def read_records(self, topic: str, start: int, end: int) -> Sequence[str]:
        return [(entry.value or b"").decode() for _, entry in self.kafka.rows(topic, 0, start, end)]

    def append(self, topic: str, count: int) -> None:
        first = self.readable(topic)
        records = [Record(str(first + each).encode(), None, 0) for each in range(count)]
        self.log.append(topic, records, writer=self.producer, batch=0, now_micros=0)

    def written(self, shape: Shape) -> Counter[str]:
        """How often the query has written each of its records."""
        if shape.writes:
            return Counter(f"0:in:{each}" for each in self.read_records(shape.writes, 0, self.readable(shape.writes)))
        return Counter(each for batch in self.sinks[shape.name].batches.values() for each in batch)

    def readable_by(self, shape: Shape, ends: Mapping[str, int]) -> Counter[str]:
        """The records that it reads, up to these ends."""
        topics = [(place, topic) for place, source in enumerate(shape.sources) for topic in source.topics]
        return Counter(f"{place}:{topic}:{each}" for place, topic in topics for each in self.read_records(topic, 0, ends[topic]))

    def missing(self, shape: Shape) -> int:
        ends = {topic: self.readable(topic) for topic in self.kafka.topics}
        return (self.readable_by(shape, ends) - self.written(shape)).total()

    # --- what scripts tell -----------------------------------------------------------------------------------------

    def prepared(self, start: Start, name: str, made: Made) -> None:
        if not made.new_lineage:
            return
        self.say(f"{start.name}: {name} begins lineage {made.lineage}")
        self.new_lineages += 1
        self.forgiven.add(name)
        if made.restored is not None and not self.failed_drains:
            self.broken.append(f"{start.name} restores {name} under a new lineage, although each batch has a plan")
        if not self.stores and name in self.known:
            self.broken.append(f"{start.name} begins {name} again, although its batches are on another machine")

    def reported(self, script: Script) -> None:
        """The coordinator knows these batches soon, if the agent goes on."""
        names = [name for name, each in script.queries.items() if each.last >= 0]
        self.later(10, lambda: self.known.update(names) if script.start.running and not script.start.process.frozen else None)

    def unfinished(self, name: str, begins: Beginning) -> None:
        """A drain has failed, and no snapshot was made before: the query gets another name."""
        self.say(f"{name} was not flushed: {begins.failed}")
        if self.stores and name + self.suffixes.get(name, "") in self.committed:
            self.broken.append(f"{name} was drained without a snapshot: {begins.failed}")
        self.suffixes[name] = f"-{begins.seq}"
        self.forgiven.add(name)

    # --- starts ----------------------------------------------------------------------------------------------------

    def start_script(self, machine: str) -> Start:
        kind = self.chance.choice(("exec", "exec", "attach", "observe"))
        name = f"{kind} {len(self.starts)}"
        process = Process(name)
        start = Start(self, name, machine, process, kind != "exec", kind == "observe")
        self.starts.append(start)

        def open_blobs(url: str) -> BlobStore:
            faulty = FaultyBlobs(open_blob_store(url, self.clock), lambda operation: self._blob_fault(url, self.blobs_fail))
            return wrapped(faulty, Requests(), clock=self.clock)

        async def live() -> int:
            client = Client("http://c", Way(self.network, machine))
            request = Request(JOB, ExecutionContainerId(name.replace(" ", "-")), machine)
            driver: Any = SimulatedDriver(start)
            found: Any = SimulatedProcesses(start)
            return await ScriptAgent(request, driver, client, found, self.clock, STOP_TIMEOUT, open_blobs).run()

        start.life = process.context().run(lambda: self.loop.create_task(live(), name=name))
        self.loop.create_task(self._guard(start), name=f"guardian of {name}")
        self.say(f"{name} starts on {machine}")
        return start

    async def _guard(self, start: Start) -> None:
        """As `containers.supervision.guardian`: ends the driver when its agent was killed, and both at the end of the lease."""
        while start.running or start.acts:
            await asyncio.sleep(0.2)
            if start.observed or start.lease_ends == inf:
                continue  # it watches those that run under a lease
            if start.acts and (start.process.dead or self.now >= start.lease_ends):
                self.say(f"the driver of {start.name} is killed by its guardian")
                self.loop.kill(start.driver)
            if start.running and start.process.frozen and self.now >= start.lease_ends + LEASE_MARGIN:
                self.loop.kill(start.process)

    async def restart(self, machine: str) -> None:
        """Start the command again and again, as systemd does."""
        while True:
            start = self.start_script(machine)
            while start.running or start.acts:
                await asyncio.sleep(0.2)
            assert start.life is not None
            error = None if start.process.dead else start.life.exception()
            if error is not None and not isinstance(error, SluiceError):
                self.broken.append(f"{start.name} has failed: {error!r}")
            self.say(f"{start.name} has ended: {'killed' if start.process.dead else error or start.life.result()}")
            if self.losing and self.chance.random() < 0.3:
                self.disks[machine] += 1
                self.say(f"{machine} loses its disk")
            await asyncio.sleep(self.chance.uniform(0.5, 10))

    def running(self) -> list[Start]:
        return [each for each in self.starts if each.running]

    def check_only_holder(self, start: Start) -> None:
        """Call it when this start writes."""
        for other in self.starts if start.holds_lease else ():
            if other is not start and other.holds_lease and other.script is not None and not other.script.stopped:
                self.broken.append(f"{start.name} writes, and {other.name} has its lease for {other.lease_ends - self.now:.1f} s more")

    def check_drained(self, detail: wire_drains.DrainDetail) -> None:
        """Everything before the offsets of a drain was written."""
        ends = self.drained.setdefault(f"drain-{detail.seq}", {})
        for stage in (each for container in detail.containers for task in container.tasks for each in task.stages):
            shape = next(each for each in SHAPES if each.name == stage.stage.partition("-")[0])
            at = {topic: 0 for source in shape.sources for topic in source.topics} | {each.stream: each.offset for each in stage.offsets}
            ends[stage.stage] = at
            if left := self.readable_by(shape, at) - self.written(shape):
                self.broken.append(f"{stage.stage} is drained at {at}, and has not written {sorted(left)[:10]}")

    async def end_run(self, how: str, hard_deadline: float = 600) -> str:
        """Stop or drain the job's run, wait until it has ended, and start the job again. Returns the phase of the drain."""
        phase = ""
        try:
            (run,) = (await self.until_answered(lambda: self.operator().runs(JOB, 1))).runs
            run_id = RunId(run.run_id)
            if not run.state.ended and how == "stop":
                await self.operator().stop_run(run_id, "a fault")
            elif not run.state.ended:
                request = wire_drains.DrainRequest(run_id=run_id, hard_deadline_seconds=hard_deadline)
                detail = await self._end_of_drain((await self.operator().request_drain(request)).uuid)
                phase = detail.phase.value
                if phase == "DRAINED":
                    self.drains_done += 1
                    self.check_drained(detail)
                if phase == "FAILED" and any(each.phase.value == "FLUSHING" for each in detail.phases):
                    self.failed_drains.add(detail.uuid)
                    self.forgiven |= self.sinks.keys()
                self.say(f"drain {detail.uuid}: {phase} {detail.reason}")
            while not (await self.until_answered(lambda: self.operator().run(run_id))).state.ended:
                if phase in ("CANCELLED", "FAILED") and detail.uuid not in self.failed_drains:
                    return phase  # the queries continue
                await asyncio.sleep(1)
            await asyncio.sleep(self.dice.choice((0.1, 20)))
            await self.until_answered(lambda: self.operator().deploy(attached_request(JOB)))
            self.say(f"{JOB} is started again")
        except SluiceError as error:
            self.say(f"{how}: {error}")
        return phase


# --- faults ----------------------------------------------------------------------------------------------------------


def _acting(world: ScriptWorld) -> Sequence[Start]:
    """The start that has a driver, if there is one."""
    return [each for each in world.running() if each.acts][:1]


async def kill_part(world: ScriptWorld) -> None:
    for start in _acting(world):
        part = world.dice.choice(("agent", "driver", "both"))
        world.say(f"the {part} of {start.name} is killed")
        if part != "driver":
            world.loop.kill(start.process)
        if part != "agent":
            world.loop.kill(start.driver)


async def kill_in_a_step(world: ScriptWorld) -> None:
    for start in _acting(world):
        start.steps_left = world.dice.randrange(1, 20)


async def freeze(world: ScriptWorld) -> None:
    for start in _acting(world):
        parts = world.dice.choice(((start.process, start.driver), (start.process,), (start.driver,)))
        seconds = world.dice.choice((1, 10, 50, 90))
        world.say(f"{' and '.join(each.name for each in parts)} frozen for {seconds} s")
        for each in parts:
            world.loop.freeze(each)
            world.later(seconds, partial(world.loop.thaw, each))


async def cut_off(world: ScriptWorld) -> None:
    machine, seconds = world.dice.choice(("a", "b")), world.dice.choice((2, 15, 60))
    world.say(f"{machine} is cut off for {seconds} s")
    world.network.cut.add(machine)
    world.later(seconds, lambda: world.network.cut.discard(machine))


async def lose_requests(world: ScriptWorld) -> None:
    world.network.lossy = 0.2
    world.later(30, lambda: setattr(world.network, "lossy", 0.0))


async def fail_blobs(world: ScriptWorld) -> None:
    world.blobs_fail = (world.dice.choice((Fault.FAIL, Fault.LOST)), 0.5)
    world.later(60, lambda: setattr(world, "blobs_fail", None))


async def restart_coordinator(world: ScriptWorld) -> None:
    if world.coordinator is not None and not world.coordinator.dead:
        world.kill_coordinator()
        await asyncio.sleep(world.dice.choice((0.1, 5, 60)))
        await world.start_coordinator()


async def stop_job(world: ScriptWorld) -> None:
    await world.end_run("stop")


async def drain_job(world: ScriptWorld) -> None:
    await world.end_run("drain", world.dice.choice((3, 20, 600, 600)))


async def trouble_brokers(world: ScriptWorld) -> None:
    kafka = world.kafka
    match world.dice.choice(("answer", "writer", "away")):
        case "answer":
            kafka.lose_commits = 1
        case "writer":
            kafka.kill_a_writer = True
        case _:
            kafka.away = True
            world.later(world.dice.choice((2, 20)), lambda: setattr(kafka, "away", False))


FAULTS: Mapping[str, Callable[[ScriptWorld], Any]] = {
    each.__name__: each
    for each in (
        kill_part,
        kill_in_a_step,
        freeze,
        cut_off,
        lose_requests,
        fail_blobs,
        restart_coordinator,
        stop_job,
        drain_job,
        trouble_brokers,
    )
}

NEED_STORES = frozenset({"cut_off", "lose_requests", "fail_blobs", "restart_coordinator", "drain_job"})
"""Without a blob store, a flush that fails leaves nothing to go back to, and the coordinator must know where a checkpoint is."""


# --- seeds -----------------------------------------------------------------------------------------------------------


@dataclass
class SeedOutcome:
    """`broken`: the invariants that did not hold."""

    seed: int
    broken: list[str]
    trace: Sequence[str]
    drains: int
    failed: int
    """Drains that have failed in their flush."""
    new_lineages: int
    batches: int


def run_seed(seed: int, faults: int = FAULTS_OF_A_SEED) -> SeedOutcome:
    """The same seed gives the same outcome in every process."""
    shared_memory = Path("/dev/shm")
    directory = Path(tempfile.mkdtemp(prefix="scripts-", dir=shared_memory if shared_memory.is_dir() else None))
    try:
        with silent():
            outcome = _run_seed(seed, directory, faults)
            logging.disable(logging.CRITICAL)
            collect_quietly()
    finally:
        logging.disable(logging.NOTSET)
        shutil.rmtree(directory, ignore_errors=True)
    return outcome


def _run_seed(seed: int, directory: Path, faults: int) -> SeedOutcome:
    chance = Random(seed)
    with drawn_from(Random(f"ids of {seed}")), unexpected_errors() as unexpected, simulated(chance) as loop:
        world = ScriptWorld(loop, chance, directory)
        try:
            loop.run_until_complete(loop.create_task(_live(world, seed, faults), context=main_process()))
        except Exception as error:
            world.broken.append(f"{type(error).__name__}: {error}")
        world.close()
        broken = [*world.broken, *(each for sink in world.sinks.values() for each in sink.broken), *world.network.broken, *unexpected]
        broken += [each for each in loop.errors if each.startswith("Task exception")]
        batches = sum(len(each.batches) for each in world.sinks.values()) + world.kafka.happened["committed"]
        return SeedOutcome(seed, broken, [*world.trace], world.drains_done, len(world.failed_drains), world.new_lineages, batches)


async def _live(world: ScriptWorld, seed: int, faults: int) -> None:
    create_migrated(world.directory / "home")
    await world.start_coordinator()
    works = [world.loop.create_task(world.restart(machine)) for machine in ("a", "b")[: 2 if seed % 2 else 1]]
    works.append(world.loop.create_task(_produce(world)))
    plan_of_seed = Random(f"faults of {seed}")
    pause = plan_of_seed.choice((5, 15, 30))
    kinds = sorted(FAULTS if world.stores else FAULTS.keys() - NEED_STORES)
    world.say(f"queries {', '.join(each.name for each in world.shapes)}{'' if world.stores else ', without blob store'}")
    for number in range(faults):
        await asyncio.sleep(plan_of_seed.expovariate(1 / pause))
        name = plan_of_seed.choice(kinds)
        world.dice = Random(f"fault {number} of {seed}")
        world.say(f"fault {number}: {name}")
        await FAULTS[name](world)
        if world.broken or any(each.broken for each in world.sinks.values()):
            return
    works[-1].cancel()
    world.losing = False
    await _settle(world)


async def _produce(world: ScriptWorld) -> None:
    while True:
        await asyncio.sleep(world.chance.expovariate(1 / 6))
        world.append("in", world.chance.randrange(1, 30))
        world.append("users", world.chance.randrange(1, 5))


async def _settle(world: ScriptWorld) -> None:
    """A drain after the last fault succeeds, and then everything was written."""
    world.say("faults are over")
    world.network.cut.clear()
    world.network.lossy, world.blobs_fail, world.kafka.away = 0.0, None, False
    if world.coordinator is None or world.coordinator.dead:
        await world.start_coordinator()
    world.append("in", 20)
    world.append("users", 20)
    began = world.loop.time()
    while any(world.missing(each) > 2 * HELD for each in world.shapes):
        if world.loop.time() - began > SETTLES_WITHIN:
            left = {each.name: world.missing(each) for each in world.shapes}
            world.broken.append(f"not everything is written {SETTLES_WITHIN} s after the last fault: {left}")
            return
        await asyncio.sleep(5)
        (run,) = (await world.until_answered(lambda: world.operator().runs(JOB, 1))).runs
        if run.state.ended:
            await world.until_answered(lambda: world.operator().deploy(attached_request(JOB)))
    phase = await world.end_run("drain")
    if phase != "DRAINED":
        world.broken.append(f"the last drain is {phase or 'refused'}")
    ends = {topic: world.readable(topic) for topic in world.kafka.topics}
    for shape in world.shapes:
        reads, written = world.readable_by(shape, ends), world.written(shape)
        if wrong := (reads - written) | (Counter() if shape.name in world.forgiven else written - reads):
            world.broken.append(f"{shape.name} has not written these records once: {sorted(wrong)[:10]}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.simulation.scripts")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--faults", type=int, default=FAULTS_OF_A_SEED)
    parser.add_argument("--until-broken", action="store_true", help="end after the first seed that breaks an invariant")
    parser.add_argument("--trace", action="store_true", help="print what happened in the first seed, and run no other")
    options = parser.parse_args()
    if options.trace:
        print("\n".join(run_seed(options.first, options.faults).trace))
        return 0
    broken = drains = failed = lineages = 0
    seeds = range(options.first, options.first + options.seeds)
    for outcome in outcomes(partial(run_seed, faults=options.faults), seeds, options.workers):
        drains, failed, lineages = drains + outcome.drains, failed + outcome.failed, lineages + outcome.new_lineages
        if outcome.broken:
            broken += 1
            print(f"seed {outcome.seed}: {outcome.broken[0]}", flush=True)
            if options.until_broken:
                break
    print(f"{options.seeds} seeds, {drains} drains, {failed} failed in their flush, {lineages} new lineages: {broken} broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
