"""A session without remote executors; tests/processes/test_standalone.py has sessions with them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from containers.errors import ExecutorsMissing
from containers.spark.executors import SharedPath, SharedPaths
from sluice.clock import SystemClock

pytestmark = pytest.mark.spark


def test_the_error_of_a_session_without_executors_names_possible_causes(spark: SparkSession, tmp_path: Path) -> None:
    paths = SharedPaths(spark, [SharedPath(tmp_path, "SLUICE_STATE_DIR")], SystemClock(), timedelta(seconds=0.3))
    with pytest.raises(ExecutorsMissing, match=r"local\[2\] gave no executor within 0\.3 s .*spark\.cores\.max"):
        paths.check(1)
    paths.close()
    assert list(tmp_path.iterdir()) == []
