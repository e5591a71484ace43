"""Roles. Which role may send which request is the table in `coordinator.api.access`."""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    VIEWER = "viewer"
    """Reads everything but secrets and the audit trail."""
    OPERATOR = "operator"
    """Also stops, scales, drains, and restores snapshots."""
    DEPLOYER = "deployer"
    """Reads, deploys and upgrades jobs: what a deployment runs is code."""
    AGENT = "agent"
    """Registers containers. What they do then needs the token that the registration returns."""
    LAUNCHER = "launcher"
    """Starts containers: registers those of Apache Samza, and reports exits of containers that it has seen end."""
    METRICS = "metrics"
    """Reads metrics and the list of containers that expose some."""
    ADMIN = "admin"
    """Everything, with tokens, garbage collection and the audit trail."""
