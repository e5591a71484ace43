"""Stages over events {"t": second, "k": key} of either system, and the effect of a drain on their state."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from containers.spark.flush import ROUNDS, Flusher
from containers.spark.gate import PausedQuery, pause
from containers.spark.operators import LogicalPlan, Operator
from containers.spark.systems.port import Grant
from containers.spark.task import StageTask
from containers.state.checkpoint import inspect, read_offset_log
from containers.state.offsets import offsetlog
from sluice.core.ids import Ssp
from sluice.job import Input, Output
from tests.spark.conftest import SOON, Bench
from tests.support.fakes import FakeClock

IN, OUT = Input("in"), Output("out")

Stage = Callable[[StageTask], DataStreamWriter]


def events(task: StageTask, watermark: str | None = "10 seconds") -> DataFrame:
    parsed = F.from_json(F.col("value").cast("string"), "t long, k string").alias("r")
    rows = task.read(IN).select(parsed).select(F.timestamp_seconds("r.t").alias("t"), "r.k")
    return rows if watermark is None else rows.withWatermark("t", watermark)


def windowed(task: StageTask) -> DataStreamWriter:
    """The number of events of each key in 10 seconds."""
    counts = events(task).groupBy(F.window("t", "10 seconds"), "k").count()
    return task.write(counts.select(F.unix_timestamp("window.start").alias("start"), "k", "count"), OUT).outputMode("append")


@dataclass
class Drained:
    """A stage that has run and stopped, as a drain finds it."""

    bench: Bench
    stage: Stage
    grant: Grant = field(init=False)
    max_rows: int = 1000
    writers: int = 0

    def __post_init__(self) -> None:
        self.grant = self.bench.grant("in")

    @property
    def directory(self) -> Path:
        return self.bench.stores.directory(self.grant.task, self.grant.stage)

    def runs(self) -> Drained:
        self.bench.run_until_read(self.grant, self.stage)
        return self

    def pauses(self) -> PausedQuery:
        """Let the stage read everything, and pause its running query."""
        query = self.bench.start(self.grant, self.stage)
        query.processAllAvailable()
        held = pause(self.bench.spark, query, SOON, Event())
        assert held is not None
        self.bench.endings.callback(held.end, SOON, Event())
        return held

    def runs_once(self) -> Drained:
        """Read everything in one batch. A query with processing-time timers never becomes idle."""
        self.bench.stores.prepare(self.grant.task, self.grant.stage, self.grant.lineage, None)
        self.flusher().advance(self.ends())
        return self

    def flusher(self, rounds: int = ROUNDS, after: timedelta = timedelta(), paused: PausedQuery | None = None) -> Flusher:
        return Flusher(
            self.bench.spark,
            self.directory,
            "drained",
            self._writer,
            self.grant.starts,
            self.max_rows,
            FakeClock(datetime.now(UTC) + after),
            rounds,
            paused,
            operators=self._operators() if paused is not None else None,
        )

    def _operators(self) -> tuple[Operator, ...]:
        """As the engine knows them since the query's start."""
        return LogicalPlan.of(self.stage(self.bench.task(self.grant))).operators

    def _writer(self) -> DataStreamWriter:
        self.writers += 1
        return self.stage(self.bench.task(self.grant))

    @property
    def committed(self) -> int:
        found = inspect(self.directory)
        assert found is not None
        assert found.planned == found.committed
        return found.committed

    def plan(self, batch: int) -> offsetlog.OffsetSeq:
        return offsetlog.parse(read_offset_log(self.directory, batch), str(batch))

    def ends(self) -> Mapping[Ssp, int]:
        return self.bench.ends("in")

    def output(self) -> list[dict[str, object]]:
        return [json.loads(value) for value in self.bench.values("out")]

    def counted(self) -> int:
        return sum(int(str(row["count"])) for row in self.output())
