"""`sluice log`: make, fill and look at streams of the embedded log from a terminal, without a coordinator."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Annotated
from uuid import uuid4

import typer

from coordinator.settings import read_settings
from sluice.clock import SystemClock
from sluice.core.errors import UnknownStream
from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Log, Record, Writer

app = typer.Typer(no_args_is_help=True, help="Streams of the embedded log.")

Home = Annotated[Path | None, typer.Option(help="Sluice's home (default .sluice); the log is in it unless SLUICE_LOG_DIR says otherwise.")]
Stream = Annotated[str, typer.Argument(help="The stream's name.")]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LINES_A_BATCH = 10_000


def _log(home: Path | None) -> Log:
    return Log(read_settings(home=home).log_directory)


@app.command()
def create(stream: Stream, partitions: Annotated[int, typer.Option(min=1, help="How many.")] = 1, home: Home = None) -> None:
    """Make a stream; one that has as many partitions already is left as it is."""
    _log(home).create(stream, partitions)
    typer.echo(f"{stream}: {partitions} partitions")


@app.command()
def grow(stream: Stream, partitions: Annotated[int, typer.Option(min=1, help="How many there are to be.")], home: Home = None) -> None:
    """Add partitions to a stream. A stateful job accepts only a multiple of what it began with."""
    _log(home).grow(stream, partitions)
    typer.echo(f"{stream}: {partitions} partitions")


@app.command("ls")
def list_streams(home: Home = None) -> None:
    """The streams, with their partitions and how many records are in them."""
    log = _log(home)
    for stream in log.streams():
        earliest, latest = log.earliest(stream), log.latest(stream)
        held = sum(latest.values()) - sum(earliest.values())
        typer.echo(f"{stream}\t{len(latest)} partitions\t{held} records")


@app.command()
def append(
    stream: Stream,
    key_separator: Annotated[str | None, typer.Option(help="What stands between key and value; without it lines have no key.")] = None,
    home: Home = None,
) -> None:
    """Append the lines of standard input, each as one record. Equal keys go to one partition."""
    log, lineage = _log(home), Lineage(f"terminal-{uuid4()}")
    log.partitions(stream)  # there must be one, also for no lines
    lines, count = iter(sys.stdin.buffer), 0
    for batch in iter(lambda: list(islice(lines, _LINES_A_BATCH)), []):
        records = [_record(line.rstrip(b"\r\n"), key_separator) for line in batch]
        micros = (SystemClock().now() - _EPOCH) // timedelta(microseconds=1)
        log.append(stream, records, writer=Writer(lineage, lineage, Generation(1)), batch=count, now_micros=micros)
        count += len(batch)
    typer.echo(f"{stream}: {count} records appended")


def _record(line: bytes, separator: str | None) -> Record:
    if separator is None or separator.encode() not in line:
        return Record(line)
    key, _, value = line.partition(separator.encode())
    return Record(value, key)


@app.command()
def cat(
    stream: Stream,
    partition: Annotated[int | None, typer.Option(min=0, help="Only this one.")] = None,
    offset: Annotated[int, typer.Option(min=0, help="From this offset of each partition on.")] = 0,
    limit: Annotated[int | None, typer.Option(min=0, help="At most this many records.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a record, with key, offset, time and headers.")] = False,
    home: Home = None,
) -> None:
    """Print the records of a stream, partition by partition."""
    for line in islice(_told(_log(home), stream, partition, offset, as_json=as_json), limit):
        typer.echo(line)


def _told(log: Log, stream: str, only: int | None, offset: int, *, as_json: bool) -> Iterator[str]:
    ends = log.latest(stream)
    if only is not None and only not in ends:
        raise UnknownStream(f"the stream {stream!r} has partitions 0 to {len(ends) - 1}, and no {only}")
    headers = log.headers(stream)
    for partition in sorted(ends) if only is None else [only]:
        for rows in log.read(stream, partition, offset, ends[partition]):
            for at, micros, key, value, headers_id in rows:
                text = _text(value)
                if as_json:
                    record = {"partition": partition, "offset": at, "key": _text(key), "value": text, "headers": headers[headers_id]}
                    yield json.dumps(record | {"timestamp": (_EPOCH + timedelta(microseconds=micros)).isoformat()})
                else:
                    yield text or ""


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="backslashreplace")
