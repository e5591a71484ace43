"""The coordinator's metrics, collected when they are asked for: the hot paths count with plain integers, and nothing here waits for a
database. docs/operating.md lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from coordinator.jobmodels import JobModels
from coordinator.leases import Leases
from coordinator.maintenance import Maintenance
from coordinator.notices import Notices
from coordinator.store.port import ContainerState
from coordinator.survey import Survey
from coordinator.traffic import Traffic
from sluice.core.lifecycle import RunState

Source = Callable[[], Iterable[Metric]]


def of_leases(leases: Leases) -> Iterable[Metric]:
    beats = CounterMetricFamily("sluice_heartbeats", "Heartbeats by answer; invalid ones got alive: false.", labels=["answer"])
    beats.add_metric(["alive"], leases.answered_alive)
    beats.add_metric(["invalid"], leases.answered_invalid)
    yield beats
    terms = leases.terms
    yield GaugeMetricFamily("sluice_valid_containers", "Containers with a valid lease.", len(leases))
    yield GaugeMetricFamily(
        "sluice_ending_containers",
        "Containers that are not valid, and may still act until their lease and grace have passed.",
        leases.ending,
    )
    yield GaugeMetricFamily("sluice_lease_seconds", "The lease that containers are given now.", terms.lease.total_seconds())
    yield GaugeMetricFamily("sluice_heartbeat_interval_seconds", "The heartbeat interval dictated now.", terms.interval.total_seconds())
    yield GaugeMetricFamily(
        "sluice_lease_overlap_seconds",
        "The worst-case window in which two incarnations of a slot can act, by the settings.",
        leases.policy.overlap(terms).total_seconds(),
    )


def of_jobs(survey: Survey) -> Iterable[Metric]:
    """Jobs by their current runs; nothing while the database did not answer for a minute."""
    state = GaugeMetricFamily(
        "sluice_job_state", "1 for the state of the job's current run, 0 for the others.", labels=["sluice_job", "state"]
    )
    slots = GaugeMetricFamily("sluice_job_slots", "Containers that the job's run asks for.", labels=["sluice_job"])
    containers = GaugeMetricFamily(
        "sluice_job_containers", "Incarnations that the job's run has and had, by state.", labels=["sluice_job", "state"]
    )
    held = GaugeMetricFamily("sluice_job_tasks_held", "Tasks that a container holds.", labels=["sluice_job"])
    unheld = GaugeMetricFamily("sluice_job_tasks_unheld", "Tasks that no container holds.", labels=["sluice_job"])
    behind = GaugeMetricFamily(
        "sluice_job_offsets_behind",
        "Records that a stage has still to read, over all its tasks, whether anybody holds them or not.",
        labels=["sluice_job", "stage"],
    )
    for job in survey.jobs:
        for each in RunState:
            state.add_metric([job.job, each.value], float(job.state is each))
        if job.state.ended:
            continue
        slots.add_metric([job.job], job.slots)
        for kind in ContainerState:
            containers.add_metric([job.job, kind.value], job.tally.containers.get(kind, 0))
        held.add_metric([job.job], job.tally.held)
        unheld.add_metric([job.job], job.unheld)
        for stage, count in sorted(job.behind.items()):
            behind.add_metric([job.job, stage], count)
    yield from (state, slots, containers, held, unheld, behind)


def of_chores(maintenance: Maintenance) -> Iterable[Metric]:
    turns = CounterMetricFamily("sluice_chore_turns", "How often each chore had its turn.", labels=["chore"])
    for name, count in sorted(maintenance.turns.items()):
        turns.add_metric([name], count)
    yield turns
    seconds = CounterMetricFamily("sluice_chore_seconds", "How long these turns took in all.", labels=["chore"])
    for name, total in sorted(maintenance.seconds.items()):
        seconds.add_metric([name], total)
    yield seconds
    items = CounterMetricFamily("sluice_chore_items", "What the chores have done, by chore and kind.", labels=["chore", "kind"])
    for (chore, kind), count in sorted(maintenance.done.items()):
        items.add_metric([chore, kind], count)
    yield items


def of_traffic(traffic: Traffic, models: JobModels, notices: Notices) -> Iterable[Metric]:
    requests = CounterMetricFamily(
        "sluice_http_requests",
        "Requests by route and answer; without heartbeats of valid containers and job models that had not changed.",
        labels=["method", "route", "status"],
    )
    for (method, route, status), count in sorted(traffic.answers.items()):
        requests.add_metric([method, route, str(status)], count)
    yield requests
    durations = HistogramMetricFamily(
        "sluice_http_request_duration_seconds", "How long the same requests took.", labels=["method", "route"]
    )
    for (method, route), found in sorted(traffic.durations.items()):
        durations.add_metric([method, route], found.buckets(), found.total)
    yield durations
    yield CounterMetricFamily("sluice_models_unchanged", "Job models that the asker had already.", models.answered_unchanged)
    yield GaugeMetricFamily("sluice_notice_polls", "Polls that wait for notices: one of each agent.", notices.polls)


def of_database(failures: Callable[[], int]) -> Iterable[Metric]:
    yield CounterMetricFamily("sluice_database_errors", "How often the database did not do what it was asked.", failures())


class _All(Collector):
    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources

    def collect(self) -> Iterable[Metric]:
        for source in self._sources:
            yield from source()


def new_registry(sources: Sequence[Source]) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(_All(sources))
    ProcessCollector(registry=registry)
    return registry


def exposition(registry: CollectorRegistry) -> bytes:
    """Prometheus' text format."""
    return generate_latest(registry)
