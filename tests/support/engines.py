"""An engine without Spark. It fulfils the contract of `containers/engine.py`, and tests control its queries."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import TypeVar

from containers.engine import Batch, Callbacks, Emptied, Kept, StageStart
from containers.errors import OperatorsDiffer
from containers.state.checkpoint import Checkpoints, check_not_emptied, inspect, mark_emptied, read_offset_log, write_offset_log
from sluice.core.drain import operators_differ
from sluice.core.errors import LeaseLost
from sluice.core.ids import Ssp, StreamId
from sluice.core.watermarks import FeederProgress, WatermarkStep
from tests.simulation.loop import SimulatedLoop

T = TypeVar("T")

VIRTUAL_SECONDS, REAL_SECONDS = 30, 600
"""Time limits for what normally happens within milliseconds. A busy machine cannot exceed the first."""

_tokens = count(1)


async def soon(what: Awaitable[T]) -> T:
    """Await a result, with a time limit: TimeoutError fails the test."""
    virtual = isinstance(asyncio.get_running_loop(), SimulatedLoop)
    return await asyncio.wait_for(what, VIRTUAL_SECONDS if virtual else REAL_SECONDS)


@dataclass
class FakeQuery:
    """A started query. It reports in threads of its own, like Spark."""

    start: StageStart
    token: str
    callbacks: Callbacks
    stopped: bool = False
    held: bool = False

    def before_batch(self, batch: int) -> None:
        """Blocks, and raises what the agent's side raises."""
        if self.start.asks:
            self.callbacks.before_batch(self.start.query, self.start.generation, batch)

    def before_write(self, batch: int) -> None:
        if self.start.asks:
            self.callbacks.before_write(self.start.query, self.start.generation, batch)

    async def commits(self, batch: int, offsets: Mapping[Ssp, int] | None = None) -> None:
        reported = Batch(self.start.query, batch, 10, 5, offsets or {})
        await asyncio.to_thread(self.callbacks.on_batch, reported)

    async def ends(self, error: str | None) -> None:
        await asyncio.to_thread(self.callbacks.on_end, self.token, error)

    async def is_fenced_off(self, why: str) -> None:
        await asyncio.to_thread(self.callbacks.on_lease_lost, LeaseLost(why))


