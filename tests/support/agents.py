"""Real agents and a real coordinator in one process. Spark and the sockets are replaced by fakes, in some tests also the clocks."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from containers.agent.agent import Agent
from containers.agent.lifecycle import ExitReason
from containers.settings import ContainerSettings
from coordinator.api.deps import Parts
from coordinator.app import build
from coordinator.settings import read_settings
from sluice import Job
from sluice.blobs.port import BlobStore
from sluice.client.agents import AgentClient
from sluice.clock import Clock
from sluice.core.ids import Instant, RunId
from sluice.deploy import deploy_request
from sluice.streams.log import Log
from sluice.wire import runs as wire_runs
from tests.support.api import NAMED
from tests.support.databases import create_migrated, quick_store
from tests.support.engines import FakeEngine, FakeQuery, soon
from tests.support.fakes import FakeClock
from tests.support.virtual_time import LoopClock

NO_ADDRESS = "192.0.2.1"
"""An address of no machine (RFC 5737): a container that cannot serve its metrics runs without the server, whose threads would be real."""


def two_stages(name: str = "delays", *, last: str = "second", streams: tuple[str, str, str] = ("in", "mid", "out")) -> Job:
    """in -> first -> mid -> second -> out, declared in reverse order."""
    job = Job(name)
    read, mid, out = job.input(streams[0]), job.intermediate(streams[1], partitions=2), job.output(streams[2])
    job.stage(reads=mid, writes=out, name=last)(lambda task: None)  # type: ignore[arg-type, return-value]
    job.stage(reads=read, writes=mid, name="first")(lambda task: None)  # type: ignore[arg-type, return-value]
    return job


@dataclass
class Wire(httpx.AsyncBaseTransport):
    """The transport to the coordinator. It can be cut, delay an answer, lose it or replace it, and counts answers."""

    to: httpx.AsyncBaseTransport
    cut: bool = False
    on_cut: Callable[[], None] = lambda: None
    """Called for each request that is cut off, except reports of watermarks, whose order relative to heartbeats varies."""
    holding: dict[str, asyncio.Event] = field(default_factory=dict)
    losing: set[str] = field(default_factory=set)
    breaking: set[str] = field(default_factory=set)
    held: asyncio.Event = field(default_factory=asyncio.Event)
    answered: Counter[str] = field(default_factory=Counter)
    foreign: dict[str, list[httpx.Response]] = field(default_factory=dict)
    """Answers that are returned instead of the coordinator's, one per request, by the end of the path."""
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.cut:
            await self._count("unreachable")
            if not request.url.path.endswith("/watermarks"):
                self.on_cut()
            raise httpx.ConnectError("cut", request=request)
        for end, answers in self.foreign.items():
            if request.url.path.endswith(end) and answers:
                await self._count("foreign")
                return answers.pop(0)
        answer = await self.to.handle_async_request(request)
        for end, go_on in list(self.holding.items()):
            if request.url.path.endswith(end):
                self.held.set()
                await go_on.wait()
        for end in [each for each in self.breaking if request.url.path.endswith(each)]:
            self.breaking.discard(end)
            raise httpx.ReadError("broken", request=request)
        for end in [each for each in self.losing if request.url.path.endswith(each)]:
            self.losing.discard(end)
            self.held.set()
            await asyncio.Event().wait()
        await self._count(request.url.path.rpartition("/")[2])
        return answer

    async def _count(self, what: str) -> None:
        async with self._news:
            self.answered[what] += 1
            self._news.notify_all()

    def hold(self, end: str) -> asyncio.Event:
        """Delay answers to paths with this end until the event is set. The coordinator has already processed the requests."""
        self.holding[end] = asyncio.Event()
        return self.holding[end]

    def break_after(self, end: str) -> asyncio.Event:
        """Break the connection instead of the next answer to a path with this end, when the event is set. The coordinator has then already
        processed the request."""
        self.breaking.add(end)
        return self.hold(end)

    def lose(self, end: str) -> None:
        """Lose the next answer to a path with this end. The coordinator has already processed the request."""
        self.losing.add(end)

    async def after(self, what: str, times: int = 1) -> None:
        """Wait until that many requests were answered, counted from the start."""

        async def there() -> None:
            async with self._news:
                await self._news.wait_for(lambda: self.answered[what] >= times)

        await soon(there())


@dataclass
class Incarnation:
    agent: Agent
    engine: FakeEngine
    wire: Wire
    life: asyncio.Task[ExitReason]
    lost: list[str]
    renewed: list[Instant]

    async def ending(self) -> ExitReason:
        return await soon(asyncio.shield(self.life))


