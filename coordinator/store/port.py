"""The store port: what the coordinator remembers, as rows.

The contract, tested by `tests/contracts/store.py` on every implementation:

* `begin()` is one transaction: all its writes become durable when the block ends, none when it raises. Transactions that write are
  serial: what one has read does not change before it ends. `read()` is the same without writes.
* `put_…` writes a row whole, also over an older one with the same key, so it may run twice. Rows are values.
* Lists are in the order of their keys unless said otherwise.
* A database that cannot be reached, is full, or is read-only raises StoreUnavailable; nothing of the transaction is kept.
* Once `claim()` was called, nothing is written unless the claim is held (StoreUnavailable).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from coordinator.store.drains import DrainReading, DrainWriting
from coordinator.store.jobmodels import VersionReading, VersionWriting
from coordinator.store.snapshots import BackupReading, BackupWriting
from sluice.core.grouping import Previous
from sluice.core.ids import Epoch, ExecutionContainerId, Generation, JobName, Lineage, ProcessorId, RunId, Ssp, StageName, TaskName
from sluice.core.lifecycle import RunState
from sluice.core.ownership import TaskOwner
from sluice.core.snapshot import CommitId
from sluice.core.spec import RunSpec


@dataclass(frozen=True, slots=True)
class RunRow:
    """One deployment. `spec` is the request that made it, with its streams as looked up and its number of containers as changed since.
    `first_run`: the first run of the history that it continues. `failing` marks a stop that ends as FAILED. `backup` says to which blob
    stores its state goes, and from which it comes (`coordinator.blobpool.Backup`); None for what the settings say."""

    run_id: RunId
    job: JobName
    state: RunState
    first_run: RunId
    spec: RunSpec
    model_version: int
    created_at: datetime
    started_at: datetime | None = None
    stop_requested_at: datetime | None = None
    ended_at: datetime | None = None
    reason: str = ""
    failing: bool = False
    backup: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class JobRow:
    job: JobName
    current_run: RunId
    state: RunState
    runs: int


class ContainerState(StrEnum):
    LIVE = "LIVE"
    EXITED = "EXITED"
    LOST = "LOST"
    REPLACED = "REPLACED"


@dataclass(frozen=True, slots=True)
class ContainerRow:
    """One incarnation of a slot. `model_version`: the version of the job model that it runs, by its registration or by its own word at
    `adopted_at`."""

    execution_id: ExecutionContainerId
    run_id: RunId
    job: JobName
    processor_id: ProcessorId
    epoch: Epoch
    host: str
    bare: bool
    state: ContainerState
    registered_at: datetime
    last_seen_at: datetime
    ended_at: datetime | None = None
    exit_code: int | None = None
    reason: str = ""
    metrics_address: str | None = None
    model_version: int = 0
    adopted_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class TaskOwnershipRow:
    """The last grant of a job's task."""

    job: JobName
    task: TaskName
    run_id: RunId
    hold: TaskOwner
    acquired_at: datetime


@dataclass(frozen=True, slots=True)
class StoreRow:
    """The checkpoint directory of a stage of a task: its lineage, and the last batch reported (None before the first).

    `head` is the snapshot that the next one follows and that a restore begins with: the newest reported, or the one that an operator chose
    (`chosen`, until a new lineage has begun with it). `former` is the lineage before this one."""

    job: JobName
    task: TaskName
    stage: StageName
    lineage: Lineage
    batch_id: int | None = None
    offsets: Mapping[Ssp, int] = field(default_factory=dict)
    generation: Generation | None = None
    reported_at: datetime | None = None
    head: CommitId | None = None
    chosen: bool = False
    former: Lineage | None = None


@dataclass(frozen=True, slots=True)
class Tally:
    """Of a run: its incarnations by state, how many tasks are held under it, and its live containers by the version that they run."""

    containers: Mapping[ContainerState, int]
    held: int
    versions: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NoticeRow:
    run_id: RunId
    seq: int
    kind: str
    at: datetime
    detail: Mapping[str, Any]


