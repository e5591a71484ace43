"""The pizzas that a restaurant sold in 2015, as records of a stream.

They come from the table `pizzaplace` of the PyPI package `great-tables`, in the order of their sale. The times are local times without a
zone, treated as UTC.
"""

from __future__ import annotations

import csv
import importlib.util
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

SALES = "sales"
BY_STATION = "sales-by-station"
RUSHES = "rushes"
PARTITIONS = 2
"""Partition count of every stream."""

ALL_SALES = 49_574
YEAR_STARTS = int(datetime(2015, 1, 1, tzinfo=UTC).timestamp())
DAY = 86_400
PAUSE = 20 * 60
"""A rush of a station ends when it has sold nothing for longer than this, in seconds."""


class SalesMissing(ModuleNotFoundError):
    """The package with the sales is not installed."""

    def __init__(self) -> None:
        super().__init__("the sales are in the package great-tables, which is not installed: pip install 'sluice-spark[demo]'")


@dataclass(frozen=True, slots=True)
class Sale:
    """One pizza. `order`: the number of its order. `at`: in seconds since 1970. `station`: the part of the kitchen that makes it: chicken,
    classic, supreme or veggie."""

    order: int
    at: int
    name: str
    size: str
    station: str
    cents: int


@dataclass(frozen=True, slots=True)
class Rush:
    """The sales of a station without a pause longer than PAUSE. `began`, `ended`: the first and the last sale, in seconds since 1970."""

    station: str
    began: int
    ended: int
    pizzas: int
    cents: int


def load_sales(days: int = 365) -> list[Sale]:
    """The sales of the first `days` days, ordered by time. Raises SalesMissing, or ValueError if they are not ordered."""
    with _table().open(newline="") as file:
        rows = [_sale(row) for row in csv.DictReader(file)]
    if any(later.at < before.at for before, later in pairwise(rows)):
        raise ValueError("the sales are not ordered by time")
    return [row for row in rows if row.at < YEAR_STARTS + days * DAY]


def _table() -> Path:
    """The path of the table. The package is not imported, because that would load all its tables."""
    spec = importlib.util.find_spec("great_tables")
    if spec is None or not spec.submodule_search_locations:
        raise SalesMissing
    return Path(spec.submodule_search_locations[0]) / "data" / "05-pizzaplace.csv"


def _sale(row: dict[str, str]) -> Sale:
    at = datetime.fromisoformat(f"{row['date']}T{row['time']}+00:00")
    cents = round(float(row["price"]) * 100)
    return Sale(int(row["id"].partition("-")[2]), int(at.timestamp()), row["name"], row["size"], row["type"], cents)


def partition_of_sale(sale: Sale) -> int:
    """The partition to which the replay sends a sale: both have sales of every station."""
    return sale.order % PARTITIONS


def rushes_of(sales: Iterable[Sale], pause: int = PAUSE) -> list[Rush]:
    """All rushes, by a single pass over the sales in the order of their times: what the job must write."""
    current: dict[str, Rush] = {}
    found = []
    for sale in sales:
        rush = current.get(sale.station)
        if rush is None or sale.at - rush.ended > pause:
            if rush is not None:
                found.append(rush)
            rush = Rush(sale.station, sale.at, sale.at, 0, 0)
        current[sale.station] = Rush(sale.station, rush.began, sale.at, rush.pizzas + 1, rush.cents + sale.cents)
    return [*found, *current.values()]


def time_text(seconds: int) -> str:
    """ISO 8601 with a zone, for example 2015-01-01T11:38:36Z. Spark reads it the same way under any session time zone."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()[:19] + "Z"


def encode(sale: Sale) -> bytes:
    """Encodes a sale as the value of a record."""
    return json.dumps(asdict(sale) | {"at": time_text(sale.at)}, separators=(",", ":")).encode()


def decode_rush(value: bytes | None) -> Rush:
    """Decodes the value of a record. Raises ValueError if it is not a rush."""
    try:
        spelled: dict[str, Any] = json.loads(value or b"null")
        times = {name: int(datetime.fromisoformat(spelled[name]).timestamp()) for name in ("began", "ended")}
        return Rush(**(spelled | times))
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"not a rush: {value!r:.200} ({error})") from error


def busiest(rushes: Sequence[Rush], number: int) -> list[Rush]:
    return sorted(rushes, key=lambda each: (-each.pizzas, each.began, each.station))[:number]
