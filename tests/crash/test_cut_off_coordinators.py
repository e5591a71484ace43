"""A coordinator loses its connection to PostgreSQL while containers still reach it, and a second coordinator takes over: a task never has
two owners that can act. Leases are measured on a clock that the test advances; the database and its network are real.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from sqlalchemy import make_url

from coordinator.app import build
from coordinator.chores import KeepClaim
from coordinator.fleet.expiry import ExpireLeases
from coordinator.settings import read_settings
from coordinator.store.claim import SessionClaim, new_holder
from coordinator.store.sql import Store, new_engine
from sluice.client.agents import AgentClient, Alive
from sluice.core.errors import CoordinatorUnreachable, DatabaseInUse
from sluice.core.ids import Epoch, ExecutionContainerId, RunId, TaskName
from sluice.core.leases.lease import KILL_TIME, ContainerLease
from sluice.streams.log import Log
from sluice.wire.agents import AcquireReply, RegisterRequest
from tests.support.api import Caller
from tests.support.fakes import FakeClock
from tests.support.s3servers import Toxiproxy, toxiproxy
from tests.support.servers import Postgres

pytestmark = pytest.mark.real_time

CLAIM_SECONDS = 1.0
TASK = TaskName("Partition 0")
LEASE, GRACE, OUTAGE = 40, 5, 120
"""The default settings."""

Start = Callable[[str], AbstractAsyncContextManager[Caller]]


@pytest.fixture
def url(postgres_server: Postgres) -> str:
    return postgres_server.new_database()


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Toxiproxy]:
    with toxiproxy(tmp_path) as made:
        yield made


class Link:
    """The network connection of one coordinator to the database."""

    def __init__(self, network: Toxiproxy, url: str) -> None:
        target = make_url(url)
        self._network, self._server = network, f"{target.host}:{target.port}"
        host, port = network.proxy(self._server).rsplit(":", 1)
        self.url = target.set(host=host.removeprefix("http://"), port=int(port)).render_as_string(hide_password=False)

    def cut(self, *, on: bool) -> None:
        self._network.cut(self._server, on=on)


@pytest.fixture
def start(home: Path, clock: FakeClock) -> Start:
    """Starts a coordinator with default settings, whose claim expires after a second."""

    @asynccontextmanager
    async def started(url: str) -> AsyncIterator[Caller]:
        holder = new_holder()
        engine = new_engine(url, holder)
        store = Store(engine, claim=SessionClaim(engine, holder, answer_within=0.5, seconds=CLAIM_SECONDS))
        coordinator = build(read_settings(home=home, database_url=url), clock=clock, store=store)
        transport = httpx.ASGITransport(coordinator.asgi, raise_app_exceptions=False)
        async with (
            coordinator.api.router.lifespan_context(coordinator.api),
            httpx.AsyncClient(transport=transport, base_url="http://localhost") as http,
        ):
            yield Caller(coordinator, http, Log(home / "log"))

    return started


class Container:
    """The lease of an agent, with the real client. `coordinator` is the one that it reaches."""

    def __init__(self, execution_id: str, coordinator: Caller, clock: FakeClock) -> None:
        self.execution_id = ExecutionContainerId(execution_id)
        self.coordinator = coordinator
        self.holds = False
        self._clock = clock
        self._client = AgentClient("http://localhost", httpx.MockTransport(self._send))
        self._trust: ContainerLease | None = None
        self._epoch = Epoch(0)

    async def _send(self, request: httpx.Request) -> httpx.Response:
        return await httpx.ASGITransport(self.coordinator.coordinator.asgi, raise_app_exceptions=False).handle_async_request(request)

    @property
    def acts(self) -> bool:
        return self._trust is not None and not self._trust.expired(self._clock.elapsed())

    @property
    def may_write(self) -> bool:
        """Whether a process of the container may still run: its agent has not ended the last one."""
        return self.holds and self._trust is not None and self._clock.elapsed() < self._trust.ends_at + KILL_TIME.total_seconds()

    async def register(self, run_id: str) -> None:
        sent = self._clock.elapsed()
        request = RegisterRequest(processor_id="0", execution_container_id=self.execution_id)
        found = await self._client.register(RunId(run_id), request)
        self._epoch = Epoch(found.epoch)
        self._trust = ContainerLease(sent, timedelta(seconds=found.lease_seconds), timedelta(seconds=found.margin_seconds))

    async def beat(self) -> None:
        if not self.acts:
            return
        sent = self._clock.elapsed()
        try:
            answer = await self._client.heartbeat(self.execution_id, self._epoch, timedelta(seconds=30))
        except CoordinatorUnreachable:
            return
        assert self._trust is not None
        self._trust = ContainerLease(sent, answer.lease, self._trust.margin) if isinstance(answer, Alive) else None

    async def acquire(self, run_id: str) -> None:
        self.holds = isinstance(await self._client.acquire(RunId(run_id), TASK, self.execution_id, self._epoch), AcquireReply)


async def holding(coordinator: Caller, clock: FakeClock) -> tuple[str, Container]:
    """A run, and the container that holds its task."""
    coordinator.log.create("flights", 2)
    run_id = str((await coordinator.deploy())["runId"])
    container = Container("c1", coordinator, clock)
    await container.register(run_id)
    await container.acquire(run_id)
    assert container.holds
    return run_id, container


async def seconds_until_given_away(run_id: str, former: Container, successor: Container, clock: FakeClock) -> int:
    """Both containers send heartbeats, and the successor requests the task until it has it."""
    for seconds in range(0, 400, 4):
        await former.beat()
        await successor.beat()
        await successor.acquire(run_id)
        assert not (former.may_write and successor.may_write)
        if successor.holds:
            return seconds
        clock.advance(4)
    raise AssertionError("the task is not given away")


async def test_a_task_whose_owner_reaches_only_the_former_coordinator_is_reassigned_when_that_one_stops_renewing_leases(
    url: str, network: Toxiproxy, start: Start, clock: FakeClock
) -> None:
    link = Link(network, url)
    async with start(link.url) as first:
        run_id, former = await holding(first, clock)
        link.cut(on=True)
        async with start(url) as second:
            successor = Container("c2", second, clock)
            await successor.register(run_id)
            waited = await seconds_until_given_away(run_id, former, successor, clock)
            assert OUTAGE + LEASE + GRACE <= waited <= 1.01 * OUTAGE + LEASE + GRACE + 4
            assert (await first.beat("c1", 1)).status_code == 503


async def test_a_container_that_has_acknowledged_the_successor_ignores_the_former_coordinator(
    url: str, network: Toxiproxy, start: Start, clock: FakeClock
) -> None:
    link = Link(network, url)
    async with start(link.url) as first:
        run_id, former = await holding(first, clock)
        link.cut(on=True)
        async with start(url) as second:
            former.coordinator = second
            await former.beat()
            await former.beat()
            former.coordinator = first
            assert await first.alive("c1", 1)
            successor = Container("c2", second, clock)
            await successor.register(run_id)
            waited = await seconds_until_given_away(run_id, former, successor, clock)
            assert LEASE + GRACE <= waited <= LEASE + GRACE + 4


async def test_after_an_orderly_end_the_successor_waits_only_for_the_lease(url: str, start: Start, clock: FakeClock) -> None:
    async with start(url) as first:
        run_id, former = await holding(first, clock)
    async with start(url) as second:
        successor = Container("c2", second, clock)
        await successor.register(run_id)
        waited = await seconds_until_given_away(run_id, former, successor, clock)
        assert LEASE + GRACE <= waited <= LEASE + GRACE + 4


async def test_ninety_seconds_without_the_database_end_no_container_and_release_no_claim(
    url: str, network: Toxiproxy, start: Start, clock: FakeClock
) -> None:
    link = Link(network, url)
    async with start(link.url) as first:
        run_id, container = await holding(first, clock)
        link.cut(on=True)
        for _ in range(18):
            clock.advance(5)
            await container.beat()
        link.cut(on=False)
        parts = first.coordinator.api.state.parts
        await KeepClaim(parts.health.store, lambda _: None, clock, parts.leases.claim_confirmed).run_once()
        await container.beat()
        assert await ExpireLeases(parts.health.store, parts.leases, parts.notices, clock).run_once() == {}
        assert container.may_write
        await container.acquire(run_id)
        assert container.holds
        with pytest.raises(DatabaseInUse):
            async with start(url):
                pass


async def test_every_answer_names_the_term(url: str, start: Start, clock: FakeClock) -> None:
    async with start(url) as caller:
        run_id, _ = await holding(caller, clock)
        model = await caller.http.get("/jobModel?job=flight-delays")
        answers = [
            await caller.beat("c1", 1),
            await caller.beat("stranger", 1),
            model,
            await caller.http.get("/jobModel?job=flight-delays", headers={"If-None-Match": model.headers["ETag"]}),
            await caller.acquire(run_id, "c1", 9),
            await caller.http.get("/nothing"),
        ]
        assert [each.status_code for each in answers] == [200, 200, 200, 304, 409, 404]
        assert {each.headers.get_list("Sluice-Term")[0] for each in answers} == {str(caller.coordinator.api.state.parts.leases.term)}
        assert {len(each.headers.get_list("Sluice-Term")) for each in answers} == {1}
