"""The contract of an engine (`containers/engine.py`) as tests. A test of an implementation inherits `EngineContract` and provides the
fixture `scene`: an engine that is open, and the fake engine behind it that the test controls.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest

from containers.engine import Batch, Callbacks, Emptied, Engine, Kept, StageStart, StatefulOperator, StateSize, Writes
from containers.errors import DiskFull, OperatorsDiffer, SparkStopped, StateNotLocal
from containers.state.offsets.batch_waits import BatchInterrupted
from sluice.core.drain import Effect
from sluice.core.errors import LeaseLost, SluiceError, Unavailable
from sluice.core.ids import Generation, Lineage, RunId, Ssp, StageName, StreamId, TaskName
from sluice.core.jobmodels.graph import Stage
from sluice.core.snapshots.snapshot import BlobId, BlobStoreName, CommitId, Snapshot
from sluice.core.watermarks import FeederProgress, ProgressSource, WatermarkStep
from sluice.job import Delivery
from tests.support.engines import FakeEngine, FakeQuery

T = TypeVar("T")

NOON = datetime(2026, 11, 29, 12, 0, 0, 123456, tzinfo=UTC)
LONG = timedelta(seconds=60)
IN, OTHER = Ssp("log", "in", 0), Ssp("log", "in.put", 7)

START = StageStart(
    stage=Stage(StageName("hourly"), ("in",), ("out", "mid"), stateful=False),
    task=TaskName("Partition 0"),
    generation=Generation(3),
    lineage=Lineage("l"),
    reported=None,
    starts={IN: 0, OTHER: 2**40},
    first_run=RunId("r"),
    asks=True,
)

WHOLE = replace(
    START,
    reported=7,
    replay={8: 'v1\n{"é": "\\u0000 \n"}', 9: ""},
    restored=True,
    drain="d",
    failed_drains=("a", "b"),
    kept_operators=(),
    earlier_histories=(RunId("first"),),
    continuation={"tasks": [{"name": "Partition 0", "of": None}], "epoch": 3},
    snapshot=Snapshot(CommitId("c"), Lineage("l"), -1, {BlobStoreName("main"): BlobId("i")}, restored_explicitly=True),
)
"""No part has its default."""

PROGRESS = FeederProgress(NOON, timedelta(microseconds=1), ProgressSource.COLUMN, pending=True)

BATCH = Batch(
    query=START.query,
    batch=8,
    rows=2**40,
    duration_ms=5,
    offsets={IN: 3},
    event_time_max=NOON,
    parts_ms={"addBatch": 4},
    behind=0,
    state=StateSize(1, 2, 3, 4),
    watermark=NOON - timedelta(days=400_000),
    unflushable=("x",),
    progress=PROGRESS,
    delays={StreamId("log", "in"): timedelta(seconds=0.5)},
    operators=(StatefulOperator("dropDuplicates", Effect.FORGETS, "why"),),
    row_limit=10,
    writes={"out": Writes(Delivery.AT_LEAST_ONCE, 3, 0.5, aborted=1)},
)


@dataclass
class Scene:
    """`engine`: the one under test. `fake`: the one behind it. `heard`: its callbacks, with what they were called with. `raises`: what
    callbacks raise that block."""

    engine: Engine
    fake: FakeEngine
    heard: list[tuple[Any, ...]] = field(default_factory=list)
    raises: Exception | None = None
    changed: threading.Condition = field(default_factory=threading.Condition)

    def callbacks(self) -> Callbacks:
        def told(name: str) -> Callable[..., None]:
            def hear(*what: Any) -> None:
                with self.changed:
                    self.heard.append((name, *what))
                    self.changed.notify_all()

            return hear

        def asked(name: str) -> Callable[..., None]:
            def ask(*what: Any) -> None:
                told(name)(*what)
                if self.raises is not None:
                    raise self.raises

            return ask

        blocking = {name: asked(name) for name in ("before_batch", "before_write", "confirm_owner")}
        return Callbacks(**{name: told(name) for name in ("on_batch", "on_end", "on_lease_lost", "on_idle")}, **blocking)

    async def on_thread(self, work: Callable[[Engine], T]) -> T:
        return await asyncio.to_thread(work, self.engine)

    async def started(self, start: StageStart = START) -> tuple[str, FakeQuery]:
        token = await self.on_thread(lambda engine: engine.start(start))
        return token, self.fake.of(token)

    async def hears(self, number: int) -> list[tuple[Any, ...]]:
        """The first callbacks, once there are that many."""

        def wait() -> list[tuple[Any, ...]]:
            with self.changed:
                assert self.changed.wait_for(lambda: len(self.heard) >= number, 600)
                return list(self.heard)

        return await asyncio.to_thread(wait)

    async def stopping(self, *tokens: str) -> list[asyncio.Task[bool]]:
        """Stops that wait for a batch."""
        waiting = threading.Semaphore(0)

        def waits(query: FakeQuery, forced: threading.Event) -> bool:
            waiting.release()
            return not forced.wait(600)

        self.fake.on_stop = waits
        stops = [asyncio.create_task(self.on_thread(lambda engine, of=each: engine.stop(of, LONG))) for each in tokens]  # type: ignore[misc]
        for _ in tokens:
            await asyncio.to_thread(waiting.acquire)
        return stops


class EngineContract:
    async def test_each_start_has_its_own_token_and_only_the_query_that_is_stopped_ends(self, scene: Scene) -> None:
        first, query = await scene.started()
        second, other = await scene.started(replace(START, task=TaskName("Partition 1")))
        assert first != second
        assert await scene.on_thread(lambda engine: engine.stop(first, LONG)) is True
        assert (query.stopped, other.stopped) == (True, False)
        assert await scene.hears(1) == [("on_end", first, None)]
        assert scene.fake.stops == [(START.query, LONG)]

    async def test_a_start_reaches_the_engine_with_all_its_parts(self, scene: Scene) -> None:
        await scene.started(WHOLE)
        assert scene.fake.tries == [WHOLE]

    async def test_a_batch_is_reported_whole_and_before_the_end_of_its_query(self, scene: Scene) -> None:
        token, query = await scene.started()
        batches = [replace(BATCH, batch=number) for number in range(50)]

        def runs() -> None:
            for each in batches:
                query.callbacks.on_batch(each)
            query.callbacks.on_idle(START.query)
            query.callbacks.on_end(token, "boom\nat line 3")

        await asyncio.to_thread(runs)
        expected = [*(("on_batch", each) for each in batches), ("on_idle", START.query), ("on_end", token, "boom\nat line 3")]
        assert await scene.hears(52) == expected

    @pytest.mark.parametrize("raised", [StateNotLocal("elsewhere"), OperatorsDiffer("é"), LeaseLost("gone"), DiskFull("")], ids=str)
    async def test_an_error_of_sluice_is_raised_with_its_class_and_message(self, scene: Scene, raised: SluiceError) -> None:
        def fails(start: StageStart) -> None:
            raise raised

        scene.fake.on_start = fails
        with pytest.raises(type(raised)) as caught:
            await scene.started()
        assert str(caught.value) == str(raised)

    async def test_a_batch_asks_before_it_is_computed_and_before_it_writes(self, scene: Scene) -> None:
        _, query = await scene.started()
        await asyncio.to_thread(query.before_batch, 4)
        await asyncio.to_thread(query.before_write, 4)
        expected = [(name, START.query, START.generation, 4) for name in ("before_batch", "before_write")]
        assert await scene.hears(2) == expected

    @pytest.mark.parametrize("raised", [LeaseLost("gone"), BatchInterrupted("abandoned"), Unavailable("the blob store")], ids=str)
    async def test_what_a_callback_raises_reaches_the_batch(self, scene: Scene, raised: SluiceError) -> None:
        _, query = await scene.started()
        scene.raises = raised
        with pytest.raises(type(raised), match=str(raised)):
            await asyncio.to_thread(query.before_write, 4)

    async def test_a_start_may_confirm_that_the_task_is_owned(self, scene: Scene) -> None:
        def confirms(start: StageStart) -> None:
            assert scene.fake._callbacks is not None
            scene.fake._callbacks.confirm_owner(start.task, start.generation)

        scene.fake.on_start = confirms
        await scene.started()
        assert scene.heard == [("confirm_owner", START.task, START.generation)]
        scene.raises = LeaseLost("another container has it")
        with pytest.raises(LeaseLost, match="another container"):
            await scene.started()

    async def test_a_lost_lease_is_reported_with_its_reason(self, scene: Scene) -> None:
        _, query = await scene.started()
        await query.is_fenced_off("a newer generation writes")
        [(name, lost)] = await scene.hears(1)
        assert (name, type(lost), str(lost)) == ("on_lease_lost", LeaseLost, "a newer generation writes")

    async def test_a_paused_query_is_resumed(self, scene: Scene) -> None:
        token, query = await scene.started()
        assert await scene.on_thread(lambda engine: engine.pause(token, LONG)) is True
        assert query.held
        await scene.on_thread(lambda engine: engine.resume(token))
        assert not query.held

    async def test_a_stop_that_waits_for_a_batch_ends_when_batches_are_interrupted(self, scene: Scene) -> None:
        token, _ = await scene.started()
        [stop] = await scene.stopping(token)
        scene.engine.interrupt_batches()
        assert await stop is False

    async def test_the_progress_is_that_of_the_start_and_then_of_the_last_batch(self, scene: Scene) -> None:
        assert scene.engine.progress(START.query) is None
        scene.fake.progresses[START.query] = replace(PROGRESS, event_time=None)
        _, query = await scene.started()
        assert scene.engine.progress(START.query) == replace(PROGRESS, event_time=None)
        scene.fake.progresses[START.query] = PROGRESS
        await asyncio.to_thread(query.callbacks.on_batch, BATCH)
        await scene.hears(1)
        assert scene.engine.progress(START.query) == PROGRESS

    async def test_a_query_is_forgotten(self, scene: Scene) -> None:
        await scene.started()
        await scene.on_thread(lambda engine: engine.forget(START.query))
        assert scene.fake.forgotten == [START.query]

    async def test_the_limits_of_a_watermark_arrive_in_order(self, scene: Scene) -> None:
        mid = StreamId("log", "mid")
        steps = {mid: (WatermarkStep(None, timedelta(0), {IN: 3}, exact=True), WatermarkStep(NOON, timedelta(seconds=1), {}))}
        for limit in (None, {}, steps):
            scene.engine.limit_watermark(START.query, limit)
        await scene.on_thread(lambda engine: engine.check())  # the limits were sent before
        assert scene.fake.limits == {START.query: steps}

    async def test_the_answers_of_a_drain_are_returned(self, scene: Scene) -> None:
        assert await scene.on_thread(lambda engine: engine.ends(START)) == {}
        assert await scene.on_thread(lambda engine: engine.empty(START, {IN: 3})) == Emptied(-1)
        assert await scene.on_thread(lambda engine: engine.keep(START, {IN: 3})) == Kept(-1)
        await scene.on_thread(lambda engine: engine.finish(START))

    async def test_an_engine_that_has_ended_is_reported(self, scene: Scene) -> None:
        def stopped() -> None:
            raise SparkStopped("the JVM has ended")

        await scene.on_thread(lambda engine: engine.check())
        scene.fake.on_check = stopped
        with pytest.raises(SparkStopped, match="the JVM"):
            await scene.on_thread(lambda engine: engine.check())
