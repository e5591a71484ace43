"""What a container measures of its stages, and the metrics that it exposes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from containers.agent.metrics import ContainerCollector, Meter, jvm_metrics, process_metrics
from containers.engine import Batch, JvmUsage, StageStart, StateSize, Writes
from sluice import Job
from sluice.core.ids import Generation, Lineage, RunId, Ssp, TaskName
from sluice.job import Delivery
from sluice.wire import agents as wire_agents
from tests.support.fakes import FakeClock

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
TRIGGER = timedelta(seconds=1)


def start() -> StageStart:
    job = Job("delays")
    job.stage(reads=job.input("in"), name="hourly")(lambda task: None)  # type: ignore[arg-type, return-value]
    return StageStart(job.stages[0].stage, TaskName("Partition 0"), Generation(1), Lineage("l"), None, {}, RunId("r"))


START = start()


def batch(number: int, rows: int = 100, millis: int = 500, **more: Any) -> Batch:
    return Batch(START.query, number, rows, millis, {}, **more)


def read(number: int, rows: int, offsets: Mapping[Ssp, int], **more: Any) -> Batch:
    return Batch(START.query, number, rows, 500, offsets, **more)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(start=NOON)


@pytest.fixture
def meter(clock: FakeClock) -> Meter:
    return Meter(START.task, START.stage.name, lambda: 3, TRIGGER, clock)


# --- what is reported ------------------------------------------------------------------------------------------------


def test_a_batch_is_reported_with_all_its_metrics(meter: Meter) -> None:
    state = StateSize(rows=7, memory_bytes=1000, disk_bytes=50, dropped_late=0)
    at = NOON - timedelta(hours=1)
    reported = meter.committed(batch(4, parts_ms={"addBatch": 450}, behind=12, state=state, watermark=at, event_time_max=NOON))
    assert reported == wire_agents.StageMetricsBody(
        rows=100,
        rows_per_second=100.0,
        batch_millis=500,
        batch_millis_by_part={"addBatch": 450},
        lag=12,
        state_rows=7,
        state_bytes=1000,
        watermark=at,
        event_time_max=NOON,
        at=NOON,
    )


@pytest.mark.parametrize(("trigger", "rate"), [(0, 50), (1, 50), (5, 10)])
def test_the_rate_of_a_short_batch_is_over_a_second_or_the_trigger(clock: FakeClock, trigger: int, rate: int) -> None:
    meter = Meter(START.task, START.stage.name, lambda: 0, timedelta(seconds=trigger), clock)
    assert meter.committed(batch(0, rows=50, millis=10)).rows_per_second == rate


def test_the_rate_of_a_long_batch_is_over_its_whole_length(meter: Meter) -> None:
    assert meter.committed(batch(0, rows=6000, millis=60_000)).rows_per_second == 100


def test_batches_without_rows_do_not_hide_the_rate_of_the_others(meter: Meter, clock: FakeClock) -> None:
    for number in range(40):
        clock.advance(1)
        reported = meter.committed(batch(number, rows=100 if number % 2 else 0))
    assert reported.rows == 100
    assert reported.rows_per_second == pytest.approx(50, rel=0.1)


def test_the_rate_covers_the_last_ten_seconds(meter: Meter, clock: FakeClock) -> None:
    meter.committed(batch(0, rows=1_000_000))
    clock.advance(11)
    assert meter.committed(batch(1, rows=10, millis=1000)).rows_per_second == 10


def test_an_idle_stage_reads_nothing_and_is_not_behind(meter: Meter, clock: FakeClock) -> None:
    meter.committed(batch(0, behind=5, event_time_max=NOON))
    clock.advance(10)
    reported = meter.idle()
    assert (reported.rows, reported.rows_per_second, reported.lag) == (0, 0, 0)
    assert (reported.batch_millis, reported.event_time_max, reported.at) == (500, NOON, NOON + timedelta(seconds=10))


def test_the_newest_event_time_is_kept_over_batches_without_one(meter: Meter) -> None:
    meter.committed(batch(0, event_time_max=NOON))
    assert meter.committed(batch(1, rows=0)).event_time_max == NOON


def test_the_lag_of_a_source_without_latest_offsets_is_unknown(meter: Meter) -> None:
    assert meter.committed(batch(0)).lag is None


def at(*offsets: int) -> dict[Ssp, int]:
    return {Ssp("kafka", "in", partition): offset for partition, offset in enumerate(offsets)}


def test_the_lag_does_not_count_offsets_that_have_no_record(meter: Meter) -> None:
    """The transactions of its writer have nine records each, and an offset for their end."""
    assert meter.committed(read(0, 45, at(50, 0), behind=150)).lag == 150, "it is not known where it began"
    reported = meter.committed(read(1, 90, at(100, 50), behind=100))
    assert (reported.lag, reported.records_per_offset) == (90, 0.9)
    assert meter.committed(read(2, 90, at(150, 100), behind=1)).lag == 1
    assert meter.committed(read(3, 0, at(150, 100), behind=0)).lag == 0


def test_batches_that_run_again_and_partitions_that_are_added_do_not_change_the_share_of_records(meter: Meter) -> None:
    meter.committed(read(0, 45, at(50)))
    meter.committed(read(1, 45, at(100)))
    meter.committed(read(1, 45, at(100)))
    assert meter.committed(read(2, 1000, at(100, 5000), behind=10)).records_per_offset == 0.9


def test_a_stream_that_a_query_reads_twice_has_no_more_records_than_offsets(meter: Meter) -> None:
    meter.committed(read(0, 100, at(50)))
    assert meter.committed(read(1, 100, at(100), behind=10)).lag == 10


# --- the metrics -----------------------------------------------------------------------------------------------------

Samples = dict[str, float]


def scraped(meter: Meter, clock: FakeClock, lease_left: timedelta | None = timedelta(seconds=33)) -> Samples:
    """The samples that Prometheus reads, by name and labels."""
    registry = CollectorRegistry()
    registry.register(ContainerCollector(lambda: [meter], TRIGGER, lambda: lease_left, lambda: 2, clock))
    samples: Samples = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            samples[f"{sample.name}{{{labels}}}"] = sample.value
    return samples


LABELS = "stage=hourly,task=Partition 0"


def test_counters_sum_over_batches(meter: Meter, clock: FakeClock) -> None:
    state = StateSize(rows=7, memory_bytes=1000, disk_bytes=50, dropped_late=2)
    for number in range(3):
        body = meter.committed(batch(number, millis=700, parts_ms={"addBatch": 600, "walCommit": 100}, state=state))
    assert (body.late_rows, body.late_rows_at) == (6, clock.now())
    clock.advance(60)
    assert meter.idle().late_rows_at == body.late_rows_at
    found = scraped(meter, clock)
    assert found[f"sluice_stage_input_rows_total{{{LABELS}}}"] == 300
    assert found[f"sluice_stage_batches_total{{{LABELS}}}"] == 3
    assert found[f"sluice_stage_rows_dropped_by_watermark_total{{{LABELS}}}"] == 6
    assert found[f"sluice_stage_restarts_total{{{LABELS}}}"] == 3
    assert found[f"sluice_stage_batch_duration_seconds_count{{{LABELS}}}"] == 3
    assert found[f"sluice_stage_batch_duration_seconds_sum{{{LABELS}}}"] == pytest.approx(2.1)
    assert found[f"sluice_stage_batch_duration_seconds_bucket{{le=0.5,{LABELS}}}"] == 0
    assert found[f"sluice_stage_batch_duration_seconds_bucket{{le=1.0,{LABELS}}}"] == 3
    assert found[f"sluice_stage_batch_part_seconds_total{{part=addBatch,{LABELS}}}"] == pytest.approx(1.8)


def test_what_a_stage_writes_is_reported_with_its_delivery_and_its_transactions(meter: Meter, clock: FakeClock) -> None:
    exactly = Writes(Delivery.EXACTLY_ONCE, commits=4, commit_seconds=0.5, aborted=2, fenced=1, markers=3, repeated=1)
    body = meter.committed(batch(0, writes={"delays": exactly, "raw": Writes(Delivery.AT_LEAST_ONCE)}))
    assert body.delivery == {"delays": "exactly-once", "raw": "at-least-once"}
    found, labels = scraped(meter, clock), "stage=hourly,stream=delays,task=Partition 0"
    assert found[f"sluice_stage_delivery{{delivery=exactly-once,{labels}}}"] == 1
    assert found[f"sluice_stage_transaction_commit_seconds_count{{{labels}}}"] == 4
    assert found[f"sluice_stage_transaction_commit_seconds_sum{{{labels}}}"] == 0.5
    assert found[f"sluice_stage_transactions_aborted_total{{{labels}}}"] == 2
    assert found[f"sluice_stage_transactions_fenced_total{{{labels}}}"] == 1
    assert found[f"sluice_stage_markers_renewed_total{{{labels}}}"] == 3
    assert found[f"sluice_stage_batches_not_repeated_total{{{labels}}}"] == 1
    assert [name for name in found if "stream=raw" in name] == [
        "sluice_stage_delivery{delivery=at-least-once,stage=hourly,stream=raw,task=Partition 0}"
    ]


def test_gauges_show_the_state_after_the_last_batch(meter: Meter, clock: FakeClock) -> None:
    state = StateSize(rows=7, memory_bytes=1000, disk_bytes=50, dropped_late=0)
    meter.committed(batch(0, behind=12, state=state, watermark=NOON - timedelta(minutes=10), event_time_max=NOON - timedelta(minutes=1)))
    clock.advance(60)
    found = scraped(meter, clock)
    assert found[f"sluice_stage_lag_records{{{LABELS}}}"] == 12
    assert found[f"sluice_stage_state_rows{{{LABELS}}}"] == 7
    assert found[f"sluice_stage_state_bytes{{{LABELS}}}"] == 1000
    assert found[f"sluice_stage_state_disk_bytes{{{LABELS}}}"] == 50
    assert found[f"sluice_stage_watermark_lag_seconds{{{LABELS}}}"] == 660
    assert found[f"sluice_stage_watermark_delay_seconds{{{LABELS}}}"] == 540
    assert found[f"sluice_stage_last_progress_timestamp_seconds{{{LABELS}}}"] == NOON.timestamp()


def test_unknown_values_have_no_series(meter: Meter, clock: FakeClock) -> None:
    meter.committed(batch(0))
    names = {name.partition("{")[0] for name in scraped(meter, clock)}
    assert not {name for name in names if name.startswith(("sluice_stage_state", "sluice_stage_watermark", "sluice_stage_offsets"))}


def test_the_limit_of_rows_is_that_of_the_last_batch_and_absent_where_it_is_fixed(meter: Meter, clock: FakeClock) -> None:
    meter.committed(batch(0))
    assert not any(name.startswith("sluice_stage_batch_row_limit") for name in scraped(meter, clock))
    meter.committed(batch(1, row_limit=20_000))
    assert scraped(meter, clock)[f"sluice_stage_batch_row_limit{{{LABELS}}}"] == 20_000


def test_the_container_shows_its_lease_its_tasks_and_its_trigger(meter: Meter, clock: FakeClock) -> None:
    found = scraped(meter, clock)
    assert found["sluice_container_lease_seconds_left{}"] == 33
    assert found["sluice_container_tasks_owned{}"] == 2
    assert found["sluice_container_trigger_seconds{}"] == 1


def test_before_the_registration_no_lease_is_shown(meter: Meter, clock: FakeClock) -> None:
    assert "sluice_container_lease_seconds_left{}" not in scraped(meter, clock, lease_left=None)


# --- the processes -----------------------------------------------------------------------------------------------------


def samples(found: Iterable[Metric]) -> dict[tuple[str, str], float]:
    """By the sample's name and its first label."""
    return {(sample.name, next(iter(sample.labels.values()), "")): sample.value for each in found for sample in each.samples}


