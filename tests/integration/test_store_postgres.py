from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import create_async_engine

from coordinator.core.errors import StoreUnavailable
from coordinator.store.migrate import upgrade
from coordinator.store.sql import SqlStore, open_store
from coordinator.store.tables import metadata
from tests.contracts.store import StoreContract
from tests.servers import free_port, postgres


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with postgres(tmp_path_factory.mktemp("postgres")) as url:
        yield url


@pytest.fixture
async def migrated(server: str) -> AsyncIterator[SqlStore]:
    name = f"test_{uuid4().hex}"
    admin = create_async_engine(f"{server}/postgres", isolation_level="AUTOCOMMIT")
    async with admin.connect() as connection:
        await connection.execute(text(f"CREATE DATABASE {name}"))
    await admin.dispose()
    made = open_store(f"{server}/{name}")
    await upgrade(made)
    yield made
    await made.close()


class TestPostgresStore(StoreContract):
    @pytest.fixture
    def store(self, migrated: SqlStore) -> SqlStore:
        return migrated


async def test_the_migrations_make_the_tables(migrated: SqlStore) -> None:
    def differences(connection: Connection) -> list[object]:
        return list(compare_metadata(MigrationContext.configure(connection, opts={"compare_type": True}), metadata))

    async with migrated.engine.connect() as connection:
        assert await connection.run_sync(differences) == []


async def test_migrating_twice_finds_nothing_to_do(migrated: SqlStore) -> None:
    assert await upgrade(migrated) == await upgrade(migrated)


async def test_a_server_that_does_not_answer_is_unavailable() -> None:
    away = open_store(f"postgresql+asyncpg://sluice@127.0.0.1:{free_port()}/sluice")
    with pytest.raises(StoreUnavailable):
        async with away.read() as tx:
            await tx.jobs()
    await away.close()
