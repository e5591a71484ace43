"""One coordinator per database: the claim on SQLite's file and in PostgreSQL, lost, taken again, or lost permanently."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from coordinator.app import make_directories
from coordinator.settings import Settings
from coordinator.store.claim import SessionClaim
from coordinator.store.migrate import upgrade
from coordinator.store.sql import Store, open_store
from sluice.core.errors import DatabaseInUse, StoreUnavailable
from sluice.core.ids import RunId
from tests.contracts.rows import run_row
from tests.support.databases import Other, another_client
from tests.support.servers import Postgres

# --- a file ---


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Store]:
    store = open_store(url)
    try:
        yield store
    finally:
        await store.close()


async def test_a_file_has_one_coordinator_until_that_coordinator_closes_it(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'coordinator.db'}"
    async with opened(url) as second:
        async with opened(url) as first:
            await first.claim()
            with pytest.raises(DatabaseInUse, match=f"{tmp_path / 'coordinator.db'} is in use by another coordinator: stop it"):
                await second.claim()
            assert (first.claimed, second.claimed) == (True, False)
        await second.claim()
        assert second.claimed


async def test_other_users_of_the_machine_can_neither_read_nor_lock_the_files(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home", log_dir=tmp_path / "log")
    lock = tmp_path / "home" / "coordinator.db.lock"
    make_directories(settings)
    await asyncio.to_thread(lock.touch, 0o644)
    async with opened(settings.database) as store:
        await store.claim()
        await upgrade(store)
        async with store.begin() as tx:
            await tx.runs.put(run_row())
        files = {each.name: each.stat().st_mode & 0o777 for each in lock.parent.glob("coordinator.db*")}
    assert files == dict.fromkeys(("coordinator.db", "coordinator.db-shm", "coordinator.db-wal", "coordinator.db.lock"), 0o600)
    assert lock.parent.stat().st_mode & 0o777 == 0o700
    assert settings.log_directory.stat().st_mode & 0o055, "containers of other users may read the log there"


async def test_a_link_to_the_file_is_the_same_database(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "coordinator.db")
    first_url, second_url = (f"sqlite+aiosqlite:///{tmp_path / name}" for name in ("coordinator.db", "link.db"))
    async with opened(first_url) as first, opened(second_url) as second:
        await first.claim()
        with pytest.raises(DatabaseInUse):
            await second.claim()


async def test_a_directory_that_cannot_be_written_makes_the_store_unavailable(tmp_path: Path) -> None:
    async with opened(f"sqlite+aiosqlite:///{tmp_path / 'lost' / 'coordinator.db'}") as store:
        with pytest.raises(StoreUnavailable, match=r"lost/coordinator\.db\.lock"):
            await store.claim()


async def test_a_database_that_cannot_be_opened_is_not_claimed(tmp_path: Path) -> None:
    await asyncio.to_thread((tmp_path / "coordinator.db").mkdir)
    async with opened(f"sqlite+aiosqlite:///{tmp_path / 'coordinator.db'}") as store:
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match=r"coordinator\.db: Is a directory"):
                await store.claim()


@pytest.mark.parametrize("url", ["sqlite+aiosqlite://", "sqlite+aiosqlite:///:memory:"])
async def test_a_database_in_memory_needs_no_claim(url: str) -> None:
    async with opened(url) as store:
        await store.claim()
        assert store.claimed


# --- a PostgreSQL ---


@pytest.fixture
def url(postgres_server: Postgres) -> str:
    return postgres_server.new_database()


@pytest.fixture
async def other(url: str) -> AsyncIterator[Other]:
    async with another_client(url) as made:
        yield made


@asynccontextmanager
async def claimed(url: str) -> AsyncIterator[Store]:
    """A store as a coordinator opens it, which renews its claim."""
    async with opened(url) as store:
        await store.claim()
        await upgrade(store)
        await store.claim()
        async with store.keeping_claim():
            yield store


async def write(store: Store, run_id: str = "r1") -> None:
    async with store.begin() as tx:
        await tx.runs.put(run_row(run_id))


async def test_a_database_has_one_coordinator_until_that_coordinator_closes_it(url: str) -> None:
    async with opened(url) as second:
        async with claimed(url) as first:
            with pytest.raises(DatabaseInUse, match=r"is in use by another coordinator \(sluice: .* pid \d+ .*, since 20.*\): stop it"):
                await second.claim()
            assert (first.claimed, second.claimed) == (True, False)
        await second.claim()
        assert second.claimed


async def test_each_database_of_a_server_has_its_own_coordinator(url: str, postgres_server: Postgres) -> None:
    async with claimed(url), claimed(postgres_server.new_database()) as second:
        assert second.claimed


async def test_a_coordinator_without_the_claim_writes_nothing(url: str) -> None:
    async with claimed(url), opened(url) as second:
        with pytest.raises(DatabaseInUse):
            await second.claim()
        with pytest.raises(StoreUnavailable, match="in use by another coordinator"):
            await write(second)
        async with second.read() as tx:
            assert await tx.runs.get(RunId("r1")) is None


async def test_a_claim_whose_session_ended_is_taken_again_by_the_next_write(url: str, other: Other) -> None:
    async with claimed(url) as store:
        first = await other.holder()
        await other.end(first)
        await lost(store)
        await write(store)
        assert store.claimed
        assert await other.holder() not in (None, first)


async def lost(store: Store) -> None:
    """Wait until the driver has detected that the session has ended."""
    while store.claimed:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def test_a_transaction_whose_session_ends_writes_nothing(url: str, other: Other) -> None:
    async with claimed(url) as store:
        with pytest.raises(StoreUnavailable):
            await write_and_lose(store, other)
        async with store.read() as tx:
            assert await tx.runs.get(RunId("r1")) is None
        await write(store, "r2")
        async with store.read() as tx:
            assert await tx.runs.get(RunId("r2")) is not None


async def write_and_lose(store: Store, other: Other) -> None:
    async with store.begin() as tx:
        await tx.runs.put(run_row())
        await other.end(await other.holder())


async def test_a_claim_that_another_coordinator_has_taken_is_lost_permanently(url: str, other: Other) -> None:
    async with claimed(url) as store:
        await other.take_over()
        await lost(store)
        with pytest.raises(StoreUnavailable, match="This coordinator stops"):
            await write(store)
        with pytest.raises(DatabaseInUse, match="is in use by another coordinator"):
            await store.claim()
        assert not store.claimed


async def test_a_claim_that_another_coordinator_had_in_the_meantime_is_lost_permanently(url: str, other: Other) -> None:
    async with claimed(url) as store:
        await other.take_over()
        await other.request("UPDATE claims SET holder = 'elsewhere pid 7' RETURNING 1")
        await other.request("SELECT pg_advisory_unlock(7355609)")
        for _ in range(2):
            with pytest.raises(
                DatabaseInUse, match=r"another coordinator in the meantime \(elsewhere pid 7\): the state in memory is out of date"
            ):
                await store.claim()
        assert await other.holder() is None
        with pytest.raises(StoreUnavailable):
            await write(store)


async def test_a_session_that_hangs_is_given_up_and_ended_before_the_claim_is_taken_again(url: str, other: Other) -> None:
    async with opened(url) as store:
        await upgrade(store)
        claim = SessionClaim(store.engine, "this test", answer_within=0.2)
        await claim.take()
        first = await other.holder() or 0
        os.kill(first, signal.SIGSTOP)
        with pytest.raises(StoreUnavailable, match="the former session of this coordinator is ending"):
            await claim.take()
        assert not claim.held
        os.kill(first, signal.SIGCONT)
        await other.end(first)
        await claim.take()
        assert await other.holder() not in (None, first)
        await claim.release()
