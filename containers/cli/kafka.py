"""`sluice kafka`: a Kafka broker for development on this machine, and the jars that the broker and jobs need."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Annotated

import typer

from containers.jars import broker_jars, connector_jars
from containers.local.kafka import Broker, Process
from sluice import logconfig
from sluice.cli.documents import Document, Json, print_reply
from sluice.core.errors import BadOption
from sluice.streams.settings import read_stream_settings
from sluice.wire.body import Reply

app = typer.Typer(no_args_is_help=True, help="Start and stop a Kafka broker for development on this machine.")

Home = Annotated[
    Path | None,
    typer.Option("--home", envvar="SLUICE_HOME", help="Sluice's directory; the broker's files are in kafka below it. Default: .sluice."),
]
User = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME:PASSWORD", help="Open a second listener, on a free port, for users with SASL PLAIN. May be repeated."),
]

_PORT = 9092
_TERMINATED = 128 + signal.SIGTERM


class BrokerReply(Reply):
    """The broker's address, its process, and the address and certificate of its second listener, if it has them."""

    bootstrap: str
    pid: int
    secured: str | None
    certificate: str | None


class BrokerStoppedReply(Reply):
    """`stopped`: false if it was not running. `deleted`: whether its files were deleted."""

    stopped: bool
    deleted: bool


class DirectoriesReply(Reply):
    directories: tuple[str, ...]


@app.callback()
def _configure() -> None:
    logconfig.configure(logconfig.read_log_settings())


@app.command()
def up(
    home: Home = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help=f"Port on 127.0.0.1. Default: {_PORT}. 0 chooses a free one.")] = None,
    user: User = None,
    tls: Annotated[bool, typer.Option("--tls", help="Encrypt the second listener with TLS. Opens it also without --user.")] = False,
    as_json: Annotated[Json, Document(BrokerReply)] = False,
) -> None:
    """Start the broker unless it is running, wait until it answers, and print its address."""
    directory = read_stream_settings(home=home).home / "kafka"
    Broker(directory).create_directory()
    before = Broker(directory).running()
    if before is None:
        broker_jars()  # here, because it cannot be interrupted on the event loop
    wanted = port if port is not None else before.port if before else _PORT
    broker = Broker(directory, port=wanted or None, sasl=dict(map(_credentials, user or [])), tls=tls)
    try:
        process = asyncio.run(_until_up(broker))
    except asyncio.CancelledError:
        raise typer.Exit(_TERMINATED) from None
    for line in _summary(broker, process, already=process == before):
        typer.echo(line, err=True)
    reply = BrokerReply(
        bootstrap=process.bootstrap,
        pid=process.pid,
        secured=process.secured,
        certificate=str(broker.certificate) if process.secured and broker.certificate.exists() else None,
    )
    print_reply(reply, lambda _: process.bootstrap, as_json=as_json)


def _credentials(text: str) -> tuple[str, str]:
    name, _, password = text.partition(":")
    if not password:
        raise BadOption("--user needs a name and a password: --user NAME:PASSWORD")
    return name, password


async def _until_up(broker: Broker) -> Process:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await broker.up()


def _summary(broker: Broker, process: Process, *, already: bool) -> list[str]:
    lines = [f"Kafka is already running, process {process.pid}" if already else f"Kafka is running, process {process.pid}"]
    if process.secured is not None:
        certificate = f", with the certificate {broker.certificate}" if broker.certificate.exists() else ""
        lines.append(f"second listener: {process.secured}{certificate}")
    return lines


@app.command()
def down(
    home: Home = None,
    wipe: Annotated[bool, typer.Option("--wipe", help="Also delete its topics and all its files.")] = False,
    as_json: Annotated[Json, Document(BrokerStoppedReply)] = False,
) -> None:
    """Stop the broker. Topics are kept, unless --wipe is given."""
    broker = Broker(read_stream_settings(home=home).home / "kafka")
    stopped = asyncio.run(broker.down())
    deleted = wipe and asyncio.run(broker.wipe())
    lines = ["Kafka is stopped" if stopped else "Kafka was not running"]
    if wipe:
        lines.append("topics deleted" if deleted else "nothing to delete")
    print_reply(BrokerStoppedReply(stopped=stopped, deleted=deleted), lambda _: "\n".join(lines), as_json=as_json)


@app.command()
def jars(
    connector: Annotated[
        bool, typer.Option("--connector", help="Only the jars of the connector, which is all that containers need.")
    ] = False,
    as_json: Annotated[Json, Document(DirectoriesReply)] = False,
) -> None:
    """Download the jars of Spark's Kafka connector and of the broker, and print their directories.

    For images, and for machines without access to a Maven repository: copy the directories there, below SLUICE_JARS_DIR.
    """
    fetched = [each()[0].parent for each in ([connector_jars] if connector else [connector_jars, broker_jars])]
    reply = DirectoriesReply(directories=tuple(map(str, fetched)))
    print_reply(reply, lambda _: "\n".join(reply.directories), as_json=as_json)
