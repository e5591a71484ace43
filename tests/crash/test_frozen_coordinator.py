"""A coordinator that is frozen, like one on a suspended machine, is replaced on PostgreSQL, and writes nothing when it resumes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from sqlalchemy import text

from coordinator.store.claim import CLAIM_SECONDS as REAL_CLAIM_SECONDS
from coordinator.store.claim import SessionClaim, new_holder
from coordinator.store.migrate import upgrade
from coordinator.store.sql import Store, new_engine
from sluice.core.errors import DatabaseInUse, StoreUnavailable
from sluice.core.ids import RunId
from sluice.streams.log import Log
from tests.contracts.rows import run_row
from tests.support.api import run_body
from tests.support.coordinators import GENEROUS, Running, refused, running
from tests.support.databases import another_client
from tests.support.postgresproxy import postgres_proxy
from tests.support.servers import Postgres

CLAIM_SECONDS = 1.0

Claimants = Callable[[str], Store]


@pytest.fixture
def url(postgres_server: Postgres) -> str:
    return postgres_server.new_database()


@pytest.fixture
async def new_store() -> AsyncIterator[Claimants]:
    """Stores whose claims run out after a second, and are renewed only by what they write: a coordinator that does nothing is frozen."""
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


async def test_the_claim_of_a_coordinator_that_does_nothing_runs_out_and_is_taken(url: str, new_store: Claimants) -> None:
    frozen = await claimed(new_store(url))
    other = new_store(url)
    await other.claim()
    await write(other, "r2")
    with pytest.raises(StoreUnavailable):
        await write(frozen, "r1")
    with pytest.raises(DatabaseInUse, match="is another coordinator's"):
        await frozen.claim()
    assert await runs_of(other) == ["r2"]


async def test_a_claim_that_is_renewed_is_not_taken(url: str, new_store: Claimants) -> None:
    first = await claimed(new_store(url))
    waiting = asyncio.create_task(new_store(url).claim())
    while not waiting.done():
        await first.claim()
        await asyncio.wait([waiting], timeout=CLAIM_SECONDS / 10)
    with pytest.raises(DatabaseInUse, match="stop that one"):
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


async def test_a_coordinator_that_freezes_inside_commit_is_replaced_and_what_it_wrote_is_known(url: str, new_store: Claimants) -> None:
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


async def test_terms_grow_with_each_holder(url: str, new_store: Claimants) -> None:
    first, second, third = [(await claimed(new_store(url))).term for _ in range(3)]
    assert 0 < first < second < third


@pytest.mark.parametrize(("stored", "grows"), [("2", False), ("term + 1000", True)])
async def test_a_restored_database_has_higher_terms_than_before_and_a_clock_that_went_back_lowers_none(
    url: str, new_store: Claimants, stored: str, grows: bool
) -> None:
    before = (await claimed(new_store(url))).term
    async with new_store(url).engine.begin() as connection:
        await connection.execute(text(f"UPDATE claims SET term = {stored}"))
    after = (await claimed(new_store(url))).term
    assert after >= before
    assert (after == before + 1001) is grows


# --- processes ---


def alive(coordinator: Running, execution_id: str) -> bool:
    answer = coordinator.http.get("/containerHeartbeat", params={"executionContainerId": execution_id}, headers={"Sluice-Epoch": "1"})
    return bool(answer.json()["alive"])


async def claim_of(url: str) -> tuple[str, int, float]:
    """Holder, term, and the seconds by the database's time until the claim runs out."""
    async with another_client(url) as other:
        row = str(
            await other.request("SELECT concat_ws('|', holder, term, extract(epoch FROM expires_at - clock_timestamp())) FROM claims")
        )
    holder, term, left = row.split("|")
    return holder, int(term), float(left)


def test_a_replacement_that_starts_while_a_coordinator_is_frozen_serves_its_containers(url: str, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    with running(one, "--database-url", url) as first:
        Log(one / "log").create("flights", 1)
        run_id = str(first.http.post("/runs", json=run_body()).json()["runId"])
        body = {"processorId": "0", "executionContainerId": "c1"}
        assert first.http.post(f"/runs/{run_id}/containers", json=body).status_code == 201
        acquire = {"executionContainerId": "c1", "epoch": 1}
        assert first.http.post(f"/runs/{run_id}/tasks/Partition 0/acquire", json=acquire).json()["generation"] == 1
        assert "Another coordinator uses this database." in refused("--home", str(two), "--port", "0", "--database-url", url)

        first.process.send_signal(signal.SIGSTOP)
        _, term, left = asyncio.run(claim_of(url))
        assert left <= REAL_CLAIM_SECONDS  # the replacement waits until then, and for nothing else
        with running(two, "--database-url", url, "--log-dir", str(one / "log")) as second:
            holder, next_term, _ = asyncio.run(claim_of(url))
            assert f"pid {second.process.pid} " in holder
            assert next_term > term
            assert alive(second, "c1")
            assert second.http.post(f"/runs/{run_id}/tasks/Partition 0/acquire", json=acquire).json()["generation"] == 1
            assert second.http.post("/containers/c1/exit", json={"exitCode": 0, "reason": ""}).status_code == 200

            first.process.send_signal(signal.SIGCONT)
            assert first.process.wait(GENEROUS) == 1
            assert "sluice: Another coordinator uses this database. " in first.log.read_text()
            assert second.http.get("/readyz").status_code == 200
