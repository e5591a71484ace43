"""The stages of a container: started, paused and stopped together, within deadlines."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeAlias, TypeVar

from containers.agent.async_engine import AsyncEngine
from containers.agent.liveness import LivenessProbe
from containers.agent.metrics import Meter
from containers.agent.stage import Stage, StageContext, StageRunner, first_of
from containers.agent.watermarks import StageWatermarks
from containers.engine import Batch, Engine, StageStart
from containers.state.offsets.batch_waits import BatchInterrupted
from sluice.core.ids import Generation, StageName, TaskName
from sluice.core.snapshots.snapshot import BlobStoreName

log = logging.getLogger(__name__)

T = TypeVar("T")


class Queries:
    """One engine and the stages that run on it. Created and used on the agent's loop."""

    def __init__(
        self,
        engine: Engine,
        context: StageContext,
        on_lease_lost: Callable[[str], None],
        confirm_owner: Callable[[TaskName, Generation], Coroutine[None, None, None]],
    ) -> None:
        """`confirm_owner`: see `Callbacks`."""
        self._confirm_owner = confirm_owner
        self.engine = AsyncEngine(engine)
        self._context = context
        self._on_lease_lost = on_lease_lost
        self._stages: dict[str, Stage] = {}
        self._stopping = False
        self._deadline = ShutdownDeadline()
        self._probe: LivenessProbe | None = None

    async def open(self) -> None:
        """Start the engine, which takes seconds."""
        await self.engine.open(
            self._on_batch,
            self._on_idle,
            lambda lost: self._on_lease_lost(str(lost)),
            self._before_batch,
            self._before_write,
            self._confirm_owner,
        )

    def _before_batch(self, query: str, generation: Generation, batch: int) -> None:
        self._asked(query, generation).before_batch(batch)

    def _before_write(self, query: str, generation: Generation, batch: int) -> None:
        self._asked(query, generation).before_write(batch)

    def _asked(self, query: str, generation: Generation) -> Stage:
        """The stage of a query that asks. Called on Spark's threads. Raises BatchInterrupted."""
        stage = self._stages.get(query)
        if stage is None or stage.start.generation != generation:
            raise BatchInterrupted(f"{query} was released under generation {generation}")
        return stage

    def _on_batch(self, batch: Batch) -> None:
        if (stage := self._stages.get(batch.query)) is not None:
            stage.on_batch(batch)

    def _on_idle(self, query: str) -> None:
        if (stage := self._stages.get(query)) is not None:
            stage.on_idle()

    def meters(self) -> Sequence[Meter]:
        """The meters of the stages that are running. Thread-safe."""
        return [stage.meter for stage in list(self._stages.values()) if stage.running]

    def watermarks(self) -> Sequence[StageWatermarks]:
        """The watermarks of the stages that write or read an intermediate stream."""
        return [stage.watermarks for stage in self._stages.values() if stage.watermarks is not None]

    def repair(self, task: TaskName, stage: StageName, blob_store: BlobStoreName) -> None:
        """Handle that the blob store has lost blobs of the stage's snapshots. Does nothing if the stage does not run here."""
        for each in self._stages.values():
            if (each.start.task, each.start.stage.name) == (task, stage) and each.backup is not None:
                each.backup.repair(blob_store)

    # --- one stage -------------------------------------------------------------------------------------------------

    def add(self, start: StageStart) -> Stage:
        """The stage for this start. If the task was acquired before, its existing stage is extended."""
        stage = self._stages.get(start.query)
        if stage is None:
            stage = self._stages[start.query] = Stage(start, self.engine, self._context)
        else:
            stage.extend(start)
        return stage

    async def run(self, stage: Stage) -> None:
        """See `Stage.run`. Does nothing once the container stops."""
        if not self._stopping:
            self._hold_batches([stage])
            await stage.run()

    async def prepare(self, stages: Collection[Stage]) -> bool:
        """Prepare the checkpoints of these stages without starting their queries; False when the container stops first."""
        return not self._stopping and all(await asyncio.gather(*(stage.prepare() for stage in stages)))

    async def concurrently_with_commits(self, stages: Collection[Stage], work: Awaitable[T]) -> T:
        """Do the work while these stages are backed up as usual: batches wait for overdue commits. Raises what the work and `Backup.run`
        raise."""
        doing = asyncio.ensure_future(work)
        self._hold_batches(stages)
        await first_of(doing, *(stage.backup.run() for stage in stages if stage.backup is not None))
        return doing.result()

    def _hold_batches(self, stages: Iterable[Stage]) -> None:
        """Let batches of these stages wait for commits again, except after the deadline was cut short."""
        if not self._deadline.is_cut_short:
            for stage in stages:
                stage.hold_batches()

    # --- pausing and stopping --------------------------------------------------------------------------------------

    async def pause(self, within: timedelta) -> None:
        """Pause every query between two batches, or stop it there, so that `run` returns. The container keeps running."""
        stages = list(self._stages.values())
        for stage in stages:
            stage.interrupt()
        await pause_all(stages, within, self._deadline)

    async def stop_stages(self, stages: Collection[Stage], within: timedelta) -> Collection[Stage]:
        """Stop these stages between two batches, so that their `run` returns. Returns those that have not ended in time and may still act.
        Stages may be run again, with more to read."""
        for stage in stages:
            stage.interrupt()
            stage.started.clear()
        await _cancel_preparing(stages)
        return await stop_all(stages, within, self._deadline)

    async def stop(self, within: timedelta) -> set[TaskName]:
        """Stop every query permanently, between two batches, and make the last commits. Returns the tasks that have not ended in time and
        may still act."""
        self._stopping = True
        stages = list(self._stages.values())
        for stage in stages:
            stage.interrupt()
        await _cancel_preparing(stages)
        if self._deadline.spark_stopped:
            return {stage.start.task for stage in stages if stage.runner is not None}
        acting = {stage.start.task for stage in await stop_all(stages, within, self._deadline)} | await self._work_ended(within)
        await finish([stage for stage in stages if stage.start.task not in acting], within, self._deadline)
        return acting

    async def _work_ended(self, within: timedelta) -> set[TaskName]:
        """Wait for the work of drains on the engine. Returns the tasks whose work has not ended. A batch that still runs at the deadline no
        longer waits for commits."""
        late = asyncio.get_running_loop().call_later(within.total_seconds(), lambda: _release_batches(self._stages.values()))
        await self._deadline.wait(lambda: self.engine.work, within)
        late.cancel()
        return set(self.engine.busy_tasks())

    async def release(self, stages: Collection[Stage], within: timedelta) -> None:
        """Make the last commits of these stages, whose queries have ended, and remove them. Another container may then run them."""
        await finish(stages, within, self._deadline)
        for stage in stages:
            if stage.backup is not None:
                stage.backup.forget()
            self._stages.pop(stage.name, None)
        names = [stage.name for stage in stages]

        def forget(engine: Engine) -> None:
            for name in names:
                engine.forget(name)

        await self.engine.call(forget)

    def interrupt_batches(self) -> None:
        """Interrupt running batches instead of waiting for them."""
        _release_batches(self._stages.values())
        self.engine.interrupt_batches()
        self._deadline.cut_short()

    async def until_spark_stops(self, within: timedelta, on_hang: Callable[[str], None]) -> str:
        """Wait until Spark has ended. Returns the reason. After that, `stop` does not wait. `within`: when Spark has not answered for so
        long, `on_hang` is called, and `hangs` says that until it answers."""
        self._probe = LivenessProbe(self.engine.check, within, on_hang=on_hang)
        reason = await self._probe.run()
        self.driver_ended()
        return reason

    @property
    def hangs(self) -> str | None:
        """That Spark does not answer; None if it does."""
        return None if self._probe is None else self._probe.hangs

    def driver_ended(self) -> None:
        """Spark has ended. `stop` does not wait from now on."""
        self._deadline.spark_stopped = True
        self.interrupt_batches()


