"""Metrics of backups and restores, beside those of `containers/exposition.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from containers.backupmeters import BackupMeter, CopyMeter, Transfers
from sluice.blobs.counted import Requests
from sluice.core.ids import StageName, TaskName

LABELS = ["task", "stage"]

BackupMeters = Mapping[tuple[TaskName, StageName], BackupMeter]


Copies = Mapping[tuple[TaskName, StageName], CopyMeter]


def backup_metrics(meters: BackupMeters, requests: Requests, copies: Copies) -> Iterable[Metric]:
    yield from _of_transfers("backup", "uploaded", {key: meter.backup for key, meter in meters.items()})
    yield from _of_transfers("restore", "restored", {key: meter.restore for key, meter in meters.items()})
    yield from _of_transfers("standby", "copied", {key: meter.transfers for key, meter in copies.items()})
    yield from _of_copies(copies)
    yield from _durability(meters)
    yield from _requests(requests)


def _of_transfers(what: str, done: str, found: Mapping[tuple[str, str], Transfers]) -> Iterable[Metric]:
    name = f"sluice_stage_{what}"
    files = CounterMetricFamily(f"{name}_{done}_files", f"Files {done}.", labels=LABELS)
    size = CounterMetricFamily(f"{name}_{done}_bytes", f"Bytes {done}.", labels=LABELS)
    kept_files = CounterMetricFamily(f"{name}_retained_files", "Files that were where they should be already.", labels=LABELS)
    kept_size = CounterMetricFamily(f"{name}_retained_bytes", "Bytes that were where they should be already.", labels=LABELS)
    left_files = GaugeMetricFamily(f"{name}_remaining_files", "Files that are still to be transferred.", labels=LABELS)
    left_size = GaugeMetricFamily(f"{name}_remaining_bytes", "Bytes that are still to be transferred.", labels=LABELS)
    failed = CounterMetricFamily(f"{name}_failures", "How often it failed.", labels=LABELS)
    took = HistogramMetricFamily(f"{name}_seconds", "How long it took.", labels=LABELS)
    for key, each in found.items():
        files.add_metric(key, each.done_files)
        size.add_metric(key, each.done_bytes)
        kept_files.add_metric(key, each.retained_files)
        kept_size.add_metric(key, each.retained_bytes)
        left_files.add_metric(key, each.planned_files - each.done_files)
        left_size.add_metric(key, each.planned_bytes - each.done_bytes)
        failed.add_metric(key, each.failed)
        took.add_metric(key, each.seconds.buckets(), each.seconds.total)
    return files, size, kept_files, kept_size, left_files, left_size, failed, took


def _of_copies(copies: Copies) -> Iterable[Metric]:
    at = GaugeMetricFamily(
        "sluice_stage_standby_timestamp_seconds", "When the copy of another slot's state was changed last.", labels=LABELS
    )
    batch = GaugeMetricFamily("sluice_stage_standby_batch", "The last batch in the copy of another slot's state.", labels=LABELS)
    for key, each in copies.items():
        if each.at is not None and each.batch is not None:
            at.add_metric(key, each.at.timestamp())
            batch.add_metric(key, each.batch)
    return at, batch


def _durability(meters: BackupMeters) -> Iterable[Metric]:
    at = GaugeMetricFamily("sluice_stage_durable_timestamp_seconds", "When state became durable last.", labels=LABELS)
    batch = GaugeMetricFamily("sluice_stage_durable_batch", "The last batch whose state is durable.", labels=LABELS)
    replayed = CounterMetricFamily("sluice_stage_replayed_batches", "Batches run again after a restore.", labels=LABELS)
    replaced = CounterMetricFamily("sluice_stage_replaced_plans", "Batches that another holder of the task had planned.", labels=LABELS)
    for key, each in meters.items():
        if each.durable_at is not None and each.durable_batch is not None:
            at.add_metric(key, each.durable_at.timestamp())
            batch.add_metric(key, each.durable_batch)
        replayed.add_metric(key, each.replayed)
        replaced.add_metric(key, each.replaced)
    return at, batch, replayed, replaced


def _requests(requests: Requests) -> Iterable[Metric]:
    labels = ["operation", "purpose"]
    asked = CounterMetricFamily("sluice_container_blob_requests", "Requests to blob stores, every attempt.", labels=labels)
    failed = CounterMetricFamily("sluice_container_blob_requests_failed", "Those that failed.", labels=labels)
    for kind, count in sorted(dict(requests.asked).items()):
        asked.add_metric([kind.operation, kind.purpose], count)
        failed.add_metric([kind.operation, kind.purpose], dict(requests.failed).get(kind, 0))
    return asked, failed
