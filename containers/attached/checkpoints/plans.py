"""The driver's side of plans: what a batch reads is in the blob stores before a sink that asks for its context writes the batch.

A snapshot is older than the newest batches. After a lost disk these batches run again, and with their plans they have the same rows, so
that a sink which keeps (lineage, batch) has each row once.

This is only done for queries that read Kafka and nothing else. The plan of a source of files names an entry of the source's own log, which
is in the checkpoint, and may be lost with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from containers.attached.checkpoints.repeats import Repeat
from containers.rpc.connection import ConnectionLost
from containers.spark.gate import PausedQuery
from containers.spark.scripts.active_queries import ActiveQuery
from containers.spark.scripts.starts import pause_at_start
from sluice.core.errors import Unavailable
from sluice.core.ids import Lineage, StageName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class PlanNotKept(Unavailable):
    """What a batch reads could not be made durable before the batch writes."""


class Plans:
    """The plans of the queries on checkpoints that are backed up. Thread-safe. `keep`: see `containers.attached.port.Agent.keep_plan`.
    `find` returns the running query with that id."""

    def __init__(self, keep: Callable[[StageName, int], str], find: Callable[[Lineage], ActiveQuery | None]) -> None:
        self._keep = keep
        self._find = find
        self._repeatable: dict[Lineage, bool] = {}
        self._stages: dict[Lineage, StageName] = {}
        self._last: dict[Lineage, int] = {}
        self._replays: dict[Lineage, Mapping[int, str]] = {}
        self._planned: dict[Lineage, int] = {}
        """The last batch that was planned by a former start."""
        self._running_again: dict[Lineage, int] = {}
        """Until which batch the running query repeats what was planned before."""
        self._repeats: dict[str, Repeat] = {}
        """By start of a query."""

    def add(self, lineage: Lineage, stage: StageName, replay: Mapping[int, str]) -> None:
        """A query may start on the checkpoint of this stage. `replay`: the batches that must run again, after the one that the checkpoint
        itself plans."""
        self._stages[lineage] = stage
        self._replays[lineage] = replay
        self._planned[lineage] = max(replay, default=-1)
        self._last.pop(lineage, None)
        self._repeatable.pop(lineage, None)

    def keep(self, lineage: Lineage, batch: int) -> None:
        """Return when the plan of the batch is durable, unless the checkpoint is not backed up, or the plan would not be enough to read the
        same records again. Raises PlanNotKept."""
        stage = self._stages.get(lineage)
        if stage is None or self._last.get(lineage) == batch or batch <= self._running_again.get(lineage, -1):
            return
        if not self._is_repeatable(lineage):
            return
        try:
            failed = self._keep(stage, batch)
        except ConnectionLost as lost:
            raise PlanNotKept("the agent of this script has ended") from lost
        if failed:
            raise PlanNotKept(f"the plan of batch {batch} of checkpoint {stage}: {failed}")
        self._last[lineage] = batch

    def _is_repeatable(self, lineage: Lineage) -> bool:
        if lineage not in self._repeatable:
            query = self._find(lineage)
            self._repeatable[lineage] = query is not None and all(each.is_kafka for each in query.sources())
        return self._repeatable[lineage]

    # --- batches that run again --------------------------------------------------------------------------------------

    def repeat(self, spark: SparkSession, query: ActiveQuery) -> Repeat | None:
        """Call it when a query starts, on its thread: after the batch that its checkpoint plans, the query runs the other batches that were
        planned before, in the gate, and then continues. None if there are none."""
        lineage = Lineage(query.id)
        replay = self._replays.pop(lineage, {})
        if not replay:
            return None
        self._running_again[lineage] = max(replay)
        repeat = Repeat(query, pause_at_start(spark, query), replay, lambda: self._end_repeat(lineage))
        self._repeats[query.run_id] = repeat
        repeat.start()
        return repeat

    def _end_repeat(self, lineage: Lineage) -> None:
        self._running_again.pop(lineage, None)

    def kept_paused(self, query: ActiveQuery) -> Repeat | None:
        """The batches that the query runs again: it waits in its gate after them, until the caller lets it continue or ends it. None if it
        runs none, or continues already."""
        repeat = self._repeats.get(query.run_id)
        return repeat if repeat is not None and repeat.keep_paused() else None

    def pause(self, query: ActiveQuery, deadline: timedelta, forced: threading.Event) -> PausedQuery | None:
        """Pause a query that is to end, also between two batches that it runs again. See `ActiveQuery.pause`. A query that runs batches
        again is in its gate, or comes to it, in any case."""
        repeat = self.kept_paused(query)
        if repeat is None:
            return query.pause(deadline, forced)
        repeat.interrupt(deadline, forced)
        return repeat.paused

    def lacks(self, query: ActiveQuery, committed: int) -> bool:
        """Whether batches that were planned before are left, after the last committed one. A query whose start was not seen does not run
        them again."""
        return committed < self._planned.get(Lineage(query.id), -1)
