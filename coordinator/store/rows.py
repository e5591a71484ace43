"""Rows to columns and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from sqlalchemy import Row

from coordinator.store.backups import CleanupKind, CleanupRow, CondemnedRow, MarkerRow, PinRow, SnapshotRow
from coordinator.store.drains import DrainRow, DrainStageRow
from coordinator.store.port import ContainerRow, ContainerState, HoldRow, NoticeRow, RunRow, StoreRow
from coordinator.store.versions import ModelRow, WatchedRow
from sluice.core.drain import DrainId, Phase, Step
from sluice.core.expansion import Verdict
from sluice.core.ids import Epoch, ExecutionContainerId, Generation, JobName, Lineage, ProcessorId, RunId, Ssp, StageName, TaskName
from sluice.core.lifecycle import RunState
from sluice.core.ownership import Hold
from sluice.core.snapshot import BlobId, BlobStoreName, CheckpointId

Columns = dict[str, Any]


def run_columns(row: RunRow) -> Columns:
    return {
        "run_id": row.run_id,
        "job": row.job,
        "state": row.state.value,
        "origin": row.origin,
        "spec": dict(row.spec),
        "streams": [dict(stream) for stream in row.streams],
        "model_version": row.model_version,
        "created_at": row.created_at,
        "started_at": row.started_at,
        "stop_requested_at": row.stop_requested_at,
        "ended_at": row.ended_at,
        "reason": row.reason,
        "failing": row.failing,
        "backup": None if row.backup is None else dict(row.backup),
    }


def run_row(found: Row[Any]) -> RunRow:
    columns = found._asdict()
    return RunRow(**{**columns, "state": RunState(columns["state"])})


def model_columns(row: ModelRow) -> Columns:
    return {
        "job": row.job,
        "version": row.version,
        "run_id": row.run_id,
        "document": row.document,
        "content_hash": row.content_hash,
        "created_at": row.created_at,
        "why": row.why,
        "who": row.who,
    }


def model_row(found: Row[Any]) -> ModelRow:
    return ModelRow(**found._asdict())


def watched_columns(row: WatchedRow) -> Columns:
    return asdict(row) | {"verdict": row.verdict.value}


def watched_row(found: Row[Any]) -> WatchedRow:
    return WatchedRow(**{**found._asdict(), "verdict": Verdict(found.verdict)})


def container_columns(row: ContainerRow) -> Columns:
    return {
        "execution_id": row.execution_id,
        "run_id": row.run_id,
        "job": row.job,
        "processor_id": row.processor_id,
        "epoch": row.epoch,
        "host": row.host,
        "bare": row.bare,
        "state": row.state.value,
        "registered_at": row.registered_at,
        "last_seen_at": row.last_seen_at,
        "ended_at": row.ended_at,
        "exit_code": row.exit_code,
        "reason": row.reason,
        "metrics_address": row.metrics_address,
        "model_version": row.model_version,
        "adopted_at": row.adopted_at,
    }


def container_row(found: Row[Any]) -> ContainerRow:
    columns = found._asdict()
    columns |= {
        "execution_id": ExecutionContainerId(columns["execution_id"]),
        "processor_id": ProcessorId(columns["processor_id"]),
        "epoch": Epoch(columns["epoch"]),
        "state": ContainerState(columns["state"]),
    }
    return ContainerRow(**columns)


def hold_columns(row: HoldRow) -> Columns:
    return {
        "job": row.job,
        "task": row.task,
        "run_id": row.run_id,
        "generation": row.hold.generation,
        "holder": row.hold.holder,
        "released": row.hold.released,
        "acquired_at": row.acquired_at,
    }


def hold_row(found: Row[Any]) -> HoldRow:
    hold = Hold(Generation(found.generation), ExecutionContainerId(found.holder), found.released)
    return HoldRow(JobName(found.job), TaskName(found.task), RunId(found.run_id), hold, found.acquired_at)


def _offset_list(offsets: Mapping[Ssp, int]) -> list[list[Any]]:
    return [[ssp.system, ssp.stream, ssp.partition, offset] for ssp, offset in sorted(offsets.items())]


def _offsets(listed: list[list[Any]]) -> dict[Ssp, int]:
    return {Ssp(system, stream, partition): offset for system, stream, partition, offset in listed}


def store_columns(row: StoreRow) -> Columns:
    return {
        "job": row.job,
        "task": row.task,
        "stage": row.stage,
        "lineage": row.lineage,
        "batch_id": row.batch_id,
        "offsets": _offset_list(row.offsets),
        "generation": row.generation,
        "reported_at": row.reported_at,
        "head": row.head,
        "chosen": row.chosen,
        "former": row.former,
    }


def store_row(found: Row[Any]) -> StoreRow:
    return StoreRow(
        job=JobName(found.job),
        task=TaskName(found.task),
        stage=StageName(found.stage),
        lineage=Lineage(found.lineage),
        batch_id=found.batch_id,
        offsets=_offsets(found.offsets),
        generation=None if found.generation is None else Generation(found.generation),
        reported_at=found.reported_at,
        head=None if found.head is None else CheckpointId(found.head),
        chosen=found.chosen,
        former=None if found.former is None else Lineage(found.former),
    )


def notice_row(found: Row[Any]) -> NoticeRow:
    return NoticeRow(**found._asdict())


def snapshot_columns(row: SnapshotRow) -> Columns:
    columns = {name: getattr(row, name) for name in row.__slots__}
    return columns | {"offsets": _offset_list(row.offsets), "markers": {name: asdict(marker) for name, marker in row.markers.items()}}


def snapshot_row(found: Row[Any]) -> SnapshotRow:
    markers = {BlobStoreName(name): MarkerRow(**{**marker, "index": BlobId(marker["index"])}) for name, marker in found.markers.items()}
    return SnapshotRow(**{**found._asdict(), "offsets": _offsets(found.offsets), "markers": markers})


def pin_columns(row: PinRow) -> Columns:
    return asdict(row)


def pin_row(found: Row[Any]) -> PinRow:
    return PinRow(**found._asdict())


def cleanup_columns(row: CleanupRow) -> Columns:
    return asdict(row) | {"kind": row.kind.value}


def cleanup_row(found: Row[Any]) -> CleanupRow:
    return CleanupRow(**{**found._asdict(), "kind": CleanupKind(found.kind)})


def condemned_columns(row: CondemnedRow) -> Columns:
    """Spelled out, as there may be a million: `asdict` copies each value."""
    return {"blob_store": row.blob_store, "blob": row.blob, "size": row.size, "condemned_at": row.condemned_at}


def condemned_row(found: Row[Any]) -> CondemnedRow:
    return CondemnedRow(found.blob_store, found.blob, found.size, found.condemned_at)


def drain_columns(row: DrainRow) -> Columns:
    columns = {name: getattr(row, name) for name in row.__slots__}
    return columns | {
        "phase": row.phase.value,
        "soft": row.soft.total_seconds(),
        "hard": row.hard.total_seconds(),
        "budgets": {phase.value: budget.total_seconds() for phase, budget in row.budgets.items()},
        "pinned": _offset_list(row.pinned),
        "catch_up": _offset_list(row.catch_up),
        "drained": _offset_list(row.drained),
    }


def drain_row(found: Row[Any]) -> DrainRow:
    columns = found._asdict()
    columns |= {
        "drain_id": DrainId(found.drain_id),
        "phase": Phase(found.phase),
        "soft": timedelta(seconds=found.soft),
        "hard": timedelta(seconds=found.hard),
        "budgets": {Phase(phase): timedelta(seconds=budget) for phase, budget in found.budgets.items()},
        "pinned": _offsets(found.pinned),
        "catch_up": _offsets(found.catch_up),
        "drained": _offsets(found.drained),
    }
    return DrainRow(**columns)


def drain_stage_columns(row: DrainStageRow) -> Columns:
    columns = {name: getattr(row, name) for name in row.__slots__}
    return columns | {"step": int(row.step), "offsets": _offset_list(row.offsets), "operators_left": list(row.operators_left)}


def drain_stage_row(found: Row[Any]) -> DrainStageRow:
    columns = found._asdict()
    columns |= {"step": Step(found.step), "offsets": _offsets(found.offsets), "operators_left": tuple(found.operators_left)}
    return DrainStageRow(**columns)
