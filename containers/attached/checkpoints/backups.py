"""The agent's side of `app.checkpoint`: checkpoints are restored before the driver uses them, and backed up while queries run on them.

The code is that of job files: a commit is a frozen copy of the directory, from which what is new is uploaded (`containers.state.commits`).
Nothing of it runs in the script, and no batch waits for it. A backup that fails is shown (`sluice status`) and tried again; it never ends
the script.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from containers.attached.checkpoints.former import delete_former
from containers.attached.checkpoints.recovery import rule_of_scripts
from containers.attached.claim import Claim
from containers.attached.port import Made, Wanted
from containers.engine import StageStart
from containers.errors import CheckpointUnreadable, StateNotLocal
from containers.settings import read_container_settings
from containers.state.checkpoint import (
    DRAIN_MARKER,
    Checkpoints,
    delete_given_up,
    inspect,
    read_local_checkpoint,
    relocate,
    write_offset_log,
)
from containers.state.commits.commit import CommitOverdue, CommitState, commit, keep_plans, open_commits
from containers.state.context import StateContext
from containers.state.offsets.wal import offset_log, put_in_all
from containers.state.recovery.decision import LocalCheckpoint, OffsetLogEntry
from containers.state.recovery.power_loss import damaged_file
from containers.state.recovery.prepare import Prepared, prepare_checkpoint
from containers.state.recovery.restore import finish_swap
from sluice.blobs.port import BlobStore
from sluice.client.agents import AgentClient
from sluice.clock import Clock
from sluice.core.errors import BlobUnavailable, CoordinatorUnreachable, LeaseLost, SluiceError, StaleRun, Unavailable
from sluice.core.ids import Instant, JobName, Lineage, RunId, StageName
from sluice.core.jobmodels.graph import Stage
from sluice.core.jobmodels.spec import ATTACHED_TASK
from sluice.core.snapshots.snapshot import BlobId, BlobStoreName, CommitId, Snapshot
from sluice.wire import agents as wire_agents
from sluice.wire import snapshots as wire_snapshots

log = logging.getLogger("sluice")

T = TypeVar("T")

RETRY = timedelta(seconds=2)
LOOK = timedelta(seconds=0.5)
"""How often it is checked whether there is a batch to back up."""

NOTHING_BACKED_UP = "no blob store is configured for this job: its checkpoints are on this machine only"


@dataclass(frozen=True, slots=True)
class ScriptDirectories(Checkpoints):
    """The checkpoint directories of a script. `folders`: by name."""

    folders: dict[str, str] = field(default_factory=dict)

    def directory(self, task: str, stage: str) -> Path:
        return self.root / self.job / self.folders[stage] / stage

    def frozen(self, task: str, stage: str) -> Path:
        return self.root / self.job / self.folders[stage] / ".cuts" / stage


@dataclass(frozen=True, slots=True)
class _Script:
    """Implements `containers.state.context.JobOfState`."""

    name: JobName
    code: str


class ScriptBackups:
    """The checkpoints of one script under one claim. Used on the agent's loop. `open_blobs`: for tests."""

    def __init__(
        self,
        job: JobName,
        claim: Claim,
        coordinator: AgentClient,
        clock: Clock,
        open_blobs: Callable[[str], BlobStore] | None = None,
    ) -> None:
        self._job = job
        self._claim = claim
        self._coordinator = coordinator
        self._clock = clock
        self._open_blobs = open_blobs
        self._state: StateContext | None = None
        self._checkpoints: dict[StageName, CheckpointBackup] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._adopting: asyncio.Task[None] | None = None
        self._one_adoption = asyncio.Lock()
        self._one_at_a_time = asyncio.Lock()

    async def prepare(self, wanted: Wanted) -> Made:
        """Make a checkpoint ready on this disk. It is backed up from now on. Waits for the coordinator and for blob stores. Raises
        CheckpointUnreadable, BlobStoreUnusable, and what `prepare_checkpoint` raises."""
        async with self._one_at_a_time:
            state = self._context(wanted)
            known = self._checkpoints.get(wanted.stage)
            if known is not None and known.folder == wanted.folder:
                return Made(
                    known.lineage, replay=await state.in_thread(lambda: _planned(known.directory, known.replay, replace_plan=False))
                )
            await _until_available(lambda: self._adopt(state))
            return await _until_available(lambda: self._prepare(state, wanted))

    def _context(self, wanted: Wanted) -> StateContext:
        if self._state is None:
            settings = read_container_settings(run_id=self._claim.run, state_dir=wanted.state)
            state = StateContext(_Script(self._job, wanted.code), settings, self._coordinator, self._clock, self._open_blobs)
            state.checkpoints = ScriptDirectories(wanted.state, self._job)
            self._state = state
        directories = self._state.checkpoints
        assert isinstance(directories, ScriptDirectories)
        directories.folders[wanted.stage] = wanted.folder
        return self._state

    async def _adopt(self, state: StateContext) -> None:
        async with self._one_adoption:  # otherwise an older answer could be used last
            await state.adopt(await self._coordinator.basic_run(self._claim.run))

    async def adopt_stores(self) -> None:
        """The blob stores of the run have changed. Does not wait: while they cannot be used, the former ones are, and it is tried again."""
        if self._state is None:
            return
        if self._adopting is not None:
            self._adopting.cancel()
        self._adopting = task = asyncio.create_task(self._adopt_when_possible(self._state), name="new blob stores")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _adopt_when_possible(self, state: StateContext) -> None:
        last = ""
        while True:
            try:
                await self._adopt(state)
                for each in self._checkpoints.values():
                    each.copies_plans = True
                return
            except SluiceError as error:
                if str(error) != last:
                    log.warning("the run's new blob stores cannot be used yet, which will be tried again: %s", error)
                last = str(error)
            await asyncio.sleep(RETRY.total_seconds())

    def repair(self, lost: object) -> None:
        """Blob stores have lost blobs of snapshots of these stages, as a notice names them. Does nothing for a checkpoint that the driver
        has not asked for: the coordinator sends the notice again each hour."""
        for each in lost if isinstance(lost, list) else ():
            try:
                found, blob_store = self._checkpoints.get(StageName(each["stage"])), BlobStoreName(each["blobStore"])
            except (TypeError, KeyError):
                log.warning("ignoring an invalid notice of lost blobs: %s", str(each)[:200])
            else:
                if found is not None:
                    found.repair(blob_store)

    async def _prepare(self, state: StateContext, wanted: Wanted) -> Made:
        directory = state.checkpoints.directory(ATTACHED_TASK, wanted.stage)
        local = await state.in_thread(lambda: _local(directory))
        opened = await self._open(wanted, local)
        if opened.lineage is None:
            if local is None:
                return Made(adopt=True)
            opened = await self._open(replace(wanted, adopts=False), local)
        start = self._start(wanted, opened)
        if local is None and start.snapshot is None and start.reported is not None and not state.destinations.restore_from:
            raise StateNotLocal(_not_here(directory, opened))
        if not state.destinations.to and start.snapshot is None:
            log.warning("checkpoint %s: %s", wanted.stage, NOTHING_BACKED_UP)
        prepared = await prepare_checkpoint(state, start, start.snapshot, rule_of_scripts(new=opened.new, replays=wanted.replays))
        await state.in_thread(lambda: _begin_empty(state, prepared.start, directory))
        made = await state.in_thread(lambda: _finish(directory, prepared, local))
        made = replace(made, new_lineage=prepared.start.lineage != start.lineage)
        await self._begin(state, wanted, prepared)
        backed_up = bool(state.destinations.to)
        await state.in_thread(lambda: delete_former(wanted.state / self._job, wanted.folder, wanted.stage, backed_up=backed_up))
        if made.restored is not None:
            log.info("checkpoint %s was restored from its snapshot of batch %d", wanted.stage, made.restored)
        return made

    async def _open(self, wanted: Wanted, local: LocalCheckpoint | None) -> wire_snapshots.OpenedCheckpoint:
        body = wire_snapshots.CheckpointOpening(
            generation=self._claim.generation, lineage=None if local is None else local.lineage, create=not wanted.adopts
        )
        return await self._coordinator.open_checkpoint(self._claim.run, ATTACHED_TASK, wanted.stage, body)

    def _start(self, wanted: Wanted, opened: wire_snapshots.OpenedCheckpoint) -> StageStart:
        found = opened.snapshot
        return StageStart(
            stage=Stage(wanted.stage, ()),
            task=ATTACHED_TASK,
            generation=self._claim.generation,
            lineage=Lineage(opened.lineage or ""),
            reported=opened.batch_id,
            starts={},
            first_run=RunId(""),
            continuation=self._claim.continuation,
            snapshot=None if found is None else _snapshot(found),
        )

    async def _begin(self, state: StateContext, wanted: Wanted, prepared: Prepared) -> None:
        former = self._checkpoints.pop(wanted.stage, None)
        if former is not None:
            former.over.set()
        start = prepared.start

        async def reopen() -> CommitState:
            opened = await self._open(replace(wanted, adopts=True), LocalCheckpoint(start.lineage, -1, -1))
            return await open_commits(start, None if opened.snapshot is None else _snapshot(opened.snapshot), state)

        made = CheckpointBackup(state, wanted, start, await open_commits(start, prepared.follows, state, prepared.damaged), reopen)
        self._checkpoints[wanted.stage] = made
        self._running.add(task := asyncio.create_task(made.run(), name=f"backup of {wanted.stage}"))
        task.add_done_callback(self._running.discard)

    # --- while the queries run ---------------------------------------------------------------------------------------

    async def keep_plan(self, stage: StageName, batch: int) -> str:
        """Make what the batch reads durable, before it writes. Returns why that failed, "" if it did not."""
        found = self._checkpoints.get(stage)
        return "" if found is None else await found.keep_plan(batch)

    async def durable(self, stage: StageName) -> CommitId | None:
        """Make the last batch of a paused query durable. Returns its snapshot; None if its checkpoint is not backed up, or has no batch.
        Raises what `commit` raises."""
        found = self._checkpoints.get(stage)
        return None if found is None else await found.durable()

    def shown(self, queries: Iterable[wire_agents.QueryBody]) -> tuple[wire_agents.QueryBody, ...]:
        """The driver's report of its queries, with what is wrong with their backups."""
        return tuple(self._shown(each) for each in queries)

    def _shown(self, query: wire_agents.QueryBody) -> wire_agents.QueryBody:
        found = self._checkpoints.get(StageName(query.stage))
        problem = None if found is None or found.lineage != query.query_id else found.problem
        if problem is None or query.metrics is None:
            return query
        return query.model_copy(update={"metrics": query.metrics.model_copy(update={"backup_problem": problem[:500]})})

    async def finish(self, within: timedelta) -> None:
        """The queries have ended: make the last snapshots. Logs those that could not be made in time."""
        if not self._checkpoints:
            return
        finishing = {asyncio.create_task(each.finish()): stage for stage, each in self._checkpoints.items()}
        done, late = await asyncio.wait(finishing, timeout=within.total_seconds())
        for each in late:
            each.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        for each in (*late, *(task for task in done if task.exception() is not None)):
            why = "there was no time" if each in late else each.exception()
            log.warning("the last batches of checkpoint %s are on this machine only: %s", finishing[each], why)

    async def close(self) -> None:
        for each in self._running:
            each.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        if self._state is not None:
            await self._state.close()


