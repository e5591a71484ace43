"""Decides when the state of a stage is committed, and how far batches may run ahead of the last commit.

    schedule        a commit is due after `interval`, or after `max_replay` batches; with an interval of 0, after every batch
    back-pressure   a batch waits before it computes while a commit is overdue by `max_delay`; with an interval of 0, until the batch before
                    is durable
    fatal           a commit that is overdue by another `timeout` ends the container, unless an attempt has put files in that time, which
                    the next one need not put again

While the run has no blob store for backups, no commit is due, and no batch waits. The blob stores may change at any time.

`containers.state.commits.commit` makes a commit. One commit of a stage runs at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from containers.engine import StageStart
from containers.state.checkpoint import inspect
from containers.state.commits.commit import CommitOverdue, CommitState, commit, keep_plans, open_commits
from containers.state.context import StateContext
from containers.state.offsets.batch_waits import BatchWaits
from containers.state.offsets.wal import OffsetLogGate
from containers.state.recovery.decision import Rule, recovery
from containers.state.recovery.prepare import prepare_checkpoint
from sluice.client import RETRY_DELAY
from sluice.core.errors import SluiceError, Unavailable
from sluice.core.ids import Instant
from sluice.core.snapshots.snapshot import BlobStoreName, CommitId

log = logging.getLogger(__name__)


WATCH_EVERY = timedelta(seconds=5)
"""How often it is checked whether the backup is overdue."""


class Backup:
    """The backup of one stage of one task. Created and run on the agent's loop; `before_batch` and `before_write` are called on Spark's
    threads."""

    def __init__(self, state: StateContext, start: StageStart, rule: Rule = recovery) -> None:
        """`rule`: where the checkpoint continues."""
        self._state = state
        self._start = start
        self._rule = rule
        self._waits = BatchWaits()
        self._gate = OffsetLogGate(state, start, self._waits)
        self._commits = CommitState(start)
        self._one_commit = asyncio.Lock()
        self._durable_changed = asyncio.Event()
        self._new_batch = asyncio.Event()
        self._last_batch = -1
        self._behind_since: Instant = state.clock.elapsed()
        self._warned_of_sink = False
        self._gained_at: Instant | None = None
        """When an upload that failed had put files which the next one need not put again."""
        self.failed_with: str | None = None
        """The error of the last commit; None if it succeeded."""
        self._fatal: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._background: set[asyncio.Task[None]] = set()

    # --- before the query starts -----------------------------------------------------------------------------------

    async def prepare(self) -> StageStart:
        """Prepare the checkpoint. Returns how to start the stage. Raises what `prepare_checkpoint` raises."""
        state = self._state
        prepared = await prepare_checkpoint(state, self._start, self._start.snapshot, self._rule)
        start = self._start = prepared.start
        self._gate = OffsetLogGate(state, start, self._waits)
        self._commits = await open_commits(start, prepared.follows, state, prepared.damaged)
        self._commits.keep_running_batch = self._gate.keep_running_batch
        self._last_batch = await self._last_on_disk()
        self._behind_since = state.clock.elapsed()
        return replace(start, asks=True)

    def extend(self, start: StageStart) -> None:
        """Update the continuation for the next snapshots, after the task was acquired again."""
        self._commits.start = replace(self._commits.start, continuation=start.continuation)

    async def _last_on_disk(self) -> int:
        directory = self._state.checkpoints.directory(self._start.task, self._start.stage.name)
        found = await self._state.in_thread(lambda: inspect(directory))
        return -1 if found is None else found.committed

    # --- around each batch -----------------------------------------------------------------------------------------

    def before_batch(self, batch: int) -> None:
        """Start to make the batch's offset-log entry durable, and wait while commits are behind."""
        self._gate.before_batch(batch)
        self._waits.result(self._waits.submit(self._may_begin(batch)))

    def before_write(self, batch: int) -> None:
        self._gate.before_write(batch)

    async def _may_begin(self, batch: int) -> None:
        policy = self._state.policy
        if not policy.interval:
            while self._commits.durable_batch < batch - 1 and self._state.destinations.to:
                await self._commit_or_warn(batch - 1)
        elif self._overdue(policy.max_delay):
            log.warning("%s: batch %d waits, because nothing was backed up for %s", self._start.query, batch, policy.max_delay)
            while self._overdue(policy.max_delay):
                self._durable_changed.clear()
                await self._durable_changed.wait()

    def release_batches(self) -> None:
        """Let every batch pass without waiting, until `hold_batches`: the query stops without waiting for its batch. A commit that a batch
        waits for is interrupted; others continue."""
        self._waits.interrupt()

    def hold_batches(self) -> None:
        """Let batches wait again, once the query has stopped."""
        self._waits.resume()

    def committed(self, batch: int) -> None:
        """Record that Spark has committed a batch."""
        self.seen(batch)
        if not self._gate.committed(batch) and not self._warned_of_sink:
            self._warned_of_sink = True
            if not self._state.policy.interval:
                log.warning(
                    "%s does not write through its task: each batch is backed up, but the next one may start before that; "
                    "with task.write and task.foreach_batch it waits",
                    self._start.query,
                )

    def seen(self, batch: int) -> None:
        """Record that the batch is on the disk."""
        if batch > self._newest_batch:
            if self._newest_batch <= self._commits.durable_batch:
                self._behind_since = self._state.clock.elapsed()
            self._new_batch.set()
        self._last_batch = max(self._last_batch, batch)

    # --- problems --------------------------------------------------------------------------------------------------

    @property
    def problem(self) -> str | None:
        """Why the newest batch is not backed up although that is overdue, or why a batch waits for its offset-log entry; one line. None
        while neither takes too long, or the backup is late because there is much to upload."""
        policy = self._state.policy
        error = self.failed_with or self._state.requests.put_error
        if error is not None and self._overdue(policy.late):
            return " ".join(error.split())
        if (batch := self._gate.late_batch(policy.late)) is not None:
            return " ".join(f"batch {batch} waits, because its offset-log entry is not durable: {error or 'no answer'}".split())
        if self._overdue(policy.max_delay):
            return f"it is late by more than {policy.max_delay}, and batches wait for it"
        return None

    async def watch(self, report: Callable[[], None]) -> None:
        """Call `report` repeatedly while there is a problem, and once when it is over, until cancelled. A batch that waits for a commit
        reports nothing else."""
        pause = min(WATCH_EVERY, max(self._state.policy.late, RETRY_DELAY / 10))
        reported = False
        while True:
            await asyncio.sleep(pause.total_seconds())
            found = self.problem is not None
            if found or reported:
                report()
            reported = found

    # --- commits ---------------------------------------------------------------------------------------------------

    @property
    def _newest_batch(self) -> int:
        """The newest committed batch. The report of a commit can be answered before Spark's listener reports its batch."""
        return max(self._last_batch, self._commits.durable_batch)

    def _overdue(self, delay: timedelta) -> bool:
        """Whether the oldest batch that is not durable has waited for longer than the interval and `delay`. Never without a blob store."""
        if self._newest_batch <= self._commits.durable_batch or not self._state.destinations.to:
            return False
        last = self._commits.last
        since = self._behind_since if last is None else max(self._behind_since, last.frozen_at)
        return self._state.clock.elapsed() - since > (self._state.policy.interval + delay).total_seconds()

    def _has_gained_within(self, time: timedelta) -> bool:
        return self._gained_at is not None and self._state.clock.elapsed() - self._gained_at <= time.total_seconds()

    async def run(self) -> None:
        """Commit when it is due, until cancelled. Raises LeaseLost, CommitOverdue, and every error that an operator must act on."""
        if self._fatal.done():
            self._fatal = asyncio.get_running_loop().create_future()
        works = (self._fatal, asyncio.ensure_future(self._commit_on_schedule()))
        self._keep_plans()
        self._state.destinations.watchers.append(self._on_destinations)
        try:
            await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
            for ended in filter(asyncio.Future.done, works):
                ended.result()
        finally:
            self._state.destinations.watchers.remove(self._on_destinations)
            background = (*works, *self._background)
            for work in background:
                work.cancel()
            await asyncio.gather(*background, return_exceptions=True)

    def _on_destinations(self) -> None:
        """The run's blob stores have changed. The wait of a batch that is not durable is measured from now on."""
        self._behind_since = self._state.clock.elapsed()
        self._new_batch.set()
        self._durable_changed.set()
        self._keep_plans()

    def _keep_plans(self) -> None:
        task = asyncio.get_running_loop().create_task(self._copy_plans(), name=f"plans of {self._start.query}")
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _copy_plans(self) -> None:
        """The next snapshot does it, too; but a stage may have none for a long time."""
        while True:
            try:
                await keep_plans(self._commits, self._state, self._commits.durable_batch)
                return
            except Unavailable as error:
                log.warning("%s: the plans of its batches are not in all blob stores yet; retrying: %s", self._start.query, error)
            except SluiceError as error:
                log.error("%s: the plans of its batches are not in all blob stores: %s", self._start.query, error)
                return
            await asyncio.sleep(RETRY_DELAY.total_seconds())

    async def _commit_on_schedule(self) -> None:
        while True:
            if self._commits.unanswered is None:
                while not self._state.destinations.to:
                    self._new_batch.clear()
                    await self._new_batch.wait()
                await (self._until_due() if self._state.policy.interval else self._until_behind())
            if self._behind or self._commits.unanswered is not None:
                await self._commit_or_warn(self._newest_batch)

    @property
    def _behind(self) -> bool:
        """Whether there is something to commit: a newer batch, or the durable state for a blob store that does not have it."""
        newest, durable = self._newest_batch, self._commits.durable_batch
        return newest > durable or (newest == durable >= 0 and self._last_batch == newest and self._commits.lacking(self._state))

    async def _until_due(self) -> None:
        policy = self._state.policy
        due = self._state.clock.elapsed() + policy.interval.total_seconds()
        while (left := due - self._state.clock.elapsed()) > 0 and self._newest_batch - self._commits.durable_batch < policy.max_replay:
            self._new_batch.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._new_batch.wait()

    async def _until_behind(self) -> None:
        """Wait until a commit is due. With an interval of 0, each batch commits the one before it; only the last batch, and batches that
        are not written through the task, are committed on schedule."""
        while not self._behind:
            self._new_batch.clear()
            await self._new_batch.wait()

    async def _commit_or_warn(self, up_to: int) -> None:
        """Commit. A temporary failure is logged, and the caller repeats the commit. A failure that lasts too long without any progress, and
        any other error, is raised and also ends `run`."""
        limit = self._state.policy.max_delay + self._state.policy.timeout
        before = self._commits.gained_bytes
        try:
            try:
                async with asyncio.timeout(limit.total_seconds()):
                    await self.commit(up_to)
            except CommitOverdue:
                raise
            except (Unavailable, TimeoutError) as error:
                self._state.meter(self._start).backup.failed += 1
                self.failed_with = str(error) or "it took too long"
                if self._commits.gained_bytes > before:
                    self._gained_at = self._state.clock.elapsed()
                if self._overdue(limit) and not self._has_gained_within(limit):
                    raise CommitOverdue(f"{self._start.query} was not backed up for {limit}: {error}") from error
                log.warning("%s was not backed up; retrying: %s", self._start.query, error or "it took too long")
                await asyncio.sleep(RETRY_DELAY.total_seconds())
        except Exception as error:
            if not self._fatal.done():
                self._fatal.set_exception(error)
            raise

    async def commit(self, up_to: int | None = None) -> None:
        """Make the state durable up to its last committed batch, at least up to `up_to`. May be interrupted anywhere. Raises what
        `containers.state.commits.commit.commit` raises."""
        async with self._one_commit:
            await commit(self._commits, self._state, up_to)
        self.failed_with = None
        self._durable_changed.set()

    async def durable(self) -> CommitId | None:
        """Make the whole state durable. Returns the commit that contains it; None if the run has no backups, or no batch has run. The query
        must be stopped or paused. Raises what `commit` raises."""
        await self.finish()
        return self._commits.durable_commit if await self._last_on_disk() <= self._commits.durable_batch else None

    async def finish(self) -> None:
        """Make the last commit, after the query has ended. Raises what `commit` raises."""
        last, durable = await self._last_on_disk(), self._commits.durable_batch
        if last > durable or (last == durable >= 0 and self._commits.lacking(self._state)):
            await self.commit()
        await self._commits.wait_for_cleanup()

    def repair(self, blob_store: BlobStoreName) -> None:
        """Make the next commit repair the retained snapshots in the blob store, which has lost blobs of them."""
        log.warning("blob store %s has lost blobs of snapshots of %s and is repaired", blob_store, self._start.query)
        self._commits.to_repair.add(blob_store)
        self._new_batch.set()

    def forget(self) -> None:
        """Drop the stage's metrics, after the container has released the task."""
        self._state.forget(self._start)
