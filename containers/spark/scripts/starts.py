"""A call for each start of a query, before the query reads its checkpoint.

Spark informs the listeners of a session on the thread of the query, and waits for them. Calls to the JVM that a listener in Python makes
run on that thread, too. So the query can be prepared: its checkpoint can be changed, and its sources can be replaced by a gate, although
Spark allows only the query's own thread to make its plan.

Only queries of the session and of those that share its listeners are seen. A query of another session (`spark.newSession()`) is not.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started

from containers.spark.gate import PausedQuery
from containers.spark.jvm import java
from containers.spark.scripts.active_queries import ActiveQueries, ActiveQuery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

LISTENER = "org.apache.spark.sql.streaming.PythonStreamingQueryListener"
WRAPPER = "org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper"


class QueryStarts:
    """A listener of a session. `on_start` is called for each start of a query, on the query's thread. Spark ignores what it raises. The
    methods have Spark's names."""

    def __init__(self, spark: SparkSession, on_start: Callable[[ActiveQuery], None]) -> None:
        self._spark = spark
        self._on_start = on_start
        self._wrapper: Any = None
        self._one = threading.Lock()

    def listen(self) -> None:
        """Begin to listen. May be repeated, also by several threads: a second listener would hold each query a second time in a drain."""
        with self._one:
            if self._wrapper is None:
                ensure_callback_server_started(SparkContext._gateway)  # type: ignore[no-untyped-call]
                wrapper = java(self._spark, WRAPPER)(self)
                self._spark._jsparkSession.streams().addListener(wrapper)
                self._wrapper = wrapper

    def close(self) -> None:
        """Stop listening."""
        with self._one:
            if self._wrapper is not None:
                self._spark._jsparkSession.streams().removeListener(self._wrapper)
                self._wrapper = None

    def onQueryStarted(self, event: Any) -> None:
        run_id = str(event.runId().toString())
        try:
            for each in ActiveQueries(self._spark).find():
                if each.run_id == run_id:
                    self._on_start(each)
        except Exception:  # Spark would log a long trace of the JVM
            log.exception("the start of query %s", run_id)

    def onQueryProgress(self, event: Any) -> None:
        """Needed by Spark's interface."""

    def onQueryIdle(self, event: Any) -> None:
        """Needed by Spark's interface."""

    def onQueryTerminated(self, event: Any) -> None:
        """Needed by Spark's interface."""

    def toString(self) -> str:
        return "starts of queries"

    def hashCode(self) -> int:
        return 1

    def equals(self, other: Any) -> bool:
        return False

    class Java:
        implements = (LISTENER,)


def pause_at_start(spark: SparkSession, query: ActiveQuery) -> PausedQuery:
    """Pause a query that is being started. Call it in `on_start`. A batch that was planned before and not committed runs first; then the
    query waits."""
    query.make_plan()
    paused = PausedQuery(spark, query.query)
    paused.close()
    return paused
