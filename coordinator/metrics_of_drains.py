"""Metrics of drains, in the manner of `coordinator.metrics`."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from coordinator.drainwatch import DrainWatch
from sluice.clock import Clock
from sluice.core.drain import Phase, Step


def of_drains(watch: DrainWatch, clock: Clock) -> Iterable[Metric]:
    """The drains that are on, as they were a second ago, and how many ended how, since ever."""
    seconds = GaugeMetricFamily("sluice_drain_phase_seconds", "How long a drain has been in its phase.", labels=["sluice_job", "phase"])
    stages = GaugeMetricFamily("sluice_drain_stages", "Stages of tasks by the last step that they took.", labels=["sluice_job", "step"])
    late = GaugeMetricFamily(
        "sluice_drain_late", "1 when a drain is behind its soft deadline or its phase's budget.", labels=["sluice_job"]
    )
    now = clock.now()
    for each in watch.active:
        job = each.drain.job
        seconds.add_metric([job, each.drain.phase.value], (now - each.drain.entered_at).total_seconds())
        for step in Step:
            stages.add_metric([job, step.name.lower()], each.steps.get(step, 0))
        late.add_metric([job], float(each.late))
    ended = CounterMetricFamily("sluice_drains", "Drains that are over, by how they ended.", labels=["phase"])
    for phase in (each for each in Phase if each.over):
        ended.add_metric([phase.value], watch.outcomes.get(phase, 0))
    yield from (seconds, stages, late, ended)
