"""The counting engine on greenlets. Its queries run continuously, and its process may be killed between any two steps."""

from __future__ import annotations

import asyncio
import json
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import greenlet
import pyarrow as pa

from containers.engine import Batch, StageStart
from containers.errors import StateNotLocal
from containers.spark.caps import StageCaps, natural_watermark, next_watermark_of
from containers.spark.operators import Watermarks
from containers.spark.systems.kafka_markers import batch_header
from containers.spark.systems.kafka_transactions import MissingMarker, ProducerFenced, TransactionalWriter
from containers.state.checkpoint import PlannedBatches, inspect, next_watermark, read_offset_log
from containers.state.offsets.offsetlog import from_millis, millis
from sluice.clock import Clock
from sluice.core.errors import LeaseLost, SluiceError
from sluice.core.ids import Lineage, Ssp
from sluice.core.watermarks import FeederProgress, ProgressSource
from sluice.streams.kafka import transactional_id
from sluice.streams.log import Headers
from tests.simulation.kafka import Brokers, clients, settled_ends
from tests.simulation.loop import Killed, Process, SimulatedLoop
from tests.support.counting_engine import CountingEngine, Ends, Ledger, write_whole
from tests.support.engines import FakeQuery, plan

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


EVENT_TIME = "event-time"
"""The header of records in the intermediate stream: the event time of the oldest record of the input that went into the batch, in
milliseconds since 1970."""


class GrowingLedger(Ledger):
    """Partitions may be added to a stage between two batches of a lineage, or when a batch is repeated; it then reads nothing of them.

    `repeats`: a stage has begun a lineage at an older snapshot because an index was lost, so that records may be written twice.
    `watermarks`: the watermarks of batches that have read records of the intermediate stream. `states`: the state after each batch of a
    lineage.
    """

    repeats: bool = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.watermarks: list[int] = []
        self.states: dict[tuple[Lineage, int], Mapping[str, int]] = {}
        self._appended: dict[int, tuple[list[int], list[int], list[bool]]] = {}

    def reads(self, lineage: Lineage, batch: int, begin: Ends, end: Ends) -> None:
        known = self.read.get((lineage, batch)) or self.read.get((lineage, batch - 1))
        if known is not None:
            added = end.keys() - known[1].keys()
            if (lineage, batch) in self.read and any(end[each] != begin.get(each, end[each]) for each in added):
                raise self.fault(f"batch {batch} of {lineage} is repeated and reads {added}")
            first = {each: offset for each, offset in begin.items() if each in known[1]}
            last = {each: offset for each, offset in end.items() if each in known[1]}
            former = self.read.get((lineage, batch - 1))
            if (lineage, batch) in self.read and self.read[lineage, batch] != (first, last):
                raise self.fault(f"batch {batch} of {lineage} has read {self.read[lineage, batch]}, and then {(first, last)}")
            if former is not None and {each: begin.get(each) for each in former[1]} != former[1]:
                raise self.fault(f"batch {batch} of {lineage} begins at {begin}, and the one before ended at {former[1]}")
        self.read[lineage, batch] = (begin, end)

    def keeps(self, start: StageStart, batch: int, state: Mapping[str, int]) -> None:
        super().keeps(start, batch, state)
        self.states[start.lineage, batch] = state

    def appended(self, ends: Mapping[int, int], at: int, known: Collection[int]) -> None:
        """Records were appended to the input, up to these ends. Their event time is `at`, in milliseconds since 1970. `known`: the
        partitions that the job model in force has."""
        for partition, end in ends.items():
            before, times, in_model = self._appended.setdefault(partition, ([], [], []))
            if end > (before[-1] if before else 0):
                before.append(end)
                times.append(at)
                in_model.append(partition in known)

    def event_time(self, partition: int, offset: int) -> int:
        """That of a record of the input, in milliseconds since 1970."""
        ends, times, _ = self._appended[partition]
        return times[bisect_right(ends, offset)]

    def oldest_on_time(self, partition: int, begin: int, end: int) -> int | None:
        """The oldest event time of the records from `begin` to `end`, apart from those that were appended before the job model had the
        partition: watermarks could not wait for these. None if there are no others."""
        if begin == end:
            return None
        ends, times, in_model = self._appended[partition]
        found = range(bisect_right(ends, begin), bisect_left(ends, end) + 1)
        return min((times[each] for each in found if in_model[each]), default=None)