@dataclass
class Place:
    """A coordinator, its log, and the agents that were started against it."""

    home: Path
    app: httpx.ASGITransport
    client: AgentClient
    clock: FakeClock
    log: Log
    parts: Parts
    system: str = "log"
    """The system of the streams of deployed jobs."""
    incarnations: list[Incarnation] = field(default_factory=list)

    async def snapshots(self, job: str = "delays") -> list[dict[str, Any]]:
        """The retained snapshots, newest first."""
        async with httpx.AsyncClient(transport=self.app, base_url="http://c") as http:
            answer = await http.get(f"/jobs/{job}/snapshots")
            assert answer.status_code == 200, answer.text
            found: list[dict[str, Any]] = answer.json()["snapshots"]
            return found

    async def events(self, job: str) -> list[dict[str, Any]]:
        """What has happened to the job, newest first."""
        async with httpx.AsyncClient(transport=self.app, base_url="http://c") as http:
            answer = await http.get(f"/jobs/{job}/events")
            assert answer.status_code == 200, answer.text
            found: list[dict[str, Any]] = answer.json()["events"]
            return found

    async def deploy(
        self, containers: int = 1, job: Job | None = None, start: str = "checkpoint", config: dict[str, str] | None = None
    ) -> RunId:
        reply = await self.client.deploy(deploy_request(job or two_stages(), containers, self.system, start, config or {}))
        return RunId(reply.run_id)

    async def run(self, run_id: RunId) -> wire_runs.RunDetail:
        return await self.client.run(run_id)

    async def state(self, run_id: RunId) -> str:
        return (await self.run(run_id)).state.value

    async def holders(self, run_id: RunId) -> dict[str, str | None]:
        return {task.task: task.holder for task in (await self.run(run_id)).tasks}

    def new_wire(self) -> Wire:
        return Wire(self.app)

    def start(
        self,
        run_id: RunId,
        name: str,
        slot: str = "0",
        *,
        engine: FakeEngine | None = None,
        job: Job | None = None,
        wire: Wire | None = None,
        clock: Clock | None = None,
        open_blobs: Callable[[str], BlobStore] | None = None,
        **settings: Any,
    ) -> Incarnation:
        """Start the agent of a container."""
        there = wire or self.new_wire()
        given = {
            "run_id": run_id,
            "processor_id": slot,
            "EXECUTION_ENV_CONTAINER_ID": name,
            "restart_delay_seconds": 0.0,
            "report_seconds": 0.1,
            "metrics_host": NO_ADDRESS,
            "home": self.home,
            **settings,
        }
        made = engine or FakeEngine()
        lost: list[str] = []
        renewed: list[Instant] = []
        agent = Agent(
            (job or two_stages()).description(),
            ContainerSettings(**given),
            AgentClient("http://c", there),
            clock or LoopClock(),
            lambda run: made,
            renewed.append,
            lost.append,
            open_blobs,
        )
        self.incarnations.append(Incarnation(agent, made, there, asyncio.create_task(agent.run()), lost, renewed))
        return self.incarnations[-1]


@asynccontextmanager
async def place(home: Path, clock: FakeClock | None = None, **settings: Any) -> AsyncIterator[Place]:
    """A coordinator with a clock that does not move: no lease (30 s, grace period 5 s) ends unless a test advances it. Crash-loop
    back-off is off, and containers send ten heartbeats a second.
    """
    clock = clock or FakeClock()
    terms = {"lease_seconds": 30, "margin_seconds": 3, "grace_seconds": 5, "heartbeat_seconds": 0.1, "crash_loop_backoff_seconds": 0}
    no_backups: dict[str, Any] = {"backup_stores": (), "restore_from": ()}  # a `FakeEngine` has no directories
    create_migrated(home)
    read = read_settings(home=home, **{**NAMED, **terms, **no_backups, **settings})
    coordinator = build(read, clock=clock, store=quick_store(read.database))
    app = httpx.ASGITransport(coordinator.asgi)
    async with coordinator.api.router.lifespan_context(coordinator.api):
        log = Log(home / "log")
        log.create("in", 2)
        made = Place(home, app, AgentClient("http://c", app), clock, log, coordinator.api.state.parts)
        try:
            yield made
        finally:
            lives = [each.life for each in made.incarnations]
            for life in lives:
                life.cancel()
            await asyncio.gather(*lives, return_exceptions=True)


def counting(inputs: int = 1) -> Job:
    """One stage per input, each with state: in -> hourly, and with a second input other -> daily."""
    job = Job("delays")
    for name, stage in (("in", "hourly"), ("other", "daily"))[:inputs]:
        job.stage(reads=job.input(name), writes=job.output(f"{stage}-out"), name=stage)(lambda task: None)  # type: ignore[arg-type, return-value]
    return job


async def acting(engine: FakeEngine, number: int) -> Mapping[str, FakeQuery]:
    """The next `number` queries that start and have not been stopped since."""
    found = await engine.all_started(number)
    assert not any(query.stopped for query in found.values())
    return found
