from __future__ import annotations

import pytest

from sluice.core.access.spark_settings import not_allowed


@pytest.mark.parametrize(
    "name",
    [
        "spark.driver.extraJavaOptions",
        "spark.executor.extraClassPath",
        "spark.jars",
        "spark.jars.packages",
        "spark.plugins",
        "spark.pyspark.python",
        "spark.sql.extensions",
        "spark.sql.streaming.stateStore.providerClass",
        "spark.sql.streaming.streamingQueryListeners",
        "spark.shuffle.manager",
        "spark.dynamicAllocation.listenerOfMine",
        "spark.sql.streaming.checkpoint.fileChecksum.codecOfMine",
        "spark.shuffle.mapStatus.compression.codec",
        "spark.submit.pyFiles",
    ],
)
def test_a_setting_that_names_code_needs_an_administrator(name: str) -> None:
    assert not_allowed({name: "x"}, {}) == [name]


@pytest.mark.parametrize("name", ["spark.sql.shuffle.partitions", "spark.executor.memory", "spark.sql.streaming.stopTimeout", "db.url"])
def test_amounts_and_the_jobs_own_config_do_not(name: str) -> None:
    assert not not_allowed({name: "1"}, {})


def test_a_setting_of_the_current_run_may_be_kept() -> None:
    present = {"spark.jars": "/opt/a.jar"}
    assert not not_allowed({"spark.jars": "/opt/a.jar"}, present)
    assert not_allowed({"spark.jars": "/opt/b.jar"}, present) == ["spark.jars"]


def test_the_list_of_allowed_settings_can_be_configured() -> None:
    assert not not_allowed({"spark.jars": "/opt/a.jar"}, {}, ("spark.jars",))
    assert not_allowed({"spark.executor.memory": "1g"}, {}, ()) == ["spark.executor.memory"]
