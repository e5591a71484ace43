"""Compares the rushes that the job has written with those that a plain loop over the sales finds, row by row.

The job must have been drained: a drain closes the sessions that are still open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from examples.harness.topics import Topics
from examples.pizza.data import RUSHES, Rush, SalesMissing, busiest, decode_rush, load_sales, rushes_of, time_text
from sluice.core.errors import BadSettings
from sluice.streams.kafka_properties import KafkaProperties

SHOWN = 5


@dataclass(frozen=True, slots=True)
class Report:
    """`missing`: rushes that the job should have written and has not. `unexpected`: those that it should not have written, or wrote
    twice."""

    due: int
    missing: Sequence[Rush]
    unexpected: Sequence[Rush]

    @property
    def exact(self) -> bool:
        return not self.missing and not self.unexpected


def compare(due: Iterable[Rush], written: Iterable[Rush]) -> Report:
    wanted, found = Counter(due), Counter(written)
    return Report(wanted.total(), list((wanted - found).elements()), list((found - wanted).elements()))


def read_rushes(topics: Topics) -> list[Rush]:
    """All committed rushes of the topic. Raises ValueError if a record is not a rush."""
    ends = topics.latest(RUSHES)
    return [decode_rush(row[3]) for partition, end in ends.items() for rows in topics.read(RUSHES, partition, 0, end) for row in rows]


def line(rush: Rush) -> str:
    ended = time_text(rush.ended)[11:16]
    return f"{rush.station:8} {time_text(rush.began)[:16].replace('T', ' ')} to {ended}: {rush.pizzas:3} pizzas, {rush.cents / 100:,.2f}"


def main(
    bootstrap: Annotated[str, typer.Option(metavar="HOST:PORT[,...]", envvar="SLUICE_KAFKA_BOOTSTRAP")] = "127.0.0.1:9092",
    days: Annotated[int, typer.Option(min=1, max=365, help="The number of days that were replayed.")] = 365,
    properties: Annotated[
        Path | None, typer.Option(envvar="SLUICE_KAFKA_PROPERTIES", help="A client.properties file with security.protocol, sasl.*, ssl.*.")
    ] = None,
) -> None:
    """Print the busiest rushes, and whether all were written exactly once. The exit code is 0 only if so."""
    try:
        due = rushes_of(load_sales(days))
        with closing(Topics(bootstrap, KafkaProperties.read(properties))) as topics:
            written = read_rushes(topics)
    except (BadSettings, SalesMissing, ValueError) as error:
        typer.echo(f"check: {error}", err=True)
        raise SystemExit(1) from None
    for each in busiest(written, SHOWN):
        typer.echo(line(each))
    report = compare(due, written)
    for what, rushes in (("missing", report.missing), ("unexpected", report.unexpected)):
        for each in rushes[:SHOWN]:
            typer.echo(f"{what}: {line(each)}")
    typer.echo(f"{len(written):,} rushes, {report.due:,} due: {len(report.missing):,} missing, {len(report.unexpected):,} unexpected")
    raise SystemExit(0 if report.exact else 1)


if __name__ == "__main__":
    typer.run(main)
