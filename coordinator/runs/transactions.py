"""Chore: abort transactions that containers have left open.

An open transaction blocks all readers of its partitions. If its container was killed, the next owner of the task aborts it when it begins
to write. Until there is a next owner, and after the end of a run, this chore aborts it. The brokers abort all others after their timeout.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from coordinator.store.runs import RunRow
from coordinator.store.sql import Store
from sluice.clock import Clock
from sluice.core.errors import SluiceError
from sluice.core.ids import Instant, RunId, StageName, StreamId, TaskName
from sluice.streams.port import Offsets, StreamSystem

log = logging.getLogger(__name__)

AFTER_ITS_END = timedelta(minutes=10)
"""For how long the streams of an ended run are checked: longer than a transaction may be open."""

AT_ONCE = 8
"""Requests to systems that are sent concurrently."""


NAMED_AFTER = timedelta(seconds=10)
"""How long readers must be blocked before the writer is looked up."""


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A partition whose readers are blocked by an open transaction. `held_for`: for how long. `writer`: the transactional id of its writer,
    "" if it is not known."""

    stream: StreamId
    partition: int
    held_for: timedelta
    writer: str


@dataclass(frozen=True, slots=True)
class AbortTransactions:
    """If the readable end of a partition that a run writes is before its end, and was the same at the last run of this chore, abort the
    transactions of writers whose task has no owner. A writer that has acquired its task in the meantime fails, checks its ownership with
    the coordinator, and restarts. `held`: for each partition, the offset at which readers are blocked."""

    store: Store
    systems: Mapping[str, StreamSystem]
    clock: Clock
    every: timedelta = timedelta(seconds=2)
    name: str = "abort_transactions"
    held: dict[StreamId, Offsets] = field(default_factory=dict)
    _ended: dict[RunId, tuple[RunRow, Instant]] = field(default_factory=dict)
    _active: dict[RunId, RunRow] = field(default_factory=dict)
    _tried: dict[tuple[RunId, StageName], tuple[Offsets, frozenset[TaskName]]] = field(default_factory=dict)
    """The last attempts: offsets and tasks without an owner. They are not repeated until one of these changes."""
    _since: dict[tuple[StreamId, int], tuple[int, Instant]] = field(default_factory=dict)
    _names: dict[tuple[StreamId, int], str] = field(default_factory=dict)

    @property
    def standing(self) -> Sequence[HeldBack]:
        """The partitions in which readers are blocked."""
        now = self.clock.elapsed()
        return [
            HeldBack(stream, partition, timedelta(seconds=now - since), self._names.get((stream, partition), ""))
            for (stream, partition), (_, since) in sorted(self._since.items())
        ]

    async def run_once(self) -> Mapping[str, int]:
        runs = await self._runs()
        written = {run.run_id: _written(run, self.systems) for run in runs}
        streams = sorted({stream for found in written.values() for _, stream in found})
        places = asyncio.Semaphore(AT_ONCE)

        async def look(stream: StreamId) -> Offsets:
            async with places:
                return await self._held_back(stream)

        now = dict(zip(streams, await asyncio.gather(*map(look, streams)), strict=True))
        still = {stream for stream, at in now.items() if not at.items().isdisjoint(self.held.get(stream, {}).items())}
        self.held.clear()
        self.held.update({stream: at for stream, at in now.items() if at})
        await self._name_writers()
        aborted = 0
        for run in runs:
            for stage, stream in written[run.run_id]:
                if stream in still:
                    aborted += await self._abort(run, stage, stream)
        return {"aborted": aborted} if aborted else {}

    async def _runs(self) -> Sequence[RunRow]:
        """The active runs, and those that ended recently."""
        async with self.store.read() as tx:
            active = {run.run_id: run for run in await tx.runs.active()}
        now = self.clock.elapsed()
        for run_id, run in self._active.items():
            if run_id not in active:
                self._ended[run_id] = (run, now)
        for run_id, (_, ended) in list(self._ended.items()):
            if now - ended > AFTER_ITS_END.total_seconds():
                del self._ended[run_id]
                for key in [key for key in self._tried if key[0] == run_id]:
                    del self._tried[key]
        self._active.clear()
        self._active.update(active)
        return [*active.values(), *(run for run, _ in self._ended.values())]

    async def _held_back(self, stream: StreamId) -> Offsets:
        """The readable ends that are before the ends; empty if the system does not answer."""
        system = self.systems[stream.system]
        try:
            latest, readable = await system.latest(stream.stream), await system.readable(stream.stream)
        except SluiceError as error:
            log.debug("cannot look up the ends of %s: %s", stream, error)
            return {}
        return {partition: readable[partition] for partition, end in latest.items() if readable.get(partition, end) < end}

    async def _name_writers(self) -> None:
        """Record since when readers have been blocked at an offset, and the writer whose transaction begins there."""
        now = self.clock.elapsed()
        held = {(stream, partition): at for stream, found in self.held.items() for partition, at in found.items()}
        moved = {key for key, (at, _) in self._since.items() if held.get(key) != at}
        for key in moved:
            del self._since[key]
            self._names.pop(key, None)
        self._since.update({key: (at, now) for key, at in held.items() if key not in self._since})
        long = {key: at for key, (at, since) in self._since.items() if now - since >= NAMED_AFTER.total_seconds()}
        nameless = {key: at for key, at in long.items() if key not in self._names}
        for stream in sorted({stream for stream, _ in nameless}):
            offsets = {partition: at for (of, partition), at in nameless.items() if of == stream}
            try:
                found = await self.systems[stream.system].open_transactions(stream.stream, offsets)
            except SluiceError as error:
                log.warning("readers of %s are blocked, and the cause is unknown: %s", stream, error)
                continue
            for partition, name in found.items():
                log.warning("the open transaction of %r holds back the readers of partition %d of %s", name, partition, stream)
                self._names[stream, partition] = name

    async def _abort(self, run: RunRow, stage: StageName, stream: StreamId) -> int:
        async with self.store.read() as tx:
            free = frozenset(row.task for row in await tx.fleet.owners(run.job) if row.owner.released)
        tried, self._tried[run.run_id, stage] = self._tried.get((run.run_id, stage)), (self.held[stream], free)
        if tried == (self.held[stream], free):
            return 0  # the transaction of another writer blocks the readers
        aborted = 0
        for task in sorted(free):
            try:
                await self.systems[stream.system].abort(stream.stream, run.job, stage, task)
            except SluiceError as error:
                log.warning("cannot abort a transaction that stage %s of task %s may have left open on %s: %s", stage, task, stream, error)
            else:
                log.warning("aborted transactions of stage %s of task %s, which has no owner, on %s", stage, task, stream)
                aborted += 1
        return aborted


def _written(run: RunRow, systems: Mapping[str, StreamSystem]) -> Sequence[tuple[StageName, StreamId]]:
    """The streams that stages write in systems with transactions."""
    ids = run.spec.stream_ids
    found = [(stage.name, ids[name]) for stage in run.spec.stages for name in stage.writes]
    return [(stage, stream) for stage, stream in found if stream.system in systems and systems[stream.system].transactional]
