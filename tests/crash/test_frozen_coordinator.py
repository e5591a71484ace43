"""A coordinator that is frozen, like one on a suspended machine, is replaced on PostgreSQL, and writes nothing when it resumes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from containers.agent.agent import Agent
from containers.settings import ContainerSettings
from coordinator.store.claim import CLAIM_SECONDS as REAL_CLAIM_SECONDS
from coordinator.store.claim import LOOK_SECONDS, SessionClaim, new_holder
from coordinator.store.migrate import upgrade
from coordinator.store.sql import Store, new_engine
from sluice import Job
from sluice.client.agents import AgentClient
from sluice.clock import SystemClock
from sluice.core.errors import DatabaseInUse, StoreUnavailable
from sluice.core.ids import Instant, RunId
from sluice.streams.log import Log
from tests.contracts.rows import run_row
from tests.support.api import run_body
from tests.support.coordinators import GENEROUS, Front, Running, front, refused, running
from tests.support.databases import another_client
from tests.support.engines import FakeEngine
from tests.support.postgresproxy import postgres_proxy
from tests.support.servers import Postgres

pytestmark = pytest.mark.real_time

CLAIM_SECONDS = 1.0

Claimants = Callable[[str], Store]


@pytest.fixture
def url(postgres_server: Postgres) -> str:
    return postgres_server.new_database()


@pytest.fixture
async def new_store() -> AsyncIterator[Claimants]:
    """Stores whose claims expire after a second and are renewed only by writes, so that a coordinator that does nothing looks frozen."""
    async with AsyncExitStack() as stack:

        def opened(url: str) -> Store:
            holder = new_holder()
            engine = new_engine(url, holder)
            store = Store(engine, claim=SessionClaim(engine, holder, seconds=CLAIM_SECONDS))
            stack.push_async_callback(store.close)
            return store

        yield opened


async def claimed(store: Store) -> Store:
    await store.claim()
    await upgrade(store)
    await store.claim()
    return store


async def write(store: Store, run_id: str) -> None:
    async with store.begin() as tx:
        await tx.runs.put(run_row(run_id))


async def runs_of(store: Store) -> list[RunId]:
    async with store.read() as tx:
        return [run.run_id for run in await tx.runs.active()]


async def test_the_claim_of_a_coordinator_that_does_nothing_expires_and_is_taken(url: str, new_store: Claimants) -> None:
    frozen = await claimed(new_store(url))
    other = new_store(url)
    await other.claim()
    await write(other, "r2")
    with pytest.raises(StoreUnavailable):
        await write(frozen, "r1")
    with pytest.raises(DatabaseInUse, match="is in use by another coordinator"):
        await frozen.claim()
    assert await runs_of(other) == ["r2"]


async def test_a_claim_that_is_released_between_two_statements_of_a_starting_coordinator_is_taken(url: str, new_store: Claimants) -> None:
    async with postgres_proxy(url) as proxy:
        first, other = await claimed(new_store(url)), new_store(proxy.url)
        proxy.hold_statement = "pg_locks"
        waiting = asyncio.create_task(other.claim())
        await proxy.held.wait()
        await first.close()
        async with another_client(url) as client:
            while await client.holder() is not None:
                pass
        proxy.release.set()
        await waiting
        await write(other, "r1")


async def test_a_claim_that_is_renewed_is_not_taken(url: str, new_store: Claimants) -> None:
    first = await claimed(new_store(url))
    waiting = asyncio.create_task(new_store(url).claim())
    while not waiting.done():
        await first.claim()
        await asyncio.wait([waiting], timeout=CLAIM_SECONDS / 10)
    with pytest.raises(DatabaseInUse, match="stop it"):
        await waiting
    await write(first, "r1")


async def test_a_coordinator_that_freezes_inside_a_transaction_is_replaced_and_has_written_nothing(url: str, new_store: Claimants) -> None:
    frozen, other = await claimed(new_store(url)), new_store(url)

    async def write_and_freeze() -> None:
        async with frozen.begin() as tx:
            await tx.runs.put(run_row("r1"))
            await other.claim()
            await write(other, "r2")

    with pytest.raises(StoreUnavailable):
        await write_and_freeze()
    assert await runs_of(other) == ["r2"]


async def test_a_coordinator_that_freezes_inside_commit_is_replaced_and_its_successor_sees_what_it_wrote(
    url: str, new_store: Claimants
) -> None:
    async with postgres_proxy(url) as proxy:
        frozen, other = await claimed(new_store(proxy.url)), new_store(url)
        proxy.hold_commit_of = "runs"

        writing = asyncio.create_task(write(frozen, "r1"))
        await proxy.held.wait()
        await other.claim()
        assert await runs_of(other) == ["r1"]
        proxy.release.set()
        await asyncio.wait([writing])
        with pytest.raises(StoreUnavailable):
            await write(frozen, "r3")
        assert not frozen.claimed


async def test_a_replaced_coordinator_does_not_take_the_claim_from_its_frozen_successor(url: str, new_store: Claimants) -> None:
    first = await claimed(new_store(url))
    second = new_store(url)
    await second.claim()
    async with first.engine.connect() as connection:
        while not await connection.scalar(text("SELECT expires_at < clock_timestamp() FROM claims")):
            pass
    with pytest.raises(DatabaseInUse):
        await first.claim()
    await write(second, "r2")


async def test_each_coordinator_that_takes_the_claim_has_a_higher_term(url: str, new_store: Claimants) -> None:
    first, second, third = [(await claimed(new_store(url))).term for _ in range(3)]
    assert 0 < first < second < third


@pytest.mark.parametrize(("stored", "grows"), [("2", False), ("term + 1000", True)])
async def test_terms_rise_after_a_restore_and_when_the_clock_was_set_back(url: str, new_store: Claimants, stored: str, grows: bool) -> None:
    before = (await claimed(new_store(url))).term
    async with new_store(url).engine.begin() as connection:
        await connection.execute(text(f"UPDATE claims SET term = {stored}"))
    after = (await claimed(new_store(url))).term
    assert after >= before
    assert (after == before + 1001) is grows


# --- processes ---


REPLACED_WITHIN_SECONDS = 15


async def claim_of(url: str) -> tuple[str, int, float]:
    """Holder, term, and the seconds until the claim expires by the database's clock."""
    async with another_client(url) as other:
        row = str(
            await other.request("SELECT concat_ws('|', holder, term, extract(epoch FROM expires_at - clock_timestamp())) FROM claims")
        )
    holder, term, left = row.split("|")
    return holder, int(term), float(left)


