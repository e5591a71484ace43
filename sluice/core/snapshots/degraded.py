"""Differences between the backups that a run requests and those that exist: requested blob stores that are missing, stages without a
snapshot in one of them, and stages whose newest state is not backed up in time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from sluice.core.ids import StageName, TaskName
from sluice.core.snapshots.snapshot import BlobStoreName

StageOfTask = tuple[TaskName, StageName]


class Degradation(StrEnum):
    NOT_CONFIGURED = "not-configured"
    """The coordinator's settings have no blob store of that name."""
    UNAVAILABLE = "unavailable"
    """The coordinator could not open the blob store."""
    NO_SNAPSHOT = "no-snapshot"
    """The newest snapshots of some stages are not in the blob store, or these stages have none."""
    OVERDUE = "overdue"
    """The containers of some stages report that backups fail, or take too long."""


@dataclass(frozen=True, slots=True)
class BackupProblem:
    """`stages`: the stages that are not backed up to `blob_store`, in order. `detail`: the error, if any; of the first stage."""

    blob_store: BlobStoreName
    reason: Degradation
    stages: Sequence[StageOfTask] = ()
    detail: str = ""

    def __str__(self) -> str:
        match self.reason:
            case Degradation.NOT_CONFIGURED:
                return (
                    f"nothing is backed up to blob store {self.blob_store}, which is no longer configured: add it to "
                    "SLUICE_BLOB_STORES, or choose others with PUT /runs/RUN/backup"
                )
            case Degradation.UNAVAILABLE:
                return f"blob store {self.blob_store} cannot be opened: {self.detail}"
            case Degradation.NO_SNAPSHOT:
                return f"the newest state is not backed up to blob store {self.blob_store}: {self._stages}"
            case Degradation.OVERDUE:
                return f"the backup of {self._stages} to blob store {self.blob_store} is overdue: {self.detail}"

    @property
    def _stages(self) -> str:
        first = ", ".join(f"{task}/{stage}" for task, stage in self.stages[:NAMED])
        return first + (f" and {len(self.stages) - NAMED} more" if len(self.stages) > NAMED else "")


NAMED = 5
"""Maximum number of stages that a problem lists; the others are counted."""


def backup_problems(
    requested: Sequence[BlobStoreName],
    configured: Collection[BlobStoreName],
    unavailable: Mapping[BlobStoreName, str],
    heads: Mapping[StageOfTask, Collection[BlobStoreName]],
    overdue: Mapping[StageOfTask, str] = MappingProxyType({}),
) -> Sequence[BackupProblem]:
    """`heads`: for each stage that has committed a batch, the blob stores that have its newest snapshot. `overdue`: the stages whose backup
    is overdue, and why. A snapshot becomes valid when it is in all blob stores, so each of them lacks it."""
    found = []
    for name in requested:
        if name not in configured:
            found.append(BackupProblem(name, Degradation.NOT_CONFIGURED))
            continue
        if name in unavailable:
            found.append(BackupProblem(name, Degradation.UNAVAILABLE, detail=unavailable[name]))
        if overdue:
            late = sorted(overdue)
            found.append(BackupProblem(name, Degradation.OVERDUE, late, overdue[late[0]]))
        without = sorted(stage for stage, stores in heads.items() if name not in stores and stage not in overdue)
        if without:
            found.append(BackupProblem(name, Degradation.NO_SNAPSHOT, without))
    return found
