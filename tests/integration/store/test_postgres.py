from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection

from coordinator.store.migrate import upgrade
from coordinator.store.sql import Store, open_store
from coordinator.store.tables import metadata
from sluice.core.errors import StoreUnavailable
from tests.contracts.store import StoreContract
from tests.support.processes import free_port
from tests.support.servers import Postgres


@pytest.fixture
async def migrated(postgres_server: Postgres) -> AsyncIterator[Store]:
    made = open_store(postgres_server.new_database())
    await upgrade(made)
    yield made
    await made.close()


class TestPostgresStore(StoreContract):
    @pytest.fixture
    def store(self, migrated: Store) -> Store:
        return migrated


async def test_the_migrations_create_the_declared_tables(migrated: Store) -> None:
    def differences(connection: Connection) -> list[object]:
        return list(compare_metadata(MigrationContext.configure(connection, opts={"compare_type": True}), metadata))

    async with migrated.engine.connect() as connection:
        assert await connection.run_sync(differences) == []


async def test_a_second_migration_changes_nothing(migrated: Store) -> None:
    assert await upgrade(migrated) == await upgrade(migrated)


async def test_a_server_that_does_not_answer_is_unavailable() -> None:
    away = open_store(f"postgresql+asyncpg://sluice@127.0.0.1:{free_port()}/sluice")
    with pytest.raises(StoreUnavailable):
        async with away.read() as tx:
            await tx.runs.jobs()
    await away.close()
