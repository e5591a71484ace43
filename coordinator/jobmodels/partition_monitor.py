"""The partition monitor: a chore that checks the partition counts of the inputs of all live runs, and lets the runs grow with them.

It compares the counts with the stored model, so that it also detects growth while the coordinator was down. Each stream is checked
separately, with a timeout. Growth that is not safe is refused and reported (`GET /runs/{runId}`, a metric, an alert); the run continues
unchanged.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from coordinator.jobmodels.versions import ChangeReason, ModelChange, ModelVersions
from coordinator.store.jobmodels import MonitoredStreamRow
from coordinator.store.runs import RunRow
from coordinator.store.sql import ReadTransaction, Store
from coordinator.transitions import get_run
from sluice.clock import Clock
from sluice.core.errors import RunIsDraining, SluiceError, StaleRun, Unavailable, UnknownStream, VersionConflict
from sluice.core.ids import JobName, RunId, StreamId
from sluice.core.jobmodels.expansion import StreamCount, StreamVerdict, Verdict, grows, plainly
from sluice.core.jobmodels.spec import StreamSpec
from sluice.core.lifecycle import RunState
from sluice.streams.port import StreamSystem

log = logging.getLogger(__name__)

WHO = "partition monitor"
CHECK_TIMEOUT = timedelta(seconds=10)
CONCURRENT_CHECKS = 16


@dataclass(frozen=True, slots=True)
class PartitionCounts:
    """The partition count and identity of a stream, or why they are unknown."""

    partitions: int | None
    identity: str | None = None
    problem: str = ""


@dataclass(slots=True)
class PartitionMonitor:
    """`watched`: the results of the last round, for the metrics."""

    store: Store
    systems: Mapping[str, StreamSystem]
    versions: ModelVersions
    clock: Clock
    every: timedelta
    check_timeout: timedelta = CHECK_TIMEOUT
    name: str = "watch_partitions"
    watched: Mapping[JobName, Sequence[MonitoredStreamRow]] = field(default_factory=dict)

    async def run_once(self) -> Mapping[str, int]:
        async with self.store.read() as tx:
            runs = await _live(tx)
            before = {run.job: await tx.jobmodels.monitored(run.job) for run in runs}
        current = await self._check_all({each.id for run in runs for each in run.spec.monitored})
        done: Counter[str] = Counter()
        found: dict[JobName, Sequence[MonitoredStreamRow]] = {}
        for run in runs:
            former = {row.stream_id: row for row in before[run.job] if row.run_id == run.run_id}
            rows, grown = await self._watched(run, former, current)
            found[run.job] = rows
            done["grown"] += grown
            if list(rows) != list(before[run.job]):
                await self._store_rows(run, rows, former)
                done["changed"] += 1
        self.watched = found
        return +done

    async def current(self, run_id: RunId) -> Mapping[str, StreamCount]:
        """The inputs of a run with their current partition counts, by the job's names. Raises UnknownRun."""
        async with self.store.read() as tx:
            run = await get_run(tx, run_id)
        current = await self._check_all({each.id for each in run.spec.monitored})
        return {each.name: each for each in _counted(run, current)}

    # --- checking ---------------------------------------------------------------------------------------------------

    async def _check_all(self, streams: set[StreamId]) -> Mapping[StreamId, PartitionCounts]:
        slots = asyncio.Semaphore(CONCURRENT_CHECKS)

        async def check(stream: StreamId) -> PartitionCounts:
            async with slots:
                return await self._check(stream)

        ordered = sorted(streams)
        return dict(zip(ordered, await asyncio.gather(*map(check, ordered)), strict=True))

    async def _check(self, stream: StreamId) -> PartitionCounts:
        system = self.systems.get(stream.system)
        if system is None:
            return PartitionCounts(None, problem=f"the system {stream.system!r} is no longer configured")
        try:
            async with asyncio.timeout(self.check_timeout.total_seconds()):
                identity = await system.identity(stream.stream)
                return PartitionCounts(await system.partitions(stream.stream), identity)
        except TimeoutError:
            return PartitionCounts(None, problem=f"{stream}: no answer within {self.check_timeout.total_seconds():g} s")
        except UnknownStream:
            return PartitionCounts(None, problem=f"{stream} no longer exists: it was deleted, or is not visible to the coordinator")
        except SluiceError as error:
            return PartitionCounts(None, problem=f"{stream}: {error}")

    # --- verdicts --------------------------------------------------------------------------------------------------

    async def _watched(
        self, run: RunRow, former: Mapping[StreamId, MonitoredStreamRow], current: Mapping[StreamId, PartitionCounts]
    ) -> tuple[Sequence[MonitoredStreamRow], int]:
        """The rows of the run's inputs, and how many inputs grew. An error of one run does not affect the others."""
        counted = _counted(run, current)
        refused = {}  # growth that was rolled back
        for each in counted:
            row = former.get(each.stream)
            if grows(each) and row is not None and row.kept_from == each.now:
                refused[each.name] = StreamVerdict(each, Verdict.REFUSED, row.reason)
        growing = {each.name: each for each in counted if grows(each) and each.name not in refused}
        verdicts = {each.name: plainly(each) for each in counted} | refused
        if growing:
            verdicts |= {each.count.name: each for each in await self._grown(run, growing)}
        rows = [self._row(run, each, former.get(each.count.stream)) for each in verdicts.values()]
        grown = sum(1 for name in growing if verdicts[name].verdict is Verdict.SAFE and run.state is not RunState.DRAINING)
        return sorted(rows, key=lambda row: row.stream_id), grown

    async def _grown(self, run: RunRow, growing: Mapping[str, StreamCount]) -> Sequence[StreamVerdict]:
        """Let the run grow with these streams, which have more partitions than its model. Returns the verdict on each."""
        change = ModelChange(counts=growing)
        try:
            if run.state is RunState.DRAINING:
                verdicts = (await self.versions.propose(run.run_id, change)).verdicts
                return [_frozen(each) for each in verdicts if each.count.name in growing]
            done = await self.versions.change(run.run_id, change, ChangeReason(WHO, "", run.model_version))
            return [each for each in done.proposal.verdicts if each.count.name in growing]
        except (StaleRun, RunIsDraining, VersionConflict) as error:  # another change came first: check again in the next round
            return [StreamVerdict(each, Verdict.UNKNOWN, str(error)) for each in growing.values()]
        except Unavailable as error:
            return [StreamVerdict(each, Verdict.UNKNOWN, f"{each.stream} has {each.now} partitions: {error}") for each in growing.values()]
        except SluiceError as error:
            return [StreamVerdict(each, Verdict.REFUSED, str(error)) for each in growing.values()]

    def _row(self, run: RunRow, verdict: StreamVerdict, former: MonitoredStreamRow | None) -> MonitoredStreamRow:
        counted = verdict.count
        grown = verdict.verdict is Verdict.SAFE and run.state is not RunState.DRAINING and counted.now is not None
        row = MonitoredStreamRow(
            job=run.job,
            system=counted.stream.system,
            stream=counted.stream.stream,
            run_id=run.run_id,
            name=counted.name,
            known=counted.now if grown and counted.now is not None else counted.known,
            seen=counted.now,
            verdict=verdict.verdict,
            reason=verdict.reason,
            since=self.clock.now(),
        )
        if former is None:
            return row
        kept_from = former.kept_from if former.kept_from is not None and former.kept_from > row.known else None
        same = (former.verdict, former.reason) == (row.verdict, row.reason)
        return replace(row, kept_from=kept_from, since=former.since if same else row.since)

    async def _store_rows(self, run: RunRow, rows: Sequence[MonitoredStreamRow], former: Mapping[StreamId, MonitoredStreamRow]) -> None:
        async with self.store.begin() as tx:
            current = await tx.runs.current(run.job)
            if current is None or current.run_id != run.run_id:
                return
            present = {row.stream_id: row for row in await tx.jobmodels.monitored(run.job) if row.run_id == run.run_id}
            await tx.jobmodels.put_monitored(run.job, [_newer(row, former.get(row.stream_id), present.get(row.stream_id)) for row in rows])
        for row in rows:
            known = former.get(row.stream_id)
            if row.verdict is Verdict.REFUSED and (known is None or known.reason != row.reason):
                log.warning("run %s does not grow with %s: %s", run.run_id, row.stream_id, row.reason)


