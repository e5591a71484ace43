"""The driver's side of plans: what a batch reads is in the blob stores before a sink that asks for its context writes the batch.

A snapshot is older than the newest batches. After a lost disk these batches run again, and with their plans they have the same rows, so
that a sink which keeps (lineage, batch) has each row once.

This is only done for queries that read Kafka and nothing else. The plan of a source of files names an entry of the source's own log, which
is in the checkpoint, and may be lost with it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from containers.attached.confirmation import Questions
from containers.spark.gate import PausedQuery
from containers.spark.scripts.active_queries import SPARK_ERRORS, ActiveQuery
from containers.spark.scripts.starts import pause_at_start
from containers.state.offsets.offsetlog import parse
from sluice.core.errors import Unavailable
from sluice.core.ids import Lineage, StageName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("sluice")

STEP_SECONDS = 0.02


class PlanNotKept(Unavailable):
    """What a batch reads could not be made durable before the batch writes."""


class Plans:
    """The plans of the queries on checkpoints that are backed up. Thread-safe. `send` sends `plan` with number, stage and batch. `find`
    returns the running query with that id."""

    def __init__(self, send: Callable[[int, StageName, int], None], find: Callable[[Lineage], ActiveQuery | None]) -> None:
        self._send = send
        self._find = find
        self._repeatable: dict[Lineage, bool] = {}
        self._questions = Questions()
        self._stages: dict[Lineage, StageName] = {}
        self._last: dict[Lineage, int] = {}
        self._replays: dict[Lineage, Mapping[int, str]] = {}
        self._running_again: dict[Lineage, int] = {}
        """Until which batch the running query repeats what was planned before."""

    def add(self, lineage: Lineage, stage: StageName, replay: Mapping[int, str]) -> None:
        """A query may start on the checkpoint of this stage. `replay`: the batches that must run again, after the one that the checkpoint
        itself plans."""
        self._stages[lineage] = stage
        self._replays[lineage] = replay
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
        failed = self._questions.ask(lambda number: self._send(number, stage, batch))
        if failed is None:
            raise PlanNotKept("the supervisor of this script has ended")
        if failed:
            raise PlanNotKept(f"the plan of batch {batch} of checkpoint {stage}: {failed}")
        self._last[lineage] = batch

    def _is_repeatable(self, lineage: Lineage) -> bool:
        if lineage not in self._repeatable:
            query = self._find(lineage)
            self._repeatable[lineage] = query is not None and all(each.is_kafka for each in query.sources())
        return self._repeatable[lineage]

    def take(self, number: int, failed: str) -> None:
        self._questions.take(number, failed)

    def end(self) -> None:
        self._questions.end()

    # --- batches that run again --------------------------------------------------------------------------------------

    def repeat(self, spark: SparkSession, query: ActiveQuery) -> None:
        """Call it when a query starts, on its thread: after the batch that its checkpoint plans, the query runs the other batches that were
        planned before, in the gate, and then continues."""
        lineage = Lineage(query.id)
        replay = self._replays.pop(lineage, {})
        if not replay:
            return
        self._running_again[lineage] = max(replay)
        paused = pause_at_start(spark, query)
        threading.Thread(target=self._run, args=(query, paused, replay), name="sluice-replay", daemon=True).start()

    def _run(self, query: ActiveQuery, paused: PausedQuery, replay: Mapping[int, str]) -> None:
        try:
            while not paused.gate.reached.wait(STEP_SECONDS):
                if not query.query.isActive:
                    return
            for batch, text in sorted(replay.items()):
                if batch < paused.next_batch:
                    continue  # it was committed since
                log.info("query %s runs batch %d again as it was planned", query.name or query.checkpoint, batch)
                paused.run(batch, parse(text, f"the plan of batch {batch}"))
        except (*SPARK_ERRORS, RuntimeError, AssertionError) as error:
            log.error("query %s has not run its planned batches again: %s; start the script again", query.name or query.checkpoint, error)
            _end(query, paused)
        else:
            paused.resume()
        finally:
            self._running_again.pop(Lineage(query.id), None)


def _end(query: ActiveQuery, paused: PausedQuery) -> None:
    """End the query, which would otherwise plan these batches again, with other records."""
    with suppress(*SPARK_ERRORS):
        if query.query.isActive:
            paused.end(timedelta(0), threading.Event())
