"""Details of runs as a coordinator tells them, for tests of what people are shown."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sluice.wire import runs as wire_runs

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
RUN = "flight-delays-20260301T115500-abc123"
STAGES = ({"name": "route", "reads": ("flights",)}, {"name": "hourly", "reads": ("by-carrier",)})


def ago(**how_long: float) -> datetime:
    return NOON - timedelta(**how_long)


def execution_id(slot: int, suffix: str = "0a1b2c3d") -> str:
    return f"{RUN}-container-{slot}-{suffix}"


def measures(**changes: Any) -> wire_runs.StageMeasures:
    told = {"rows": 5000, "rows_per_second": 1000.0, "batch_millis": 800, "offsets_behind": 100, "at": ago(seconds=2)}
    return wire_runs.StageMeasures.model_validate(told | changes)


def stage(name: str, **changes: Any) -> wire_runs.StageProgress:
    """A stage that committed batch 41 two seconds ago."""
    told = {"stage": name, "lineage": "l1", "batch_id": 41, "offsets": (), "reported_at": ago(seconds=2), "measures": measures()}
    return wire_runs.StageProgress.model_validate(told | changes)


def task(number: int, holder: str | None, *stages: wire_runs.StageProgress, generation: int | None = 1) -> wire_runs.TaskReply:
    return wire_runs.TaskReply(
        task=f"Partition {number}",
        processor_id=str(number % 2),
        generation=generation,
        holder=holder,
        stages=stages or (stage("route"), stage("hourly")),
    )


def container(slot: int, **changes: Any) -> wire_runs.ContainerReply:
    told = {
        "execution_container_id": execution_id(slot),
        "processor_id": str(slot),
        "epoch": 1,
        "host": "worker-7.example",
        "state": "LIVE",
        "registered_at": ago(minutes=4),
        "last_seen_at": ago(seconds=1),
        "ended_at": None,
        "exit_code": None,
        "reason": "",
        "lease_seconds_left": 36.2 - slot,
    }
    return wire_runs.ContainerReply.model_validate(told | changes)


def detail(**changes: Any) -> wire_runs.RunDetail:
    """A healthy run of two containers and four tasks, told at noon."""
    told = {
        "run_id": RUN,
        "job": "flight-delays",
        "state": "RUNNING",
        "origin": RUN,
        "reason": "",
        "containers": 2,
        "job_model_version": 1,
        "streams": (),
        "stages": STAGES,
        "config": {},
        "systems": {},
        "created_at": ago(minutes=5),
        "started_at": ago(minutes=4, seconds=12),
        "stop_requested_at": None,
        "ended_at": None,
        "told_at": NOON,
        "incarnations": (container(0), container(1)),
        "tasks": tuple(task(n, execution_id(n % 2)) for n in range(4)),
    }
    return wire_runs.RunDetail.model_validate(told | changes)
