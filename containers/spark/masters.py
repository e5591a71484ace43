"""Where the executors of a session run, and how many there are, according to its master and settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from sluice.core.errors import BadSettings

_LOCAL = re.compile(r"local(\[[^\]]*\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,")
_LOOPBACK = re.compile(r"localhost|127(\.\d+){3}|::1")
_DEFAULT_EXECUTORS = 2
"""Spark's own default of `spark.executor.instances`, on Kubernetes and YARN."""


def is_local(master: str) -> bool:
    """Whether the driver is the only executor: queries then run only in its process and its Python workers."""
    return _LOCAL.fullmatch(master) is not None


def is_loopback(master: str) -> bool:
    """Whether only processes of this machine connect to the driver: local masters, and standalone ones at a loopback address."""
    if is_local(master) or master.startswith("local-cluster["):
        return True
    hosts = [urlsplit(f"//{each}").hostname or "" for each in master.removeprefix("spark://").split(",")]
    return master.startswith("spark://") and all(_LOOPBACK.fullmatch(host) for host in hosts)


def executors_requested(master: str, conf: Mapping[str, str]) -> int:
    """The number of executors that a session requests of that master, according to its settings; at least 1. Raises BadSettings."""
    if is_true(conf, "spark.dynamicAllocation.enabled"):
        names = ("minExecutors", "initialExecutors")
        return max(1, *(_count(conf, f"spark.dynamicAllocation.{name}", 1) for name in names))
    if cluster := _LOCAL_CLUSTER.match(master):
        return int(cluster[1])
    if master.startswith("spark://"):
        cores, each = (_count(conf, name, 0) for name in ("spark.cores.max", "spark.executor.cores"))
        return max(1, cores // each) if each else 1
    return max(1, _count(conf, "spark.executor.instances", _DEFAULT_EXECUTORS))


def is_true(conf: Mapping[str, str], name: str) -> bool:
    return conf.get(name, "").strip().lower() == "true"


def _count(conf: Mapping[str, str], name: str, default: int) -> int:
    text = conf.get(name, "").strip() or str(default)
    if not text.isdecimal():
        raise BadSettings(f"{name} must be a whole number, not {text!r}")
    return int(text)
