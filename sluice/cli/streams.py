"""`sluice streams`: create, grow, list, fill and print streams of the embedded log or of Kafka, without a coordinator."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from sluice.cli.documents import Document, Json, print_reply
from sluice.core.errors import UnknownStream
from sluice.streams.kafka import KafkaSystem
from sluice.streams.kafka_properties import KafkaProperties
from sluice.streams.log import LogSystem
from sluice.streams.port import KeyValue, StreamAdmin, StreamRecord
from sluice.streams.settings import read_stream_settings
from sluice.wire.body import Reply

T = TypeVar("T")

LOCAL_KAFKA = "127.0.0.1:9092"
_LINES_PER_BATCH = 10_000


class System(StrEnum):
    LOG = "log"
    KAFKA = "kafka"


Stream = Annotated[str, typer.Argument(metavar="STREAM", help="Name of the stream.")]
Partitions = Annotated[int, typer.Option("--partitions", min=1, metavar="N", help="Number of partitions.")]
OfSystem = Annotated[System | None, typer.Option("--system", help="System of the stream: the embedded log, or Kafka. Default: log.")]
Home = Annotated[
    Path | None,
    typer.Option(
        "--home",
        envvar="SLUICE_HOME",
        help="For log: Sluice's directory; the log is in it, unless SLUICE_LOG_DIR is set. Default: .sluice.",
    ),
]
Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        metavar="HOST:PORT[,...]",
        envvar="SLUICE_KAFKA_BOOTSTRAP",
        help=f"For kafka: bootstrap servers. Default: {LOCAL_KAFKA}.",
    ),
]
Properties = Annotated[
    Path | None,
    typer.Option(
        "--properties", envvar="SLUICE_KAFKA_PROPERTIES", help="For kafka: a client.properties file with security.protocol, sasl.*, ssl.*."
    ),
]


class PartitionsReply(Reply):
    """A stream and its number of partitions after the command."""

    stream: str
    partitions: int


class StoredStream(PartitionsReply):
    """`records`: those that are stored now; on Kafka the number of offsets, which the ends of transactions take, too."""

    records: int


class StreamsReply(Reply):
    streams: tuple[StoredStream, ...]


class AppendedReply(Reply):
    """`records`: how many records were appended."""

    stream: str
    records: int


class StreamRecordReply(Reply):
    """One record, on a line of its own. Bytes that are not UTF-8 are written as `\\xNN`. `timestamp`: ISO 8601."""

    partition: int
    offset: int
    key: str | None
    value: str | None
    headers: dict[str, str | None]
    timestamp: str


def create(
    context: typer.Context,
    stream: Stream,
    partitions: Partitions = 1,
    as_json: Annotated[Json, Document(PartitionsReply)] = False,
    system: OfSystem = None,
    home: Home = None,
    bootstrap: Bootstrap = None,
    properties: Properties = None,
) -> None:
    """Create a stream. An existing stream with the same number of partitions is not changed."""
    _run(_opened(context, system, home, bootstrap, properties), lambda streams: streams.create(stream, partitions))
    _print_partitions(stream, partitions, as_json=as_json)


def grow(
    context: typer.Context,
    stream: Stream,
    partitions: Annotated[int, typer.Option(min=1, metavar="N", help="New number of partitions.")],
    as_json: Annotated[Json, Document(PartitionsReply)] = False,
    system: OfSystem = None,
    home: Home = None,
    bootstrap: Bootstrap = None,
    properties: Properties = None,
) -> None:
    """Add partitions to a stream. A stateful job accepts only a multiple of the number that it started with."""
    _run(_opened(context, system, home, bootstrap, properties), lambda streams: streams.grow(stream, partitions))
    _print_partitions(stream, partitions, as_json=as_json)


def _print_partitions(stream: str, partitions: int, *, as_json: bool) -> None:
    print_reply(PartitionsReply(stream=stream, partitions=partitions), lambda _: f"{stream}: {partitions} partitions", as_json=as_json)


def list_streams(
    context: typer.Context,
    as_json: Annotated[Json, Document(StreamsReply)] = False,
    system: OfSystem = None,
    home: Home = None,
    bootstrap: Bootstrap = None,
    properties: Properties = None,
) -> None:
    """List streams, with the number of their partitions and records; on Kafka of offsets, which the ends of transactions take, too."""

    async def listed(streams: StreamAdmin) -> Sequence[StoredStream]:
        found = list[StoredStream]()
        for stream in await streams.streams():
            earliest, latest = await streams.earliest(stream), await streams.latest(stream)
            records = sum(latest.values()) - sum(earliest.values())
            found.append(StoredStream(stream=stream, partitions=len(latest), records=records))
        return found

    opened = _opened(context, system, home, bootstrap, properties)
    reply = StreamsReply(streams=tuple(_run(opened, listed)))
    counted = "offsets" if opened.transactional else "records"
    lines = [f"{each.stream}\t{each.partitions} partitions\t{each.records} {counted}" for each in reply.streams]
    print_reply(reply, lambda _: "\n".join(lines), as_json=as_json)


def append(
    context: typer.Context,
    stream: Stream,
    key_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Text between key and value in each line. Without it records have no key.")
    ] = None,
    as_json: Annotated[Json, Document(AppendedReply)] = False,
    system: OfSystem = None,
    home: Home = None,
    bootstrap: Bootstrap = None,
    properties: Properties = None,
) -> None:
    """Append each line of standard input as a record. Records with equal keys go to the same partition."""
    count = _run(_opened(context, system, home, bootstrap, properties), lambda streams: streams.append(stream, _lines(key_separator)))
    print_reply(AppendedReply(stream=stream, records=count), lambda _: f"{stream}: {count} records appended", as_json=as_json)


async def _lines(separator: str | None) -> AsyncIterator[Sequence[KeyValue]]:
    lines = iter(sys.stdin.buffer)
    while batch := await asyncio.to_thread(lambda: list(islice(lines, _LINES_PER_BATCH))):
        yield [_key_value(line.rstrip(b"\r\n"), separator) for line in batch]


def _key_value(line: bytes, separator: str | None) -> KeyValue:
    if separator is None or separator.encode() not in line:
        return None, line
    key, _, value = line.partition(separator.encode())
    return key, value


def cat(
    context: typer.Context,
    stream: Stream,
    partition: Annotated[int | None, typer.Option(min=0, metavar="N", help="Print only this partition.")] = None,
    offset: Annotated[int, typer.Option(min=0, metavar="N", help="Start at this offset of each partition.")] = 0,
    limit: Annotated[int | None, typer.Option(min=0, metavar="N", help="Print at most this many records.")] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object per record, with partition, offset, timestamp, key and headers."),
        Document(StreamRecordReply),
    ] = False,
    system: OfSystem = None,
    home: Home = None,
    bootstrap: Bootstrap = None,
    properties: Properties = None,
) -> None:
    """Print the records that are in a stream now, partition by partition."""

    async def show(streams: StreamAdmin) -> None:
        earliest = await streams.earliest(stream)
        if partition is not None and partition not in earliest:
            raise UnknownStream(f"the stream {stream!r} has partitions 0 to {len(earliest) - 1}, and no {partition}")
        starts = {p: max(offset, first) for p, first in sorted(earliest.items()) if partition in (None, p)}
        left = limit
        async with aclosing(streams.records(stream, starts)) as records:
            async for record in records:
                if left == 0:
                    return
                left = None if left is None else left - 1
                typer.echo(_document(record).model_dump_json() if as_json else _text(record.value) or "")

    _run(_opened(context, system, home, bootstrap, properties), show)


def _document(record: StreamRecord) -> StreamRecordReply:
    return StreamRecordReply(
        partition=record.partition,
        offset=record.offset,
        key=_text(record.key),
        value=_text(record.value),
        headers=dict(record.headers),
        timestamp=record.timestamp.isoformat(),
    )


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="backslashreplace")


def _opened(
    context: typer.Context, system: System | None, home: Path | None, bootstrap: str | None, properties: Path | None
) -> StreamAdmin:
    """`context.obj` is the default system of a group of commands. Raises BadSettings."""
    settings = read_stream_settings(home=home, kafka_bootstrap=bootstrap, kafka_properties=properties)
    if (system or context.obj or System.LOG) is System.LOG:
        return LogSystem(settings.log_directory)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # its log messages are also raised, and printed as the command's error
    return KafkaSystem(settings.kafka_bootstrap or LOCAL_KAFKA, KafkaProperties.read(settings.kafka_properties))


def _run(streams: StreamAdmin, work: Callable[[StreamAdmin], Awaitable[T]]) -> T:
    async def run() -> T:
        try:
            return await work(streams)
        finally:
            await streams.close()

    return asyncio.run(run())


# --- groups ----------------------------------------------------------------------------------------------------------


def _group(help_text: str) -> typer.Typer:
    group = typer.Typer(no_args_is_help=True, help=help_text)
    group.command("create")(create)
    group.command("grow")(grow)
    group.command("ls")(list_streams)
    group.command("append")(append)
    group.command("cat")(cat)
    return group


app = _group("Create, grow, list, fill and print streams of the embedded log or of Kafka.")
