"""The agent's side of `app.checkpoint`: checkpoints are restored before the driver uses them, and backed up while queries run on them.

The code is that of job files: a commit is a frozen copy of the directory, from which what is new is uploaded (`containers.state.commits`).
Nothing of it runs in the script, and no batch waits for it. A backup that fails is shown (`sluice status`) and tried again; it never ends
the script.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from containers.agent.task import snapshot_of
from containers.attached.checkpoints.backup import ScriptBackup
from containers.attached.checkpoints.former import delete_former
from containers.attached.checkpoints.recovery import rule_of_scripts
from containers.attached.claim import Claim
from containers.attached.port import Made, Wanted
from containers.engine import StageStart
from containers.errors import CheckpointUnreadable, StateNotLocal
from containers.retries import until_available
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
from containers.state.commits.commit import CommitState, open_commits
from containers.state.context import StateContext
from containers.state.recovery.decision import LocalCheckpoint
from containers.state.recovery.power_loss import damaged_file
from containers.state.recovery.restore import finish_swap
from sluice.blobs.port import BlobStore
from sluice.client.agents import AgentClient
from sluice.clock import Clock
from sluice.core.errors import BlobUnavailable, CoordinatorUnreachable
from sluice.core.ids import JobName, Lineage, RunId, StageName
from sluice.core.jobmodels.graph import Stage
from sluice.core.jobmodels.spec import ATTACHED_TASK
from sluice.core.snapshots.snapshot import BlobStoreName, CommitId
from sluice.wire import agents as wire_agents
from sluice.wire import snapshots as wire_snapshots

log = logging.getLogger("sluice")

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
        self._checkpoints: dict[StageName, ScriptBackup] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._one_at_a_time = asyncio.Lock()

    async def prepare(self, wanted: Wanted) -> Made:
        """Make a checkpoint ready on this disk. It is backed up from now on. Waits for the coordinator and for blob stores. Raises
        CheckpointUnreadable, BlobStoreUnusable, and what `prepare_checkpoint` raises."""
        async with self._one_at_a_time:
            state = self._context(wanted)
            known = self._checkpoints.get(wanted.stage)
            if known is not None and known.folder == wanted.folder:
                start, directory = known.start, known.directory
                return Made(start.lineage, replay=await state.in_thread(lambda: _planned(directory, start.replay, replace_plan=False)))
            for_stores = (BlobUnavailable, CoordinatorUnreachable)
            await until_available(state.adopt_current, for_stores)
            return await until_available(lambda: self._prepare(state, wanted), for_stores)

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

    def adopt_stores(self) -> None:
        """The blob stores of the run have changed. While they cannot be used, the former ones are, and it is tried again."""
        if self._state is not None:
            self._in_background(self._state.adopt_when_possible(), "new blob stores")

    def _in_background(self, work: Coroutine[None, None, None], name: str) -> None:
        self._running.add(task := asyncio.create_task(work, name=name))
        task.add_done_callback(self._running.discard)

    def repair(self, stage: StageName, blob_store: BlobStoreName) -> None:
        """The blob store has lost blobs of snapshots of this stage. Does nothing for a checkpoint that the driver has not asked for: the
        coordinator sends the notice again each hour."""
        if (found := self._checkpoints.get(stage)) is not None:
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

        async def reopen(lineage: Lineage) -> CommitState:
            found = await self._open(replace(wanted, adopts=True), LocalCheckpoint(lineage, -1, -1))
            return await open_commits(
                replace(start, lineage=lineage), None if found.snapshot is None else snapshot_of(found.snapshot), state
            )

        backup = ScriptBackup(state, start, rule_of_scripts(new=opened.new, replays=wanted.replays), wanted.folder, reopen)
        prepared = await backup.prepare()
        await state.in_thread(lambda: _begin_empty(state, prepared, directory))
        made = await state.in_thread(lambda: _finish(directory, prepared, local))
        made = replace(made, new_lineage=prepared.lineage != start.lineage)
        self._begin(wanted.stage, backup)
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
            snapshot=None if found is None else snapshot_of(found),
        )

    def _begin(self, stage: StageName, backup: ScriptBackup) -> None:
        former = self._checkpoints.pop(stage, None)
        if former is not None:
            former.over.set()
        self._checkpoints[stage] = backup
        self._in_background(backup.run_until_over(), f"backup of {stage}")

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
        problem = None if found is None or found.start.lineage != query.query_id else found.problem
        if problem is None or query.metrics is None:
            return query
        return query.model_copy(update={"metrics": query.metrics.model_copy(update={"backup_problem": problem[:500]})})

    async def finish(self, within: timedelta) -> None:
        """The queries have ended: make the last snapshots. Logs those that could not be made in time."""
        if not self._checkpoints:
            return
        for backup in self._checkpoints.values():
            backup.over.set()
        finishing = {asyncio.create_task(each.durable()): stage for stage, each in self._checkpoints.items()}
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


def _begin_empty(state: StateContext, start: StageStart, directory: Path) -> None:
    """Give a checkpoint that does not exist its lineage: without blob stores it was not prepared."""
    if inspect(directory) is None:
        state.checkpoints.prepare(start.task, start.stage.name, start.lineage, None)


def _finish(directory: Path, start: StageStart, local: LocalCheckpoint | None) -> Made:
    """Make the paths in a prepared checkpoint those of this machine, and plan its first batch that must run again."""
    found = inspect(directory)
    assert found is not None
    if (directory / DRAIN_MARKER).exists() and (local is None or local.committed != found.committed):
        raise CheckpointUnreadable(
            f"the snapshot in {directory} is of a checkpoint that a drain was flushing: choose an older one with `sluice snapshots restore`"
        )
    delete_given_up(directory)  # a kill may have interrupted that
    relocate(directory)
    replay = _planned(directory, start.replay, replace_plan=True)
    restored = found.committed if local is None or local.lineage != found.lineage or local.committed != found.committed else None
    return Made(found.lineage, restored=restored if found.committed >= 0 else None, replay=replay)


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
