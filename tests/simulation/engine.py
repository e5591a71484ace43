"""The counting engine on greenlets. Its queries run continuously, and its process may be killed between any two steps."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from containers.engine import StageStart
from containers.errors import StateNotLocal
from sluice.core.errors import SluiceError
from tests.simulation.loop import Killed, Process, SimulatedLoop
from tests.support.counting_engine import CountingEngine, write_whole
from tests.support.engines import FakeQuery

PAUSES = (0.5, 5)
"""Seconds between two batches of a query, at least and at most. Shorter intervals cost time and hardly find more faults."""

COMPACTED_EVERY = 6
"""After this many batches the sums are written to one file, and older files are deleted."""


@dataclass(kw_only=True)
class SimulatedEngine(CountingEngine):
    """`kill_after`: the process is killed in this step of its batches, counted from now."""

    loop: SimulatedLoop
    process: Process
    chance: Random
    kill_after: int | None = None
    on_kill: Callable[[], None] = lambda: None
    on_started: Callable[[StageStart], None] = lambda start: None
    """A query runs from now on."""
    steps: int = 0
    _busy: dict[str, list[Callable[[], None]]] = field(default_factory=dict)
    """Queries whose work between two batches has not ended, and the waits for its end."""

    def start(self, start: StageStart) -> tuple[str, Any]:
        token, query = super().start(start)
        self.on_started(start)
        self.loop.call_soon(self._reads, query)
        return token, query

    def _reads(self, query: FakeQuery) -> None:
        self.loop.create_task(self._run_query(query), name=f"query {query.start.query}")

    async def _run_query(self, query: FakeQuery) -> None:
        """Run batch after batch, as Spark does. A batch that fails ends the query."""
        while not query.stopped:
            await asyncio.sleep(self.chance.uniform(*PAUSES))
            try:
                await self.reads_on(query, self.chance.choice((3, 10, 30)))
            except Exception as error:
                if not isinstance(error, SluiceError):
                    self.ledger.faults.append(f"{query.start.query}: {error!r}")
                if not query.stopped:
                    query.stopped = True
                    query.callbacks.on_end(query.token, f"{type(error).__name__}: {error}")

    def _run(self, start: StageStart, batch: int, text: str | None) -> None:
        super()._run(start, batch, text)
        if batch % COMPACTED_EVERY == COMPACTED_EVERY - 1:
            self._step()
            state = json.dumps({"version": self.version, "sums": self._counts(start, batch + 1)})
            write_whole(self.directory(start) / "state" / f"{batch}.snapshot", state)
            self._step()
            self._purge(self.directory(start), batch)

    def _purge(self, directory: Path, batch: int) -> None:
        """Delete the files of old batches, as Spark does. Otherwise each commit would list more files than the one before."""
        for part in ("state", "offsets", "commits"):
            for file in sorted((directory / part).iterdir()):
                number = file.name.partition(".")[0]
                if number.isdigit() and int(number) < batch - 2 * COMPACTED_EVERY:
                    file.unlink()

    def _counts(self, start: StageStart, before: int) -> Counter[str]:
        directory = self.directory(start) / "state"
        snapshots = [batch for batch in range(before) if batch % COMPACTED_EVERY == COMPACTED_EVERY - 1]
        for batch in reversed(snapshots):
            file = directory / f"{batch}.snapshot"
            if file.exists():
                found = json.loads(file.read_text())
                self._check_version(start, found["version"])
                return self._added(start, Counter(found["sums"]), batch + 1, before)
        return super()._counts(start, before)

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
        except StateNotLocal as error:
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
