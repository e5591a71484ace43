from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, inspect, text

from coordinator.store import tables
from coordinator.store.migrate import upgrade
from coordinator.store.sql import Store, open_store
from sluice.core.errors import StoreUnavailable, UnknownSchema
from tests.support.processes import SLUICE, completed


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    made = open_store(f"sqlite+aiosqlite:///{tmp_path / 'coordinator.db'}")
    yield made
    await made.close()


def differences(connection: Connection) -> Any:
    return compare_metadata(MigrationContext.configure(connection, opts={"compare_type": True}), tables.metadata)


def schema(connection: Connection) -> dict[str, Any]:
    """Columns, keys and indexes with their names and conditions; without Alembic's table."""
    found = inspect(connection)
    indexes = connection.execute(text("SELECT sql FROM sqlite_master WHERE type = 'index' AND sql NOTNULL ORDER BY name")).all()
    columns = {
        name: sorted(map(str, [*found.get_columns(name), found.get_pk_constraint(name)]))
        for name in found.get_table_names()
        if name != "alembic_version"
    }
    return {"indexes": indexes, **columns}


async def test_the_migrations_build_the_tables_that_the_code_declares(store: Store) -> None:
    await upgrade(store)
    async with store.engine.connect() as connection:
        assert await connection.run_sync(differences) == []


async def test_the_comparison_finds_a_missing_column(store: Store) -> None:
    await upgrade(store)
    async with store.engine.begin() as connection:
        await connection.execute(text("ALTER TABLE runs DROP COLUMN reason"))
        assert [each[0] for each in await connection.run_sync(differences)] == ["add_column"]


async def test_the_migrations_build_the_same_schema_as_a_fresh_one(store: Store, tmp_path: Path) -> None:
    await upgrade(store)
    fresh = open_store(f"sqlite+aiosqlite:///{tmp_path / 'fresh.db'}")
    async with fresh.engine.begin() as connection:
        await connection.run_sync(tables.metadata.create_all)
        expected = await connection.run_sync(schema)
    await fresh.close()
    async with store.engine.connect() as connection:
        assert await connection.run_sync(schema) == expected


async def test_a_second_upgrade_changes_nothing(store: Store) -> None:
    first = await upgrade(store)
    assert await upgrade(store) == first
    async with store.engine.connect() as connection:
        assert (await connection.execute(text("SELECT version_num FROM alembic_version"))).all() == [(first,)]


async def test_two_upgrades_at_once_both_succeed(store: Store) -> None:
    other = open_store(store.engine.url.render_as_string(hide_password=False))
    first, second = await asyncio.gather(upgrade(store), upgrade(other))
    await other.close()
    assert first == second


async def test_an_upgrade_that_fails_in_between_changes_nothing(store: Store) -> None:
    async with store.engine.begin() as connection:
        await connection.execute(text("CREATE TABLE tokens (mine TEXT)"))
    with pytest.raises(StoreUnavailable, match="tokens"):
        await upgrade(store)
    async with store.engine.connect() as connection:
        assert await connection.run_sync(lambda each: inspect(each).get_table_names()) == ["tokens"]


@pytest.mark.parametrize(("revision", "action"), [("0001", "commit f0c0f2cc"), ("0021", "commit f0c0f2cc"), ("9999", "a newer version")])
async def test_a_database_with_an_unknown_schema_is_not_changed_and_the_error_says_what_to_do(
    store: Store, revision: str, action: str, tmp_path: Path
) -> None:
    await upgrade(store)
    async with store.engine.begin() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = :found"), {"found": revision})
    with pytest.raises(UnknownSchema, match=f"schema {revision}.*{action}"):
        await upgrade(store)
    async with store.engine.connect() as connection:
        assert await connection.scalar(text("SELECT version_num FROM alembic_version")) == revision
        assert await connection.run_sync(differences) == []
    done = completed([*SLUICE, "coordinator", "--home", str(tmp_path), "--port", "0"])
    assert done.returncode == 1
    error, remedy = done.stderr.strip().splitlines()[-2:]
    assert action in error
    assert remedy.startswith("remedy: See upgrade to a new release (docs/howto/coordinator.md")


def test_the_command_upgrades_the_database_under_home_and_may_run_twice(tmp_path: Path) -> None:
    for _ in range(2):
        done = completed([*SLUICE, "db", "upgrade", "--home", str(tmp_path / "home")])
        assert (done.returncode, done.stderr.count("Traceback")) == (0, 0), done.stderr
        assert "has the current schema" in done.stdout
    assert (tmp_path / "home" / "coordinator.db").is_file()


def test_the_error_of_the_command_is_a_line_and_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "coordinator.db").write_bytes(b"not a database, whatever its name says" * 100)
    done = completed([*SLUICE, "db", "upgrade", "--home", str(tmp_path)])
    assert done.returncode == 1
    assert [line.partition(": ")[0] for line in done.stderr.strip().splitlines()] == ["sluice", "remedy"]
    assert "not a database" in done.stderr


def test_the_command_does_not_print_a_password(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite://sluice:s3cret@/{tmp_path / 'x.db'}"
    command = [*SLUICE, "db", "upgrade", "--home", str(tmp_path), "--database-url", url]
    done = completed(command)
    assert "s3cret" not in done.stdout + done.stderr
    assert "sluice:***@" in done.stdout + done.stderr
