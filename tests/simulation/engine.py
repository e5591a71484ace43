"""The counting engine on greenlets. Its queries run continuously, and its process may be killed between any two steps."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import greenlet
import pyarrow as pa

from containers.engine import StageStart
from containers.errors import StateNotLocal
from containers.spark.systems.kafka_markers import batch_header
from containers.spark.systems.kafka_transactions import MissingMarker, ProducerFenced, TransactionalWriter
from containers.state.checkpoint import PlannedBatches, inspect
from sluice.core.errors import LeaseLost, SluiceError
from sluice.core.ids import Ssp
from sluice.streams.kafka import transactional_id
from sluice.wire.body import DRAIN_RECORD_HEADER, RUN_RECORD_HEADER
from tests.simulation.kafka import Brokers, clients, settled_ends
from tests.simulation.loop import Killed, Process, SimulatedLoop
from tests.support.counting_engine import CountingEngine, write_whole
from tests.support.engines import FakeQuery

PAUSES = (0.5, 5)
"""Seconds between two batches of a query, at least and at most. Shorter intervals cost time and hardly find more faults."""

SHORT_PAUSES = (0.1, 0.5)
"""The same, when no more faults happen."""

RECORDS = (3, 10, 30)
"""How many records a batch reads at most."""

INTERRUPTED = 0.02
INTERRUPTIONS = (0.01, 0.5, 3.0)

COMPACTED_EVERY = 6
"""After this many batches the sums are written to one file, and older files are deleted."""


@dataclass(kw_only=True)
class SimulatedEngine(CountingEngine):
    """`kill_after`: the process is killed in this step of its batches, counted from now. `interrupted`: how likely it is that a batch is
    interrupted between two of its steps. `interruptions`: for how many seconds."""

    loop: SimulatedLoop
    process: Process
    chance: Random
    kill_after: int | None = None
    on_kill: Callable[[], None] = lambda: None
    on_works: Callable[[StageStart], None] = lambda start: None
    """A query starts, or a batch of it."""
    steps: int = 0
    interrupted: float = INTERRUPTED
    interruptions: Sequence[float] = INTERRUPTIONS
    records: int | None = None
    """How many records each batch reads at most; None: drawn from `RECORDS`."""
    brokers: Brokers | None = None
    """Of Kafka, if its streams are there."""
    _writers: dict[str, TransactionalWriter] = field(default_factory=dict)
    """By transactional id."""
    _busy: dict[str, list[Callable[[], None]]] = field(default_factory=dict)
    """Queries whose work between two batches has not ended, and the waits for its end."""

    def start(self, start: StageStart) -> tuple[str, Any]:
        token, query = super().start(start)
        self.on_works(start)
        self.loop.call_soon(self._reads, query)
        return token, query

    def _reads(self, query: FakeQuery) -> None:
        self.loop.create_task(self._run_query(query), name=f"query {query.start.query}")

    async def _run_query(self, query: FakeQuery) -> None:
        """Run batch after batch, as Spark does. A batch that fails ends the query."""
        while not query.stopped:
            await asyncio.sleep(self.chance.uniform(*(PAUSES if self.records is None else SHORT_PAUSES)))
            if self.brokers is not None and self.brokers.away:
                continue  # a reader waits for the brokers
            try:
                await self.reads_on(query, self.records or self.chance.choice(RECORDS))
            except Exception as error:
                if not isinstance(error, SluiceError):
                    self.ledger.faults.append(f"{query.start.query}: {error!r}")
                if not query.stopped:
                    query.stopped = True
                    query.callbacks.on_end(query.token, f"{type(error).__name__}: {error}")

    def _run(self, start: StageStart, batch: int, text: str | None) -> None:
        self.on_works(start)
        super()._run(start, batch, text)
        if batch % COMPACTED_EVERY == COMPACTED_EVERY - 1:
            self._step()
            state = json.dumps({"version": self.version, "sums": self._counts(start, batch + 1)})
            write_whole(self.directory(start) / "state" / f"{batch}.snapshot", state)
            self._step()
            self._purge(self.directory(start), batch)

    # --- Kafka -----------------------------------------------------------------------------------------------------

    def _fence(self, start: StageStart) -> int:
        """As `KafkaTaskSystem.fence`."""
        if self.brokers is None:
            return super()._fence(start)
        (stream,) = start.declared.stage.writes
        name = transactional_id(self.job, start.declared.stage.name, stream, start.task)
        former = self._writers.pop(name, None)
        if former is not None:
            former.close()
        writer = TransactionalWriter(
            {},
            name,
            stream,
            start.lineage,
            start.generation,
            lambda: self._confirm(start),
            missing_marker=self._missing_marker(start),
            clients=clients(self.brokers, self._step, self._dies),
        )
        try:
            written = writer.open(lambda: self._planned(start))
        except LeaseLost as lost:
            self._loses_lease(lost)
            raise
        self._writers[name] = writer
        return written

    def _missing_marker(self, start: StageStart) -> MissingMarker:
        """What an operator chooses who knows whether the batches were written. Their records may have been trimmed since."""
        assert self.brokers is not None
        headers = {batch_header(start.lineage, batch)[1] for batch in self._planned(start).unfinished}
        return MissingMarker.SKIP if headers and headers <= self.brokers.written else MissingMarker.SEND

    def _append(self, start: StageStart, batch: int, out: Mapping[str, int]) -> None:
        """As `KafkaTaskSystem.append`."""
        if self.brokers is None:
            super()._append(start, batch, out)
            return
        (stream,) = start.declared.stage.writes
        name = transactional_id(self.job, start.declared.stage.name, stream, start.task)
        if name not in self._writers:
            self._fence(start)
        writer = self._writers[name]
        if writer.has(batch):
            self.brokers.happened["repeated"] += 1
            return
        headers = [(header, text.encode()) for header, text in self._headers(start, stream).items()]
        keys, values = [key.encode() for key in sorted(out)], [str(out[key]).encode() for key in sorted(out)]
        records = pa.RecordBatch.from_arrays([pa.array(keys, pa.binary()), pa.array(values, pa.binary())], names=["key", "value"])

        def produce(send: Callable[[pa.RecordBatch, list[tuple[str, bytes]]], None]) -> int:
            if keys:
                send(records, headers)
                self._step()
            return len(keys)

        try:
            writer.write(batch, produce, self.ledger.log.partitions(stream) if stream == self.ledger.mid else None)
        except BaseException as error:
            self._writers.pop(name).close()
            if isinstance(error, ProducerFenced):
                self._confirm(start)
            raise

    def _planned(self, start: StageStart) -> PlannedBatches:
        """As `planned_batches`. The plans of this engine have no time."""
        found = inspect(self.directory(start))
        committed, planned = (found.committed, found.planned) if found is not None and found.lineage == start.lineage else (-1, -1)
        last = max([planned, *start.replay])
        committed = max(committed, last - 1, -1 if start.reported is None else start.reported)
        return PlannedBatches(committed, {last: datetime.fromtimestamp(3600, UTC)} if last > committed else {})

    def _headers(self, start: StageStart, stream: str) -> Mapping[str, str]:
        headers = {RUN_RECORD_HEADER: str(start.first_run)} if stream == self.ledger.mid else {}
        return headers | ({DRAIN_RECORD_HEADER: start.drain} if start.drain else {})

    def _confirm(self, start: StageStart) -> None:
        try:
            start.confirm_owner()
        except LeaseLost as lost:
            self._loses_lease(lost)
            raise

    def _loses_lease(self, lost: LeaseLost) -> None:
        assert self._callbacks is not None
        self._callbacks.on_lease_lost(lost)

    def ends(self, start: StageStart) -> Mapping[Ssp, int]:
        if self.brokers is None:
            return super().ends(start)
        with self._at_work():
            (stream,) = start.declared.stage.reads
            if stream != self.ledger.mid:
                return {}
            now = settled_ends(self.brokers, stream, self._step)
            return {ssp: now[ssp.partition] for ssp in start.starts}

    def close(self) -> None:
        while self._writers:
            self._writers.popitem()[1].close()

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
        """Other processes may act between two steps, also for so long that a lease ends."""
        if self.process.dead:
            raise Killed
        if greenlet.getcurrent().parent is not None and self.chance.random() < self.interrupted:
            seconds = self.chance.choice(self.interruptions)

            def until(wake: Callable[[], None]) -> None:
                self.loop.call_later(seconds, wake)

            self.loop.wait_in_thread(until)
        self.steps += 1
        if self.kill_after is not None:
            self.kill_after -= 1
            if self.kill_after <= 0:
                self.on_kill()
                raise Killed

    def _dies(self) -> None:
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
