"""Metrics that the coordinator and the containers have in common."""

from __future__ import annotations

import platform
from importlib.metadata import version

from prometheus_client.metrics_core import InfoMetricFamily, Metric


def build_info() -> Metric:
    info = InfoMetricFamily("sluice_build", "Versions of Sluice and of Python.")
    info.add_metric([], {"version": version("sluice-spark"), "python": platform.python_version()})
    return info
