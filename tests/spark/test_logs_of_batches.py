from __future__ import annotations

import logging
from threading import Event

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from containers.spark.task import StageTask
from sluice.job import Input
from sluice.logconfig import FieldsFilter, about
from tests.spark.conftest import Bench

log = logging.getLogger("user.code")


def test_log_messages_of_a_batch_function_have_the_fields_of_its_task(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.handler.addFilter(FieldsFilter({}))
    caplog.set_level("INFO")
    done = Event()

    def sink(batch: DataFrame, batch_id: int) -> None:
        log.info("batch %d", batch_id)
        done.set()

    def stage(task: StageTask) -> DataStreamWriter:
        return task.read(Input("in")).writeStream.foreachBatch(sink)

    bench.feed(range(3), batch=0)
    with about(task="Partition 0", stage="first", generation=4):
        bench.start(bench.grant("in"), stage)
    assert done.wait(60)
    record = next(record.__dict__ for record in caplog.records if record.name == "user.code")
    assert (record["task"], record["stage"], record["generation"]) == ("Partition 0", "first", 4)
