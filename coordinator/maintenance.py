"""Chores: small bounded pieces of work, each with `run_once() -> counts`, and the loop that runs them."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from coordinator.endings import end_container, settle_run, the_run
from coordinator.freed import Freed
from coordinator.leases import Leases
from coordinator.notices import Notices
from coordinator.store.backups import StoreKey
from coordinator.store.port import ContainerState, HoldRow, Reading, Store
from sluice.clock import Clock
from sluice.core.errors import DatabaseInUse, SluiceError
from sluice.core.ids import JobName, RunId, Ssp, StreamId
from sluice.streams.port import StreamSystem

log = logging.getLogger(__name__)


class Chore(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def every(self) -> timedelta: ...

    async def run_once(self) -> Mapping[str, int]:
        """Do what is due; what was done, by kind. May run twice: the second run finds nothing."""
        ...


@dataclass(frozen=True, slots=True)
class ExpireLeases:
    """Free the tasks of containers whose lease and grace have passed."""

    store: Store
    leases: Leases
    notices: Notices
    clock: Clock
    freed: Freed = field(default_factory=Freed)
    batch: int = 500
    every: timedelta = timedelta(seconds=0.5)
    name: str = "expire_leases"

    async def run_once(self) -> Mapping[str, int]:
        if not self.leases.overdue(1):
            return {}
        touched: set[RunId] = set()
        freed: list[HoldRow] = []
        async with self.store.begin() as tx:
            overdue = self.leases.overdue(self.batch)  # while nobody can register
            for execution_id in overdue:
                container = await tx.container(execution_id)
                if container is None or container.ended_at is not None:
                    continue
                _, holds = await end_container(tx, container, ContainerState.LOST, self.clock.now(), reason="its lease ran out")
                freed += holds
                touched.add(container.run_id)
            for run_id in touched:
                await settle_run(tx, await the_run(tx, run_id), self.clock.now())
        for execution_id in overdue:
            log.warning("container %s is lost: its lease and grace have passed", execution_id)
            self.leases.drop(execution_id)
        self.freed.ring(freed)
        for run_id in touched:
            self.notices.ring(run_id)
        return {"expired": len(overdue)}


@dataclass(frozen=True, slots=True)
class FlushLastSeen:
    """Write when containers were last heard of, so many in one transaction that others need not wait long for theirs."""

    store: Store
    leases: Leases
    clock: Clock
    batch: int = 500
    every: timedelta = timedelta(seconds=30)
    name: str = "flush_last_seen"

    async def run_once(self) -> Mapping[str, int]:
        seen = self.leases.take_seen()
        if not seen:
            return {}
        now = self.clock.now()
        for first in range(0, len(seen), self.batch):
            async with self.store.begin() as tx:
                await tx.seen((execution_id, now) for execution_id in seen[first : first + self.batch])
        return {"flushed": len(seen)}


@dataclass(frozen=True, slots=True)
class TrimStreams:
    """Trim the intermediate streams of active runs: records older than `keep` that every reader has committed past.

    A stage that has not reported holds its partitions where its run starts. Inputs and outputs belong to others and are left alone.
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
            for run in await tx.active_runs():
                intermediate = {StreamId(s["system"], s["stream"]) for s in run.streams if s["role"] == "intermediate"}
                if not intermediate:
                    continue
                for ssp, offset in (await _needed(tx, run.job, run.run_id, run.spec, run.streams)).items():
                    if ssp.stream_id in intermediate:
                        needed[ssp] = min(offset, needed.get(ssp, offset))
        by_stream: defaultdict[StreamId, dict[int, int]] = defaultdict(dict)
        for ssp, offset in needed.items():
            by_stream[ssp.stream_id][ssp.partition] = offset
        trimmed = 0
        for stream, offsets in by_stream.items():
            if stream.system not in self.systems:
                continue  # an operator took it out of the settings while a run that used it is not over
            system = self.systems[stream.system]
            old = await system.at_time(stream.stream, self.clock.now() - self.keep)
            trimmed += await system.trim(stream.stream, {p: min(offset, old.get(p, 0)) for p, offset in offsets.items()})
        return {"trimmed": trimmed} if trimmed else {}


async def _needed(
    tx: Reading, job: JobName, run_id: RunId, spec: Mapping[str, object], streams: Sequence[Mapping[str, object]]
) -> Mapping[Ssp, int]:
    """The lowest offset of each partition that some stage of the run may still read: behind what it reported, and, to run batches again,
    behind the oldest snapshot of it that is retained."""
    starts = dict(await tx.starts(run_id))
    stages = spec["stages"]
    assert isinstance(stages, list)
    readers = {
        StreamId(str(s["system"]), str(s["stream"])): {stage["name"] for stage in stages if s["name"] in stage["reads"]} for s in streams
    }
    reported: defaultdict[Ssp, list[int]] = defaultdict(list)
    for row in await tx.stores(job):
        retained = await tx.snapshots_of(StoreKey(job, row.task, row.stage))
        for ssp, offset in row.offsets.items():
            if row.stage in readers.get(ssp.stream_id, ()):  # else a stage that the job has not any more
                reported[ssp].append(min([offset, *(each.offsets[ssp] for each in retained if ssp in each.offsets)]))
    return {ssp: min(reported[ssp]) if len(reported[ssp]) >= len(readers[ssp.stream_id]) else start for ssp, start in starts.items()}


@dataclass(frozen=True, slots=True)
class KeepClaim:
    """Look whether the database is still ours alone, and take the claim again when it was lost; `usurped` is told when it is another's."""

    store: Store
    usurped: Callable[[DatabaseInUse], None]
    every: timedelta = timedelta(seconds=1)
    name: str = "keep_claim"

    async def run_once(self) -> Mapping[str, int]:
        held = self.store.claimed
        try:
            await self.store.claim()
        except DatabaseInUse as error:
            self.usurped(error)
            raise
        if held:
            return {}
        log.info("the claim on the database is held again")
        return {"taken_again": 1}


class Maintenance:
    """Runs chores, each at its own pace, until it is left. A chore that fails is counted, logged unless it failed alike at its turn
    before, and tried again at its next."""

    def __init__(self, chores: Sequence[Chore], clock: Clock) -> None:
        self._chores = chores
        self._clock = clock
        self._loops: list[asyncio.Task[None]] = []
        self.done: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.turns: defaultdict[str, int] = defaultdict(int)
        """How often each chore had its turn, and came to an end of it."""
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """How long these turns took in all."""

    async def __aenter__(self) -> Maintenance:
        self._loops = [asyncio.create_task(self._loop(chore), name=chore.name) for chore in self._chores]
        return self

    async def __aexit__(self, *_: object) -> None:
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)

    @property
    def dead(self) -> list[str]:
        """Chores whose loop has ended although it should not have."""
        return [loop.get_name() for loop in self._loops if loop.done()]

    async def _loop(self, chore: Chore) -> None:
        told = ""
        while True:
            began = self._clock.elapsed()
            try:
                for what, count in (await chore.run_once()).items():
                    self.done[chore.name, what] += count
                told = ""
            except SluiceError as error:
                self.done[chore.name, "failed"] += 1
                if str(error) != told:
                    log.warning("%s: %s", chore.name, error)
                told = str(error)
            except Exception:
                self.done[chore.name, "failed"] += 1
                log.exception("%s failed; it runs again in %s", chore.name, chore.every)
            self.turns[chore.name] += 1
            self.seconds[chore.name] += self._clock.elapsed() - began
            await asyncio.sleep(chore.every.total_seconds())
