"""An engine without Spark that really reads and writes the embedded log, or Kafka.

It runs two stages. The first sums the records of each batch by key, keeps the sums until its next batch, and then writes them to the
intermediate stream. The second counts, and writes its counts when a flush empties its state. So both stages have state, and both write in a
drain.

The plan of a batch says where the batch ends; it begins where the one before ended. The state of a stage is what each batch added, one file
per batch, next to the plans. Records are written as `containers/spark/systems/log.py` does, and read as `containers/spark/task.py` does.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import httpx

from containers.engine import Batch, Emptied, Kept, StageStart
from containers.errors import OffsetsTrimmed, StateNotLocal
from containers.state.checkpoint import Checkpoints, check_not_emptied, inspect, mark_emptied, read_offset_log, write_offset_log
from containers.state.offsets.offsetlog import advance
from sluice.core.errors import LeaseLost
from sluice.core.ids import Lineage, Ssp
from sluice.streams.log import Headers, Log, Record, Writer
from sluice.wire.body import CONTROL_RECORD_HEADER, DRAIN_RECORD_HEADER, RUN_RECORD_HEADER
from tests.support.agents import Wire
from tests.support.engines import DiskEngine, FakeEngine, FakeQuery, plan
from tests.support.streams import TopicLog
from tests.support.virtual_time import Gate

COUNTS = "second"
"""The stage that counts."""

AT_ONCE = 10
"""Records per batch that a drain plans."""

Ends = dict[int, int]


class Killed(Exception):
    """Simulates the death of the process: raised in its threads, so that they do nothing more."""


class Trap:
    """Stops the thread that takes the `after`-th step from now on until `release`. Create it on the event loop of the test."""

    def __init__(self, after: int) -> None:
        self.sprung = asyncio.Event()
        self._left = after
        self._gate = Gate()
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()

    def step(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left != 0:
                return
        self._loop.call_soon_threadsafe(self.sprung.set)
        self._gate.wait()

    def release(self) -> None:
        """Release the thread, and never stop one again."""
        with self._lock:
            self._left = 0
        self._gate.open()


@dataclass
class TrappedWire(Wire):
    """Answers to steps of drains and to reports of snapshots count as steps: the coordinator has processed the requests."""

    trap: Trap | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = await super().handle_async_request(request)
        if self.trap is not None and request.method == "POST" and request.url.path.endswith(("/drain", "/snapshots")):
            await asyncio.to_thread(self.trap.step)
        return answer


@dataclass
class Ledger:
    """What all engines of a history have read and violated. `mid`: the intermediate stream. `read`: the range that each batch of a lineage
    read. `ends`: up to where the last batch of each partition of a stream read. `keys`: the keys in the state of each task, by stage.
    `split`: records of a key may be in partitions of several tasks. `faults`: violated invariants.
    """

    log: Log | TopicLog
    mid: str = "mid"
    read: dict[tuple[Lineage, int], tuple[Ends, Ends]] = field(default_factory=dict)
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    keys: dict[tuple[str, str], Collection[str]] = field(default_factory=dict)
    split: bool = True
    faults: list[str] = field(default_factory=list)

    def fault(self, what: str) -> AssertionError:
        """Record a violated invariant, and return it as an exception to raise. An agent may treat the exception as an ordinary failure
        and restart.
        """
        self.faults.append(what)
        return AssertionError(what)

    def reads(self, lineage: Lineage, batch: int, begin: Ends, end: Ends) -> None:
        """Check that batches of a lineage neither overlap nor leave gaps, and that a repeated batch reads the same records."""
        if self.read.setdefault((lineage, batch), (begin, end)) != (begin, end):
            raise self.fault(f"batch {batch} of {lineage} has read {self.read[lineage, batch]}, and then {(begin, end)}")
        if (lineage, batch - 1) in self.read and self.read[lineage, batch - 1][1] != begin:
            raise self.fault(f"batch {batch} of {lineage} begins at {begin}, and the one before is {self.read[lineage, batch - 1]}")

    def meets(self, start: StageStart, keys: Collection[str]) -> None:
        """Check that the records of these keys meet the state of their keys: no other task has any."""
        if self.split:
            return
        for (stage, task), held in self.keys.items():
            if stage == start.stage.name and task != start.task and (lost := sorted({*keys} & {*held})):
                raise self.fault(f"{start.query} reads records of {', '.join(lost)}, whose state {task} has")

    def keeps(self, start: StageStart, batch: int, state: Mapping[str, int]) -> None:
        """This is its state after the batch."""
        self.keys[start.stage.name, start.task] = [key for key, amount in state.items() if amount]


def summed(
    log: Log | TopicLog, stream: str, begin: Mapping[int, int], end: Mapping[int, int], has: Callable[[Headers], bool]
) -> Counter[str]:
    """The values by key of the records from `begin` to `end` whose headers satisfy `has`."""
    rows = [row for each, upto in end.items() for chunk in log.read(stream, each, begin.get(each, 0), upto) for row in chunk]
    headers = {number: has(found) for number, found in log.headers(stream).items()}
    found: Counter[str] = Counter()
    for _, _, key, value, number in rows:
        if headers[number]:
            assert key is not None
            assert value is not None
            found[key.decode()] += int(value)
    return +found


def of_histories(first_runs: Collection[str], failed: Collection[str]) -> Callable[[Headers], bool]:
    """Whether a reader of an intermediate stream accepts records, of the histories that began with these runs."""
    return lambda headers: (
        headers.get(RUN_RECORD_HEADER) in first_runs
        and CONTROL_RECORD_HEADER not in headers
        and headers.get(DRAIN_RECORD_HEADER) not in failed
    )


@dataclass(kw_only=True)
class CountingEngine(DiskEngine):
    """`version` is the version of the job, which encodes its state in its own way. `can_pause`: whether queries can be paused; otherwise
    they are stopped.
    """

    ledger: Ledger
    version: str
    can_pause: bool = True
    trap: Trap | None = None
    dead: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._works: list[Future[None]] = []
        self._lock = threading.Lock()
        self._last_use: dict[str, Future[None]] = {}
        self._emptied: set[str] = set()
        self._news = asyncio.Event()

    # --- called by tests -------------------------------------------------------------------------------------------

    async def dies(self) -> None:
        """Stop all threads, and wait until none of them works. Called after the end of the agent."""
        self.dead = True
        if self.trap is not None:
            self.trap.release()
        for work in [*self._works]:
            await asyncio.wrap_future(work)

    async def all_acting(self, number: int) -> None:
        """Wait until that many queries run and none is paused."""
        while len(self.running) != number:
            self._news.clear()
            await self._news.wait()

    @property
    def running(self) -> Sequence[FakeQuery]:
        return [query for query in self.queries if not query.stopped and not query.held]

    async def reads_on(self, query: FakeQuery, records: int) -> bool:
        """Run a batch of at most this many records. Returns False if there is nothing to read, or the query does not run."""
        return await asyncio.to_thread(self._reads_on, query, records)

    # --- called by agents ------------------------------------------------------------------------------------------

    def start(self, start: StageStart) -> str:
        with self._at_work():
            check_not_emptied(self._prepared(start))
            if start.kept_operators is not None and tuple(start.kept_operators) != self.operators:
                raise self.ledger.fault(f"{start.query} has {self.operators}, and the kept state is of {start.kept_operators}")
            appended = self._fence(start)
            found = inspect(self.directory(start))
            assert found is not None
            if max([found.planned, *start.replay]) < appended:
                raise self.ledger.fault(f"{start.query} has written batch {appended}, and its store ends at batch {found.planned}")
            self._replay(start)
            self._finish(start)
            self._step()
            started = FakeEngine.start(self, start)
            self._tell()
            return started

    def pause(self, token: str, deadline: timedelta) -> bool:
        query = self.of(token)
        with self._at_work(), self._between_batches(query):
            self._step()
            query.held = self.can_pause
            return self.can_pause

    def stop(self, token: str, deadline: timedelta) -> bool:
        with self._at_work(), self._between_batches(self.of(token)):
            return super().stop(token, deadline)

    def resume(self, token: str) -> None:
        query = self.of(token)
        self._step()
        query.held = False
        if query.start.query in self._emptied:
            query.stopped = True
            query.callbacks.on_end(query.token, None)
        self._tell()

    def finish(self, start: StageStart) -> None:
        with self._at_work():
            if not self._is_paused(start):
                self._made_ready(start)
                self._finish(start)

    def ends(self, start: StageStart) -> Mapping[Ssp, int]:
        with self._at_work():
            (stream,) = start.stage.reads
            now = self.ledger.log.latest(stream)
            return {ssp: now[ssp.partition] for ssp in start.starts} if stream == self.ledger.mid else {}

    def empty(self, start: StageStart, ends: Mapping[Ssp, int]) -> Emptied:
        with self._at_work():
            self._emptied.add(start.query)
            if not self._is_paused(start):
                self._made_ready(start)
            directory = self.directory(start)
            found = inspect(directory)
            assert found is not None
            self._step()
            mark_emptied(directory, start.drain, found.committed)
            self._finish(start)
            batch, (_, read) = self._last(start)
            upto = read | {ssp.partition: end for ssp, end in ends.items() if end > read[ssp.partition]}
            while read != upto:
                batch, read = batch + 1, advance(read, upto, AT_ONCE)
                self._run(start, batch, self._plan(start, read, f"{start.drain} rest", drains=True))
            if batch >= 0:
                batch += 1
                self._run(start, batch, self._plan(start, read, f"{start.drain} flush", drains=True))
            return Emptied(batch)

    def keep(self, start: StageStart, ends: Mapping[Ssp, int]) -> Kept:
        with self._at_work():
            if not self._is_paused(start):
                self._made_ready(start)
            self._finish(start)
            batch, (_, read) = self._last(start)
            upto = read | {ssp.partition: end for ssp, end in ends.items() if end > read[ssp.partition]}
            while read != upto:
                batch, read = batch + 1, advance(read, upto, AT_ONCE)
                self._run(start, batch, self._plan(start, read, drains=True))
            return Kept(batch, self.operators)

    # --- batches ---------------------------------------------------------------------------------------------------

    def _reads_on(self, query: FakeQuery, records: int) -> bool:
        start = query.start
        (stream,) = start.stage.reads
        with self._at_work(), self._between_batches(query):
            if query.held or query.stopped:
                return False
            batch, (_, read) = self._last(start)
            end = advance(read, self.ledger.log.latest(stream), records)
            if end == read:
                return False
            self._run(start, batch + 1, self._plan(start, end))
            return True

    def _run(self, start: StageStart, batch: int, text: str | None) -> None:
        """Like Spark: plan, compute, write, store the state, commit. May be interrupted anywhere and run again."""
        directory = self.directory(start)
        for part in ("offsets", "state", "commits"):
            (directory / part).mkdir(exist_ok=True)
        self._step()
        if text is not None:
            write_offset_log(directory, batch, text)
        assert self._callbacks is not None
        if start.asks:
            self._callbacks.before_batch(start.query, start.generation, batch)
        self._step()
        begin, end = self._range(start, batch)
        drain, _, what = self._note(directory, batch).partition(" ")
        if drain != start.drain and what:
            raise self.ledger.fault(f"batch {batch} of {start.query} was planned by drain {drain}, and runs under {start.drain!r}")
        before = self._counts(start, batch)
        (stream,) = start.stage.reads
        self._check_present(start, batch, begin, end)
        histories = (start.first_run, *start.earlier_histories)
        takes = of_histories(histories, start.failed_drains) if stream == self.ledger.mid else lambda headers: True
        added = summed(self.ledger.log, stream, begin, end, takes)
        self._looks_at_times(start, batch, begin, end, takes)
        out = before if start.stage.name != COUNTS or what == "flush" else Counter[str]()
        if start.asks:
            self._callbacks.before_write(start.query, start.generation, batch)
        self.ledger.reads(start.lineage, batch, begin, end)
        self.ledger.ends |= {(stream, partition): offset for partition, offset in end.items()}
        if not self._lease_expired():
            self.ledger.meets(start, added)
        self._step()
        self._append(start, batch, out)
        self._step()
        changed = Counter({key: -amount for key, amount in out.items()})
        changed.update(added)
        changes = {"version": self.version, "added": changed, **self._times(start)}
        write_whole(directory / "state" / f"{batch}.changelog", json.dumps(changes))
        self._step()
        write_whole(directory / "commits" / str(batch), f'v1\n{{"nextBatchWatermarkMs":{self._natural_watermark(start, batch)}}}')
        self.ledger.keeps(start, batch, before + added - out)
        self._step()
        self._callbacks.on_batch(self._report(start, batch, end))

    def _lease_expired(self) -> bool:
        """Whether what a batch reads does not count, because the container may not act any more, and sinks refuse what it writes."""
        return False

    def _check_present(self, start: StageStart, batch: int, begin: Ends, end: Ends) -> None:
        """Fail if records of the batch were deleted, as Spark's sources do."""
        (stream,) = start.stage.reads
        earliest = self.ledger.log.earliest(stream) if isinstance(self.ledger.log, Log) else {}
        trimmed = {each: (begin[each], first) for each, first in earliest.items() if begin.get(each, first) < min(first, end.get(each, 0))}
        if trimmed:
            what = f"batch {batch} of {start.query} needs records of {stream} that were trimmed: {trimmed}"
            raise OffsetsTrimmed(what) if self._lease_expired() else self.ledger.fault(what)

    def _append(self, start: StageStart, batch: int, out: Mapping[str, int]) -> None:
        (stream,) = start.stage.writes
        headers = self._headers(start, batch)
        records = [Record(str(amount).encode(), key.encode()) for key, amount in sorted(out.items())]
        writer = Writer(start.lineage, f"{self.job}/{start.task}", start.generation)
        self.ledger.log.append(stream, records, writer=writer, batch=batch, headers=headers, now_micros=0)

    def _headers(self, start: StageStart, batch: int) -> Mapping[str, str]:
        """Those of the records that the batch writes."""
        (stream,) = start.stage.writes
        headers = {RUN_RECORD_HEADER: str(start.first_run)} if stream == self.ledger.mid else {}
        return headers | ({DRAIN_RECORD_HEADER: start.drain} if start.drain else {})

    def _report(self, start: StageStart, batch: int, end: Ends) -> Batch:
        return Batch(start.query, batch, 1, 1, {ssp: end[ssp.partition] for ssp in start.starts})

    # --- event times, which this engine does not have --------------------------------------------------------------

    def _plan(self, start: StageStart, end: Ends, note: str = "", *, drains: bool = False) -> str:
        """The plan of the next batch. `drains`: it is one of a drain."""
        (stream,) = start.stage.reads
        return plan(end, stream, note)

    def _looks_at_times(self, start: StageStart, batch: int, begin: Ends, end: Ends, takes: Callable[[Headers], bool]) -> None:
        """Called with the range of each batch."""

    def _times(self, start: StageStart) -> Mapping[str, int]:
        """What is stored with the state of the batch."""
        return {}

    def _natural_watermark(self, start: StageStart, batch: int) -> int:
        return 0

    # --- stores ----------------------------------------------------------------------------------------------------

    def _prepared(self, start: StageStart) -> Path:
        self._step()
        reported = None if start.restored else start.reported
        return Checkpoints(self.root, self.job).prepare(start.task, start.stage.name, start.lineage, reported)

    def _made_ready(self, start: StageStart) -> None:
        self._fence(start)
        check_not_emptied(self._prepared(start), start.drain)
        self._replay(start)

    def _fence(self, start: StageStart) -> int:
        (stream,) = start.stage.writes
        self.ledger.log.fence(stream, f"{self.job}/{start.task}", start.generation)
        appended = self.ledger.log.last_batch(stream, start.lineage)
        return -1 if appended is None else appended

    def _replay(self, start: StageStart) -> None:
        for batch, text in sorted(start.replay.items()):
            found = inspect(self.directory(start))
            assert found is not None
            if batch > found.committed:
                self._run(start, batch, text)

    def _finish(self, start: StageStart) -> None:
        found = inspect(self.directory(start))
        assert found is not None
        if found.planned > found.committed:
            self._run(start, found.planned, None)

    def _last(self, start: StageStart) -> tuple[int, tuple[Ends, Ends]]:
        """The last batch (-1 for none) and the offset up to which it read."""
        found = inspect(self.directory(start))
        assert found is not None
        assert found.planned == found.committed
        return found.committed, self._range(start, found.committed)

    def _range(self, start: StageStart, batch: int) -> tuple[Ends, Ends]:
        directory, (stream,) = self.directory(start), start.stage.reads
        first = {ssp.partition: offset for ssp, offset in start.starts.items()}

        def end(batch: int) -> Ends:
            output = json.loads(read_offset_log(directory, batch).splitlines()[2])[stream] if batch >= 0 else {}
            return first | {int(partition): offset for partition, offset in output.items()}

        return end(batch - 1), end(batch)

    def _note(self, directory: Path, batch: int) -> str:
        return str(json.loads(read_offset_log(directory, batch).splitlines()[1])["note"])

    def _counts(self, start: StageStart, before: int) -> Counter[str]:
        """The state before that batch. Raises if it is state of another version of the job, or has gaps."""
        return self._added(start, Counter(), 0, before)

    def _added(self, start: StageStart, state: Counter[str], batch: int, before: int) -> Counter[str]:
        """`state`, with the changes of the batches from `batch` to the one before `before`."""
        directory = self.directory(start) / "state"
        for each in range(batch, before):
            file = directory / f"{each}.changelog"
            if not file.exists():
                raise self.ledger.fault(f"{start.query} has state up to batch {before - 1}, but not that of batch {each}")
            reply = json.loads(file.read_text())
            self._check_version(start, reply["version"])
            state.update(reply["added"])
        return +state

    def _check_version(self, start: StageStart, version: str) -> None:
        if version != self.version:
            raise self.ledger.fault(f"{start.query} of version {self.version} reads state of version {version}")

    # --- threads ---------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        """Called between any two durable writes: a crash may happen here."""
        if self.trap is not None and not self.dead:
            self.trap.step()
        if self.dead:
            raise Killed

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        work: Future[None] = Future()
        self._works.append(work)
        try:
            if self.dead:
                raise Killed
            yield
        except StateNotLocal as error:
            raise self.ledger.fault(str(error)) from error
        except LeaseLost as lost:
            if not self.dead:
                self.ledger.fault(str(lost))
            raise
        finally:
            self._works.remove(work)
            work.set_result(None)

    @contextmanager
    def _between_batches(self, query: FakeQuery) -> Iterator[None]:
        use: Future[None] = Future()
        with self._lock:
            former, self._last_use[query.token] = self._last_use.get(query.token), use
        if former is not None:
            former.result()
        try:
            yield
        finally:
            use.set_result(None)

    def _is_paused(self, start: StageStart) -> bool:
        return any(query.held for query in self.queries if query.start.query == start.query)

    def _tell(self) -> None:
        self._loop.call_soon_threadsafe(self._news.set)


def write_whole(file: Path, text: str) -> None:
    """Write the whole file or nothing, as Spark does."""
    draft = file.with_name(f".{file.name}.tmp")
    draft.write_text(text)
    draft.replace(file)
