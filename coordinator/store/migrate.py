"""Upgrades a database to the newest schema with Alembic. Idempotent."""

from __future__ import annotations

from collections.abc import Collection
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
from sluice.core.errors import StoreUnavailable

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


def known_revisions() -> Collection[str]:
    """The schemas that this version can migrate from."""
    return {each.revision for each in ScriptDirectory.from_config(_config()).walk_revisions()}


@cache
def _head() -> str:
    """The newest revision. To find it, Alembic executes all migrations' files."""
    return ScriptDirectory.from_config(_config()).get_current_head() or "none"


def _upgrade(connection: Connection) -> str:
    if MigrationContext.configure(connection).get_current_revision() != _head():
        command.upgrade(alembic_config(connection), "head")
    return _head()


async def upgrade(store: Store) -> str:
    """Migrate to the newest revision and return its id. Raises StoreUnavailable, also for a database of a newer version of Sluice."""
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
