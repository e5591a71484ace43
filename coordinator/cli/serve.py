"""`sluice coordinator`."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Annotated

import typer
import uvicorn

from coordinator.connections import raise_file_limit
from coordinator.server import server
from coordinator.settings import read_settings
from sluice import logconfig, tracing

Home = Annotated[Path | None, typer.Option("--home", help="Directory of the database, the log and local state. Default: .sluice.")]
Database = Annotated[
    str | None, typer.Option("--database-url", metavar="URL", help="SQLAlchemy URL with an async driver. Default: SQLite in --home.")
]


def coordinator(
    host: Annotated[str | None, typer.Option(help="Address to listen on. Default: 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on. Default: 8180. 0 chooses a free one.")] = None,
    home: Home = None,
    database_url: Database = None,
    log_dir: Annotated[Path | None, typer.Option(help="Directory of the embedded log. Default: log in --home.")] = None,
    lease_seconds: Annotated[float | None, typer.Option(help="Duration of a container's lease. Default: 40.")] = None,
    heartbeat_seconds: Annotated[float | None, typer.Option(help="Interval of heartbeats. Default: 5.")] = None,
    margin_seconds: Annotated[
        float | None, typer.Option(help="Safety margin: a container stops this long before its lease expires. Default: 3.")
    ] = None,
    grace_seconds: Annotated[
        float | None, typer.Option(help="Grace period: tasks are reassigned this long after a lease expires. Default: 5.")
    ] = None,
    tls_certificate: Annotated[Path | None, typer.Option(help="PEM file of the certificate and its chain.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file of the certificate's private key.")] = None,
    behind_proxy: Annotated[
        bool | None,
        typer.Option("--behind-proxy", help="A proxy terminates TLS. Needs the setting trusted_proxies; requests need a token."),
    ] = None,
    insecure: Annotated[bool | None, typer.Option("--insecure", help="Allow addresses other than loopback without tokens and TLS.")] = None,
    stop_with_stdin: Annotated[bool, typer.Option("--stop-with-stdin", hidden=True)] = False,
) -> None:
    """Run the coordinator until SIGTERM or Ctrl-C."""
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
        tls_certificate=tls_certificate,
        tls_key=tls_key,
        behind_proxy=behind_proxy,
        insecure=insecure,
    )
    tracing.configure("sluice-coordinator")
    raise_file_limit()
    for each in (
        signal.SIGTERM,
        signal.SIGINT,
    ):  # uvicorn raises the signal again after it has stopped; ignore it, so that the exit code is 0
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
    """Stop when the process at the other end of standard input has ended."""
    while os.read(0, 1024):
        pass
    running.should_exit = True
