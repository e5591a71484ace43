"""Deprecated names of Prometheus metrics: the coordinator and the containers expose them beside the new ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.metrics_core import Metric

from sluice.core.deprecations import Kind, of_kind

_OLD_NAMES = {str(each.new): each for each in of_kind(Kind.METRIC)}


def with_old_names(metrics: Iterable[Metric]) -> Iterator[Metric]:
    """The metrics. Each renamed metric is followed by the same samples under its old name."""
    for metric in metrics:
        yield metric
        entry = _OLD_NAMES.get(metric.name)
        if entry is not None:
            old = Metric(entry.old, f"Deprecated: use {entry.new}.", metric.type, metric.unit)
            old.samples = [sample._replace(name=entry.old + sample.name.removeprefix(metric.name)) for sample in metric.samples]
            yield old
