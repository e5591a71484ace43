"""The backup of one stage of one task: make the store ready, keep the plans of its batches durable, and commit.

    prepare      decide (`containers/state/recovery.py`), restore, and say what the store must run again
    begins(N)    put the plan of batch N, while it computes; hold the batch while a commit is overdue
    writes(N)    wait until the plan is durable
    committed(N) batch N is done: a commit is due after `interval`, or after `max_replay` batches
    commit       freeze, upload, report, clean up: a crash between any two leaves garbage, which has a TTL, and never a hole

One commit of a store runs at a time. While one takes long, those that become due are skipped; after `max_delay` batches wait for it; after
`timeout` more the container ends, because what it can lose grows without bound.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from containers.engine import StageStart
from containers.state.checkpoint import inspect, read_plan, write_plan
from containers.state.commit import Delivered, Delivery
from containers.state.context import StateContext
from containers.state.freeze import FrozenCheckpoint, freeze
from containers.state.prepare import plan_log, recovered
from containers.state.recovery import OffsetLogEntry, Snapshot
from containers.state.transfer import to_its_end
from containers.state.wal import settle_in_all
from sluice.client import AGAIN
from sluice.core.errors import BlobUnavailable, SluiceError, Unavailable
from sluice.core.ids import Instant
from sluice.core.snapshot import CommitId

log = logging.getLogger(__name__)

T = TypeVar("T")


class PlanReplaced(Unavailable):
    """Another holder of the task has planned this batch."""

    slug = "plan-replaced"


class CommitOverdue(Unavailable):
    """The state could not be backed up for too long."""

    slug = "commit-overdue"


class BatchInterrupted(Unavailable):
    """The batch was interrupted, and runs again."""

    slug = "batch-interrupted"


@dataclass(frozen=True, slots=True)
class PendingEntry:
    """The plan that a batch is computed by, and which one stands: None when nothing is backed up any more."""

    plan: OffsetLogEntry
    stands: Future[OffsetLogEntry | None]


class Backup:
    """Of one stage. Made and run on the agent's loop; `begins` and `writes` are called on Spark's threads."""

    def __init__(self, place: StateContext, start: StageStart, snapshot: Snapshot | None) -> None:
        self._place = place
        self._start = start
        self._snapshot = snapshot
        self._loop = asyncio.get_running_loop()
        self._meter = place.meter(start)
        self._directory = place.stores.directory(start.task, start.declared.stage.name)
        self._delivery = Delivery(place, start, snapshot)
        self._last = self._durable = -1
        self._undurable_since: Instant | None = None
        self._news = asyncio.Event()
        self._changed = asyncio.Condition()
        self._one = asyncio.Lock()
        self._settled: dict[int, PendingEntry] = {}
        self._waiting: set[Future[Any]] = set()
        self._begun = -1
        self._foreign = False
        self._checkpoint: CommitId | None = None
        self._abandoned = False
        self._fatal: asyncio.Future[None] = self._loop.create_future()
        self._background: set[asyncio.Task[None]] = set()
        self._clearing: asyncio.Task[None] | None = None

    # --- before the query starts -----------------------------------------------------------------------------------

    async def prepare(self) -> StageStart:
        """Make the store ready; how to start it. Raises what `recovered` raises."""
        start = self._start = await recovered(self._place, self._start, self._snapshot)
        self._delivery = Delivery(self._place, start, self._snapshot)
        await self._look_around()
        return replace(start, around=(*start.around, self))

    async def _look_around(self) -> None:
        await self._delivery.begin()
        if self._snapshot is not None and self._snapshot.lineage == self._start.lineage and not self._snapshot.chosen:
            self._durable, self._checkpoint = self._snapshot.batch, self._snapshot.checkpoint
        found = await self._place.in_thread(lambda: inspect(self._directory))
        self._last = found.committed if found is not None else -1
        if self._last > self._durable:
            self._undurable_since = self._place.clock.elapsed()

    @property
    def ready(self) -> StageStart:
        """How to start the stage again in this container: its store is on this disk, and newer than what was restored."""
        return self._start

    async def durable(self) -> CommitId | None:
        """Make all that the store has durable, and wait for it; the checkpoint that has it, None where nothing is backed up, or no batch
        ever ran. Raises what `commit` raises."""
        await self.finish()
        return self._checkpoint

    # --- around each batch -----------------------------------------------------------------------------------------

    def begins(self, batch: int) -> None:
        self._begun = batch
        plan = self._plan(batch, strict=True)
        self._settled = {batch: PendingEntry(plan, self._submit(self._settle(plan)))}
        self._result(self._submit(self._may_begin(batch)))

    def writes(self, batch: int) -> None:
        """May come again. What counts is the plan that the batch was begun by: on disk there may be another already."""
        settling = self._settled.get(batch)
        if settling is None:
            raise BatchInterrupted(f"batch {batch} of {self._start.query} was given up: another one has begun meanwhile")
        stands = self._result(settling.stands)
        if stands is None:
            return
        if stands.text != settling.plan.text:
            write_plan(self._directory, batch, stands.text)
            self._meter.replaced += 1
            raise PlanReplaced(f"batch {batch} was planned by generation {stands.generation}: that plan runs instead of this one")

    def _plan(self, batch: int, *, strict: bool) -> OffsetLogEntry:
        text = read_plan(self._directory, batch)
        return OffsetLogEntry(batch, text, self._start.generation, strict, self._place.code)

    async def _settle(self, plan: OffsetLogEntry) -> OffsetLogEntry | None:
        """The plan that stands, once it is durable. A blob store that is away is waited for: a query that fails instead uses up
        restarts."""
        policy = self._place.policy
        give_up = self._place.clock.elapsed() + (policy.max_delay + policy.timeout).total_seconds()
        while to := self._place.destinations.to:
            try:
                return await settle_in_all([plan_log(self._place, self._start, blobs) for blobs in to.values()], plan)
            except BlobUnavailable as error:
                if self._place.clock.elapsed() >= give_up:
                    raise
                log.warning("%s holds batch %d: its plan is not durable yet: %s", self._start.query, plan.batch, error)
                await asyncio.sleep(AGAIN.total_seconds())
        return None

    async def _may_begin(self, batch: int) -> None:
        """With no interval, it waits until the batch before is durable. Else only while a commit is overdue."""
        policy = self._place.policy
        if not policy.interval:
            while self._durable < batch - 1 and self._place.destinations.to:
                await self._commit_or_warn(upto=batch - 1)
        elif self._overdue(policy.max_delay):
            log.warning("%s holds batch %d: nothing was backed up for %s", self._start.query, batch, policy.max_delay)
            async with self._changed:
                await self._changed.wait_for(lambda: not self._overdue(policy.max_delay))

    def _overdue(self, delay: timedelta) -> bool:
        since = self._undurable_since
        return since is not None and self._place.clock.elapsed() - since > (self._place.policy.interval + delay).total_seconds()

    def _submit(self, work: Any) -> Future[Any]:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        if self._abandoned:
            future.cancel()
        return future

    def _result(self, future: Future[T]) -> T:
        try:
            return future.result()
        except CancelledError as error:
            raise BatchInterrupted("the query stops, and this batch is interrupted: it runs again at the next start") from error

    def abandon(self) -> None:
        """Let no batch wait, now or later, until `revive`: the query stops and does not wait for batches. A commit that a batch waits for
        is interrupted; others go on."""
        self._abandoned = True
        for future in list(self._waiting):
            future.cancel()

    def revive(self) -> None:
        """Batches may wait again: their query has stopped, and what runs on the store from now on is not what was abandoned."""
        self._abandoned = False

    # --- commits ---------------------------------------------------------------------------------------------------

    def committed(self, batch: int) -> None:
        """A batch is done."""
        if batch > self._last:
            self._last = batch
            if self._undurable_since is None:
                self._undurable_since = self._place.clock.elapsed()
            self._news.set()
        if batch > self._begun:  # a sink of the user's own, which we cannot stand around
            self._note_foreign_sink()
            task = self._loop.create_task(self._keep_plan(batch))
            self._background.add(task)
            task.add_done_callback(self._background.discard)

    def _note_foreign_sink(self) -> None:
        if not self._foreign and not self._place.policy.interval:
            log.warning(
                "%s writes into a sink of its own: each batch is backed up, but the next one may begin before that; "
                "task.write and task.foreach_batch wait",
                self._start.query,
            )
        self._foreign = True

    async def _keep_plan(self, batch: int) -> None:
        try:
            await self._settle(self._plan(batch, strict=False))
        except SluiceError as error:
            log.warning("the plan of batch %d of %s was not kept: %s", batch, self._start.query, error)

    async def run(self) -> None:
        """Commit when it is due, for ever. Raises LeaseLost, CommitOverdue, and what a person must mend."""
        if self._fatal.done():
            self._fatal = self._loop.create_future()
        works = {self._fatal, asyncio.ensure_future(self._on_schedule())}
        try:
            for done in (await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED))[0]:
                done.result()
        finally:
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)

    async def _on_schedule(self) -> None:
        while True:
            if not self._delivery.unsettled:
                await (self._until_due() if self._place.policy.interval else self._until_undurable())
            if self._last > self._durable:
                await self._commit_or_warn(upto=self._last)

    async def _until_due(self) -> None:
        policy = self._place.policy
        due = self._place.clock.elapsed() + policy.interval.total_seconds()
        while (left := due - self._place.clock.elapsed()) > 0 and self._last - self._durable < policy.max_replay:
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._news.wait()

    async def _until_undurable(self) -> None:
        """A batch that nobody follows is to be durable, too, and a sink of the user's own lets none wait."""
        while self._last <= self._durable or not self._place.destinations.to:
            self._news.clear()
            await self._news.wait()

    async def _commit_or_warn(self, upto: int | None = None) -> None:
        """What may pass is told, until it has lasted for `timeout`; anything else ends `run`."""
        try:
            await self._try_to_commit(upto)
        except Exception as error:
            if not self._fatal.done():
                self._fatal.set_exception(error)
            raise

    async def _try_to_commit(self, upto: int | None) -> None:
        policy = self._place.policy
        try:
            limit = (policy.max_delay + policy.timeout).total_seconds()
            async with asyncio.timeout(limit):
                await self.commit(upto)
        except (Unavailable, TimeoutError) as error:
            self._meter.backup.failed += 1
            if self._overdue(policy.max_delay + policy.timeout):
                raise CommitOverdue(f"{self._start.query} was not backed up for {policy.max_delay + policy.timeout}: {error}") from error
            log.warning("%s was not backed up; again in a moment: %s", self._start.query, error or "it took too long")
            await asyncio.sleep(AGAIN.total_seconds())

    async def commit(self, upto: int | None = None) -> None:
        """Freeze, upload, report: the store is then durable up to its last committed batch. Nothing to do if it is, or is up to `upto`. May
        be interrupted anywhere. Raises what `Delivery.deliver` and `freeze` raise."""
        async with self._one:
            if (reported := await self._delivery.settle()) is not None:
                self._now_durable(reported)
            if upto is None or self._durable < upto:
                await self._commit()
        async with self._changed:
            self._changed.notify_all()

    async def _commit(self) -> None:
        place, start = self._place, self._start
        checkpoint = place.new_checkpoint_id()
        cut_at = place.stores.cuts(start.task, start.declared.stage.name) / checkpoint
        began = place.clock.elapsed()
        await self._cleared()
        try:
            cut = await to_its_end(place.in_thread(lambda: _frozen(self._directory, cut_at)))
            if cut.batch is not None and cut.batch > self._durable and place.destinations.to:
                self._now_durable(await self._delivery.deliver(cut, checkpoint, began))
        finally:
            self._meter.backup.over()
            self._clearing = self._loop.create_task(self._clear(cut_at))

    async def _clear(self, cut: Path) -> None:
        """Nobody waits for that but the next commit."""
        with suppress(RuntimeError):  # the container ends, and its threads have: the next start of the stage removes it
            await self._place.in_thread(lambda: shutil.rmtree(cut, ignore_errors=True))

    async def _cleared(self) -> None:
        if self._clearing is not None:
            await asyncio.wait({self._clearing})

    def _now_durable(self, reported: Delivered) -> None:
        self._durable, self._checkpoint = reported.batch, reported.checkpoint
        self._meter.durable_at, self._meter.durable_batch = self._place.clock.now(), reported.batch
        self._meter.backup.seconds.add(self._place.clock.elapsed() - reported.frozen_at)
        self._last = max(self._last, reported.batch)
        self._undurable_since = reported.frozen_at if self._last > reported.batch else None

    def forget(self) -> None:
        """The container has given the stage up: nothing more is told of it."""
        self._place.forget(self._start)

    async def finish(self) -> None:
        """The last commit, once the query has ended. Raises what `commit` raises."""
        found = await self._place.in_thread(lambda: inspect(self._directory))
        if found is not None and found.committed > self._durable:
            await self.commit()
        await self._cleared()


def _frozen(directory: Path, into: Path) -> FrozenCheckpoint:
    into.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(into, ignore_errors=True)
    return freeze(directory, into)
