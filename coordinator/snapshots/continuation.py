"""The continuation: the data that a new run needs, in addition to a snapshot's files, to continue a run after a loss of the database.

The owner of a task gets the continuation with the acquire, and writes it to the index of each snapshot. From the continuations of its tasks
a rebuild derives the job's assignment and baselines (`sluice.core.jobmodels.grouping`), the first run of the history, whose records readers
of intermediate streams accept, and the start offsets of stages without a batch.

A run that follows a drain which kept the state begins a history. Tasks that have run no batch in it have their snapshots in an earlier
history. `RunRow.kept` is the chain of these histories, and is also written to the indexes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pydantic import ValidationError

from coordinator.store.runs import RunRow
from sluice.core.drain import KeptHistory, histories_of_state
from sluice.core.ids import JobName, ProcessorId, RunId, Ssp, StageName, StreamId, TaskName
from sluice.core.jobmodels.grouping import PreviousAssignment
from sluice.core.jobmodels.model import JobModel, TaskModel, job_model
from sluice.core.jobmodels.spec import JobKind, Role, RunSpec, StreamSpec
from sluice.core.lifecycle import RunState
from sluice.core.snapshots.snapshot import SnapshotIndex
from sluice.wire.snapshots import Continuation, ContinuedHistory, ContinuedStream

REASON = "the database was lost: `sluice rebuild` registered what the blob stores have of this run"


def continuation(
    run: RunRow, slot: ProcessorId, task: TaskModel, owned: Sequence[Ssp], assignment: PreviousAssignment, starts: Mapping[Ssp, int]
) -> Continuation:
    """The continuation of a task in `slot` that owns these partitions. `starts`: the start offsets of its stages without a batch."""
    roles = {each.id: each for each in run.spec.streams}

    def stream(of: StreamId) -> ContinuedStream:
        known = roles.get(of)
        return ContinuedStream(
            system=of.system,
            stream=of.stream,
            role=None if known is None else known.role.value,
            identity=None if known is None else known.identity,
            baseline=assignment.baselines.get(of),
            owned=tuple(sorted(ssp.partition for ssp in owned if ssp.stream_id == of)),
            starts=tuple(sorted((ssp.partition, offset) for ssp, offset in starts.items() if ssp.stream_id == of)),
        )

    return Continuation(
        run_id=run.run_id,
        first_run=run.first_run,
        deployed_at=run.created_at,
        model_version=run.model_version,
        containers=run.spec.containers,
        grouping=assignment.grouping,
        slot=slot,
        changelog_partition=task.changelog_partition,
        streams=tuple(stream(each) for each in sorted({ssp.stream_id for ssp in (*owned, *starts)})),
        kept=tuple(ContinuedHistory(first_run=each.first_run, without=tuple(sorted(each.without))) for each in run.kept),
        kind=run.spec.kind.value,
    )


@dataclass(frozen=True, slots=True)
class ContinuedRun:
    """The last run of a job, as far as it can be derived from its snapshots. `run` has ended."""

    run: RunRow
    model: JobModel
    assignment: PreviousAssignment
    starts: Mapping[Ssp, int]


def of_index(index: SnapshotIndex) -> Continuation | None:
    """The continuation in an index. None if an earlier version of Sluice wrote the index, or if this version cannot parse it."""
    try:
        return None if index.continuation is None else Continuation.model_validate(index.continuation)
    except ValidationError:
        return None


@dataclass(slots=True)
class _Tasks:
    """The tasks of a job. Continuations are added from the oldest to the newest, and the newest takes precedence. `positions`: the offsets
    at which a stage of a task continues in the next history."""

    reads: dict[TaskName, frozenset[Ssp]] = field(default_factory=dict)
    slots: dict[TaskName, ProcessorId] = field(default_factory=dict)
    changelog: dict[TaskName, int] = field(default_factory=dict)
    owners: dict[Ssp, TaskName] = field(default_factory=dict)
    baselines: dict[StreamId, int] = field(default_factory=dict)
    starts: dict[Ssp, int] = field(default_factory=dict)
    streams: dict[StreamId, StreamSpec] = field(default_factory=dict)
    positions: dict[tuple[TaskName, StageName], Mapping[Ssp, int]] = field(default_factory=dict)

    def end_history(self) -> None:
        """End a history. The next one begins at the last offsets of its stages."""
        ends: dict[Ssp, int] = {}
        for ssp, at in (each for read in self.positions.values() for each in read.items()):
            ends[ssp] = min(at, ends.get(ssp, at))
        self.starts |= ends
        self.positions.clear()

    def add(self, task: TaskName, of: Continuation) -> None:
        reads: set[Ssp] = set()
        for each in of.streams:
            stream = StreamId(each.system, each.stream)
            if each.baseline is not None:
                self.baselines[stream] = each.baseline
            self.owners |= {Ssp(*_pair(stream), partition): task for partition in each.owned}
            starts = {Ssp(*_pair(stream), partition): offset for partition, offset in each.starts}
            self.starts |= starts
            reads |= starts.keys()
            if each.role is not None and starts:
                self.streams[stream] = StreamSpec(each.stream, Role(each.role), stream, identity=each.identity)
        self.reads[task] = frozenset(reads)
        self.slots[task], self.changelog[task] = ProcessorId(of.slot), of.changelog_partition


def _pair(stream: StreamId) -> tuple[str, str]:
    return stream.system, stream.stream


def continued_run(job: JobName, indexes: Sequence[SnapshotIndex], now: datetime) -> ContinuedRun | None:
    """The job's last run, from the indexes of its snapshots; None if they contain no continuation. Snapshots of earlier histories are
    ignored, except of those with whose state the last one continued."""
    known = [(index, of) for index in indexes if (of := of_index(index)) is not None]
    if not known:
        return None
    known.sort(key=lambda each: (each[1].deployed_at, each[1].model_version, each[0].generation or 0, each[0].created_millis))
    last, tasks = known[-1][1], _Tasks()
    kept = tuple(KeptHistory(RunId(each.first_run), frozenset(map(StageName, each.without))) for each in last.kept)
    for history in (*(each.first_run for each in reversed(kept)), RunId(last.first_run)):
        tasks.end_history()
        for index, of in known:
            stage = index.metadata.store
            if of.first_run == history and history in histories_of_state(RunId(last.first_run), kept, stage):
                tasks.add(index.metadata.task, of)
                tasks.positions[index.metadata.task, stage] = index.offsets
    counts = defaultdict[StreamId, int](int)
    for ssp in tasks.starts:
        counts[ssp.stream_id] += 1
    spec = RunSpec(job, last.containers, tuple(each for _, each in sorted(tasks.streams.items())), stages=(), kind=JobKind(last.kind))
    run = RunRow(
        run_id=RunId(last.run_id),
        job=job,
        state=RunState.STOPPED,
        first_run=RunId(last.first_run),
        spec=spec.with_counts({each.name: counts[each.id] for each in spec.streams}),
        model_version=last.model_version,
        created_at=last.deployed_at,
        started_at=last.deployed_at,
        stop_requested_at=now,
        ended_at=now,
        reason=REASON,
        kept=kept,
    )
    config = {"job.name": job, "job.container.count": str(last.containers)}
    return ContinuedRun(
        run=run,
        model=job_model(config, tasks.reads, tasks.slots, tasks.changelog),
        assignment=PreviousAssignment(tasks.owners, tasks.baselines, last.grouping),
        starts=tasks.starts,
    )