class CheckpointBackup:
    """The backup of one checkpoint."""

    def __init__(
        self, state: StateContext, wanted: Wanted, start: StageStart, commits: CommitState, reopen: Callable[[], Awaitable[CommitState]]
    ) -> None:
        """`reopen`: continue after the newest snapshot that the coordinator knows."""
        self._state = state
        self._reopen = reopen
        self._start = start
        self._commits = commits
        commits.keep_running_batch = self._keep_running_batch
        self._kept: tuple[OffsetLogEntry, Mapping[BlobStoreName, BlobStore]] | None = None
        """The entry of the last batch whose plan was kept, and the blob stores that have it."""
        self._one_commit = asyncio.Lock()
        self.directory = state.checkpoints.directory(ATTACHED_TASK, wanted.stage)
        self.replay = start.replay
        self._tried_at: Instant | None = None
        self._failed: tuple[Instant, str] | None = None
        """Since when commits fail, and the last error."""
        self.folder = wanted.folder
        self.copies_plans = True
        """Whether blob stores may lack the plans of batches that are not durable."""
        self.over = asyncio.Event()

    @property
    def lineage(self) -> Lineage:
        return self._start.lineage

    @property
    def problem(self) -> str | None:
        """Why the backup is overdue, one line; None if it is not."""
        if self._failed is None or self._state.clock.elapsed() - self._failed[0] < self._state.policy.late.total_seconds():
            return None
        return " ".join(self._failed[1].split())

    async def run(self) -> None:
        """Back up on schedule, until the lease or the run has ended, or `over` is set. The first batch is backed up at once."""
        while not self.over.is_set():
            await asyncio.sleep(LOOK.total_seconds())
            if not self._is_due() and not self.copies_plans:
                continue
            try:
                try:
                    await self._copy_plans()
                    if self._is_due():
                        await self._commit()
                except CommitOverdue as overdue:
                    self._note(str(overdue))
                    async with self._one_commit:
                        await self._begin_again()
            except (LeaseLost, StaleRun) as lost:
                log.info("checkpoint %s is not backed up any more: %s", self._start.stage.name, lost)
                return
            except (SluiceError, OSError, TimeoutError) as error:
                self._note(str(error) or type(error).__name__)
                if self.copies_plans:
                    await asyncio.sleep(RETRY.total_seconds())
            except Exception as error:
                log.exception("the backup of checkpoint %s", self._start.stage.name)
                self._note(f"{type(error).__name__}: {error}")

    async def _begin_again(self) -> None:
        """Continue after the newest snapshot that the coordinator knows. What blob stores have lost of former ones must still be
        replaced."""
        reopened = await self._reopen()
        reopened.to_repair |= self._commits.to_repair | self._commits.damaged  # after the wait: a repair may have been requested meanwhile
        reopened.keep_running_batch = self._keep_running_batch
        self._commits = reopened

    def repair(self, blob_store: BlobStoreName) -> None:
        """Make the next commit repair the retained snapshots in the blob store, which has lost blobs of them."""
        log.warning("blob store %s has lost blobs of snapshots of checkpoint %s and is repaired", blob_store, self._start.stage.name)
        self._commits.to_repair.add(blob_store)

    def _is_due(self) -> bool:
        if not self._state.destinations.to:
            return False
        if self._tried_at is None or self._commits.durable_commit is None:
            pause = timedelta(0) if self._failed is None else RETRY
        else:
            pause = self._state.policy.interval
        return self._tried_at is None or self._state.clock.elapsed() - self._tried_at >= pause.total_seconds()

    async def _commit(self) -> None:
        """Make the last committed batch durable, unless it is. A checkpoint that a drain flushes is not backed up: no query may continue on
        it."""
        newest = await self._state.in_thread(lambda: _newest(self.directory))
        if newest is None:
            return
        lacking = self._commits.lacking(self._state)
        if newest > self._commits.durable_batch or (newest == self._commits.durable_batch and lacking) or self._commits.unanswered:
            self._tried_at = self._state.clock.elapsed()
            async with self._one_commit, asyncio.timeout(self._state.policy.timeout.total_seconds()):
                await commit(self._commits, self._state, None if lacking else newest)
            log.debug("checkpoint %s is backed up to batch %d", self._start.stage.name, self._commits.durable_batch)
        self._failed = None

    def _note(self, error: str) -> None:
        now = self._state.clock.elapsed()
        self._state.meter(self._start).backup.failed += 1
        if self._failed is None or self._failed[1] != error:
            log.warning("checkpoint %s was not backed up, which will be tried again: %s", self._start.stage.name, error)
        self._failed = (now if self._failed is None else self._failed[0], error)

    async def finish(self) -> None:
        """Make the last snapshot. Raises what `commit` raises."""
        self.over.set()
        if self._state.destinations.to:
            await self._commit()
        await self._commits.wait_for_cleanup()

    async def durable(self) -> CommitId | None:
        """See `ScriptBackups.durable`. A checkpoint whose flush was interrupted has been made durable before."""
        if not self._state.destinations.to:
            return None
        await self._commit()
        return self._commits.durable_commit

    # --- plans -------------------------------------------------------------------------------------------------------

    async def keep_plan(self, batch: int) -> str:
        """See `ScriptBackups.keep_plan`. Waits for blob stores that are not available, as the batches of job files do."""
        state, policy = self._state, self._state.policy
        give_up = state.clock.elapsed() + (policy.max_delay + policy.timeout).total_seconds()
        while to := state.destinations.to:
            try:
                text = await state.in_thread((self.directory / "offsets" / str(batch)).read_text)
                entry = OffsetLogEntry(batch, text, self._start.generation, strict=True, code=state.code)
                decided = await put_in_all([offset_log(state, self._start, each) for each in to.values()], entry)
            except Unavailable as error:
                if state.clock.elapsed() >= give_up:
                    return str(error)
                log.warning("batch %d of checkpoint %s waits: %s", batch, self._start.stage.name, error)
                await asyncio.sleep(RETRY.total_seconds())
            except (SluiceError, OSError) as error:
                return str(error)
            else:
                if decided.text != text:
                    return f"batch {batch} was planned by another start of the script, with other records"
                if state.destinations.to in ({}, to):  # else they have changed meanwhile
                    self._kept = (decided, to)
                    return ""
        return ""

    async def _copy_plans(self) -> None:
        """Copy the plans of batches that are not durable to blob stores that were added. Raises BlobUnavailable, BlobCorrupted."""
        if not self.copies_plans:
            return
        self.copies_plans = False  # it may be set again meanwhile
        try:
            await keep_plans(self._commits, self._state, self._commits.durable_batch)
        except BaseException:
            self.copies_plans = True
            raise

    async def _keep_running_batch(self, after: int) -> None:
        """Put the last kept plan, if it is of a batch later than `after`, into the present blob stores, if they have changed since. A
        restore of a snapshot from them must run the batch as it was planned. Raises BlobUnavailable, BlobCorrupted."""
        to = self._state.destinations.to
        if self._kept is None or self._kept[0].batch <= after or not to or to == self._kept[1]:
            return
        await put_in_all([offset_log(self._state, self._start, each) for each in to.values()], self._kept[0])
        self._kept = (self._kept[0], to)