def stored_state(checkpoint: Path, batch: int) -> Mapping[str, int]:
    """The state after the batch, read from the files of a checkpoint of any version of the job. Raises FileNotFoundError."""
    files = {each: checkpoint / "state" / f"{each}.snapshot" for each in range(batch + 1)}
    first = max((each for each, file in files.items() if file.exists()), default=-1)
    state = Counter[str](json.loads(files[first].read_text())["sums"] if first >= 0 else {})
    for each in range(first + 1, batch + 1):
        state.update(json.loads((checkpoint / "state" / f"{each}.changelog").read_text())["added"])
    return +state


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
    lease_expired: Callable[[], bool] = lambda: False
    """Whether the lease has ended on true time, and no thread of the process can have seen that."""
    steps: int = 0
    interrupted: float = INTERRUPTED
    interruptions: Sequence[float] = INTERRUPTIONS
    records: int | None = None
    """How many records each batch reads at most; None: drawn from `RECORDS`."""
    brokers: Brokers | None = None
    """Of Kafka, if its streams are there."""
    clock: Clock
    event_times: bool = False
    """Whether the records of the input have event times, and the second stage a watermark."""
    _oldest: dict[str, int | None] = field(default_factory=dict)
    """By query: the event time of the oldest record in its state after the batch that runs."""
    _on_time: dict[str, int | None] = field(default_factory=dict)
    """The same, without records that watermarks could not wait for."""
    _newest: dict[str, int] = field(default_factory=dict)
    """By query: the newest event time that the batch that runs has read."""
    _caps: dict[str, StageCaps] = field(default_factory=dict)
    _writers: dict[str, TransactionalWriter] = field(default_factory=dict)
    """By transactional id."""
    _busy: dict[str, list[Callable[[], None]]] = field(default_factory=dict)
    """Queries whose work between two batches has not ended, and the waits for its end."""

    def start(self, start: StageStart) -> str:
        self.progresses.pop(start.query, None)
        self._caps.pop(start.query, None)
        token = super().start(start)
        if self.event_times and self._feeds(start) and start.query not in self.progresses:
            found = inspect(self.directory(start))
            pending = found is not None and found.committed >= 0
            self.progresses[start.query] = FeederProgress(None, timedelta(0), ProgressSource.COLUMN, pending)
        self.on_works(start)
        self.loop.call_soon(self._reads, self.of(token))
        return token

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

    def _lease_expired(self) -> bool:
        return self.lease_expired()

    def _run(self, start: StageStart, batch: int, text: str | None) -> None:
        self.on_works(start)
        super()._run(start, batch, text)
        if batch % COMPACTED_EVERY == COMPACTED_EVERY - 1:
            self._step()
            state = json.dumps({"version": self.version, "sums": self._counts(start, batch + 1)})
            write_whole(self.directory(start) / "state" / f"{batch}.snapshot", state)
            self._step()
            self._purge(self.directory(start), batch)

    # --- event times -----------------------------------------------------------------------------------------------

    def _feeds(self, start: StageStart) -> bool:
        return self.ledger.mid in start.stage.writes

    def _plan(self, start: StageStart, end: Ends, note: str = "", *, drains: bool = False) -> str:
        """The batches of a drain have the watermark of the last planned batch, as those of `containers/spark/flush.py`."""
        (stream,) = start.stage.reads
        if not self.event_times or self._feeds(start):
            return plan(end, stream, note)
        caps = self._caps_of(start)
        watermark = caps.planned()
        if not drains:  # as WatermarkGate
            watermark = max(watermark, next_watermark_of(natural_watermark(self.directory(start)), caps.caps(dict)))
        return plan(end, stream, note, batchWatermarkMs=watermark, batchTimestampMs=millis(self.clock.now()))

    def _caps_of(self, start: StageStart) -> StageCaps:
        """Those of the stage that reads the intermediate stream, by its event times, without a delay."""
        if start.query not in self._caps:
            (mid,) = {ssp.stream_id for ssp in start.starts}
            watermarks = Watermarks(timedelta(0), {mid.stream: timedelta(0)}, stateful=True, emits_state=True)
            self._caps[start.query] = StageCaps(
                self.directory(start),
                watermarks,
                reads=[mid],
                intermediate=[mid],
                starts=start.starts,
                timed=(),
                steps=lambda: self.limits.get(start.query, {}),
                writes_event_time=False,
                clock=self.clock,
            )
        return self._caps[start.query]

    def forget(self, query: str) -> None:
        super().forget(query)
        for known in (self.limits, self.progresses, self._caps):
            known.pop(query, None)

    def _looks_at_times(self, start: StageStart, batch: int, begin: Ends, end: Ends, takes: Callable[[Headers], bool]) -> None:
        """Note the event times of the records, and check that none of them is dropped as late."""
        if not self.event_times:
            return
        assert isinstance(self.ledger, GrowingLedger)
        if self._feeds(start):
            found = [self.ledger.event_time(each, offset) for each, offset in begin.items() if end[each] > offset]
            self._oldest[start.query] = min(found, default=None)
            on_time = [self.ledger.oldest_on_time(each, offset, end[each]) for each, offset in begin.items()]
            self._on_time[start.query] = min((each for each in on_time if each is not None), default=None)
            return
        stream, watermark = self.ledger.mid, self._watermark(start, batch)
        headers = self.ledger.log.headers(stream)
        numbers = {
            row[4] for each, upto in end.items() for chunk in self.ledger.log.read(stream, each, begin.get(each, 0), upto) for row in chunk
        }
        times = [int(headers[each][EVENT_TIME]) for each in sorted(numbers) if takes(headers[each]) and EVENT_TIME in headers[each]]
        self._newest[start.query] = max(times, default=0)
        if times:
            self.ledger.watermarks.append(watermark)
        late = [at for at in times if at <= watermark]
        if late and not self.ledger.repeats:
            behind = (watermark - min(late)) / 1000
            raise self.ledger.fault(f"batch {batch} of {start.query} drops rows as late, which are {behind:.3f} s behind its watermark")

    def _watermark(self, start: StageStart, batch: int) -> int:
        return int(json.loads(read_offset_log(self.directory(start), batch).splitlines()[1])["batchWatermarkMs"])

    def _times(self, start: StageStart) -> Mapping[str, int]:
        oldest = self._on_time.get(start.query)
        return {} if oldest is None else {"oldest": oldest}

    def _natural_watermark(self, start: StageStart, batch: int) -> int:
        if not self.event_times or self._feeds(start):
            return 0
        former = next_watermark(self.directory(start), batch - 1) if batch > 0 else 0
        return max(former, self._newest[start.query])

    def _headers(self, start: StageStart, batch: int) -> Mapping[str, str]:
        headers = super()._headers(start, batch)
        if not self.event_times or not self._feeds(start) or batch == 0:
            return headers
        written = json.loads((self.directory(start) / "state" / f"{batch - 1}.changelog").read_text())
        return {**headers, EVENT_TIME: str(written["oldest"])} if "oldest" in written else headers

    def _report(self, start: StageStart, batch: int, end: Ends) -> Batch:
        reported = super()._report(start, batch, end)
        if not self.event_times:
            return reported
        if not self._feeds(start):
            return replace(reported, watermark=from_millis(self._watermark(start, batch)))
        progress = self.progresses[start.query] = self._progress(start, end)
        return replace(reported, progress=progress)

    def _progress(self, start: StageStart, end: Ends) -> FeederProgress:
        """No record that is appended from now on is older than the state, nor than the last record that was read from a partition with
        unread records: event times rise."""
        assert isinstance(self.ledger, GrowingLedger)
        (stream,) = start.stage.reads
        latest, oldest = self.ledger.log.latest(stream), self._oldest[start.query]
        read = {each: self.ledger.event_time(each, upto - 1) for each, upto in end.items() if upto > 0}
        unread = [each for each, upto in end.items() if upto < latest[each]]
        former = self.progresses.get(start.query)
        if any(each not in read for each in unread) or not read:
            at = None if former is None else former.event_time
        else:
            times = [read[each] for each in unread] or [max(read.values())]
            at = from_millis(min(times if oldest is None else [*times, oldest]))
        return FeederProgress(at, timedelta(0), ProgressSource.COLUMN, pending=oldest is not None)

    # --- Kafka -----------------------------------------------------------------------------------------------------

    def _fence(self, start: StageStart) -> int:
        """As `KafkaTaskSystem.fence`."""
        if self.brokers is None:
            return super()._fence(start)
        (stream,) = start.stage.writes
        name = transactional_id(self.job, start.stage.name, stream, start.task)
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
        """What an operator chooses who knows whether the batches were written, if their records were trimmed since. Otherwise they must be
        found."""
        assert self.brokers is not None
        headers = {batch_header(start.lineage, batch)[1] for batch in self._planned(start).unfinished}
        if any(self.brokers.has(header) for header in headers):
            return MissingMarker.STOP
        return MissingMarker.SKIP if headers and headers <= self.brokers.written else MissingMarker.SEND

    def _append(self, start: StageStart, batch: int, out: Mapping[str, int]) -> None:
        """As `KafkaTaskSystem.append`."""
        if self.brokers is None:
            super()._append(start, batch, out)
            return
        (stream,) = start.stage.writes
        name = transactional_id(self.job, start.stage.name, stream, start.task)
        if name not in self._writers:
            self._fence(start)
        writer = self._writers[name]
        if writer.has(batch):
            self.brokers.happened["repeated"] += 1
            return
        headers = [(header, text.encode()) for header, text in self._headers(start, batch).items()]
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

    def _confirm(self, start: StageStart) -> None:
        assert self._callbacks is not None
        try:
            self._callbacks.confirm_owner(start.task, start.generation)
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
            (stream,) = start.stage.reads
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
