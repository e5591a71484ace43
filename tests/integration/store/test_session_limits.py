"""The limits of PostgreSQL sessions: a coordinator that hangs does not block its database for longer than its claim lasts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from coordinator.store.claim import CLAIM_SECONDS, SessionClaim
from coordinator.store.migrate import upgrade
from coordinator.store.sql import Store, new_engine, open_store
from sluice.core.errors import StoreUnavailable
from sluice.core.ids import RunId
from tests.contracts.rows import run_row
from tests.support.databases import Other, another_client
from tests.support.servers import Postgres

LIMITS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
LIMIT = timedelta(seconds=3)
GENEROUS = 120
WRITERS = 7355608
"""The advisory lock that write transactions take one after the other."""


@pytest.fixture
def url(postgres_server: Postgres) -> str:
    return postgres_server.new_database()


@pytest.fixture
async def other(url: str) -> AsyncIterator[Other]:
    async with another_client(url) as made:
        yield made


@pytest.fixture
async def limited(url: str) -> AsyncIterator[Store]:
    """A store whose limits are short."""
    engine = new_engine(url, "limited", LIMIT)
    store = Store(engine, claim=SessionClaim(engine, "limited"))
    await upgrade(store)
    yield store
    await store.close()


async def holds(other: Other, query: str) -> None:
    """Wait until the query returns true."""
    async with asyncio.timeout(GENEROUS):
        while not await other.request(query):
            await other.request("SELECT pg_sleep(0.05)")


async def write(store: Store, run_id: str, until: Awaitable[None] | None = None) -> None:
    """`until`: what the transaction waits for after its first statement."""
    async with store.begin() as tx:
        await tx.runs.put(run_row(run_id))
        if until is not None:
            await until


async def test_each_session_has_limits_that_are_shorter_than_the_claim(url: str) -> None:
    store = open_store(url)
    async with store.engine.connect() as one, store.engine.connect() as another:
        for session in (one, another):
            found = await session.execute(text(f"SELECT name, setting FROM pg_settings WHERE name IN {LIMITS}"))
            millis = {row.name: int(row.setting) for row in found}
            assert millis == {"statement_timeout": 8000, "lock_timeout": 6000, "idle_in_transaction_session_timeout": 8000}
            assert max(millis.values()) < CLAIM_SECONDS * 1000
    await store.close()


async def test_statement_timeout_ends_a_statement_that_takes_too_long(limited: Store) -> None:
    async with limited.engine.connect() as session:
        with pytest.raises(DBAPIError, match="canceling statement due to statement timeout"):
            await session.execute(text("SELECT pg_sleep(3600)"))


async def test_lock_timeout_ends_a_writer_that_waits_too_long_for_another_one(limited: Store, other: Other) -> None:
    await limited.claim()
    await other.request("SELECT pg_advisory_lock(:lock)", lock=WRITERS)
    with pytest.raises(StoreUnavailable, match="canceling statement due to lock timeout"):
        await write(limited, "r1")
    await other.request("SELECT pg_advisory_unlock(:lock)", lock=WRITERS)
    await write(limited, "r2")
    async with limited.read() as tx:
        assert (await tx.runs.get(RunId("r1")), (await tx.runs.get(RunId("r2"))) is not None) == (None, True)


async def test_idle_in_transaction_session_timeout_ends_an_idle_writer_and_frees_its_lock(limited: Store, other: Other) -> None:
    await limited.claim()
    with pytest.raises(StoreUnavailable):
        await write(limited, "r1", until=holds(other, f"SELECT pg_try_advisory_lock({WRITERS})"))
    await other.request("SELECT pg_advisory_unlock(:lock)", lock=WRITERS)
    await write(limited, "r2")
    async with limited.read() as tx:
        assert (await tx.runs.get(RunId("r1")), (await tx.runs.get(RunId("r2"))) is not None) == (None, True)


async def test_migrations_have_no_limits(limited: Store, other: Other) -> None:
    blocking = create_async_engine(limited.engine.url)
    async with blocking.connect() as session:
        await session.execute(text("LOCK TABLE alembic_version IN ACCESS EXCLUSIVE MODE"))
        migrating = asyncio.create_task(upgrade(limited))
        waited = f"now() - query_start > interval '{(1.5 * LIMIT).total_seconds()} s' AND wait_event_type = 'Lock'"
        await holds(other, f"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND {waited}")
        assert not migrating.done()
        await session.rollback()
    assert await asyncio.wait_for(migrating, GENEROUS)
    await blocking.dispose()
