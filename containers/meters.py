"""What the stages of a container do, batch by batch: for the reports to the coordinator and for the container's own metrics.

Told of on the event loop; read there, and on the threads that answer Prometheus.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from containers.engine import Batch, Start
from sluice.clock import Clock
from sluice.core.histogram import Histogram
from sluice.core.ids import StageName, TaskName
from sluice.wire import agents as wire_agents

RATE_OVER = timedelta(seconds=10)

BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Seconds that a batch takes."""


class Meter:
    """One stage of one task, since this container runs it: over all starts of its query. `restarts` tells how many there were after a
    failure; `trigger` is the shortest time from one batch to the next."""

    def __init__(self, start: Start, restarts: Callable[[], int], trigger: timedelta, clock: Clock) -> None:
        self.task: TaskName = start.task
        self.stage: StageName = start.declared.stage.name
        self.restarts = restarts
        self.rows = 0
        self.batches = 0
        self.dropped_late = 0
        self.durations = Histogram(BOUNDS)
        self.parts: defaultdict[str, float] = defaultdict(float)
        """Seconds, by Spark's names."""
        self.last: Batch | None = None
        self.event_time_max: datetime | None = None
        self.behind: int | None = None
        self.heard_at: datetime | None = None
        """When a batch was committed, or none was needed."""
        self._trigger = trigger
        self._clock = clock
        self._recent: deque[tuple[float, float, int]] = deque()

    def committed(self, batch: Batch) -> wire_agents.MeasuresBody:
        """Take in a batch that was just committed."""
        seconds = batch.duration_ms / 1000
        self.rows += batch.rows
        self.batches += 1
        self.durations.add(seconds)
        for part, millis in batch.parts_ms.items():
            self.parts[part] += millis / 1000
        self.dropped_late += batch.state.dropped_late if batch.state else 0
        self.event_time_max = batch.event_time_max or self.event_time_max
        self.behind = batch.behind
        self.last, self.heard_at = batch, self._clock.now()
        now = self._clock.elapsed()
        self._recent.append((now - seconds, now, batch.rows))
        return self._body(batch.rows, self._rate(now))

    def idle(self) -> wire_agents.MeasuresBody:
        """The query has looked for something to read and found nothing."""
        self.behind, self.heard_at = 0, self._clock.now()
        self._recent.clear()
        return self._body(0, 0.0)

    def _rate(self, now: float) -> float:
        while len(self._recent) > 1 and self._recent[0][1] <= now - RATE_OVER.total_seconds():
            self._recent.popleft()
        over = max(now - self._recent[0][0], self._trigger.total_seconds(), 0.001)
        return sum(rows for _, _, rows in self._recent) / over

    def _body(self, rows: int, rate: float) -> wire_agents.MeasuresBody:
        last, state = self.last, self.last.state if self.last else None
        return wire_agents.MeasuresBody(
            rows=rows,
            rows_per_second=round(rate, 3),
            batch_millis=last.duration_ms if last else 0,
            batch_millis_by_part=dict(last.parts_ms) if last else {},
            offsets_behind=self.behind,
            state_rows=state.rows if state else None,
            state_bytes=state.memory_bytes if state else None,
            watermark=last.watermark if last else None,
            event_time_max=self.event_time_max,
            unflushable=tuple(last.unflushable) if last is not None and last.unflushable is not None else None,
            at=self._clock.now(),
        )


class Meters:
    """A meter for each stage that a container runs, by the name of its query."""

    def __init__(self, trigger: timedelta, clock: Clock) -> None:
        self._trigger = trigger
        self._clock = clock
        self._stages: dict[str, Meter] = {}

    def begin(self, start: Start, restarts: Callable[[], int]) -> None:
        self._stages[start.query] = Meter(start, restarts, self._trigger, self._clock)

    def forget(self, start: Start) -> None:
        """The container runs it no more: nothing more is told of it."""
        self._stages.pop(start.query, None)

    def committed(self, batch: Batch) -> wire_agents.MeasuresBody | None:
        stage = self._stages.get(batch.query)
        return stage.committed(batch) if stage else None

    def idle(self, query: str) -> wire_agents.MeasuresBody | None:
        stage = self._stages.get(query)
        return stage.idle() if stage else None

    def all(self) -> Sequence[Meter]:
        """Any thread."""
        return list(self._stages.values())
