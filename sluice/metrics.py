"""Metrics that the coordinator and the containers have in common. Renamed metrics are exposed under their deprecated names, too."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator
from importlib.metadata import version

from prometheus_client.metrics_core import InfoMetricFamily, Metric

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


def build_info() -> Metric:
    info = InfoMetricFamily("sluice_build", "Versions of Sluice and of Python.")
    info.add_metric([], {"version": version("sluice-spark"), "python": platform.python_version()})
    return info
