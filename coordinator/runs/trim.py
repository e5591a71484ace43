"""Chore: delete the records of intermediate streams that every reader has passed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from coordinator.store.runs import RunRow
from coordinator.store.sql import ReadTransaction, Store
from coordinator.transitions import stages_of
from sluice.clock import Clock
from sluice.core.ids import Ssp, StageKey, StreamId
from sluice.core.model import JobModel
from sluice.core.ownership import PartitionReader, unread_from
from sluice.streams.port import StreamSystem


@dataclass(frozen=True, slots=True)
class TrimStreams:
    """Delete records of the intermediate streams of active runs that are older than `keep` and that every reader has committed.

    A stage of a task that has not reported a partition, or has reported an offset beyond its end, holds it at the offset where it began.
    Because a restore repeats batches, the oldest retained snapshot counts, too. Inputs and outputs belong to others and are not changed.
    `model_of` returns the job model of a run.
    """

    store: Store
    systems: Mapping[str, StreamSystem]
    clock: Clock
    keep: timedelta
    model_of: Callable[[ReadTransaction, RunRow], Awaitable[JobModel]]
    every: timedelta = timedelta(seconds=60)
    name: str = "trim_streams"

    async def run_once(self) -> Mapping[str, int]:
        readers: defaultdict[StreamId, defaultdict[int, list[PartitionReader]]] = defaultdict(lambda: defaultdict(list))
        async with self.store.read() as tx:
            for run in await tx.runs.active():
                if not run.spec.intermediates:
                    continue
                for ssp, reader in await _readers(tx, run, await self.model_of(tx, run)):
                    readers[ssp.stream_id][ssp.partition].append(reader)
        trimmed = 0
        for stream, partitions in readers.items():
            if stream.system not in self.systems:
                continue  # removed from the settings while a run uses it
            system = self.systems[stream.system]
            ends = await system.latest(stream.stream)
            old = await system.at_time(stream.stream, self.clock.now() - self.keep)
            before = {p: min(unread_from(each, ends.get(p, 0)), old.get(p, 0)) for p, each in partitions.items()}
            trimmed += await system.trim(stream.stream, before)
        return {"trimmed": trimmed} if trimmed else {}


async def _readers(tx: ReadTransaction, run: RunRow, model: JobModel) -> Sequence[tuple[Ssp, PartitionReader]]:
    """Who reads the partitions of the run's intermediate streams: each stage of each task of the model that has them. What other tasks and
    stages have reported, of models before, does not count."""
    starts = await tx.runs.start_offsets(run.run_id)
    rows = {(row.task, row.stage): row for row in await tx.fleet.stage_states(run.job)}
    found = []
    for reads in stages_of(run, model):
        ssps = [ssp for ssp in reads.ssps if ssp.stream_id in run.spec.intermediates]
        if not ssps:
            continue
        row = rows.get((reads.task, reads.stage))
        snapshots = await tx.snapshots.of_stage(StageKey(run.job, reads.task, reads.stage)) if row and row.offsets else ()
        for ssp in ssps:
            start = row.starts.get(ssp, starts.get(ssp, 0)) if row else starts.get(ssp, 0)
            reported = row.offsets.get(ssp) if row else None
            found.append((ssp, PartitionReader(start, reported, [each.offsets.get(ssp) for each in snapshots])))
    return found
