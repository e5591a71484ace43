"""The script in examples/attach computes what the job file of the flights demo computes."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from examples.attach import flights as script
from examples.flights import job
from examples.flights.data import Flight, encode

pytestmark = pytest.mark.spark

FLIGHTS = (
    Flight(1, 1_357_035_300, "UA", 1545, None, "EWR", "IAH", 2, None),
    Flight(2, 1_357_035_360, "UA", 1546, None, "EWR", "IAH", 4, 7),
    Flight(3, 1_357_040_000, "AA", 1, None, "JFK", "MIA", None, None),
)


def test_the_script_counts_as_the_job_file_does(spark: SparkSession) -> None:
    records = spark.createDataFrame([(encode(each),) for each in FLIGHTS], "value binary")
    counted = script.count_by_hour(script.parse(records)).collect()
    assert len(counted) == 2
    assert sorted(counted) == sorted(job.count_by_hour(job.parse(records)).collect())
