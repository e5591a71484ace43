"""Metrics of snapshots, their clean-up and the collection of garbage, in the manner of `coordinator.metrics`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from coordinator.cleanup import CleanUp
from coordinator.collection import Collection
from coordinator.snapshots import Snapshots
from coordinator.survey import Survey
from sluice.blobs.counted import Requests
from sluice.clock import Clock


def of_snapshots(snapshots: Snapshots, survey: Survey, clock: Clock) -> Iterable[Metric]:
    """Of a task the oldest over its stages: that is what a lost disk would cost. Only of jobs that have not ended."""
    age = GaugeMetricFamily(
        "sluice_checkpoint_age_seconds", "How long ago the last durable checkpoint of a task was reported.", labels=["sluice_job", "task"]
    )
    now, going_on = clock.now(), {each.job for each in survey.jobs if not each.state.ended}
    oldest: dict[tuple[str, str], float] = {}
    for key, at in snapshots.newest.items():
        if key.job not in going_on:
            continue
        seconds = (now - at).total_seconds()
        oldest[key.job, key.task] = max(seconds, oldest.get((key.job, key.task), seconds))
    for (job, task), seconds in sorted(oldest.items()):
        age.add_metric([job, task], seconds)
    yield age


def of_clean_up(clean_up: CleanUp, clock: Clock) -> Iterable[Metric]:
    length = GaugeMetricFamily("sluice_cleanup_items", "What is to be cleaned up after reports, by kind.", labels=["kind"])
    failing = GaugeMetricFamily("sluice_cleanup_items_failing", "Of these, what has failed and is tried again.", labels=["kind"])
    oldest = GaugeMetricFamily("sluice_cleanup_oldest_seconds", "How long the oldest of these has waited.", labels=["kind"])
    now = clock.now()
    for each in clean_up.queue:
        length.add_metric([each.kind.value], each.length)
        failing.add_metric([each.kind.value], each.failing)
        oldest.add_metric([each.kind.value], (now - each.oldest).total_seconds())
    yield from (length, failing, oldest)
    yield GaugeMetricFamily(
        "sluice_cleanup_overdue",
        "1 when the time to live of something that counts was not removed within a third of it: it may expire.",
        float(clean_up.overdue(now)),
    )


def of_collection(collection: Collection) -> Iterable[Metric]:
    families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {
        "condemned": CounterMetricFamily("sluice_blobs_condemned", "Blobs found to be garbage.", labels=["blob_store"]),
        "deleted": CounterMetricFamily("sluice_blobs_deleted", "Blobs deleted as garbage.", labels=["blob_store"]),
        "deleted_bytes": CounterMetricFamily("sluice_blobs_deleted_bytes", "Bytes of these.", labels=["blob_store"]),
        "pardoned": CounterMetricFamily("sluice_blobs_pardoned", "Condemned blobs that were no garbage, or gone.", labels=["blob_store"]),
        "passes": CounterMetricFamily("sluice_collections", "Collections of garbage that came to their end.", labels=["blob_store"]),
        "waiting": GaugeMetricFamily("sluice_blobs_waiting", "Condemned blobs whose grace is not over.", labels=["blob_store"]),
        "not_judged": GaugeMetricFamily(
            "sluice_collection_not_judged", "Prefixes that the last collection knew too little of to judge.", labels=["blob_store"]
        ),
    }
    for name, totals in collection.totals.items():
        for field, family in families.items():
            family.add_metric([name], getattr(totals, field))
    yield from families.values()


def of_requests(requests: Mapping[str, Requests]) -> Iterable[Metric]:
    asked = CounterMetricFamily(
        "sluice_blob_requests", "The coordinator's requests to blob stores.", labels=["blob_store", "operation", "purpose"]
    )
    failed = CounterMetricFamily("sluice_blob_requests_failed", "Those that failed.", labels=["blob_store", "operation", "purpose"])
    for name, counted in sorted(requests.items()):
        for family, counts in ((asked, counted.asked), (failed, counted.failed)):
            for kind, count in sorted(counts.items()):
                family.add_metric([name, kind.operation, kind.purpose.value], count)
    yield from (asked, failed)
