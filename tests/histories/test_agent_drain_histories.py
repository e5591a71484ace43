"""Random histories of records, batches, kills, lost disks, drains, failed and cancelled drains, and deployments, on the real log and
real blob stores. Invariant: for each key, the sum of the output equals the sum of the input, without the output of failed drains.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import shutil
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from containers.supervision.exit_report import EXIT_OK
from sluice import Job
from sluice.core.ids import ExecutionContainerId, Generation, Lineage, RunId
from sluice.streams.log import Headers, Log, Record, Writer
from sluice.wire.body import DRAIN_RECORD_HEADER
from tests.support.agents import Incarnation, Place, place, two_stages
from tests.support.backups import BACKED_UP
from tests.support.counting_engine import CountingEngine, Killed, Ledger, Trap, TrappedWire, summed
from tests.support.engines import FakeQuery, soon
from tests.support.streams import TopicLog, once

STEPS = 6
KEYS = "abcdefg"
DEADLINE = 20
"""The hard deadline of each drain in seconds; shorter than a lease."""

EARLY, LATE = (1, 15), (15, 50)
"""Steps of a container in a drain: mostly while it stops, and while it flushes and commits."""

TROUBLES = [
    ("kill", LATE),
    ("deadline", LATE),
    ("kill", EARLY),
    ("cancel", EARLY),
    ("deadline", LATE),
    ("kill", LATE),
    ("stop run", LATE),
    ("stop", LATE),
    ("deadline", EARLY),
    ("cancel", LATE),
    ("stop run", EARLY),
    ("stop", EARLY),
]
HISTORIES = int(os.environ.get("SLUICE_TEST_HISTORIES", "2"))
"""A larger number takes longer, and finds more."""
ON_KAFKA = int(os.environ.get("SLUICE_TEST_KAFKA_HISTORIES", "1"))


class History:
    """Two tasks of two stages each, in one or two containers, on any disks."""

    def __init__(
        self,
        there: Place,
        chance: random.Random,
        settings: Mapping[str, Any],
        first_trouble: int,
        streams: tuple[str, str, str] = ("in", "mid", "out"),
    ) -> None:
        self.there = there
        self.streams = streams
        self.chance = chance
        self.settings = settings
        self.ledger = Ledger(there.log, streams[1])
        self.happened: Counter[str] = Counter()
        self.failed: set[str] = set()
        self.version = 0
        """The version of the state. Another build of the job uses the same."""
        self.build = 0
        self.run_id = RunId("")
        self.containers: dict[str, Incarnation] = {}
        self.disks: Counter[str] = Counter()
        self.producer = Writer(Lineage("producer"), "producer", Generation(1))
        self.produced = 0
        self.drained: Mapping[int, int] = {}
        self.to_come = itertools.islice(itertools.cycle(TROUBLES), first_trouble, None)

    # --- what people and machines do -------------------------------------------------------------------------------

    async def request(self, method: str, path: str, **body: Any) -> httpx.Response:
        async with httpx.AsyncClient(transport=self.there.app, base_url="http://c") as http:
            return await http.request(method, path, json=body or None)

    def job(self) -> Job:
        job = two_stages(streams=self.streams)
        job.code = f"version {self.version}, build {self.build}"
        return job

    def produce(self) -> None:
        records = [
            Record(str(self.chance.randrange(1, 10)).encode(), self.chance.choice(KEYS).encode(), self.chance.randrange(2))
            for _ in range(self.chance.randrange(1, 30))
        ]
        self.there.log.append(self.streams[0], records, writer=self.producer, batch=self.produced, now_micros=0)
        self.produced += 1

    async def deploy(self) -> None:
        slots = self.chance.choice([1, 2])
        self.run_id = await self.there.deploy(slots, self.job())
        former = [each for each in self.containers.values() if not each.life.done()]
        self.containers = {}
        for slot in range(slots):
            self.start(str(slot))
        for each in former:
            assert (await each.ending()).exit_code == EXIT_OK
        await self.all_acting()

    def start(self, slot: str) -> None:
        root = self.there.home.parent / f"disk {slot} {self.disks[slot]}"
        version, can_pause = f"version {self.version}", self.chance.random() < 0.7
        engine = CountingEngine(root=root, ledger=self.ledger, version=version, can_pause=can_pause, operators=(f"sums of {version}",))
        wire = TrappedWire(self.there.app)
        name = f"c{len(self.there.incarnations)}"
        self.containers[slot] = self.there.start(
            self.run_id, name, slot, engine=engine, job=self.job(), wire=wire, state_dir=root, **self.settings
        )

    def engine(self, slot: str) -> CountingEngine:
        engine = self.containers[slot].engine
        assert isinstance(engine, CountingEngine)
        return engine

    async def all_acting(self) -> None:
        each = 4 // len(self.containers)
        await self.unless_ended(asyncio.gather(*(self.engine(slot).all_acting(each) for slot in self.containers)))

    async def unless_ended(self, what: asyncio.Future[Any]) -> None:
        """Wait for it; no container may end before."""
        lives = [each.life for each in self.containers.values()]
        await soon(asyncio.wait({what, *lives}, return_when=asyncio.FIRST_COMPLETED))
        assert not self.ledger.faults, self.ledger.faults
        assert what.done(), [life.result() for life in lives if life.done()]
        what.result()

    async def kill(self, slot: str) -> None:
        """The process is killed; its guardian reports it, and it is started again, perhaps on another machine."""
        container, engine = self.containers[slot], self.engine(slot)
        engine.dead = True
        container.life.cancel()
        await asyncio.gather(container.life, return_exceptions=True)
        await engine.dies()
        await self.there.client.exited(ExecutionContainerId(f"c{self.there.incarnations.index(container)}"), 137, "killed")
        await self.again(slot)

    async def stop(self, slot: str) -> None:
        container = self.containers[slot]
        container.agent.stop_requested()
        self.open_trap(slot)
        assert (await container.ending()).exit_code == EXIT_OK
        await self.again(slot)

    async def again(self, slot: str) -> None:
        if self.chance.random() < 0.5:
            self.happened["lost disk"] += 1
            shutil.rmtree(self.there.home.parent / f"disk {slot} {self.disks[slot]}", ignore_errors=True)
            self.disks[slot] += 1
        self.start(slot)

    # --- batches ---------------------------------------------------------------------------------------------------

    async def batches(self, number: int, records: int = 10) -> None:
        for _ in range(number):
            await self.all_acting()
            slot = self.chance.choice(sorted(self.containers))
            await self.batch(self.engine(slot), self.chance.choice(sorted(self.engine(slot).running, key=_name)), records)

    async def batch(self, engine: CountingEngine, query: FakeQuery, records: int) -> bool:
        """A batch that fails ends its query, which is started again."""
        try:
            return await engine.reads_on(query, records)
        except Killed:
            return False
        except Exception as error:
            self.happened[f"failed batch: {type(error).__name__}"] += 1
            query.stopped = True
            await query.ends(str(error))
            return True

    async def batch_and_kill(self) -> None:
        """In the middle of a batch, or of a commit."""
        slot = self.chance.choice(sorted(self.containers))
        trap = self.set_trap(slot, self.chance.randrange(1, 8))
        query = self.chance.choice(sorted(self.engine(slot).running, key=_name))
        batch = asyncio.create_task(self.batch(self.engine(slot), query, 10))
        sprung = asyncio.create_task(trap.sprung.wait())
        await soon(asyncio.wait({batch, sprung}, return_when=asyncio.FIRST_COMPLETED))
        sprung.cancel()
        await self.kill(slot)
        await batch
        await self.all_acting()

    # --- drains ----------------------------------------------------------------------------------------------------

    def set_trap(self, slot: str, after: int) -> Trap:
        trap, wire = Trap(after), self.containers[slot].wire
        assert isinstance(wire, TrappedWire)
        self.engine(slot).trap = wire.trap = trap
        return trap

    def open_trap(self, slot: str) -> None:
        if (trap := self.engine(slot).trap) is not None:
            trap.release()

    async def drain(self, troubles: int, mode: str = "DEFAULT") -> None:
        """Run a drain with faults at random steps, and then what operators do after it."""
        slot, what, trap = self.next_trouble() if troubles else ("", "", None)
        reading = [asyncio.create_task(self.batches_meanwhile(each)) for each in self.containers]
        answer = await self.request("POST", "/drain", runId=self.run_id, drainMode=mode, hardDeadlineSeconds=DEADLINE)
        assert answer.status_code == 202, answer.text
        uuid = answer.json()["uuid"]
        over = asyncio.create_task(self.over(uuid))
        while trap is not None and await self.springs(trap, over):
            await self.trouble(slot, what, uuid)
            troubles -= 1
            slot, what, trap = self.next_trouble() if troubles else ("", "", None)
        for each in self.containers:
            self.open_trap(each)
        await soon(over)
        await asyncio.gather(*reading)
        await self.after(uuid)

    async def batches_meanwhile(self, slot: str) -> None:
        """Batches that run while a drain is requested. A batch of a killed container has no owner."""
        engine = self.engine(slot)
        for query in sorted(engine.running, key=_name):
            await self.batch(engine, query, 5)

    async def springs(self, trap: Trap, over: asyncio.Task[Any]) -> bool:
        sprung = asyncio.create_task(trap.sprung.wait())
        await soon(asyncio.wait({sprung, over}, return_when=asyncio.FIRST_COMPLETED))
        sprung.cancel()
        return trap.sprung.is_set()

    def next_trouble(self) -> tuple[str, str, Trap]:
        """Where the next fault happens, its kind, and the trap that stops the container within a step. All kinds occur in turn."""
        slot, (what, steps) = self.chance.choice(sorted(self.containers)), next(self.to_come)
        return slot, what, self.set_trap(slot, self.chance.randrange(*steps))

    async def trouble(self, slot: str, what: str, uuid: str) -> None:
        phase = (await self.request("GET", f"/drain/{uuid}")).json()["phase"]
        self.happened[f"{what} in {phase}"] += 1
        match what:
            case "kill":
                await self.kill(slot)
            case "stop":
                await self.stop(slot)
            case "deadline":
                self.there.clock.advance(DEADLINE + 1)
                await soon(self.over(uuid))
                await self.all_have_beaten()
            case "cancel":
                answer = await self.request("DELETE", f"/drain/{uuid}")
                assert answer.status_code < 300 or answer.status_code == 409, answer.text
            case "stop run":
                await self.there.client.stop_run(self.run_id, "by hand")
        self.open_trap(slot)

    async def all_have_beaten(self) -> None:
        """Restart the coordinator: leases begin again."""
        for each in self.containers.values():
            beats = asyncio.ensure_future(each.wire.after("containerHeartbeat", each.wire.answered["containerHeartbeat"] + 1))
            await asyncio.wait({beats, each.life}, return_when=asyncio.FIRST_COMPLETED)
            beats.cancel()

    async def over(self, uuid: str) -> None:
        """Wait until the drain is over."""
        seq, phase = 0, ""
        while phase not in ("DRAINED", "FAILED", "CANCELLED"):
            for notice in await self.there.client.notices(self.run_id, seq, timedelta(seconds=20)):
                seq = notice.seq
                if notice.kind == "DRAIN" and notice.detail["uuid"] == uuid:
                    phase = str(notice.detail["phase"])

    async def after(self, uuid: str) -> None:
        """Act as operators do after a drain: deploy another version, or the one that could not be drained again, or nothing."""
        reply = (await self.request("GET", f"/drain/{uuid}")).json()
        keeps = reply["drainMode"] == "KEEP_STATE"
        flushed = any(each["phase"] == "FLUSHING" for each in reply["phases"]) and not keeps
        self.happened[f"{reply['phase']}{' after FLUSHING' if flushed else ' with its state' if keeps else ''}"] += 1
        if reply["phase"] == "FAILED" and flushed:
            self.failed.add(uuid)
        run = await self.there.run(self.run_id)
        if reply["phase"] != "DRAINED" and run.stop_requested_at is None:
            await self.all_acting()
            return
        for each in self.containers.values():
            ending = await each.ending()
            assert ending.exit_code == EXIT_OK, ending
        assert await self.there.state(self.run_id) == ("DRAINED" if reply["phase"] == "DRAINED" else "STOPPED")
        drained = {(each["stream"], each["partition"]): each["offset"] for each in reply["drained"]}
        if reply["phase"] == "DRAINED" and keeps:
            assert {partition: drained[self.streams[1], partition] for partition in (0, 1)} == self.there.log.latest(self.streams[1])
            self.build += 1
        elif reply["phase"] == "DRAINED":
            self.check(drained)
            self.version += 1
        await self.deploy()

    def check(self, drained: Mapping[tuple[str, int], int]) -> None:
        """Check that all records read from the input are in the output, and that intermediate streams are read to their ends."""
        log, (first, mid, out) = self.there.log, self.streams
        read, read_between = ({partition: drained[stream, partition] for partition in (0, 1)} for stream in (first, mid))
        went_in = summed(log, first, {}, read, lambda headers: True)
        if isinstance(log, TopicLog):
            self.check_repeats(log, went_in, read_between)
        else:
            for stream in (mid, out):
                assert summed(log, stream, {}, log.latest(stream), self.counts) == went_in, f"{stream}: {self.happened}"
            assert read_between == log.latest(mid)
        self.drained = read

    def check_repeats(self, topics: TopicLog, went_in: Counter[str], read: Mapping[int, int]) -> None:
        """On Kafka a repeated batch is in the topic twice. Any unread record of an intermediate stream must therefore be a repetition."""
        _, mid, out = self.streams
        assert summed(topics, mid, {}, read, once(self.counts)) == went_in, f"{mid}: {self.happened}"
        came = summed(topics, out, {}, topics.latest(out), once(self.counts))
        assert went_in <= came <= summed(topics, mid, {}, topics.latest(mid), self.counts), f"{out}: {self.happened}"

    def counts(self, headers: Headers) -> bool:
        """Whether a record counts: the records of failed drains do not."""
        return headers.get(DRAIN_RECORD_HEADER) not in self.failed

    # --- whole histories -------------------------------------------------------------------------------------------

    async def lives(self) -> None:
        await self.deploy()
        for _ in range(STEPS):
            await self.goes_on()
        await self.ends()

    async def goes_on(self) -> None:
        self.produce()
        await self.all_acting()
        match self.chance.choices(["batches", "batch and kill", "kill", "stop", "deploy", "drain", "keep"], [3, 2, 1, 1, 1, 3, 2])[0]:
            case "batches":
                await self.batches(self.chance.randrange(1, 8))
            case "batch and kill":
                await self.batch_and_kill()
            case "kill":
                await self.kill(self.chance.choice(sorted(self.containers)))
            case "stop":
                await self.stop(self.chance.choice(sorted(self.containers)))
            case "deploy":
                await self.deploy()
            case "drain":
                await self.drain(self.chance.choice([1, 1, 2]))
            case "keep":
                await self.drain(self.chance.choice([0, 1, 2]), "KEEP_STATE")
        assert not self.ledger.faults, self.ledger.faults

    async def ends(self) -> None:
        """Read everything, and drain the job."""
        await self.all_acting()
        while any([await self.batch(self.engine(slot), query, 100) for slot in self.containers for query in self.engine(slot).running]):
            await self.all_acting()
        await self.drain(0)
        assert self.drained == self.there.log.latest(self.streams[0])
        assert not self.ledger.faults, self.ledger.faults


def _name(query: FakeQuery) -> str:
    return query.start.query


def settings_of(seed: int) -> Mapping[str, Any]:
    return {"commit_interval_seconds": (0, 0.02, 3600)[seed % 3], "max_replay": 3}


@pytest.mark.parametrize("seed", range(HISTORIES))
async def test_every_record_is_counted_once_under_any_faults(tmp_path: Path, seed: int) -> None:
    async with place(tmp_path / "home", **BACKED_UP, heartbeat_seconds=0.2) as there:
        history = History(there, random.Random(seed), settings_of(seed), 2 * seed)
        await history.lives()


@pytest.mark.real_time
@pytest.mark.parametrize("seed", range(ON_KAFKA))
async def test_under_any_faults_nothing_is_lost_on_kafka_and_only_whole_batches_are_repeated(
    tmp_path: Path, kafka_server: str, seed: int
) -> None:
    streams = (f"{tmp_path.name}-in", f"{tmp_path.name}-mid", f"{tmp_path.name}-out")
    async with place(tmp_path / "home", **BACKED_UP, heartbeat_seconds=0.2, kafka_bootstrap=kafka_server) as there:
        topics = TopicLog(kafka_server)
        with closing(topics):
            topics.create(streams[0], 2)
            topics.create(streams[2], 2)
            there.log, there.system = cast("Log", topics), "kafka"
            history = History(there, random.Random(seed), settings_of(seed), 2 * seed + 1, streams)
            await history.lives()