@dataclass
class FakeEngine:
    """Create it on the event loop of the test. `on_open`, `on_start`, `on_pause` and `on_stop` run in the engine's threads, and may block
    or raise.
    """

    on_open: Callable[[], None] = lambda: None
    on_start: Callable[[StageStart], None] = lambda start: None
    on_stop: Callable[[FakeQuery, threading.Event], bool] = lambda query, forced: True
    on_pause: Callable[[FakeQuery, threading.Event], bool] = lambda query, forced: True
    on_check: Callable[[], None] = lambda: None
    ends_told_early: bool = False
    opened: int = 0
    tries: list[StageStart] = field(default_factory=list)
    queries: list[FakeQuery] = field(default_factory=list)
    stops: list[tuple[str, timedelta]] = field(default_factory=list)
    limits: dict[str, Mapping[StreamId, Sequence[WatermarkStep]] | None] = field(default_factory=dict)
    progresses: dict[str, FeederProgress] = field(default_factory=dict)
    forgotten: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Queue[FakeQuery] = asyncio.Queue()
        self._released: asyncio.Queue[FakeQuery] = asyncio.Queue()
        self._callbacks: Callbacks | None = None
        self.forced = threading.Event()

    def interrupt_batches(self) -> None:
        self.forced.set()

    def of(self, token: str) -> FakeQuery:
        """The query with that token."""
        return next(each for each in self.queries if each.token == token)

    def warm_up(self) -> None:
        """Do nothing: there is no JVM."""

    def open(self, callbacks: Callbacks) -> None:
        self.opened += 1
        self._callbacks = callbacks
        self.on_open()

    def start(self, start: StageStart) -> str:
        assert self._callbacks is not None, "not opened"
        self.tries.append(start)
        self.on_start(start)
        query = FakeQuery(start, f"token-{next(_tokens)}", self._callbacks)
        self.queries.append(query)
        if self.ends_told_early:
            self._callbacks.on_end(query.token, "it ended before its token was known")
        self._loop.call_soon_threadsafe(self._started.put_nowait, query)
        return query.token

    def stop(self, token: str, deadline: timedelta) -> bool:
        query = self.of(token)
        self.stops.append((query.start.query, deadline))
        orderly = self.on_stop(query, self.forced)
        query.stopped, query.held = True, False
        query.callbacks.on_end(query.token, None)
        return orderly

    def pause(self, token: str, deadline: timedelta) -> bool:
        query = self.of(token)
        if self.on_pause(query, self.forced):
            query.held = True
        return query.held

    def resume(self, token: str) -> None:
        query = self.of(token)
        query.held = False
        self._loop.call_soon_threadsafe(self._released.put_nowait, query)

    def finish(self, start: StageStart) -> None: ...

    def ends(self, start: StageStart) -> Mapping[Ssp, int]:
        return {}

    def empty(self, start: StageStart, ends: Mapping[Ssp, int]) -> Emptied:
        return Emptied(-1)

    def limit_watermark(self, query: str, steps: Mapping[StreamId, Sequence[WatermarkStep]] | None) -> None:
        self.limits[query] = steps

    def keep(self, start: StageStart, ends: Mapping[Ssp, int]) -> Kept:
        return Kept(-1)

    def progress(self, query: str) -> FeederProgress | None:
        return self.progresses.get(query)

    def forget(self, query: str) -> None:
        self.forgotten.append(query)

    def check(self) -> None:
        self.on_check()

    def close(self) -> None: ...

    async def started(self) -> FakeQuery:
        """The next query that starts."""
        return await soon(self._started.get())

    async def resumed(self) -> FakeQuery:
        """The next query that continues after a pause."""
        return await soon(self._released.get())

    async def all_started(self, number: int) -> dict[str, FakeQuery]:
        """The next queries that start, by name."""
        return {query.start.query: query for query in [await self.started() for _ in range(number)]}

    @property
    def acting(self) -> list[str]:
        """Queries that were started and not stopped."""
        return sorted(query.start.query for query in self.queries if not query.stopped)


def plan(ends: Mapping[int, int], stream: str = "in", note: str = "", **metadata: int) -> str:
    """The plan of a batch that ends at these offsets, in Spark's format. Plans with different notes differ. `metadata`: more of it than a
    watermark of 0."""
    head, offsets = {"batchWatermarkMs": 0, "note": note, **metadata}, {stream: {str(p): end for p, end in ends.items()}}
    return f"v1\n{json.dumps(head)}\n{json.dumps(offsets)}"


