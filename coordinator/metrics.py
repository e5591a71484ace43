"""The coordinator's metrics, collected when they are asked for: the hot paths count with plain integers."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from coordinator.leases import Leases
from coordinator.maintenance import Maintenance


class CoordinatorCollector(Collector):
    def __init__(self, leases: Leases, maintenance: Maintenance) -> None:
        self._leases = leases
        self._maintenance = maintenance

    def collect(self) -> Iterable[Metric]:
        beats = CounterMetricFamily("sluice_heartbeats", "Heartbeats by answer; invalid ones got alive: false.", labels=["answer"])
        beats.add_metric(["alive"], self._leases.answered_alive)
        beats.add_metric(["invalid"], self._leases.answered_invalid)
        yield beats
        terms = self._leases.terms
        yield GaugeMetricFamily("sluice_valid_containers", "Containers with a valid lease.", len(self._leases))
        yield GaugeMetricFamily("sluice_lease_seconds", "The lease that containers are given now.", terms.lease.total_seconds())
        yield GaugeMetricFamily("sluice_heartbeat_interval_seconds", "The heartbeat interval dictated now.", terms.interval.total_seconds())
        yield GaugeMetricFamily(
            "sluice_lease_overlap_seconds",
            "The worst-case window in which two incarnations of a slot can act, by the settings.",
            self._leases.policy.overlap(terms).total_seconds(),
        )
        chores = CounterMetricFamily("sluice_chore_items", "What the chores have done, by chore and kind.", labels=["chore", "kind"])
        for (chore, kind), count in sorted(self._maintenance.done.items()):
            chores.add_metric([chore, kind], count)
        yield chores


def new_registry(leases: Leases, maintenance: Maintenance) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(CoordinatorCollector(leases, maintenance))
    ProcessCollector(registry=registry)
    return registry


def exposition(registry: CollectorRegistry) -> bytes:
    """Prometheus' text format."""
    return generate_latest(registry)
