"""The first stage of the demo writes every flight unchanged, with its carrier as the key, and names its event time."""

from __future__ import annotations

from pyspark.sql import SparkSession

from examples.flights.data import Flight, encode
from examples.flights.job import keyed, parse

FLIGHT = Flight(1, 1_357_035_300, "UA", 1545, None, "EWR", "IAH", 2, None)
ODD = b'{"id": 2, "carrier": "\\u00c4\\"", "origin": "carrier"}'


def test_the_key_of_a_flight_is_its_carrier_and_its_event_time_is_the_parsed_time(spark: SparkSession) -> None:
    records = spark.createDataFrame([(encode(FLIGHT),), (ODD,), (b'{"id": 3}',)], "value binary")
    found = keyed(records).collect()
    assert [row.carrier for row in found] == ["UA", '\u00c4"', None]
    assert [(row.carrier, row.scheduled) for row in found] == [(row.carrier, row.scheduled) for row in parse(records).collect()]
    assert [row.value for row in found] == [row.value for row in records.collect()]
