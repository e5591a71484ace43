"""Chore: delete the records of intermediate streams that every reader has passed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from coordinator.store.runs import RunRow
from coordinator.store.sql import ReadTransaction, Store
from sluice.clock import Clock
from sluice.core.ids import Ssp, StageKey, StageName, StreamId
from sluice.streams.port import StreamSystem


@dataclass(frozen=True, slots=True)
class TrimStreams:
    """Delete records of the intermediate streams of active runs that are older than `keep` and that every reader has committed.

    For a stage that has not reported a batch, the start of the run counts. Inputs and outputs belong to others and are not changed.
    """

    store: Store
    systems: Mapping[str, StreamSystem]
    clock: Clock
    keep: timedelta
    every: timedelta = timedelta(seconds=60)
    name: str = "trim_streams"

    async def run_once(self) -> Mapping[str, int]:
        async with self.store.read() as tx:
            needed: dict[Ssp, int] = {}
            for run in await tx.runs.active():
                if not run.spec.intermediates:
                    continue
                for ssp, offset in (await _needed(tx, run)).items():
                    if ssp.stream_id in run.spec.intermediates:
                        needed[ssp] = min(offset, needed.get(ssp, offset))
        by_stream: defaultdict[StreamId, dict[int, int]] = defaultdict(dict)
        for ssp, offset in needed.items():
            by_stream[ssp.stream_id][ssp.partition] = offset
        trimmed = 0
        for stream, offsets in by_stream.items():
            if stream.system not in self.systems:
                continue  # removed from the settings while a run uses it
            system = self.systems[stream.system]
            old = await system.at_time(stream.stream, self.clock.now() - self.keep)
            trimmed += await system.trim(stream.stream, {p: min(offset, old.get(p, 0)) for p, offset in offsets.items()})
        return {"trimmed": trimmed} if trimmed else {}


async def _needed(tx: ReadTransaction, run: RunRow) -> Mapping[Ssp, int]:
    """The lowest offset of each partition that a stage of the run may still read: what it reported, or, because a restore repeats batches,
    the offset of its oldest retained snapshot."""
    starts = dict(await tx.runs.start_offsets(run.run_id))
    readers: defaultdict[StreamId, set[StageName]] = defaultdict(set)
    for stage in run.spec.stage_names:
        for stream in run.spec.reads(stage):
            readers[stream].add(stage)
    reported: defaultdict[Ssp, list[int]] = defaultdict(list)
    for row in await tx.fleet.stage_states(run.job):
        retained = await tx.snapshots.of_stage(StageKey(run.job, row.task, row.stage))
        for ssp, offset in row.offsets.items():
            if row.stage in readers[ssp.stream_id]:  # else the job no longer has this stage
                reported[ssp].append(min([offset, *(each.offsets[ssp] for each in retained if ssp in each.offsets)]))
    return {ssp: min(reported[ssp]) if len(reported[ssp]) >= len(readers[ssp.stream_id]) else start for ssp, start in starts.items()}
