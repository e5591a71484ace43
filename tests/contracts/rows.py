"""Rows for tests of stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from coordinator.store.cleanup import CleanupKind, CleanupRow, MarkedBlobRow
from coordinator.store.drains import DrainRow, DrainStageRow
from coordinator.store.fleet import ContainerRow, ContainerState, StageStateRow, TaskOwnershipRow
from coordinator.store.jobmodels import ModelRow, MonitoredStreamRow
from coordinator.store.runs import RunRow
from coordinator.store.snapshots import MarkerRow, PinRow, SnapshotRow
from sluice.core.drain import DrainId, Mode, Phase
from sluice.core.ids import Epoch, ExecutionContainerId, Generation, JobName, Lineage, ProcessorId, RunId, Ssp, StageName, TaskName
from sluice.core.jobmodels.expansion import Verdict
from sluice.core.jobmodels.graph import Stage
from sluice.core.jobmodels.spec import Role, RunSpec, StreamSpec
from sluice.core.leases.ownership import TaskOwner
from sluice.core.lifecycle import RunState
from sluice.core.snapshots.snapshot import BlobId, BlobStoreName, CommitId

NOON = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
JOB = JobName("flight-delays")
OTHER = JobName("other.job")
SSP = Ssp("log", "ads.clicks", 3)
LOCAL = BlobStoreName("local")


def run_spec(job: JobName = JOB, stages: Sequence[str] = ("s",), containers: int = 2) -> RunSpec:
    """All stages read the one input, whose name is not ASCII."""
    stream = StreamSpec("é", Role.INPUT, SSP.stream_id, partitions=4, requested_stream=SSP.stream)
    return RunSpec(job, containers, (stream,), tuple(Stage(StageName(name), ("é",)) for name in stages))


def run_row(run_id: str = "r1", job: JobName = JOB, **changes: object) -> RunRow:
    row = RunRow(
        run_id=RunId(run_id),
        job=job,
        state=RunState.CREATED,
        first_run=RunId(run_id),
        spec=run_spec(job),
        model_version=1,
        created_at=NOON,
    )
    return replace(row, **changes)  # type: ignore[arg-type]


def container_row(execution_id: str = "c1", processor_id: str = "0", epoch: int = 1, run_id: str = "r1", **changes: object) -> ContainerRow:
    row = ContainerRow(
        execution_id=ExecutionContainerId(execution_id),
        run_id=RunId(run_id),
        job=JOB,
        processor_id=ProcessorId(processor_id),
        epoch=Epoch(epoch),
        host="host-a",
        bare=False,
        state=ContainerState.LIVE,
        registered_at=NOON,
        last_seen_at=NOON,
    )
    return replace(row, **changes)  # type: ignore[arg-type]


def ownership_row(
    task: str = "Partition 0", generation: int = 1, holder: str = "c1", *, released: bool = False, job: JobName = JOB
) -> TaskOwnershipRow:
    return TaskOwnershipRow(
        job, TaskName(task), RunId("r1"), TaskOwner(Generation(generation), ExecutionContainerId(holder), released), NOON
    )


def stage_state_row(task: str = "Partition 0", stage: str = "route", job: JobName = JOB) -> StageStateRow:
    return StageStateRow(job, TaskName(task), StageName(stage), Lineage("l1"))


def model_row(version: int = 1, job: JobName = JOB) -> ModelRow:
    return ModelRow(job, version, RunId("r1"), "hash", NOON, "because", "somebody", '{"é":1}')


def monitored_stream_row(stream: str = "ads.clicks", job: JobName = JOB, **changes: object) -> MonitoredStreamRow:
    row = MonitoredStreamRow(job, "kafka", stream, RunId("r1"), "clicks", 2, 4, Verdict.SAFE, "é", NOON)
    return replace(row, **changes)  # type: ignore[arg-type]


def checkpoint_of(number: int) -> CommitId:
    return CommitId(f"{1_700_000_000_000 + number}-123456")


def snapshot_row(seq: int = 1, task: str = "Partition 0", stage: str = "route", job: JobName = JOB, **changes: object) -> SnapshotRow:
    row = SnapshotRow(
        job=job,
        seq=seq,
        task=TaskName(task),
        stage=StageName(stage),
        checkpoint=checkpoint_of(seq),
        lineage=Lineage("l1"),
        batch_id=seq * 10,
        generation=Generation(1),
        run_id=RunId("r1"),
        reported_at=NOON + timedelta(seconds=seq),
        offsets={SSP: seq},
        markers={LOCAL: MarkerRow(BlobId(f"jobs/j/t/s/snapshots/{seq}"), 1, 2, 3, 4, 5)},
    )
    return replace(row, **changes)  # type: ignore[arg-type]


def pin_row(pin_id: str = "p1", task: str = "Partition 0", job: JobName = JOB, **changes: object) -> PinRow:
    row = PinRow(pin_id, job, TaskName(task), StageName("route"), checkpoint_of(1), "because", NOON)
    return replace(row, **changes)  # type: ignore[arg-type]


def cleanup_row(number: int = 1, kind: CleanupKind = CleanupKind.KEEP, due: datetime = NOON, **changes: object) -> CleanupRow:
    row = CleanupRow(kind, LOCAL, f"jobs/j/t/s/snapshots/{number}", JOB, TaskName("Partition 0"), StageName("route"), NOON, due)
    return replace(row, **changes)  # type: ignore[arg-type]


def marked_blob_row(blob: str, at: datetime = NOON, blob_store: BlobStoreName = LOCAL) -> MarkedBlobRow:
    return MarkedBlobRow(blob_store, BlobId(blob), 7, at)


def drain_row(seq: int = 1, run_id: str = "r1", job: JobName = JOB, **changes: object) -> DrainRow:
    row = DrainRow(
        drain_id=DrainId(f"{job}-drain-{seq}"),
        run_id=RunId(run_id),
        job=job,
        seq=seq,
        mode=Mode.DEFAULT,
        phase=Phase.REQUESTED,
        model_version=1,
        requested_at=NOON,
        soft=timedelta(seconds=60),
        hard=timedelta(seconds=600),
    )
    return replace(row, **changes)  # type: ignore[arg-type]


def drain_stage_row(task: str = "Partition 0", stage: str = "route", drain_id: str = f"{JOB}-drain-1", **changes: object) -> DrainStageRow:
    return replace(DrainStageRow(DrainId(drain_id), TaskName(task), StageName(stage)), **changes)  # type: ignore[arg-type]