def _not_here(directory: Path, opened: wire_snapshots.OpenedCheckpoint) -> str:
    elsewhere = f"they are in {opened.place}" if opened.place else "they are where the script ran before"
    return (
        f"its batches up to {opened.batch_id} have run, and {directory} does not have them: {elsewhere}, and there is no snapshot: "
        "start the script there, or set SLUICE_STATE_DIR to that state directory, as an absolute path; to begin again, use another name"
    )


def _local(directory: Path) -> LocalCheckpoint | None:
    """The checkpoint on this disk; None if there is none that can be used."""
    finish_swap(directory)
    return None if damaged_file(directory) is not None else read_local_checkpoint(directory)


def _newest(directory: Path) -> int | None:
    """The last committed batch, None before the first, and if a drain flushes the checkpoint."""
    if (directory / DRAIN_MARKER).exists():
        return None
    found = inspect(directory)
    return None if found is None or found.committed < 0 else found.committed


def _begin_empty(state: StateContext, start: StageStart, directory: Path) -> None:
    """Give a checkpoint that does not exist its lineage: without blob stores it was not prepared."""
    if inspect(directory) is None:
        state.checkpoints.prepare(start.task, start.stage.name, start.lineage, None)


def _finish(directory: Path, prepared: Prepared, local: LocalCheckpoint | None) -> Made:
    """Make the paths in a prepared checkpoint those of this machine, and plan its first batch that must run again."""
    found = inspect(directory)
    assert found is not None
    if (directory / DRAIN_MARKER).exists() and (local is None or local.committed != found.committed):
        raise CheckpointUnreadable(
            f"the snapshot in {directory} is of a checkpoint that a drain was flushing: choose an older one with `sluice snapshots restore`"
        )
    delete_given_up(directory)  # a kill may have interrupted that
    relocate(directory)
    replay = _planned(directory, prepared.start.replay, replace_plan=True)
    restored = found.committed if local is None or local.lineage != found.lineage or local.committed != found.committed else None
    return Made(found.lineage, restored=restored if found.committed >= 0 else None, replay=replay)


