"""Python processes of a real session that the fork server forks."""

from __future__ import annotations

import psutil
import pytest
from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark]


def test_python_processes_of_a_local_session_are_forked(spark: SparkSession) -> None:
    """A worker's parent is PySpark's daemon, whose parent is the server."""
    words = spark.sparkContext.parallelize([1], 1).mapPartitions(lambda _: psutil.Process().parents()[1].cmdline()).collect()
    assert "containers.spark.start.fork_server" in words