async def deployed(address: Front, **changes: Any) -> str:
    async with httpx.AsyncClient(base_url=address.url, timeout=GENEROUS) as http:
        answer = await http.post("/runs", json=run_body(**changes))
        assert answer.status_code == 201, answer.text
        return str(answer.json()["runId"])


@pytest.mark.parametrize(
    "frozen", [*(pytest.param(each, marks=pytest.mark.long) for each in ("at rest", "inside a transaction")), "inside COMMIT"]
)
async def test_a_replacement_that_starts_while_a_coordinator_is_frozen_serves_its_containers(url: str, tmp_path: Path, frozen: str) -> None:
    """The replacement has the claim within 15 s. This time is measured by the database's clock and by how often the replacement reads the
    claim, and leases are longer than usual, so that the test does not depend on the speed of the machine."""
    one, two = tmp_path / "one", tmp_path / "two"
    job = Job("flight-delays", max_tasks=1)
    job.stage(reads=job.input("flights"), writes=job.output("delays"), name="hourly")(lambda task: None)  # type: ignore[arg-type, return-value]
    async with postgres_proxy(url) as proxy, front() as address, AsyncExitStack() as stack:

        async def started(home: Path, database: str) -> Running:
            flags = ("--database-url", database, "--log-dir", str(one / "log"), "--lease-seconds", "300")
            made = running(home, *flags)
            stack.push_async_callback(asyncio.to_thread, made.__exit__, None, None, None)
            return await asyncio.to_thread(made.__enter__)

        first = await started(one, proxy.url)
        address.forward_to(first.port or 0)
        Log(one / "log").create("flights", 1)
        run_id = RunId(await deployed(address, config={"backup.stores": "", "restore.from": ""}))
        engine, renewed, lost = FakeEngine(), asyncio.Queue[Instant](), list[str]()
        settings = ContainerSettings(coordinator_url=address.url, run_id=run_id, processor_id="0", home=tmp_path / "c1")
        agent = Agent(
            job.description(), settings, AgentClient(address.url), SystemClock(), lambda run: engine, renewed.put_nowait, lost.append
        )
        life = asyncio.create_task(agent.run())
        query = await engine.started()
        in_use = await asyncio.to_thread(refused, "--home", str(two), "--port", "0", "--database-url", url)
        assert "Another coordinator uses this database." in in_use

        writing: asyncio.Task[str] | None = None
        if frozen != "at rest":
            proxy.hold_transaction_of, proxy.hold_commit_of = ("runs", "") if frozen == "inside a transaction" else ("", "runs")
            writing = asyncio.create_task(deployed(address, job="another"))
            await proxy.held.wait()
        first.process.send_signal(signal.SIGSTOP)
        holder, term, left = await claim_of(url)
        assert f"pid {first.process.pid} " in holder
        assert left <= REAL_CLAIM_SECONDS

        second = await started(two, url)
        holder, next_term, _ = await claim_of(url)
        assert f"pid {second.process.pid} " in holder
        assert next_term > term
        looks = second.log.read_text().count("whose claim has expired: terminating its sessions")
        assert REAL_CLAIM_SECONDS + (looks + 1) * LOOK_SECONDS <= REPLACED_WITHIN_SECONDS
        while not renewed.empty():
            renewed.get_nowait()
        address.forward_to(second.port or 0)
        for _ in range(2):
            await asyncio.wait_for(renewed.get(), GENEROUS * 4)
        assert (life.done(), lost, query.stopped) == (False, [], False)
        jobs = (await asyncio.to_thread(second.http.get, "/jobs")).json()["jobs"]
        assert ("another" in [each["job"] for each in jobs]) is (frozen == "inside COMMIT")

        proxy.release.set()
        first.process.send_signal(signal.SIGCONT)
        assert await asyncio.to_thread(first.process.wait, GENEROUS) == 1
        assert "sluice: Another coordinator uses this database. " in first.log.read_text()
        assert (await asyncio.to_thread(second.http.get, "/readyz")).status_code == 200
        (task,) = (await asyncio.to_thread(second.http.get, f"/runs/{run_id}")).json()["tasks"]
        assert (task["holder"], task["generation"]) == (settings.execution_container_id, 1)
        agent.stop_requested()
        assert (await asyncio.wait_for(life, GENEROUS * 4)).exit_code == 0
        if writing is not None:
            await asyncio.gather(writing, return_exceptions=True)
