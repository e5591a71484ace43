"""Roles. The table in `coordinator.api.access` defines which role may send which request."""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    VIEWER = "viewer"
    """Reads everything except secrets and the audit log."""
    OPERATOR = "operator"
    """Also stops, scales, drains, and restores snapshots."""
    DEPLOYER = "deployer"
    """Reads, deploys and upgrades jobs. A deployment runs code."""
    AGENT = "agent"
    """Registers containers. Their further requests need the token of the registration."""
    LAUNCHER = "launcher"
    """Starts containers: registers those of Apache Samza, and reports the exits of containers."""
    METRICS = "metrics"
    """Reads metrics and the list of containers that expose metrics."""
    ADMIN = "admin"
    """Everything, including tokens, garbage collection and the audit log."""