def test_heap_and_collections_of_the_jvm_are_exposed() -> None:
    usage = JvmUsage(heap_used=700, heap_max=1000, collections={"G1 Old": (2, 0.5), "G1 Young": (30, 1.25)})
    assert samples(jvm_metrics(usage)) == {
        ("sluice_container_jvm_heap_used_bytes", ""): 700,
        ("sluice_container_jvm_heap_max_bytes", ""): 1000,
        ("sluice_container_jvm_collections_total", "G1 Old"): 2,
        ("sluice_container_jvm_collections_total", "G1 Young"): 30,
        ("sluice_container_jvm_collection_seconds_total", "G1 Old"): 0.5,
        ("sluice_container_jvm_collection_seconds_total", "G1 Young"): 1.25,
    }


def test_a_heap_without_a_limit_has_no_series_of_one() -> None:
    assert ("sluice_container_jvm_heap_max_bytes", "") not in samples(jvm_metrics(JvmUsage(700, None, {})))


def test_the_versions_and_the_descriptors_of_the_driver_and_of_the_agent_are_exposed() -> None:
    names = {name for name, _ in samples(process_metrics(os.getpid()))}
    assert {"sluice_agent_process_open_fds", "sluice_agent_process_resident_memory_bytes"} <= names
    assert {"sluice_build_info", "process_open_fds", "process_max_fds", "process_resident_memory_bytes"} <= names
