"""The counting engine on greenlets, whose queries read on of their own accord, and whose process may be killed between any two steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from containers.engine import StageStart
from containers.errors import StateElsewhere
from sluice.core.errors import SluiceError
from tests.simulation.loop import Killed, Process, SimulatedLoop
from tests.support.counting_engine import CountingEngine
from tests.support.engines import FakeQuery


@dataclass(kw_only=True)
class SimulatedEngine(CountingEngine):
    """`kill_after`: the process is killed in this step of its batches, counted from now."""

    loop: SimulatedLoop
    process: Process
    chance: Random
    kill_after: int | None = None
    on_kill: Callable[[], None] = lambda: None
    steps: int = 0
    _busy: dict[str, list[Callable[[], None]]] = field(default_factory=dict)
    """Queries at work between two batches, and who waits for that to end."""

    def start(self, start: StageStart) -> tuple[str, Any]:
        token, query = super().start(start)
        self.loop.call_soon(self._reads, query)
        return token, query

    def _reads(self, query: FakeQuery) -> None:
        self.loop.create_task(self._run_query(query), name=f"query {query.start.query}")

    async def _run_query(self, query: FakeQuery) -> None:
        """As Spark: batch after batch; a batch that fails ends the query."""
        while not query.stopped:
            await asyncio.sleep(self.chance.uniform(0.2, 2))
            try:
                await self.reads_on(query, self.chance.choice((3, 10, 30)))
            except Exception as error:
                if not isinstance(error, SluiceError):
                    self.ledger.faults.append(f"{query.start.query}: {error!r}")
                if not query.stopped:
                    query.stopped = True
                    query.callbacks.on_end(query.token, f"{type(error).__name__}: {error}")

    def _step(self) -> None:
        if self.process.dead:
            raise Killed
        self.steps += 1
        if self.kill_after is not None:
            self.kill_after -= 1
            if self.kill_after <= 0:
                self.on_kill()
                raise Killed

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        if self.process.dead:
            raise Killed
        try:
            yield
        except StateElsewhere as error:
            raise self.ledger.fault(str(error)) from error

    @contextmanager
    def _between_batches(self, query: FakeQuery) -> Iterator[None]:
        while query.token in self._busy:
            self.loop.wait_in_thread(self._busy[query.token].append)
        self._busy[query.token] = []
        try:
            yield
        finally:
            for wake in self._busy.pop(query.token):
                wake()
