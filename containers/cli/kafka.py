"""`sluice kafka`: a Kafka broker for development on this machine, the jars for it and for jobs, and topics."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sluice import logconfig
from sluice.cli import topics
from sluice.core.errors import BadSettings

if TYPE_CHECKING:
    from containers.local.kafka import Broker, Process


app = typer.Typer(no_args_is_help=True, help="A Kafka broker for development on this machine, its topics, and Kafka's jars.")
app.add_typer(topics.app, name="topics")

Home = Annotated[Path, typer.Option(envvar="SLUICE_HOME", help="Sluice's home; the broker is in it.")]
User = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME:PASSWORD", help="Also listen for users with a password (SASL PLAIN), on any free port; may be repeated."),
]

_PORT = 9092
_TERMINATED = 128 + signal.SIGTERM


@app.callback()
def _configure() -> None:
    logconfig.configure(logconfig.read_log_settings())


@app.command()
def up(
    home: Home = Path(".sluice"),
    port: Annotated[int | None, typer.Option(min=0, max=65535, help=f"On 127.0.0.1 (default {_PORT}; 0 = any free one).")] = None,
    user: User = None,
    tls: Annotated[
        bool, typer.Option("--tls", help="Also listen with TLS, on any free port; together with --user it is one port.")
    ] = False,
) -> None:
    """Start the broker, unless it is up, and print its bootstrap server when it answers. `sluice kafka down` stops it."""
    from containers.jars import broker_jars
    from containers.local.kafka import Broker

    directory = home / "kafka"
    before = Broker(directory).running()
    if before is None:
        broker_jars()  # not below, where it could not be interrupted
    wanted = port if port is not None else before.port if before else _PORT
    broker = Broker(directory, port=wanted or None, sasl=dict(map(_credentials, user or [])), tls=tls)
    try:
        process = asyncio.run(_until_up(broker))
    except asyncio.CancelledError:
        raise typer.Exit(_TERMINATED) from None
    for line in _account(broker, process, already=process == before):
        typer.echo(line, err=True)
    typer.echo(process.bootstrap)


def _credentials(told: str) -> tuple[str, str]:
    name, _, password = told.partition(":")
    if not password:
        raise BadSettings("--user needs a name and a password: --user NAME:PASSWORD")
    return name, password


async def _until_up(broker: Broker) -> Process:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await broker.up()


def _account(broker: Broker, process: Process, *, already: bool) -> list[str]:
    lines = [f"Kafka was up already, as process {process.pid}" if already else f"Kafka is up, as process {process.pid}"]
    if process.secured is not None:
        trusting = f", trusting {broker.certificate}" if broker.certificate.exists() else ""
        lines.append(f"its secured listener is {process.secured}{trusting}")
    return lines


@app.command()
def down(
    home: Home = Path(".sluice"), wipe: Annotated[bool, typer.Option("--wipe", help="Delete its topics and all else of it, too.")] = False
) -> None:
    """Stop the broker. Its topics are there when it is up again."""
    from containers.local.kafka import Broker

    broker = Broker(home / "kafka")
    typer.echo("Kafka is stopped" if asyncio.run(broker.down()) else "Kafka was not running")
    if wipe:
        typer.echo("its topics are deleted" if asyncio.run(broker.wipe()) else "there was nothing to delete")


@app.command()
def jars(connector: Annotated[bool, typer.Option("--connector", help="Only the connector's: all that containers need.")] = False) -> None:
    """Fetch the jars of Spark's Kafka connector and of the broker, and print their directories. For images, and for machines that reach no
    Maven repository: give them these directories under SLUICE_JARS_DIR."""
    from containers.jars import broker_jars, connector_jars

    for fetched in [connector_jars] if connector else [connector_jars, broker_jars]:
        typer.echo(fetched()[0].parent)
