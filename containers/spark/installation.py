"""Installs gates in queries that start, before they plan a batch.

Spark may plan the first batch of a query immediately. Spark reports the start of a query synchronously (`QueryStartedEvent`), before the
query initialises its sources. At that moment a thread of this process takes the lock under which the query plans a batch and commits one
(`awaitProgressLock`); it installs the gates when the query waits for the lock, and releases it.

This uses internals of Spark's `MicroBatchExecution`: `uniqueSources`, `awaitProgressLock` and `queryExecutionThread`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from time import sleep
from typing import TYPE_CHECKING, Any

from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started

from containers.spark.jvm import READ_LIMIT, each_of, java, scala_object, set_member

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIST_MAP = "scala.collection.immutable.ListMap$"
"""Unlike Scala's other maps it keeps the order of its entries."""

FIRST_POLL, LAST_POLL = 0.005, 0.05
"""The shortest and the longest interval, in seconds, at which a query that starts is polled."""

NewGate = Callable[[Any], Any]
"""Makes a gate for a query, of Spark's type `MicroBatchStream`. The argument is Spark's `MicroBatchExecution`, which waits for its lock."""


class GatedStarts:
    """Installs the gates of queries that start. One for a session, whose listener calls `on_started`."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._expected: dict[str, _Installation] = {}

    def start(self, name: str, start: Callable[[], Any], first: Sequence[NewGate] = (), last: Sequence[NewGate] = ()) -> Any:
        """Start the query of that name, and return it once its gates are installed or it has ended. Before each batch Spark calls the
        gates `first` before the sources of the query, and `last` after them. Raises what `start` raises, and RuntimeError if a gate cannot
        be installed; the query is then stopped."""
        installation = self._expected[name] = _Installation(self._spark, first, last)
        try:
            query = start()
        finally:
            del self._expected[name]
        try:
            installation.join()
        except BaseException:
            query.stop()
            raise
        return query

    def on_started(self, name: str | None, id_: str) -> None:
        """Begin the installation for the query `name`, which starts. Called on the query's thread; blocks until the query cannot plan a
        batch."""
        if name is not None and (installation := self._expected.get(name)) is not None:
            installation.begin(id_)


class _Installation:
    """The installation of the gates of one query that starts. A lock of Java belongs to a thread, so the same thread takes it, installs the
    gates and releases it."""

    def __init__(self, spark: SparkSession, first: Sequence[NewGate], last: Sequence[NewGate]) -> None:
        self._spark = spark
        self._first = first
        self._last = last
        self._locked = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def begin(self, id_: str) -> None:
        """Start the installation. Returns once the query cannot plan a batch."""
        self._thread = threading.Thread(target=self._run, args=(id_,), name="sluice-gates", daemon=True)
        self._thread.start()
        self._locked.wait()

    def join(self) -> None:
        if self._thread is None:
            raise RuntimeError("Spark has not reported the start of the query, so that it has no gates")
        self._thread.join()
        if self._error is not None:
            raise RuntimeError(f"the query gets no gates: {self._error}") from self._error

    def _run(self, id_: str) -> None:
        try:
            execution = self._spark._jsparkSession.streams().get(id_).streamingQuery()
            lock = execution.awaitProgressLock()
            lock.lock()
            try:
                self._locked.set()
                if self._await_query(execution, lock):
                    self._install(execution)
            finally:
                lock.unlock()
        except BaseException as error:
            self._error = error
        finally:
            self._locked.set()

    def _await_query(self, execution: Any, lock: Any) -> bool:
        """Wait until the query waits for the lock; False if it has ended."""
        thread, pause = execution.queryExecutionThread(), FIRST_POLL
        while not lock.hasQueuedThread(thread):
            if not execution.isActive():
                return False
            sleep(pause)
            pause = min(LAST_POLL, pause * 1.2)
        return bool(execution.isActive())

    def _install(self, execution: Any) -> None:
        ensure_callback_server_started(SparkContext._gateway)  # type: ignore[no-untyped-call]
        limit = java(self._spark, READ_LIMIT).allAvailable()
        sources = scala_object(self._spark, LIST_MAP).empty()
        for new_gate in self._first:
            sources = sources.updated(new_gate(execution), limit)
        for entry in each_of(execution.uniqueSources().iterator()):
            sources = sources.updated(entry._1(), entry._2())
        for new_gate in self._last:
            sources = sources.updated(new_gate(execution), limit)
        set_member(execution, "uniqueSources", sources)
