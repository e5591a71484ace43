"""`sluice kafka topics`: make, fill and look at topics from a terminal, as `sluice log` does it for streams of the embedded log."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sluice.core.errors import StreamUnavailable, UnknownStream

if TYPE_CHECKING:
    from aiokafka import ConsumerRecord

    from sluice.streams.kafka import KafkaSystem


app = typer.Typer(no_args_is_help=True, help="Topics of a Kafka cluster.")

Topic = Annotated[str, typer.Argument(help="The topic's name.")]
Bootstrap = Annotated[str, typer.Option(envvar="SLUICE_KAFKA_BOOTSTRAP", help="Where the cluster is: HOST:PORT, or several with commas.")]
Properties = Annotated[
    Path | None, typer.Option(envvar="SLUICE_KAFKA_PROPERTIES", help="A client.properties file: security.protocol, sasl.*, ssl.*")
]

_HERE = "127.0.0.1:9092"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LINES_A_BATCH = 10_000


@app.command()
def create(
    topic: Topic,
    partitions: Annotated[int, typer.Option(min=1, help="How many.")] = 1,
    bootstrap: Bootstrap = _HERE,
    properties: Properties = None,
) -> None:
    """Make a topic; one that has as many partitions already is left as it is."""
    _with_cluster(bootstrap, properties, lambda cluster: cluster.system.create(topic, partitions))
    typer.echo(f"{topic}: {partitions} partitions")


@app.command()
def grow(
    topic: Topic,
    partitions: Annotated[int, typer.Option(min=1, help="How many there are to be.")],
    bootstrap: Bootstrap = _HERE,
    properties: Properties = None,
) -> None:
    """Add partitions to a topic. A stateful job accepts only a multiple of what it began with."""
    _with_cluster(bootstrap, properties, lambda cluster: cluster.system.grow(topic, partitions))
    typer.echo(f"{topic}: {partitions} partitions")


@app.command("ls")
def list_topics(bootstrap: Bootstrap = _HERE, properties: Properties = None) -> None:
    """The topics, with their partitions and how many records are in them; not those of Kafka itself."""
    _with_cluster(bootstrap, properties, lambda cluster: cluster.show())


@app.command()
def append(
    topic: Topic,
    key_separator: Annotated[str | None, typer.Option(help="What stands between key and value; without it lines have no key.")] = None,
    bootstrap: Bootstrap = _HERE,
    properties: Properties = None,
) -> None:
    """Append the lines of standard input, each as one record. Equal keys go to one partition."""
    _with_cluster(bootstrap, properties, lambda cluster: cluster.append(topic, key_separator))


@app.command()
def cat(
    topic: Topic,
    partition: Annotated[int | None, typer.Option(min=0, help="Only this one.")] = None,
    offset: Annotated[int, typer.Option(min=0, help="From this offset of each partition on.")] = 0,
    limit: Annotated[int | None, typer.Option(min=0, help="At most this many records.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a record, with key, offset, time and headers.")] = False,
    bootstrap: Bootstrap = _HERE,
    properties: Properties = None,
) -> None:
    """Print the records of a topic that are there now, partition by partition."""

    async def told(cluster: _Cluster) -> None:
        left = limit
        async with aclosing(cluster.records(topic, partition, offset)) as records:
            async for record in records:
                if left == 0:
                    return
                left = None if left is None else left - 1
                typer.echo(json.dumps(_whole(record)) if as_json else _text(record.value) or "")

    _with_cluster(bootstrap, properties, told)


def _with_cluster(bootstrap: str, properties: Path | None, work: Callable[[_Cluster], Awaitable[None]]) -> None:
    from aiokafka.errors import KafkaError

    from sluice.streams.kafka import KafkaSystem
    from sluice.streams.kafka_properties import KafkaProperties

    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # what it would log comes back to us as an error, and is told as one

    async def run() -> None:
        known = KafkaProperties.read(properties)
        system = KafkaSystem(bootstrap, known)
        try:
            await work(_Cluster(system, {"bootstrap_servers": bootstrap, **known.client_arguments()}))
        except KafkaError as error:
            raise StreamUnavailable(f"Kafka at {bootstrap}: {error}") from error
        finally:
            await system.close()

    asyncio.run(run())


class _Cluster:
    """`arguments`: of every client of aiokafka."""

    def __init__(self, system: KafkaSystem, arguments: dict[str, Any]) -> None:
        self.system = system
        self._arguments = arguments

    async def show(self) -> None:
        from aiokafka.admin import AIOKafkaAdminClient

        async with _started(AIOKafkaAdminClient(**self._arguments)) as admin:
            topics = sorted(await admin.list_topics())
        for topic in topics:
            if not topic.startswith("_"):
                earliest, latest = await self.system.earliest(topic), await self.system.latest(topic)
                typer.echo(f"{topic}\t{len(latest)} partitions\t{sum(latest.values()) - sum(earliest.values())} records")

    async def append(self, topic: str, separator: str | None) -> None:
        from aiokafka import AIOKafkaProducer

        await self.system.partitions(topic)  # there must be one, also for no lines; a producer's own question might make it
        lines, count = iter(sys.stdin.buffer), 0
        async with AIOKafkaProducer(**self._arguments, enable_idempotence=True) as producer:
            while batch := await asyncio.to_thread(lambda: list(islice(lines, _LINES_A_BATCH))):
                sent = [await producer.send(topic, **_record(line.rstrip(b"\r\n"), separator)) for line in batch]
                await asyncio.gather(*sent)
                count += len(batch)
        typer.echo(f"{topic}: {count} records appended")

    async def records(self, topic: str, only: int | None, offset: int) -> AsyncGenerator[ConsumerRecord[bytes, bytes], None]:
        from aiokafka import AIOKafkaConsumer, TopicPartition

        earliest, latest = await self.system.earliest(topic), await self.system.latest(topic)
        if only is not None and only not in latest:
            raise UnknownStream(f"the topic {topic!r} has partitions 0 to {len(latest) - 1}, and no {only}")
        begins = {p: max(offset, earliest[p]) for p in sorted(latest) if only in (None, p)}
        wanted = {p: begin for p, begin in begins.items() if begin < latest[p]}
        if not wanted:
            return  # a consumer that is closed as soon as it is opened raises CancelledError (aiokafka 0.14)
        async with AIOKafkaConsumer(**self._arguments, enable_auto_commit=False) as consumer:
            for partition, begin in wanted.items():
                there = TopicPartition(topic, partition)
                consumer.assign([there])
                consumer.seek(there, begin)
                while await consumer.position(there) < latest[partition]:
                    for record in (await consumer.getmany(there, timeout_ms=500)).get(there, []):
                        if record.offset < latest[partition]:
                            yield record


@asynccontextmanager
async def _started(client: Any) -> AsyncIterator[Any]:
    """One of aiokafka's clients that has no such form of its own."""
    try:
        await client.start()
        yield client
    finally:
        await client.close()


def _record(line: bytes, separator: str | None) -> dict[str, bytes]:
    if separator is None or separator.encode() not in line:
        return {"value": line}
    key, _, value = line.partition(separator.encode())
    return {"key": key, "value": value}


def _whole(record: ConsumerRecord[bytes, bytes]) -> dict[str, Any]:
    return {
        "partition": record.partition,
        "offset": record.offset,
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": {name: _text(value) for name, value in record.headers},
        "timestamp": (_EPOCH + timedelta(milliseconds=record.timestamp)).isoformat(),
    }


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="backslashreplace")
