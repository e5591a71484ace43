"""Metrics of job models and of the streams that make them grow, in the manner of `coordinator.metrics`."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from coordinator.partitionwatch import PartitionWatch
from coordinator.survey import Survey
from sluice.clock import Clock
from sluice.core.expansion import Verdict

_STREAM = ["sluice_job", "system", "stream"]


def of_streams(watch: PartitionWatch, clock: Clock) -> Iterable[Metric]:
    """The inputs of live runs as the partition monitor found them last."""
    seen = GaugeMetricFamily("sluice_stream_partitions", "Partitions that an input of a job has.", labels=_STREAM)
    known = GaugeMetricFamily("sluice_stream_partitions_known", "Partitions of an input that the job reads.", labels=_STREAM)
    refused = GaugeMetricFamily("sluice_stream_growth_refused", "1 when a job cannot go along with a change of its input.", labels=_STREAM)
    unseen = GaugeMetricFamily(
        "sluice_stream_unseen_seconds", "How long it has not been possible to look at an input; 0 when it is.", labels=_STREAM
    )
    now = clock.now()
    for rows in watch.watched.values():
        for row in rows:
            labels = [row.job, row.system, row.stream]
            if row.seen is not None:
                seen.add_metric(labels, row.seen)
            known.add_metric(labels, row.known)
            refused.add_metric(labels, float(row.verdict is Verdict.REFUSED))
            unseen.add_metric(labels, 0.0 if row.seen is not None else (now - row.since).total_seconds())
    yield from (seen, known, refused, unseen)


def of_versions(survey: Survey) -> Iterable[Metric]:
    """Of the jobs whose runs go on; nothing while the database did not answer for a minute."""
    version = GaugeMetricFamily("sluice_job_model_version", "The version of the job model in force.", labels=["sluice_job"])
    behind = GaugeMetricFamily("sluice_job_containers_behind", "Live containers that have not adopted that version.", labels=["sluice_job"])
    away = GaugeMetricFamily("sluice_job_slots_given_away", "Slots whose tasks a fail-over gave to others.", labels=["sluice_job"])
    for job in survey.jobs:
        if job.state.ended:
            continue
        version.add_metric([job.job], job.version)
        behind.add_metric([job.job], sum(count for told, count in job.tally.versions.items() if told < job.version))
        away.add_metric([job.job], job.given_away)
    yield from (version, behind, away)