def _snapshot(found: wire_snapshots.StageSnapshot) -> Snapshot:
    return Snapshot(
        CommitId(found.checkpoint_id),
        Lineage(found.lineage),
        -1 if found.batch_id is None else found.batch_id,
        {BlobStoreName(name): BlobId(index) for name, index in found.markers.items()},
        found.chosen,
    )


def _planned(directory: Path, replay: Mapping[int, str], *, replace_plan: bool) -> Mapping[int, str]:
    """Plan the first of these batches that is not committed. Returns those after it. `replace_plan`: also if it is planned already. No
    query may run on the checkpoint then."""
    found = inspect(directory)
    left = {batch: text for batch, text in sorted(replay.items()) if found is None or batch > found.committed}
    if not left:
        return {}
    first = min(left)
    planned = directory / "offsets" / str(first)
    if not planned.exists() or (replace_plan and planned.read_text() != left[first]):
        write_offset_log(directory, first, left[first])
    return {batch: text for batch, text in left.items() if batch > first}


async def _until_available(work: Callable[[], Awaitable[T]]) -> T:
    """The result of `work`, which is repeated while the coordinator or a blob store is not available."""
    last = ""
    while True:
        try:
            return await work()
        except (BlobUnavailable, CoordinatorUnreachable) as error:
            if str(error) != last:
                log.warning("waiting: %s", error)
            last = str(error)
            await asyncio.sleep(RETRY.total_seconds())