# --- deadlines -------------------------------------------------------------------------------------------------------

FORCED_STOP_WITHIN = timedelta(seconds=3)
"""How long a stop still waits after it was cut short. User code that blocks cannot be interrupted."""

BEYOND_TIMEOUT = timedelta(seconds=10)
"""How long a stop waits for Spark after a batch was interrupted at the deadline."""


class ShutdownDeadline:
    """How long stops and pauses wait. With `spark_stopped` there is no wait."""

    def __init__(self) -> None:
        self.spark_stopped = False
        self._cut_short = asyncio.Event()

    @property
    def is_cut_short(self) -> bool:
        return self._cut_short.is_set()

    def cut_short(self) -> None:
        """Stop waiting for batches, now and later."""
        self._cut_short.set()

    async def wait(self, works: Callable[[], Iterable[asyncio.Future[Any]]], within: timedelta) -> None:
        """Wait until all works have ended, at most for `within` plus BEYOND_TIMEOUT, or for FORCED_STOP_WITHIN after the deadline was cut
        short."""
        expired = asyncio.create_task(self._expire(within))
        while not expired.done() and (left := {work for work in works() if not work.done()}):
            await asyncio.wait({expired, *left}, return_when=asyncio.FIRST_COMPLETED)
        expired.cancel()

    async def _expire(self, within: timedelta) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout((within + BEYOND_TIMEOUT).total_seconds()):
                await self._cut_short.wait()
                await asyncio.sleep(0 if self.spark_stopped else FORCED_STOP_WITHIN.total_seconds())


