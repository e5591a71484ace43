"""FastAPI dependencies: the objects that routes call, path parameters, headers, and the problem responses that every route declares."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any

from fastapi import Depends, Header, Path, Request

from coordinator.api.exposition import Exposition
from coordinator.blobpool import BlobStores
from coordinator.drains.drains import Drains
from coordinator.fleet.blob_credentials import BlobCredentials
from coordinator.fleet.issued import IssuedNumbers
from coordinator.fleet.leases import Leases
from coordinator.fleet.notices import Notices
from coordinator.fleet.registration import Registrations
from coordinator.fleet.stage_metrics import StageMetrics
from coordinator.health import Health
from coordinator.jobmodels.cache import JobModels
from coordinator.jobmodels.partition_monitor import PartitionMonitor
from coordinator.jobmodels.rollout import Adoptions, ModelHistory
from coordinator.jobmodels.standby import Standbys
from coordinator.jobmodels.versions import ModelVersions
from coordinator.runs.deploy import Deployments
from coordinator.runs.lag import LagMonitor
from coordinator.runs.removal import Removal
from coordinator.runs.runs import BasicRunBodies, Runs
from coordinator.runs.tasks import Tasks
from coordinator.runs.timeline import Timeline
from coordinator.runs.transactions import AbortTransactions
from coordinator.runs.watermarks import WatermarkCoordinator
from coordinator.snapshots.audit import Audits
from coordinator.snapshots.catalog import SnapshotCatalog
from coordinator.snapshots.degraded import BackupMonitor
from coordinator.snapshots.gc import GarbageCollector
from coordinator.snapshots.lost import FindLostBlobs
from coordinator.snapshots.operations import Operations
from coordinator.snapshots.reports import Snapshots
from sluice.core.access.metrics_address import ScrapeHosts
from sluice.core.drain import DrainTimeLimits
from sluice.streams.port import StreamSystem
from sluice.wire import body as wire_body

PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"content": {"application/problem+json": {"schema": wire_body.Problem.model_json_schema()}}, "description": description}
    for status, description in {
        400: "The body cannot be read",
        401: "No valid token",
        403: "Not allowed",
        404: "Unknown",
        409: "Stale, in use or lease lost",
        412: "Another version of the job model is in force",
        413: "Body too large",
        421: "Unknown host",
        429: "Too many wrong tokens",
        422: "Refused",
        500: "Internal error, or stored data is corrupt",
        503: "Try again",
    }.items()
}


def _state(name: str) -> Callable[[Request], Awaitable[Any]]:
    """A dependency that returns this attribute of the application's state. It is asynchronous, because FastAPI runs synchronous
    dependencies in threads, where requests could overtake one another."""

    async def get(request: Request) -> Any:
        return getattr(request.app.state, name)

    return get


ACTOR_PATTERN = r"^[\x20-\x7e]*$"


async def get_actor(
    request: Request,
    actor: Annotated[str, Header(alias=wire_body.ACTOR_HEADER, max_length=200, pattern=ACTOR_PATTERN)] = "",
) -> str:
    """The principal of the request; without authentication the user that it names, "" if it names none."""
    principal = getattr(request.state, "principal", None)
    return principal.name if principal is not None else actor


Actor = Annotated[str, Depends(get_actor)]
RunIdPath = Annotated[str, Path(alias="runId", max_length=300)]
TaskPath = Annotated[str, Path(max_length=600)]
StagePath = Annotated[str, Path(max_length=300)]
JobPath = Annotated[str, Path(max_length=300)]
CheckpointPath = Annotated[str, Path(alias="checkpointId", max_length=300)]


@dataclass(frozen=True, slots=True)
class Parts:
    """What the routes of runs, containers and operations tools call. Built once, by `coordinator.app`."""

    deployments: Deployments
    runs: Runs
    timeline: Timeline
    tasks: Tasks
    watermarks: WatermarkCoordinator
    registrations: Registrations
    models: JobModels
    leases: Leases
    stage_metrics: StageMetrics
    lag: LagMonitor
    notices: Notices
    health: Health
    exposition: Exposition
    systems: dict[str, StreamSystem]
    blob_stores: BlobStores
    blob_credentials: BlobCredentials
    snapshots: Snapshots
    backup_monitor: BackupMonitor
    lost_blobs: FindLostBlobs
    transactions: AbortTransactions
    issued: IssuedNumbers
    removal: Removal
    notices_wait: timedelta
    metrics_hosts: ScrapeHosts
    deployer_spark_settings: tuple[str, ...]
    basic_runs: BasicRunBodies = field(default_factory=BasicRunBodies)

    @property
    def connections(self) -> dict[str, dict[str, str]]:
        return {name: dict(system.connection()) for name, system in self.systems.items()}


PartsDep = Annotated[Parts, Depends(_state("parts"))]


@dataclass(frozen=True, slots=True)
class JobModelParts:
    """What the routes of job models call. Built once, by `coordinator.app`."""

    runs: Runs
    versions: ModelVersions
    history: ModelHistory
    adoptions: Adoptions
    watch: PartitionMonitor
    blob_stores: BlobStores
    standbys: Standbys
    watermarks: WatermarkCoordinator


JobModelsDep = Annotated[JobModelParts, Depends(_state("versioning"))]


@dataclass(frozen=True, slots=True)
class DrainParts:
    """What the routes of drains call. Built once, by `coordinator.app`. `times`: the defaults for requests without deadlines."""

    drains: Drains
    times: DrainTimeLimits


DrainsDep = Annotated[DrainParts, Depends(_state("draining"))]


@dataclass(frozen=True, slots=True)
class SnapshotParts:
    """What the routes of snapshots call. Built once, by `coordinator.app`."""

    snapshots: Snapshots
    blob_stores: BlobStores
    catalog: SnapshotCatalog
    audits: Audits
    collection: GarbageCollector
    operations: Operations


SnapshotsDep = Annotated[SnapshotParts, Depends(_state("backups"))]