@dataclass
class DiskEngine(FakeEngine):
    """`outputs`: what the batches of each query wrote, in order: (batch, plan).

    `on_empty` runs in the engine's threads before state is emptied or kept, `on_emptying` after each batch of that. The state in a
    directory is the plans of all its batches. `operators`: the stateful operators of each query, as text.
    """

    root: Path = Path()
    job: str = "delays"
    outputs: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    on_empty: Callable[[StageStart], None] = lambda start: None
    on_emptying: Callable[[], None] = lambda: None
    operators: tuple[str, ...] = ()

    def start(self, start: StageStart) -> str:
        directory = self.directory(start)
        Checkpoints(self.root, self.job).prepare(start.task, start.stage.name, start.lineage, None if start.restored else start.reported)
        check_not_emptied(directory)
        if start.kept_operators is not None and (differ := operators_differ(start.kept_operators, self.operators)):
            raise OperatorsDiffer(differ)
        for batch, text in sorted(start.replay.items()):
            found = inspect(directory)
            assert found is not None
            if batch > found.committed:
                write_offset_log(directory, batch, text)
                self._run(start, batch, None)
        return super().start(start)

    def directory(self, start: StageStart) -> Path:
        return Checkpoints(self.root, self.job).directory(start.task, start.stage.name)

    def state(self, start: StageStart) -> dict[int, str]:
        """The state of the stage: batch -> plan."""
        return {int(file.name.split(".")[0]): file.read_text() for file in (self.directory(start) / "state").glob("*.changelog")}

    def finish(self, start: StageStart) -> None:
        found = inspect(self.directory(start))
        if found is not None and found.planned > found.committed:
            self._run(start, found.planned, None)

    def empty(self, start: StageStart, ends: Mapping[Ssp, int]) -> Emptied:
        """Run a batch up to the ends, if they are beyond the last batch, and a batch that flushes. Their plans contain the id of the
        drain.
        """
        self.on_empty(start)
        directory = self.directory(start)
        check_not_emptied(directory, start.drain)
        self.finish(start)
        found = inspect(directory)
        assert found is not None
        mark_emptied(directory, start.drain, found.committed)
        if found.committed < 0:
            return Emptied(-1)
        batch, last = found.committed, read_offset_log(directory, found.committed)
        (stream,) = start.stage.reads
        read = {int(p): offset for p, offset in json.loads(last.splitlines()[2])[stream].items()}
        rest = read | {ssp.partition: end for ssp, end in ends.items() if end > read.get(ssp.partition, end)}
        for note, upto in (("rest", rest), ("flush", rest)) if rest != read else (("flush", read),):
            batch += 1
            self._run(start, batch, plan(upto, stream, f"{start.drain} {note}"))
            assert self._callbacks is not None
            self._callbacks.on_batch(Batch(start.query, batch, 1, 1, {}))
            self.on_emptying()
        return Emptied(batch)

    def keep(self, start: StageStart, ends: Mapping[Ssp, int]) -> Kept:
        """Run a batch up to the ends, if they are beyond the last batch."""
        self.on_empty(start)
        directory = self.directory(start)
        self.finish(start)
        found = inspect(directory)
        assert found is not None
        if found.committed < 0:
            return Kept(-1, self.operators)
        batch, last = found.committed, read_offset_log(directory, found.committed)
        (stream,) = start.stage.reads
        read = {int(p): offset for p, offset in json.loads(last.splitlines()[2])[stream].items()}
        rest = read | {ssp.partition: end for ssp, end in ends.items() if end > read.get(ssp.partition, end)}
        if rest != read:
            batch += 1
            self._run(start, batch, plan(rest, stream, f"{start.drain} rest"))
            assert self._callbacks is not None
            self._callbacks.on_batch(Batch(start.query, batch, 1, 1, {}))
            self.on_emptying()
        return Kept(batch, self.operators)

    async def runs(self, query: FakeQuery, batch: int, ends: Mapping[int, int], note: str = "") -> None:
        """Run a batch of a query, from its plan to the report of its commit. Raises the errors of its callbacks."""
        text = plan(ends, query.start.stage.reads[0], note)
        await asyncio.to_thread(self._run, query.start, batch, text)
        offsets = {ssp: ends[ssp.partition] for ssp in query.start.starts if ssp.partition in ends}
        await query.commits(batch, offsets)

    async def runs_unseen(self, query: FakeQuery, batch: int, ends: Mapping[int, int]) -> None:
        """Run a batch of a sink that does not write through the task."""
        text = plan(ends, query.start.stage.reads[0])
        await asyncio.to_thread(self._run, replace(query.start, asks=False), batch, text)
        await query.commits(batch)

    def _run(self, start: StageStart, batch: int, text: str | None) -> None:
        directory = self.directory(start)
        for part in ("offsets", "state", "commits"):
            (directory / part).mkdir(exist_ok=True)
        if text is not None and not (directory / "offsets" / str(batch)).exists():
            write_offset_log(directory, batch, text)
        assert self._callbacks is not None
        if start.asks:
            self._callbacks.before_batch(start.query, start.generation, batch)
            self._callbacks.before_write(start.query, start.generation, batch)
        planned = (directory / "offsets" / str(batch)).read_text()
        self.outputs.setdefault(start.query, []).append((batch, planned))
        (directory / "state" / f"{batch}.changelog").write_text(planned)
        (directory / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
