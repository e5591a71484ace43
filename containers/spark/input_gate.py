"""Makes queries wait for input between two batches, without polling their sources.

After each batch, Spark calls `latestOffset` of the sources of a query. While there is nothing to read, it repeats the calls every 10 ms or
at the interval of a trigger. Each call is a request to Kafka, or a call of a Python process. So a query gets an additional source, which
Spark calls first: a gate. It has no offsets. It blocks Spark's call, on the query's thread, until there is something to read or to do. The
trigger of the query is then 0. `Waits` defines when the gate lets a call pass.

One thread of the container (`InputWatcher`) looks up the ends of the streams that waiting queries read, and opens the gates of those that
have not read everything. The gates are objects of the JVM: a query that waits uses no Python thread, and Spark can interrupt it.

A gate also limits how many batches run at a time while all cores are busy (`BatchLimit`), where executors are threads of the driver.

While a query waits, its trigger is active (`isTriggerActive`), and it has `awaitProgressLock`. Therefore `hurry` must be called before a
query is stopped or paused between two batches. The time of the wait is not counted in the batch that follows.

This uses internals of Spark's `MicroBatchExecution`: `uniqueSources`, and `batchId`, `startOffsets`, `startTrigger` and `reportTimeTaken`
of `getLatestExecutionContext`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from time import sleep
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from containers.spark.jvm import compiled, each_of
from containers.spark.masters import is_local
from containers.state.offsets.offsetlog import positions_of
from sluice.core.ids import Ssp, StreamId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

GATES, GATE = "sluice.InputGates", "sluice.InputGates$InputGate"
"""Classes in `java/sluice/InputGates.java`."""

LONGEST = timedelta(seconds=5)
"""How long a query waits at most, if nothing opens its gate. Spark then reports that it is idle, at most every ten seconds."""

ASKED_EVERY = timedelta(seconds=1)
"""How often calls pass the gate of a timed query without new records (see `Waits`), if no interval is set."""

FIRST_PAUSE, LAST_PAUSE = timedelta(milliseconds=5), timedelta(milliseconds=100)
"""The shortest and the longest time between two lookups of the ends of streams."""

REPEATS = 9
"""How many times the positions of waiting queries are used again, if no query could have begun a batch for new records. A call of the JVM
costs more than the lookup of the ends."""

GROWTH = 1.5
"""By which factor that time grows while nothing arrives."""

AFTER_ERROR = timedelta(seconds=1)

MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Waits:
    """When the gate of a query lets Spark's calls for new offsets pass. `interval`: the shortest time from one call that passes to the
    next; 0 for none. `timed`: whether calls must pass without new records, because the query has timers of processing time, or sources
    whose ends Sluice does not know. `longest`: how long a call waits at most.

    A call passes when there are unread records, after `InputGates.open`, and after `longest`; for a timed query, after the interval, or
    `ASKED_EVERY`. The first call after a batch passes immediately, because Spark may run a batch without data. With timers Spark would
    always run one, so a timed query waits then, too. `hurry` ends every wait."""

    interval: timedelta
    timed: bool = False
    longest: timedelta = LONGEST

    @property
    def limit(self) -> timedelta:
        """The longest wait, counted from its beginning; for a timed query, from the last call that has passed."""
        return (self.interval or ASKED_EVERY) if self.timed else self.longest


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """How many batches run at a time: the others wait, in the order in which their queries could begin. Without a limit all of them share
    the cores, and each takes as long as all of them together.

    `batches`: the limit. It does not hold while `idle_cores` or more are idle, because a batch that waits for a broker or a database needs
    no core; nor if no batch has begun or ended for `stall`."""

    batches: int
    idle_cores: float = 0.25
    stall: timedelta = timedelta(seconds=1)


class InputGates:
    """The gates of the queries of a session. Thread-safe."""

    def __init__(self, spark: SparkSession, limit: BatchLimit | None = None) -> None:
        """Raises Py4JError, PySparkException if this version of Spark does not allow it."""
        self._java = compiled(spark, GATES).newInstance()
        self.limit = limit
        if limit is not None:
            self._java.limit(limit.batches, limit.idle_cores, limit.stall // MILLISECOND)
        self._numbers: dict[str, int] = {}
        """The number of the present gate of each query, by the name of the query."""
        self._gates: dict[int, Any] = {}
        self._reads: dict[int, Sequence[StreamId]] = {}
        self._opened: set[int] = set()
        self._positions: dict[int, tuple[str, Mapping[Ssp, int]]] = {}
        """What the last call of the JVM has returned, with the texts. The texts of queries that wait do not change."""
        self._repeated = 0
        self._closed = threading.Event()
        self._lock = threading.Lock()

    def new_gate(self, query: str, reads: Sequence[StreamId], waits: Waits, execution: Any) -> Any:
        """A gate for a query that starts. `reads`: the streams that it reads; `execution`: Spark's `MicroBatchExecution`."""
        gate = self._java.gate(execution, waits.interval // MILLISECOND, waits.limit // MILLISECOND, not waits.timed)
        self.forget(query)
        with self._lock:
            number = self._numbers[query] = int(gate.id())
            self._reads[number] = tuple(reads)
            self._gates[number] = gate
        return gate

    def forget(self, query: str) -> None:
        """Forget the gate of a query that has ended. Does not block."""
        with self._lock:
            former = self._numbers.pop(query, 0)
            self._reads.pop(former, None)
            self._gates.pop(former, None)

    def open(self, query: str) -> None:
        """Let the current call of the query pass, or the next one, within a few times `LAST_PAUSE`. Does not block."""
        with self._lock:
            if query in self._numbers:
                self._opened.add(self._numbers[query])

    def pace(self, query: str, shortest: timedelta) -> None:
        """Set a shortest time from one call of the query that passes to the next, beside the interval of its `Waits`; 0 for none. It ends
        with the gate."""
        with self._lock:
            gate = self._gates.get(self._numbers.get(query, 0))
        if gate is not None:
            gate.pace(shortest // MILLISECOND)

    def exchange(self, opened: Collection[int], pause: timedelta) -> Mapping[int, Mapping[Ssp, int]] | None:
        """Open these gates and those of `open`, wait for `pause`, and then until a gate waits. Returns how far the query of each waiting
        gate has read. None after `close`. Blocks. While all queries wait, the JVM is asked only every `REPEATS` times. In between, a query
        may have read more than is returned here, if its call has passed without `open`."""
        with self._lock:
            numbers, self._opened = {*opened, *self._opened}, set()
            all_wait = bool(self._gates) and self._positions.keys() >= self._gates.keys()
        if numbers:
            self._java.open(",".join(map(str, numbers)))
        if self._closed.wait(pause.total_seconds()):
            return None
        if all_wait and not numbers and self._repeated < REPEATS:
            self._repeated += 1
            return {gate: positions for gate, (_, positions) in self._positions.items()}
        self._repeated = 0
        text = self._java.waiting()
        if text is None:
            return None
        with self._lock:
            reads = dict(self._reads)
        found: dict[int, tuple[str, Mapping[Ssp, int]]] = {}
        for line in filter(None, str(text).split("\n")):
            number, *texts = line.split("\t")
            gate = int(number)
            known = self._positions.get(gate, ("", {}))
            found[gate] = known if known[0] == line else (line, positions_of(texts, reads.get(gate, ())))
        self._positions = found
        return {gate: positions for gate, (_, positions) in found.items()}

    def close(self) -> None:
        self._closed.set()
        self._java.close()


def input_gates(spark: SparkSession) -> InputGates | None:
    """None, with a warning, if this version of Spark does not allow them: the sources are then polled."""
    try:
        context = spark.sparkContext
        return InputGates(spark, BatchLimit(context.defaultParallelism) if is_local(str(context.master)) else None)
    except (Py4JError, PySparkException) as error:
        log.warning("queries poll their sources, because there can be no gates in this session: %s", error)
        return None


def hurry(query: StreamingQuery) -> None:
    """Let the call in which the query waits for input pass, or the next one. A query without a gate is not affected."""
    for source in each_of(query._jsq.streamingQuery().uniqueSources().keysIterator()):
        hurry_gate(source)


def hurry_gate(source: Any) -> None:
    """The same, for a source of a query."""
    if isinstance(source, JavaObject) and source.getClass().getName() == GATE:
        source.hurry()


class InputWatcher:
    """Opens the gates of queries that have not read everything, on a thread of its own, until the gates are closed or the JVM has ended.
    While the end of a stream is not known, calls pass after the longest wait, and Spark reports what is wrong."""

    def __init__(
        self,
        exchange: Callable[[Collection[int], timedelta], Mapping[int, Mapping[Ssp, int]] | None],
        ends: Callable[[Collection[Ssp]], Mapping[Ssp, int]],
        on_end: Callable[[], None] = lambda: None,
        after_error: timedelta = AFTER_ERROR,
    ) -> None:
        """`exchange`: that of the gates. `ends` returns the present ends of partitions, up to which a query can read, as far as they are
        known. `on_end` is called when the thread ends. All are called on the thread."""
        self._exchange = exchange
        self._after_error = after_error
        self._ends = ends
        self._on_end = on_end
        self._thread = threading.Thread(target=self._run, name="sluice-input", daemon=True)
        self._failing = False

    def start(self) -> None:
        self._thread.start()

    def join(self, within: timedelta) -> None:
        """Wait until the thread has ended, or for that long: a system that does not answer may delay it."""
        self._thread.join(within.total_seconds())

    def _run(self) -> None:
        try:
            opened: Collection[int] = ()
            pause = FIRST_PAUSE
            while (waiting := self._waiting(opened, pause)) is not None:
                opened = self._unread(waiting) if waiting else ()
                pause = next_pause(pause, bool(opened))
        finally:
            self._on_end()

    def _waiting(self, opened: Collection[int], pause: timedelta) -> Mapping[int, Mapping[Ssp, int]] | None:
        """None when the gates are closed or the JVM has ended."""
        try:
            return self._exchange(opened, pause)
        except Exception as error:  # whatever it is, no query may wait for this thread for ever
            if jvm_has_ended(error):
                log.debug("no streams are watched any more: %s", error)
                return None
            self._failed(error)
            return {}

    def _unread(self, waiting: Mapping[int, Mapping[Ssp, int]]) -> Collection[int]:
        try:
            found = unread(waiting, self._ends({ssp for positions in waiting.values() for ssp in positions}))
        except Exception as error:
            self._failed(error)
            return ()
        self._failing = False
        return found

    def _failed(self, error: Exception) -> None:
        if not self._failing:
            log.warning("queries look for input only every %g s: %s", LONGEST.total_seconds(), error)
        self._failing = True
        sleep(self._after_error.total_seconds())


def jvm_has_ended(error: Exception) -> bool:
    """Whether a call of the JVM has raised this because the JVM no longer answers. With an exception in the JVM, Py4J raises a
    Py4JJavaError, or an error with the text of a trace."""
    if isinstance(error, Py4JJavaError):
        return False
    return isinstance(error, OSError) or (isinstance(error, Py4JError) and "Trace:" not in str(error))


def unread(waiting: Mapping[int, Mapping[Ssp, int]], ends: Mapping[Ssp, int]) -> Collection[int]:
    """The gates of queries of which a position differs from the end of its partition. A position beyond the end counts, too, so that Spark
    handles it."""
    return [gate for gate, positions in waiting.items() if any(ends.get(ssp, at) != at for ssp, at in positions.items())]


def next_pause(last: timedelta, found: bool) -> timedelta:
    """The pause after one of the duration `last`. `found`: whether a gate was opened."""
    return FIRST_PAUSE if found else min(LAST_PAUSE, last * GROWTH)
