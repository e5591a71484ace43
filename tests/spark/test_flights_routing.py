"""The first stage of the demo: every flight unchanged, with its carrier as the key, and the event time that it names."""

from __future__ import annotations

from pyspark.sql import SparkSession

from examples.flights.data import Flight, encode
from examples.flights.job import keyed, parse

FLIGHT = Flight(1, 1_357_035_300, "UA", 1545, None, "EWR", "IAH", 2, None)
ODD = b'{"id": 2, "carrier": "\\u00c4\\"", "origin": "carrier"}'


def test_the_key_and_the_event_time_of_a_flight_are_the_carrier_and_the_time_that_it_parses_to(spark: SparkSession) -> None:
    records = spark.createDataFrame([(encode(FLIGHT),), (ODD,), (b'{"id": 3}',)], "value binary")
    found = keyed(records).collect()
    assert [row.carrier for row in found] == ["UA", '\u00c4"', None]
    assert [(row.carrier, row.scheduled) for row in found] == [(row.carrier, row.scheduled) for row in parse(records).collect()]
    assert [row.value for row in found] == [row.value for row in records.collect()]
