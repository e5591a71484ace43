"""The demo's first stage: every flight, as it is, with its carrier as the key."""

from __future__ import annotations

from pyspark.sql import SparkSession

from examples.flights.data import Flight, encode
from examples.flights.job import carrier, parse

FLIGHT = Flight(1, 1_357_035_300, "UA", 1545, None, "EWR", "IAH", 2, None)
ODD = b'{"id": 2, "carrier": "\\u00c4\\"", "origin": "carrier"}'


def test_the_key_of_a_flight_is_the_carrier_that_it_parses_to(spark: SparkSession) -> None:
    records = spark.createDataFrame([(encode(FLIGHT),), (ODD,), (b'{"id": 3}',)], "value binary")
    keys = [row.key for row in records.select(carrier().alias("key")).collect()]
    assert keys == ["UA", '\u00c4"', None]
    assert keys == [row.carrier for row in parse(records).collect()]
