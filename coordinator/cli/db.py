"""`sluice db`: migrate, back up and restore the coordinator's database."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from coordinator.app import prepare
from coordinator.cli.serve import Database, Home
from coordinator.settings import read_settings
from coordinator.store import copies
from coordinator.store.sql import open_store
from sluice.cli.documents import Document, Json, print_reply
from sluice.wire.body import Reply

db = typer.Typer(no_args_is_help=True, help="Migrate, back up and restore the coordinator's database.")


class SchemaReply(Reply):
    """`database`: the URL of the database, without its password."""

    database: str


class CopyReply(Reply):
    """`revision`: the schema of the copy, as Alembic names it."""

    file: str
    bytes: int
    revision: str


def _file(home: Path | None, database_url: str | None) -> Path:
    """The file of the SQLite database. Raises NotASqliteDatabase."""
    return copies.database_file(read_settings(home=home, database_url=database_url).database)


Force = Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")]


@db.command("upgrade")
def db_upgrade(as_json: Annotated[Json, Document(SchemaReply)] = False, home: Home = None, database_url: Database = None) -> None:
    """Migrate the database to the schema of this version."""
    settings = read_settings(home=home, database_url=database_url)

    async def migrate() -> None:
        store = open_store(settings.database)
        try:
            await prepare(settings, store)
        finally:
            await store.close()

    asyncio.run(migrate())
    reply = SchemaReply(database=settings.database_shown)
    print_reply(reply, lambda _: f"{reply.database} has the current schema", as_json=as_json)


@db.command("backup")
def db_backup(
    file: Annotated[Path, typer.Argument(help="The copy to write.")],
    force: Force = False,
    as_json: Annotated[Json, Document(CopyReply)] = False,
    home: Home = None,
    database_url: Database = None,
) -> None:
    """Copy an SQLite database to a file. The coordinator may be running.

    Use pg_dump for PostgreSQL.
    """
    done = copies.backup(_file(home, database_url), file.absolute(), force=force)
    said = f"{done.file}: {done.size} bytes, schema {done.revision}, integrity checked"
    print_reply(_reply(done), lambda _: said, as_json=as_json)


@db.command("restore")
def db_restore(
    file: Annotated[Path, typer.Argument(help="A copy made by `sluice db backup`.")],
    force: Force = False,
    as_json: Annotated[Json, Document(CopyReply)] = False,
    home: Home = None,
    database_url: Database = None,
) -> None:
    """Replace an SQLite database with a copy. The coordinator must not be running.

    Use pg_restore for PostgreSQL.
    """
    done = copies.restore(file.absolute(), _file(home, database_url), force=force)
    said = f"{done.file} is restored: {done.size} bytes, schema {done.revision}. Start the coordinator: it completes the catalog."
    print_reply(_reply(done), lambda _: said, as_json=as_json)


def _reply(done: copies.DatabaseCopy) -> CopyReply:
    return CopyReply(file=str(done.file), bytes=done.size, revision=done.revision)
