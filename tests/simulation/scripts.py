"""A script under `sluice exec` in virtual time: `python -m tests.simulation.scripts --seeds 100 [--from N]`, `make simulate SCRIPTS=1`.

The agent is the product's (`containers.attached.agent_process`), and so is the coordinator. The driver is modelled: one query reads a topic
of one partition on a checkpoint of `app.checkpoint`, as Spark does, with files that a batch writes before and after it; its sink calls
`app.batch_context()`, and keeps lineage, number and generation. Agent, driver and guardian are processes that are killed and frozen,
messages are late, requests are lost, disks too, and operators drain, stop and start the job.

Checked are: no other start writes while one has its lease; a batch that runs again has the same records; the state of a query is what its
batches have read; each record is written once, unless a lineage began again without a snapshot; after the faults everything is read and
drained.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from containers.attached.agent_process import ScriptAgent
from containers.attached.claim import Request, attached_request
from containers.attached.driver_link import DriverLink
from containers.attached.drivers import Outcome
from containers.attached.port import (
    DrainInterrupted,
    DrainOfScript,
    Flushed,
    Grant,
    Made,
    Wanted,
    agent_methods,
    driver_methods,
)
from containers.engine import Position
from containers.rpc.connection import Connection
from containers.state.checkpoint import DRAIN_MARKER, inspect
from sluice.blobs.counted import Requests
from sluice.blobs.locations import open_blob_store, wrapped
from sluice.blobs.port import BlobStore
from sluice.core.errors import LeaseLost, SluiceError
from sluice.core.ids import ExecutionContainerId, Instant, JobName, RunId, Ssp, StageName
from sluice.randomness import drawn_from
from sluice.wire import drains as wire_drains
from tests.simulation.link import SimulatedLink, simulated_link
from tests.simulation.loop import Killed, Process, SimulatedLoop, collect_quietly, main_process, silent, simulated
from tests.simulation.network import Way
from tests.simulation.pool import outcomes
from tests.simulation.runs import unexpected_errors
from tests.simulation.world import Client, World
from tests.support.counting_engine import write_whole
from tests.support.databases import create_migrated
from tests.support.faults import Fault, FaultyBlobs

JOB, COUNTS = JobName("orders"), StageName("counts")
STOP_TIMEOUT = timedelta(seconds=30)
LOCK = 1_000_000
LEASE_MARGIN = 5
DRAINED_WITHIN, SETTLES_WITHIN = 1500, 900
FAULTS_OF_A_SEED = 12


@dataclass
class Sink:
    """What the script has written. It keeps the number of each batch, and the newest generation."""

    generation: int = 0
    batches: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    def write(self, lineage: str, batch: int, generation: int, begin: int, end: int) -> None:
        """Raises LeaseLost for a former start."""
        if generation < self.generation:
            raise LeaseLost(f"generation {self.generation} has written")
        self.generation = generation
        known = self.batches.setdefault((lineage, batch), (begin, end))
        if known != (begin, end):
            self.broken.append(f"batch {batch} of {lineage} was written with {known}, and runs again with {(begin, end)}")

    def times(self, records: int) -> Sequence[int]:
        """How often each record was written."""
        found = [0] * records
        for begin, end in self.batches.values():
            for each in range(begin, end):
                found[each] += 1
        return found


class Script:
    """The driver of one start: a query on a checkpoint, in a greenlet for each of its threads."""

    def __init__(self, world: ScriptWorld, start: Start, link: SimulatedLink, disk: Path) -> None:
        self.world = world
        self.start = start
        self.disk = disk
        self.directory = disk
        self.lineage = ""
        self.base = 0
        self.replay: Mapping[int, str] = {}
        self.drain = ""
        self.over = self.stopped = self.interrupted = False
        self.at_gate = False
        self.error: str | None = None
        methods: dict[str, Callable[..., Any]] = {
            "refused": self._refused,
            "renewed": lambda ends_at: None,
            "stop": self._on_stop,
            "drain": self._on_drain,
            "pause_queries": self._pause,
            "feeders": lambda: {COUNTS: ()},
            "flush": self._flush,
            "leave": self._leave,
            "refuse": lambda stage, why: world.broken.append(f"{stage} is refused: {why}"),
            "lost": lambda why: None,
        }
        self.agent = Connection(link, agent_methods(), driver_methods(), methods, self._dies)

    # --- the script ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """The main thread."""
        try:
            grant: Grant = self.agent.call("attach", JOB)
            self.start.generation = grant.generation
            self._prepare()
            self._query(grant)
            self.error = ""
        except Killed:
            raise
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
        self.agent.tell("ending", self.error)
        self.world.say(f"the script of {self.start.name} ends: {self.error or 'in order'}")
        self.sleep(0.5)
        self._dies()

    def _prepare(self) -> None:
        begins = self.agent.call("beginning", COUNTS)
        if begins.failed:
            raise RuntimeError(f"the drain was not finished: {begins.failed}")
        made: Made = self.agent.call("prepare", Wanted(COUNTS, self.disk, begins.folder, "code", 1000))
        self.directory = self.disk / JOB / begins.folder / COUNTS
        self.base = begins.offsets.get("in", {}).get("0", 0)
        self.lineage, self.replay = str(made.lineage), made.replay
        self.world.bases.setdefault(str(self.directory.relative_to(self.disk)), self.base)
        if made.new_lineage:
            self.world.new_lineages.append(self.lineage)
            if made.restored is not None and not self.world.failed_drains:
                self.world.broken.append(f"{self.start.name} restores a snapshot under a new lineage, although each batch has a plan")
            self.world.say(f"{self.start.name} begins lineage {self.lineage}")
        self.world.say(f"{self.start.name} has {begins.folder} at {self._position()}, replay {sorted(self.replay)}")

    def _query(self, grant: Grant) -> None:
        """Batch after batch, until the query is stopped."""
        for batch, text in sorted(self.replay.items()):
            if batch > self._committed() + 1:
                self._planned_batch(grant)
            if batch > self._committed():
                self._write(f"offsets/{batch}", text)
        while not self.stopped:
            self._planned_batch(grant)
            self.agent.tell("queries", [self._report()])
            while self.drain and not self.stopped:
                self.at_gate = True
                self.sleep(0.1)
            self.at_gate = False
            if not self.stopped:
                self.sleep(self.world.chance.uniform(0.5, 4))
                if self.drain or self.stopped:
                    continue
                end = self._end(self._committed())
                ahead = min(self.world.produced_records, end + self.world.chance.choice((3, 10, 30)))
                if ahead > end:
                    self._write(f"offsets/{self._committed() + 1}", plan(self._committed() + 1, ahead))

    def _planned_batch(self, grant: Grant) -> None:
        """Run the batch that is planned and not committed, if there is one."""
        batch = self._committed() + 1
        if not (self.directory / f"offsets/{batch}").exists() or self._marked():
            return
        begin, end = self._end(batch - 1), self._end(batch)
        self._step()
        if batch > max(self.replay, default=-1):
            failed = self.agent.call("keep_plan", COUNTS, batch)
            if failed:
                raise RuntimeError(f"PlanNotKept: {failed}")
        if self.interrupted:
            raise RuntimeError("the batch is interrupted")
        self._step()
        self.world.check_only_holder(self.start)
        self.world.sink.write(self.lineage, batch, grant.generation, begin, end)
        self._step()
        self._commit(batch, end)

    def _commit(self, batch: int, end: int, *, empty: bool = False) -> None:
        state = 0 if empty else end - self.base
        former = self._state(batch - 1)
        if not empty and former != self._end(batch - 1) - self.base:
            self.world.broken.append(
                f"the state before batch {batch} of {self.lineage} has {former}, not {self._end(batch - 1) - self.base}"
            )
        self._write(f"state/0/0/{batch + 1}.delta", str(state))
        stores = [{"storeName": "default", "stateSchemaFilePaths": [f"file:{self.directory}/state/0/_stateSchema/default/0_1"]}]
        metadata = json.dumps({"operatorInfo": {}, "stateStoreInfo": stores})
        self._write("state/0/_metadata/v2/0", f"v2\n{metadata}")
        self._step()
        self._write(f"commits/{batch}", 'v1\n{"nextBatchWatermarkMs":0}')

    def _state(self, batch: int) -> int:
        return 0 if batch < 0 else int((self.directory / f"state/0/0/{batch + 1}.delta").read_text())

    def _committed(self) -> int:
        found = inspect(self.directory)
        return -1 if found is None else found.committed

    def _end(self, batch: int) -> int:
        if batch < 0:
            return self.base
        return int(json.loads((self.directory / f"offsets/{batch}").read_text().splitlines()[2])["in"]["0"])

    def _position(self) -> Position:
        batch = self._committed()
        return Position(None if batch < 0 else batch, {Ssp("kafka", "in", 0): self._end(batch)})

    def _report(self) -> Mapping[str, object]:
        batch = self._committed()
        return {
            "stage": COUNTS,
            "checkpoint": f"file://machine/{self.directory.relative_to(self.disk)}",
            "queryId": self.lineage,
            "batchId": None if batch < 0 else batch,
        }

    def _write(self, name: str, text: str) -> None:
        file = self.directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, text)

    def _marked(self) -> str:
        """The drain that has flushed the checkpoint, or begun to; "" for none."""
        marker = self.directory / DRAIN_MARKER
        return str(json.loads(marker.read_text())["uuid"]) if marker.exists() else ""

    def _step(self) -> None:
        """Others may act between two steps, and the driver may be killed."""
        if self.world.chance.random() < 0.05:
            self.sleep(self.world.chance.choice((0.01, 1.0, 8.0)))
        self.start.steps_left -= 1
        if self.start.steps_left == 0:
            self.world.say(f"the driver of {self.start.name} is killed in a step")
            self.world.loop.kill(self.start.driver)
            raise Killed

    def sleep(self, seconds: float) -> None:
        def until(wake: Callable[[], None]) -> None:
            self.world.loop.call_later(seconds, wake)

        self.world.loop.wait_in_thread(until)

    def _refused(self, why: str) -> None:
        self.error = why

    def _dies(self) -> None:
        self.world.loop.kill(self.start.driver)

    # --- what the agent calls --------------------------------------------------------------------------------------

    def _on_stop(self, within: timedelta, sigterm: bool) -> None:
        self.stopped = self.over = True
        self.world.loop.run_in_executor(None, self._stop, within.total_seconds())

    def _stop(self, within: float) -> None:
        self.sleep(min(within, 5))
        self.agent.tell("stopped", [])

    def _on_drain(self, drain: DrainOfScript) -> None:
        if not self.stopped:
            self.drain, self.over = drain.uuid, False

    def _pause(self, drain: str, needed: Sequence[str]) -> Mapping[StageName, Position]:
        while not self.at_gate:
            self._check_drain(drain)
            self.sleep(0.1)
        self._check_drain(drain)
        return {COUNTS: self._position()}

    def _check_drain(self, drain: str) -> None:
        if self.over or self.stopped or self.drain != drain:
            raise DrainInterrupted("the queries are being stopped")

    def _flush(self, drain: str, stage: str, feeders: Sequence[str]) -> Flushed:
        """One batch, which reads nothing and empties the state. May be repeated."""
        self._check_drain(drain)
        if self._marked() != drain:
            batch = self._committed()
            self._write(DRAIN_MARKER, json.dumps({"uuid": drain, "batch": batch}))
        batch = json.loads((self.directory / DRAIN_MARKER).read_text())["batch"] + 1
        self._step()
        if not (self.directory / f"offsets/{batch}").exists():
            self._write(f"offsets/{batch}", plan(batch, self._end(batch - 1)))
        self._step()
        if self._committed() < batch:
            self._commit(batch, self._end(batch), empty=True)
        self._write(f"offsets/{batch + LOCK}", "the lock\n")
        return Flushed(Position(batch, {Ssp("kafka", "in", 0): self._end(batch)}))

    def _leave(self, drain: str, end: bool) -> None:
        if self.drain == drain:
            self.over = True
            self.stopped |= end or bool(self._marked())
            self.drain = ""


@dataclass(eq=False)
class Start:
    """One start of `sluice exec`. `steps_left`: the driver is killed in this step."""

    world: ScriptWorld
    name: str
    machine: str
    process: Process
    driver: Process
    generation: int = 0
    lease_ends: float = float("inf")
    steps_left: int = -1
    script: Script | None = None
    life: asyncio.Task[int] | None = None

    @property
    def running(self) -> bool:
        return not self.process.dead and self.life is not None and not self.life.done()

    @property
    def acts(self) -> bool:
        """Whether its driver may act."""
        return self.script is not None and not self.driver.dead


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


class SimulatedCommand:
    """As `Command`, which attaches at once."""

    what, observed, leftovers = "command", False, timedelta(seconds=10)

    def __init__(self, start: Start) -> None:
        self._start = start
        self._link: DriverLink | None = None

    @property
    def runs(self) -> bool:
        return self._start.acts

    def open(self, link: DriverLink, found: object, on_sigterm: object) -> None:
        self._link = link

    async def given_up(self) -> None:
        await asyncio.Event().wait()

    async def start(self, environment: Mapping[str, str]) -> None:
        assert self._link is not None
        start, world = self._start, self._start.world
        near, far = simulated_link(world.loop, world.chance, start.process, start.driver)
        start.script = Script(world, start, far, world.disk(start.machine))
        start.driver.context().run(start.script.agent.start)
        self._link.connect(near)
        start.driver.context().run(world.loop.run_in_executor, None, start.script.run)

    async def ended(self) -> None:
        while self._start.acts:
            await asyncio.sleep(0.1)

    async def outcome(self, error: str | None) -> Outcome:
        return Outcome(137, "killed") if error is None else Outcome(1 if error else 0, error or "the command ended")

    def send(self, number: object) -> None:
        self._start.world.loop.kill(self._start.driver)


def plan(batch: int, end: int) -> str:
    return f'v1\n{{"batchWatermarkMs":0,"batchTimestampMs":{batch}}}\n{{"in":{{"0":{end}}}}}'


class ScriptWorld(World):
    def __init__(self, loop: SimulatedLoop, chance: Random, directory: Path) -> None:
        super().__init__(loop, chance, directory, {}, pace=1.0)
        self.coordinator_settings["failover_after_seconds"] = 20
        self.sink = Sink()
        self.produced_records = 0
        self.bases: dict[str, int] = {}
        self.new_lineages: list[str] = []
        self.starts: list[Start] = []
        self.losing = True
        """Whether disks are lost."""
        self.drains_done = 0

    def start_script(self, machine: str) -> Start:
        name = f"exec {len(self.starts)}"
        process, driver = Process(name), Process(f"driver of {name}")
        start = Start(self, name, machine, process, driver)
        self.starts.append(start)

        def open_blobs(url: str) -> BlobStore:
            faulty = FaultyBlobs(open_blob_store(url, self.clock), lambda operation: self._blob_fault(url, self.blobs_fail))
            return wrapped(faulty, Requests(), clock=self.clock)

        async def live() -> int:
            client = Client("http://c", Way(self.network, machine))
            request = Request(JOB, ExecutionContainerId(name.replace(" ", "-")), machine)
            command: Any = SimulatedCommand(start)
            found: Any = SimulatedProcesses(start)
            return await ScriptAgent(request, command, client, found, self.clock, STOP_TIMEOUT, open_blobs).run()

        start.life = process.context().run(lambda: self.loop.create_task(live(), name=name))
        self.loop.create_task(self._guard(start), name=f"guardian of {name}")
        self.say(f"{name} starts on {machine}")
        return start

    async def _guard(self, start: Start) -> None:
        """As `containers.supervision.guardian`: ends the driver when its agent was killed, and both at the end of the lease."""
        while start.running or start.acts:
            await asyncio.sleep(0.2)
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
        for other in self.starts:
            if other is not start and other.acts and other.generation and self.now < other.lease_ends and not other.script.stopped:  # type: ignore[union-attr]
                self.broken.append(f"{start.name} writes, and {other.name} has its lease for {other.lease_ends - self.now:.1f} s more")

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
                self.drains_done += phase == "DRAINED"
                if phase == "FAILED" and any(each.phase.value == "FLUSHING" for each in detail.phases):
                    self.failed_drains.add(detail.uuid)
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
    )
}


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
        broken = [*world.broken, *world.sink.broken, *world.network.broken, *unexpected]
        broken += [each for each in loop.errors if each.startswith("Task exception")]
        return SeedOutcome(
            seed, broken, [*world.trace], world.drains_done, len(world.failed_drains), len(world.new_lineages), len(world.sink.batches)
        )


async def _live(world: ScriptWorld, seed: int, faults: int) -> None:
    create_migrated(world.directory / "home")
    await world.start_coordinator()
    works = [world.loop.create_task(world.restart(machine)) for machine in ("a", "b")]
    works.append(world.loop.create_task(_produce(world)))
    plan_of_seed = Random(f"faults of {seed}")
    pause = plan_of_seed.choice((5, 15, 30))
    for number in range(faults):
        await asyncio.sleep(plan_of_seed.expovariate(1 / pause))
        name = plan_of_seed.choice(sorted(FAULTS))
        world.dice = Random(f"fault {number} of {seed}")
        world.say(f"fault {number}: {name}")
        await FAULTS[name](world)
        if world.broken or world.sink.broken:
            return
    works[-1].cancel()
    world.losing = False
    await _settle(world)


async def _produce(world: ScriptWorld) -> None:
    while True:
        await asyncio.sleep(world.chance.expovariate(1 / 6))
        world.produced_records += world.chance.randrange(1, 30)


async def _settle(world: ScriptWorld) -> None:
    """A drain after the last fault succeeds, and then everything was written."""
    world.say("faults are over")
    world.network.cut.clear()
    world.network.lossy, world.blobs_fail = 0.0, None
    if world.coordinator is None or world.coordinator.dead:
        await world.start_coordinator()
    began = world.loop.time()
    while min(world.sink.times(world.produced_records), default=1) == 0:
        if world.loop.time() - began > SETTLES_WITHIN:
            world.broken.append(f"not everything is written {SETTLES_WITHIN} s after the last fault")
            return
        await asyncio.sleep(5)
        (run,) = (await world.until_answered(lambda: world.operator().runs(JOB, 1))).runs
        if run.state.ended:
            await world.until_answered(lambda: world.operator().deploy(attached_request(JOB)))
    phase = await world.end_run("drain")
    if phase != "DRAINED":
        world.broken.append(f"the last drain is {phase or 'refused'}")
    times = world.sink.times(world.produced_records)
    if min(times, default=1) < 1 or (max(times, default=1) > 1 and not world.new_lineages):
        wrong = {number: each for number, each in enumerate(times) if each != 1}
        world.broken.append(f"records were not written once: {dict(list(wrong.items())[:10])}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.simulation.scripts")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--trace", action="store_true", help="print what happened in the first seed, and run no other")
    options = parser.parse_args()
    if options.trace:
        print("\n".join(run_seed(options.first).trace))
        return 0
    broken = drains = failed = lineages = 0
    for outcome in outcomes(run_seed, range(options.first, options.first + options.seeds), options.workers):
        drains, failed, lineages = drains + outcome.drains, failed + outcome.failed, lineages + outcome.new_lineages
        if outcome.broken:
            broken += 1
            print(f"seed {outcome.seed}: {outcome.broken[0]}", flush=True)
    print(f"{options.seeds} seeds, {drains} drains, {failed} failed in their flush, {lineages} new lineages: {broken} broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
