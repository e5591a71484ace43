"""The parts of a check: differences, the records of a stream, and the comparison of a routed stream with its input."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from examples.harness.streams import Home, Streams, log_home
from sluice.streams.log import Headers
from sluice.wire.body import CONTROL_RECORD_HEADER

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
Row = TypeVar("Row", bound="DataclassInstance")


class Differences:
    """Counts all differences and keeps the descriptions of the first ones."""

    def __init__(self, kept: int) -> None:
        self.count = 0
        self.first: list[str] = []
        self._kept = kept

    def add(self, description: str) -> None:
        self.count += 1
        if len(self.first) < self._kept:
            self.first.append(description)


def listed(descriptions: Iterable[str], count: int) -> list[str]:
    """The first differences, one per line, and how many more of `count` there are."""
    lines = [f"  {each}" for each in descriptions]
    more = count - len(lines)
    return [*lines, *([f"  and {more:,} more"] if more else [])]


def altered(wanted: Mapping[str, object], got: Mapping[str, object]) -> str:
    return ", ".join(f"{name} is {got[name]!r}, not {wanted[name]!r}" for name in wanted if got[name] != wanted[name])


def records(log: Streams, stream: str, read: Callable[[bytes | None], T], found: Differences) -> Iterator[tuple[str, int, bytes | None, T]]:
    """DemoStreams, partition, key and decoded value of each record, without control records. A record that `read` refuses (ValueError) is a
    difference, and so are trimmed records. Raises UnknownStream.
    """
    known: Mapping[int, Headers] = {}
    earliest, latest = log.earliest(stream), log.latest(stream)
    for partition in sorted(latest):
        if earliest[partition]:
            found.add(
                f"{stream}.{partition}: records below {earliest[partition]} were trimmed; raise SLUICE_LOG_RETENTION_SECONDS to check them"
            )
        for rows in log.read(stream, partition, earliest[partition], latest[partition]):
            for offset, _, key, value, headers in rows:
                if headers not in known:
                    known = log.headers(stream)
                if CONTROL_RECORD_HEADER in known[headers]:
                    continue
                place = f"{stream}.{partition} at {offset}"
                try:
                    yield place, partition, key, read(value)
                except ValueError as error:
                    found.add(f"{place}: {error}")


@dataclass(frozen=True, slots=True)
class Routed(Generic[K, Row]):
    """A stream whose records are rows, each placed by one of its columns. `named` returns the short name of a row, `detail` a
    description of it.
    """

    stream: str
    column: str
    read: Callable[[bytes | None], Row]
    id_of: Callable[[Row], K]
    named: Callable[[Row], str]
    detail: Callable[[Row], str]

    def check(self, log: Streams, rows: Iterable[Row], found: Differences, home_of: Home = log_home) -> int:
        """Check that every row is there once, unaltered, in the partition of its column. Returns the number of records that hold a row.
        Raises UnknownStream.
        """
        wanted = {self.id_of(row): row for row in rows}
        partitions, seen, count = log.partitions(self.stream), set[K](), 0
        for place, partition, key, got in records(log, self.stream, self.read, found):
            count += 1
            name, expected = self.named(got), wanted.get(self.id_of(got))
            if expected is None:
                found.add(f"{place}: {name} is not in the input")
                continue
            if self.id_of(got) in seen:
                found.add(f"{place}: {name} occurs again")
            seen.add(self.id_of(got))
            if got != expected:
                found.add(f"{place}: {name} is altered: {altered(asdict(expected), asdict(got))}")
            self._check_place(place, partition, key, expected, home_of, partitions, found)
        for id_, row in wanted.items():
            if id_ not in seen:
                found.add(f"{self.stream}: {self.named(row)} ({self.detail(row)}) is missing")
        return count

    def _check_place(
        self, place: str, partition: int, key: bytes | None, row: Row, home_of: Home, partitions: int, found: Differences
    ) -> None:
        column: str = getattr(row, self.column)
        home = home_of(column.encode(), partitions)
        if partition != home or key != column.encode():
            found.add(f"{place}: {self.named(row)} of {self.column} {column} has key {key!r} and belongs in partition {home}")
