"""Chore: delete the records of intermediate streams that every reader has passed."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from coordinator.store.runs import RunRow
from coordinator.store.sql import ReadTransaction, Store
from coordinator.transitions import stages_of
from coordinator.waits import DeletionHold
from sluice.clock import Clock
from sluice.core.drain import Mode
from sluice.core.errors import SluiceError
from sluice.core.ids import JobName, Ssp, StageKey, StageName, StreamId, TaskName
from sluice.core.jobmodels.model import JobModel
from sluice.core.leases.ownership import PartitionReader, kept_for_snapshots, unread_from
from sluice.streams.port import StreamSystem

log = logging.getLogger(__name__)

AT_ONCE = 4
"""Number of streams that are trimmed concurrently, so that a slow one does not delay the others."""


def _without_backup(_: RunRow) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class TrimStreams:
    """Delete records of the intermediate streams of active runs that are older than `keep` and that every reader has committed.

    A stage of a task that has not reported a partition, or has reported an offset beyond its end, holds it at the offset where it began.
    Because a restore repeats batches, the oldest retained snapshot counts, too. Inputs and outputs belong to others and are not changed.
    A stream that cannot be trimmed is counted as `untrimmed`, and the next run tries it again. `failing` has the last error of each such
    stream. `model_of` returns the job model of a run. Nothing is trimmed while the database may lack snapshots (`hold`).
    """

    store: Store
    systems: Mapping[str, StreamSystem]
    clock: Clock
    keep: timedelta
    model_of: Callable[[ReadTransaction, RunRow], Awaitable[JobModel]]
    hold: DeletionHold | None = None
    backs_up: Callable[[RunRow], bool] = _without_backup
    """Whether the state of the run is backed up."""
    every: timedelta = timedelta(seconds=60)
    name: str = "trim_streams"
    failing: dict[StreamId, str] = field(default_factory=dict)
    kept: dict[tuple[JobName, StreamId], int] = field(default_factory=dict)
    """How many old records of each stream every reader has passed, and are kept because a reader may return to one of its snapshots, as of
    the last run in which the stream could be trimmed."""

    async def run_once(self) -> Mapping[str, int]:
        if self.hold is not None and self.hold.incomplete:
            return {}
        readers: defaultdict[StreamId, defaultdict[int, list[PartitionReader]]] = defaultdict(lambda: defaultdict(list))
        jobs: dict[StreamId, JobName] = {}
        async with self.store.read() as tx:
            for run in await tx.runs.active():
                if not run.spec.intermediates:
                    continue
                for ssp, reader in await _readers(tx, run, await self.model_of(tx, run), self.backs_up(run)):
                    readers[ssp.stream_id][ssp.partition].append(reader)
                    jobs[ssp.stream_id] = run.job
        for stream in self.failing.keys() - readers.keys():
            del self.failing[stream]
        for job, stream in [key for key in self.kept if jobs.get(key[1]) != key[0]]:
            del self.kept[job, stream]
        done: Counter[str] = Counter()
        places = asyncio.Semaphore(AT_ONCE)

        async def trim(stream: StreamId) -> None:
            async with places:
                done.update(await self._trim(jobs[stream], stream, readers[stream]))

        known = [
            stream for stream in readers if stream.system in self.systems
        ]  # a system may be removed from the settings of a running job
        await asyncio.gather(*map(trim, known))
        return +done

    async def _trim(self, job: JobName, stream: StreamId, readers: Mapping[int, Sequence[PartitionReader]]) -> Mapping[str, int]:
        """Trim one stream. Returns the number of trimmed records. A failure is returned, not raised, so that the other streams are still
        trimmed."""
        system = self.systems[stream.system]
        try:
            ends = await system.latest(stream.stream)
            old = await system.at_time(stream.stream, self.clock.now() - self.keep)
            before = {p: min(unread_from(each, ends.get(p, 0)), old.get(p, 0)) for p, each in readers.items()}
            trimmed = await system.trim(stream.stream, before)
            begins = await system.earliest(stream.stream)
            self.kept[job, stream] = sum(
                kept_for_snapshots(each, begins.get(p, 0), ends.get(p, 0), old.get(p, 0)) for p, each in readers.items()
            )
        except Exception as error:
            if self.failing.get(stream) != str(error):
                log.warning("cannot trim %s, which keeps growing: %s", stream, error, exc_info=not isinstance(error, SluiceError))
            self.failing[stream] = str(error)
            return {"untrimmed": 1}
        self.failing.pop(stream, None)
        return {"trimmed": trimmed}


async def _readers(tx: ReadTransaction, run: RunRow, model: JobModel, backs_up: bool) -> Sequence[tuple[Ssp, PartitionReader]]:
    """The readers of the partitions of the run's intermediate streams: each stage of each task to which the model assigns them. Reports of
    other tasks and stages, which belong to earlier models, do not count. A stage that is backed up and has no snapshot yet reads from its
    start again when its disk is lost, and so does a stage that began empty in a drain, if the drain fails."""
    if not run.spec.intermediates:
        return ()
    starts = await tx.runs.start_offsets(run.run_id)
    rows = {(row.task, row.stage): row for row in await tx.fleet.stage_states(run.job)}
    found, intermediates = [], run.spec.intermediates
    returning = await _returning(tx, run)
    for reads in stages_of(run, model):
        ssps = [ssp for ssp in reads.ssps if ssp.stream_id in intermediates]
        if not ssps:
            continue
        row = rows.get((reads.task, reads.stage))
        snapshots = await tx.snapshots.of_stage(StageKey(run.job, reads.task, reads.stage)) if row and row.offsets else ()
        for ssp in ssps:
            start = row.starts.get(ssp, starts.get(ssp, 0)) if row else starts.get(ssp, 0)
            reported = row.offsets.get(ssp) if row and (reads.task, reads.stage) not in returning else None
            restorable = [each.offsets.get(ssp) for each in snapshots] or ([None] if backs_up else [])
            found.append((ssp, PartitionReader(start, reported, restorable)))
    return found


async def _returning(tx: ReadTransaction, run: RunRow) -> Collection[tuple[TaskName, StageName]]:
    """The stages that begin again with empty state if the drain in progress fails."""
    drain = await tx.drains.newest(run.run_id)
    if drain is None or drain.phase.over or drain.mode is not Mode.DEFAULT:
        return ()
    return {(each.task, each.stage) for each in await tx.drains.stages(drain.drain_id) if each.began_empty}
