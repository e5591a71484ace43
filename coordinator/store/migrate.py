"""Upgrades a database to the newest schema with Alembic. Idempotent."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from coordinator.store.sql import Store
from sluice.core.errors import StoreUnavailable, UnknownSchema

_PLACES = (Path(__file__).parents[1] / "migrations", Path(__file__).parents[2] / "migrations")
"""The migrations are inside the package if it was installed from a wheel, and next to it in a checkout."""


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(next(place for place in _PLACES if place.is_dir())).replace("%", "%%"))
    return config


def alembic_config(connection: Connection) -> Config:
    config = _config()
    config.attributes["connection"] = connection
    return config


@cache
def _revisions() -> list[str]:
    """The schemas that this version can migrate from, the newest one first. To find them, Alembic executes all migrations' files."""
    return [each.revision for each in ScriptDirectory.from_config(_config()).walk_revisions()]


def check_revision(revision: str, database: object) -> None:
    """Raises UnknownSchema unless this version can migrate from the schema."""
    known = _revisions()
    if revision in known:
        return
    if revision < known[-1]:
        first = "run `sluice db upgrade` of Sluice's commit f0c0f2cc on it first"
        raise UnknownSchema(f"{database} has the schema {revision}, and this version migrates from {known[-1]} on: {first}")
    raise UnknownSchema(f"{database} has the schema {revision}, and the newest that this version knows is {known[0]}: use a newer version")


def _upgrade(connection: Connection) -> str:
    found = MigrationContext.configure(connection).get_current_revision()
    if found is not None:
        check_revision(found, connection.engine.url.render_as_string(hide_password=True))
    if found != _revisions()[0]:
        command.upgrade(alembic_config(connection), "head")
    return _revisions()[0]


async def upgrade(store: Store) -> str:
    """Migrate to the newest revision and return its id. Raises UnknownSchema and StoreUnavailable; the database is then unchanged."""
    try:
        async with store.engine.begin() as connection:
            if connection.dialect.name == "sqlite":
                await connection.exec_driver_sql("BEGIN IMMEDIATE")
            else:
                for limit in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
                    await connection.exec_driver_sql(f"SET LOCAL {limit} = 0")
            return await connection.run_sync(_upgrade)
    except (DBAPIError, CommandError, OSError) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        url = store.engine.url.render_as_string(hide_password=True)
        raise StoreUnavailable(f"cannot migrate {url} to the schema of this version: {cause}") from error
