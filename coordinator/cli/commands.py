"""`sluice coordinator` and `sluice db`."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sluice import logconfig

if TYPE_CHECKING:
    import uvicorn


db = typer.Typer(no_args_is_help=True, help="The coordinator's database.")

Home = Annotated[Path | None, typer.Option(help="Directory of the database, the log and local state (default .sluice).")]
Database = Annotated[str | None, typer.Option(help="SQLAlchemy URL with an async driver (default: SQLite under home).")]


def coordinator(
    host: Annotated[str | None, typer.Option(help="Address to listen on (default 127.0.0.1).")] = None,
    port: Annotated[int | None, typer.Option(help="Port (default 8180; 0 = any free one).")] = None,
    home: Home = None,
    database_url: Database = None,
    log_dir: Annotated[Path | None, typer.Option(help="Directory of the embedded log.")] = None,
    lease_seconds: Annotated[float | None, typer.Option(help="How long a container may act unheard (default 40).")] = None,
    heartbeat_seconds: Annotated[float | None, typer.Option(help="Heartbeat interval (default 5).")] = None,
    margin_seconds: Annotated[float | None, typer.Option(help="How much earlier a container stops (default 3).")] = None,
    grace_seconds: Annotated[float | None, typer.Option(help="How much later its tasks are given away (default 5).")] = None,
    insecure: Annotated[bool | None, typer.Option("--insecure", help="Listen beyond loopback although nothing is authenticated.")] = None,
    stop_with_stdin: Annotated[bool, typer.Option("--stop-with-stdin", hidden=True)] = False,
) -> None:
    """Run the coordinator until SIGTERM or Ctrl-C."""
    from coordinator.server import server
    from coordinator.settings import read_settings

    logconfig.configure(logconfig.read_log_settings())
    settings = read_settings(
        host=host,
        port=port,
        home=home,
        database_url=database_url,
        log_dir=log_dir,
        lease_seconds=lease_seconds,
        heartbeat_seconds=heartbeat_seconds,
        margin_seconds=margin_seconds,
        grace_seconds=grace_seconds,
        insecure=insecure,
    )
    for each in (signal.SIGTERM, signal.SIGINT):  # uvicorn raises the signal again when it has stopped; that is to be an orderly end
        signal.signal(each, lambda *_: None)
    running = server(settings)
    if stop_with_stdin:
        threading.Thread(target=_stop_with_stdin, args=(running,), daemon=True).start()
    running.run()
    if running.failure is not None:
        raise running.failure
    if not running.started:
        raise SystemExit(1)


def _stop_with_stdin(running: uvicorn.Server) -> None:
    """Stop when whoever launched us, and holds the other end of standard input, is gone."""
    while os.read(0, 1024):
        pass
    running.should_exit = True


@db.command("upgrade")
def db_upgrade(home: Home = None, database_url: Database = None) -> None:
    """Bring the database to this version's schema."""
    from coordinator.app import prepare
    from coordinator.settings import read_settings
    from coordinator.store.sql import open_store

    settings = read_settings(home=home, database_url=database_url)

    async def migrate() -> None:
        store = open_store(settings.database)
        try:
            await prepare(settings, store)
        finally:
            await store.close()

    asyncio.run(migrate())
    typer.echo(f"{settings.database_shown} is at the newest schema")
