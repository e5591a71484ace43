from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import create_async_engine

from coordinator.store.migrate import upgrade
from coordinator.store.sql import Store, open_store
from sluice.core.errors import StoreUnavailable
from sluice.core.ids import RunId
from tests.contracts.rows import JOB, NOON, run_row
from tests.contracts.store import StoreContract


def url(file: Path) -> str:
    return f"sqlite+aiosqlite:///{file}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "coordinator.db"


@pytest.fixture
async def migrated(file: Path) -> AsyncIterator[Store]:
    made = open_store(url(file))
    await upgrade(made)
    yield made
    await made.close()


class TestSqliteStore(StoreContract):
    @pytest.fixture
    def store(self, migrated: Store) -> Store:
        return migrated


async def test_written_rows_can_be_read_after_a_restart(migrated: Store, file: Path) -> None:
    async with migrated.begin() as tx:
        await tx.runs.put(run_row())
    await migrated.close()
    again = open_store(url(file))
    async with again.read() as tx:
        assert await tx.runs.get(RunId("r1")) == run_row()
    await again.close()


async def test_a_full_disk_makes_the_store_unavailable_and_rolls_the_transaction_back(migrated: Store, file: Path) -> None:
    async with migrated.begin() as tx:
        await tx.runs.put(run_row("r1"))
    await migrated.close()
    small = open_store(url(file))
    with sqlite3.connect(file) as connection:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()

    @event.listens_for(small.engine.sync_engine, "connect")
    def limit(connection: sqlite3.Connection, _record: object) -> None:
        connection.cursor().execute(f"PRAGMA max_page_count={pages + 2}")

    with pytest.raises(StoreUnavailable, match="full"):
        await write_much(small)
    async with small.read() as reader:
        assert [row.run_id for row in await reader.runs.active()] == ["r1"]
        assert list(await reader.runs.notices(RunId("r1"), 0)) == []
    await small.close()


async def write_much(store: Store) -> None:
    async with store.begin() as tx:
        await tx.runs.put(run_row("r2"))
        for _ in range(50):
            await tx.runs.add_notice(RunId("r1"), "STOP", NOON, {"reason": "x" * 5_000})


async def test_readers_that_overlap_do_not_keep_the_write_ahead_log_from_being_emptied(migrated: Store, file: Path) -> None:
    store = Store(migrated.engine, wal_bytes=1 << 20)
    wal, largest = file.with_name(f"{file.name}-wal"), 0
    async with store.begin() as tx:
        await tx.runs.put(run_row("r1"))
    reading, ended = [asyncio.Event(), asyncio.Event()], False

    async def read(me: int) -> None:
        """Begin before the other reader ends, so that there is always one."""
        while not ended:
            async with store.read() as tx:
                await tx.runs.get(RunId("r1"))
                reading[me].set()
                await reading[1 - me].wait()
                reading[1 - me].clear()

    async with asyncio.TaskGroup() as group:
        readers = [group.create_task(read(me)) for me in (0, 1)]
        try:
            for _ in range(40):
                async with store.begin() as tx:
                    await tx.runs.add_notice(RunId("r1"), "STOP", NOON, {"reason": "x" * 250_000})
                largest = max(largest, wal.stat().st_size)
        finally:
            ended = True
            for each in readers:
                each.cancel()
    assert largest < 3 << 20


async def test_a_file_that_is_not_a_database_is_unavailable(file: Path) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE t (x)")
    os.truncate(file, 50)
    store = open_store(url(file))
    with pytest.raises(StoreUnavailable):
        async with store.read() as tx:
            await tx.runs.jobs()
    with pytest.raises(StoreUnavailable):
        await upgrade(store)
    await store.close()


async def test_a_missing_directory_is_unavailable(tmp_path: Path) -> None:
    store = open_store(url(tmp_path / "lost" / "coordinator.db"))
    with pytest.raises(StoreUnavailable):
        async with store.begin() as tx:
            await tx.runs.put(run_row())
    await store.close()


async def test_a_database_that_another_process_locks_too_long_is_unavailable(migrated: Store, file: Path) -> None:
    @event.listens_for(migrated.engine.sync_engine, "checkout")
    def impatient(connection: sqlite3.Connection, *_: object) -> None:
        connection.cursor().execute("PRAGMA busy_timeout=1")

    with sqlite3.connect(file, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="locked"):
            async with migrated.begin() as tx:
                await tx.runs.put(run_row())
        other.execute("ROLLBACK")
    async with migrated.begin() as tx:
        await tx.runs.put(run_row())
    async with migrated.read() as reader:
        assert await reader.runs.current(JOB) == run_row()


@pytest.fixture
async def read_only(migrated: Store, file: Path) -> AsyncIterator[Store]:
    """The same file through a URL that may only read it."""
    async with migrated.begin() as tx:
        await tx.runs.put(run_row())
    made = open_store(f"sqlite+aiosqlite:///file:{file}?mode=ro&uri=true")
    yield made
    await made.close()


async def test_a_read_only_database_can_be_read_and_is_unavailable_for_writes(read_only: Store) -> None:
    with pytest.raises(StoreUnavailable, match="readonly"):
        async with read_only.begin() as tx:
            await tx.runs.put(run_row("r2"))
    async with read_only.read() as tx:
        assert await tx.runs.get(RunId("r2")) is None
        assert await tx.runs.get(RunId("r1")) == run_row()


@pytest.fixture
def without_root_rights(tmp_path: Path) -> Iterator[None]:
    """This process without root's rights, so that file modes have an effect."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    yield
    if root:
        os.seteuid(0)


async def test_a_file_that_may_not_be_opened_is_unavailable(file: Path, without_root_rights: None) -> None:
    store = open_store(url(file))
    with pytest.raises(StoreUnavailable, match="unable to open"):
        await upgrade(store)
    await store.close()


async def reads_and_writes(store: Store) -> None:
    while True:
        async with store.begin() as tx:
            await tx.runs.jobs()
        async with store.read() as tx:
            await tx.runs.jobs()


@pytest.mark.parametrize("turns", range(6))
async def test_transactions_that_are_cancelled_and_cancelled_again_all_end(migrated: Store, turns: int) -> None:
    """As at the end of an event loop, which also cancels the tasks that close the connections invalidated by the first cancellation."""
    asked = [asyncio.create_task(reads_and_writes(migrated)) for _ in range(6)]
    await asyncio.sleep(0.01)
    for each in asked:
        each.cancel()
    for _ in range(turns):
        await asyncio.sleep(0)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for each in left:
        each.cancel()
    _, pending = await asyncio.wait({*asked, *left}, timeout=20)
    assert not pending
    async with migrated.begin() as tx:
        await tx.runs.put(run_row())


async def test_when_all_connections_are_in_use_the_database_is_unavailable(migrated: Store, file: Path) -> None:
    small = Store(create_async_engine(url(file), pool_size=1, max_overflow=0, pool_timeout=0.01))
    async with small.read() as tx:
        await tx.runs.jobs()
        with pytest.raises(StoreUnavailable, match="all connections are in use"):
            async with small.read() as second:
                await second.runs.jobs()
    await small.close()