class Reading(BackupReading, DrainReading, VersionReading, Protocol):
    async def run(self, run_id: RunId) -> RunRow | None: ...

    async def current_run(self, job: JobName) -> RunRow | None:
        """The job's newest run, ended or not."""
        ...

    async def active_runs(self) -> Sequence[RunRow]:
        """The runs that have not ended, oldest first."""
        ...

    async def runs(self, job: JobName | None, older_than: RunRow | None, limit: int) -> Sequence[RunRow]:
        """Up to `limit` runs of the job, or of all jobs, newest first; only those that come after `older_than` in that order."""
        ...

    async def jobs(self) -> Sequence[JobRow]: ...

    async def assignment(self, job: JobName) -> Previous:
        """What the last model decided; an empty one before the first."""
        ...

    async def starts(self, run_id: RunId) -> Mapping[Ssp, int]: ...

    async def container(self, execution_id: ExecutionContainerId) -> ContainerRow | None: ...

    async def containers(self, run_id: RunId, processor_id: ProcessorId | None = None) -> Sequence[ContainerRow]:
        """The incarnations of a run's slots, or of one slot, by slot and epoch."""
        ...

    async def has_standing(self, run_id: RunId) -> bool:
        """Whether a container of the run has not ended."""
        ...

    async def standing_containers(self) -> Sequence[ContainerRow]:
        """The containers of all runs that are not known to be gone: those alive, and those replaced that may still act."""
        ...

    async def holds(self, job: JobName) -> Sequence[TaskOwnershipRow]: ...

    async def hold(self, job: JobName, task: TaskName) -> TaskOwnershipRow | None: ...

    async def holds_of(self, execution_id: ExecutionContainerId) -> Sequence[TaskOwnershipRow]:
        """The tasks that the container holds and has not released."""
        ...

    async def tally(self, run_id: RunId, job: JobName) -> Tally:
        """What there is of a run of the job, counted by the database."""
        ...

    async def stores(self, job: JobName, task: TaskName | None = None) -> Sequence[StoreRow]: ...

    async def newest_notice(self, run_id: RunId) -> int:
        """The number of the run's newest notice; 0 without any."""
        ...

    async def notices(self, run_id: RunId, after: int) -> Sequence[NoticeRow]:
        """The run's notices with a greater number, in order."""
        ...


class Writing(Reading, BackupWriting, DrainWriting, VersionWriting, Protocol):
    async def put_run(self, row: RunRow) -> None:
        """Write a run; a new one becomes its job's current run."""
        ...

    async def put_assignment(self, job: JobName, assignment: Previous) -> None:
        """Replace the job's assignment as a whole: rows of removed streams go."""
        ...

    async def put_starts(self, run_id: RunId, starts: Mapping[Ssp, int]) -> None: ...

    async def put_container(self, row: ContainerRow) -> None: ...

    async def seen(self, seen: Iterable[tuple[ExecutionContainerId, datetime]]) -> None:
        """Write when containers were last heard of; ids that are gone are ignored."""
        ...

    async def put_hold(self, row: TaskOwnershipRow) -> None: ...

    async def put_store(self, row: StoreRow) -> None: ...

    async def drop_store(self, row: StoreRow) -> None:
        """Forget one."""
        ...

    async def drop_stores(self, job: JobName) -> None:
        """Forget the job's stores: its next history begins with empty state."""
        ...

    async def add_notice(self, run_id: RunId, kind: str, at: datetime, detail: Mapping[str, Any]) -> int:
        """Append a notice; its number, counted from 1 within the run."""
        ...


class Store(Protocol):
    def begin(self) -> AbstractAsyncContextManager[Writing]: ...

    def read(self) -> AbstractAsyncContextManager[Reading]: ...

    async def claim(self) -> None:
        """Become the only coordinator of this database, until `close`. Called again it looks whether the claim still holds, and takes it
        again if not. Raises DatabaseInUse when another coordinator has it or had it meanwhile, and StoreUnavailable."""
        ...

    @property
    def claimed(self) -> bool:
        """Whether the claim is ours, as far as has been heard."""
        ...

    async def close(self) -> None: ...
