"""Spark's progress of a trigger as a batch."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from containers.engine import StateSize
from containers.spark.scripts.active_queries import batch_of, offsets_of
from sluice.core.ids import Ssp

KAFKA = {
    "description": "KafkaV2[Subscribe[orders]]",
    "startOffset": {"orders": {"0": 5, "1": 5}},
    "endOffset": {"orders": {"0": 7, "1": 5}},
    "latestOffset": {"orders": {"0": 10, "1": 6}},
}
RATE = {"description": "RateStreamV2[rowsPerSecond=1]", "startOffset": 1, "endOffset": 2, "latestOffset": 2}


def progress(**changes: Any) -> dict[str, Any]:
    return {
        "name": "counts",
        "batchId": 4,
        "numInputRows": 2,
        "batchDuration": 300,
        "durationMs": {"addBatch": 250, "triggerExecution": 300},
        "eventTime": {"max": "2013-01-01T05:15:00.000Z", "watermark": "2013-01-01T05:05:00.000Z"},
        "stateOperators": [
            {"numRowsTotal": 3, "memoryUsedBytes": 100, "numRowsDroppedByWatermark": 1, "customMetrics": {"rocksdbSstFileSize": 50}}
        ],
        "sources": [KAFKA],
        **changes,
    }


def test_a_batch_has_rows_offsets_lag_times_and_state() -> None:
    found = batch_of(progress())
    assert found is not None
    assert (found.batch, found.rows, found.duration_ms, found.behind) == (4, 2, 300, 4)
    assert found.offsets == {Ssp("kafka", "orders", 0): 7, Ssp("kafka", "orders", 1): 5}
    assert found.watermark == datetime(2013, 1, 1, 5, 5, tzinfo=UTC)
    assert found.event_time_max == datetime(2013, 1, 1, 5, 15, tzinfo=UTC)
    assert found.parts_ms == {"addBatch": 250}
    assert found.state == StateSize(rows=3, memory_bytes=100, disk_bytes=50, dropped_late=1)


def test_a_trigger_without_a_batch_is_none() -> None:
    assert batch_of(progress(durationMs={"triggerExecution": 3})) is None


def test_the_lag_is_unknown_if_a_source_does_not_tell_it() -> None:
    found = batch_of(progress(sources=[KAFKA, RATE]))
    assert found is not None
    assert found.behind is None


def test_a_query_without_a_watermark_has_none() -> None:
    found = batch_of(progress(eventTime={"watermark": "1970-01-01T00:00:00.000Z"}, stateOperators=[]))
    assert found is not None
    assert (found.watermark, found.event_time_max, found.state) == (None, None, None)


def test_offsets_may_be_a_text() -> None:
    source = {"description": "KafkaV2[Assign[orders-0]]", "endOffset": '{"orders":{"0":7}}'}
    assert dict(offsets_of(source, "endOffset")) == {Ssp("kafka", "orders", 0): 7}
    assert dict(offsets_of(source, "latestOffset")) == {}
    assert dict(offsets_of({"description": "Files", "endOffset": "no json"}, "endOffset")) == {}
