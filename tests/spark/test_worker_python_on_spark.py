"""Spark's Python processes use the installed, compiled PySpark, not the zip file of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.functions import udf
from pyspark.sql.types import StructType

pytestmark = [pytest.mark.spark, pytest.mark.slow]

INSTALLED = Path(pyspark.__file__).parent


def _where(*_: object) -> str:
    import pyspark as theirs

    return str(theirs.__file__)


class _LocationReader(DataSourceReader):
    def __init__(self, made: str) -> None:
        self.made = made

    def read(self, partition: InputPartition) -> Iterator[tuple[str, str]]:
        yield self.made, _where()


class Locations(DataSource):
    """One row: the location of PySpark in the process that plans, and in the one that reads."""

    @classmethod
    def name(cls) -> str:
        return "locations"

    def schema(self) -> str:
        return "planned string, read string"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _LocationReader(_where())


def test_user_functions_and_data_sources_use_the_installed_pyspark(spark: SparkSession) -> None:
    (row,) = spark.range(1).select(udf(_where)("id").alias("found")).collect()
    spark.dataSource.register(Locations)
    (reported,) = spark.read.format("locations").load().collect()
    for found in (row.found, reported.planned, reported.read):
        assert Path(found).parent == INSTALLED