def _newer(row: MonitoredStreamRow, former: MonitoredStreamRow | None, present: MonitoredStreamRow | None) -> MonitoredStreamRow:
    """Keep the present row if it was written, for example by a rollback, since `former` was read."""
    return row if present is None or present == former else present


async def _live(tx: ReadTransaction) -> Sequence[RunRow]:
    """The runs that may grow now, or could if they were not draining."""
    found = []
    for run in await tx.runs.active():
        current = await tx.runs.current(run.job)
        if run.stop_requested_at is None and current is not None and current.run_id == run.run_id:
            found.append(run)
    return found


def _counted(run: RunRow, current: Mapping[StreamId, PartitionCounts]) -> Sequence[StreamCount]:
    return [_compare(run, each, current[each.id]) for each in run.spec.monitored]


def _compare(run: RunRow, stream: StreamSpec, current: PartitionCounts) -> StreamCount:
    counted = StreamCount(stream.name, stream.id, stream.partitions, current.partitions, current.problem)
    if stream.identity is None or current.identity in (None, stream.identity):
        return counted
    reason = f"{counted.stream} was deleted and created again since the job began to read it, so its offsets belong to other records"
    return replace(counted, problem=f"{reason}: deploy the job with an explicit start", another=True)


def _frozen(verdict: StreamVerdict) -> StreamVerdict:
    if verdict.verdict is not Verdict.SAFE:
        return verdict
    counted = verdict.count
    return replace(verdict, reason=f"{counted.stream} has {counted.now} partitions; the run is draining, and the next run reads them")