StopOrPause: TypeAlias = Callable[[StageRunner, timedelta], Coroutine[Any, Any, bool]]


async def stop_all(stages: Collection[Stage], within: timedelta, deadline: ShutdownDeadline) -> Collection[Stage]:
    """Stop all queries concurrently, within a deadline that a second signal cuts short. Returns those that may still act after it. A batch
    that still runs then is interrupted and no longer waits for commits."""
    return await _stop_or_pause_all(StageRunner.stop, stages, within, deadline)


async def pause_all(stages: Collection[Stage], within: timedelta, deadline: ShutdownDeadline) -> Collection[Stage]:
    """Like `stop_all`, but pause the queries that can be paused."""
    return await _stop_or_pause_all(StageRunner.pause, stages, within, deadline)


async def _stop_or_pause_all(
    stop_or_pause: StopOrPause, stages: Collection[Stage], within: timedelta, deadline: ShutdownDeadline
) -> Collection[Stage]:
    stops = {
        stage: asyncio.create_task(stop_or_pause(stage.runner, within), name=stage.name) for stage in stages if stage.runner is not None
    }
    loop = asyncio.get_running_loop()
    late = loop.call_later(within.total_seconds(), lambda: _release_batches(stage for stage, stop in stops.items() if not stop.done()))
    await deadline.wait(stops.values, within)
    late.cancel()
    return [stage for stage, stop in stops.items() if not _has_ended(stop)]


def _has_ended(stop: asyncio.Task[bool]) -> bool:
    """Whether a query has ended. One whose stop failed may still act."""
    if not stop.done():
        log.warning("%s did not stop in time", stop.get_name())
        return False
    error = stop.exception()
    if error is not None:
        log.warning("%s: %s", stop.get_name(), error)
    elif not stop.result():
        log.warning("%s: its batch was interrupted and runs again at the next start", stop.get_name())
    return error is None


async def finish(stages: Collection[Stage], within: timedelta, deadline: ShutdownDeadline) -> None:
    """Make the last commits of stages whose queries have ended. Batches that cannot be committed stay on this disk, and can be replayed
    from the offset log."""
    commits = [asyncio.create_task(stage.backup.finish()) for stage in stages if stage.backup is not None]
    await deadline.wait(lambda: commits, within)
    for commit in commits:
        error = commit.exception() if commit.done() else TimeoutError("it took too long")
        commit.cancel()
        if error is not None:
            log.warning("the last commit failed: %s", error)


def _release_batches(stages: Iterable[Stage]) -> None:
    for stage in stages:
        stage.release_batches()


async def _cancel_preparing(stages: Iterable[Stage]) -> None:
    await asyncio.gather(*(stage.cancel_preparing() for stage in stages))
