"""The container's metrics, of its stages and their backups. docs/operating.md lists them, and `metrics_server` serves them."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from containers.engine import Batch, JvmUsage
from containers.state.meters import BackupMeter, CopyMeter, Histogram, Transfers
from sluice.blobs.counted import Requests
from sluice.clock import Clock
from sluice.core.ids import Ssp, StageName, TaskName
from sluice.core.lag import records_in
from sluice.disks import DiskSpace, Thresholds
from sluice.job import Delivery
from sluice.metrics import build_info
from sluice.wire import agents as wire_agents

RATE_OVER = timedelta(seconds=10)
RATE_OVER_AT_LEAST = timedelta(seconds=1)
"""The shortest period of a rate. A batch of some milliseconds after a pause does not show the rate at which rows arrive."""

BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Bounds of the histogram of batch durations, in seconds."""


class RecordShare:
    """Counts the offsets that batches have passed, and the records that they have read there."""

    def __init__(self) -> None:
        self._offsets = 0
        self._records = 0

    def add(self, offsets: int, records: int) -> None:
        """A batch that runs again passes no offsets, and does not count."""
        if offsets > 0:
            self._offsets += offsets
            self._records += records

    @property
    def records_per_offset(self) -> float | None:
        """At most 1, although a query that reads a stream twice counts its records twice. None before the first offset."""
        return min(1.0, self._records / self._offsets) if self._offsets > 0 else None


class Meter:
    """The metrics of one stage of one task since this container acquired it. `restarts` returns how often its query was restarted after a
    failure; `trigger` is the shortest time from one batch to the next."""

    def __init__(self, task: TaskName, stage: StageName, restarts: Callable[[], int], trigger: timedelta, clock: Clock) -> None:
        self.task = task
        self.stage = stage
        self.restarts = restarts
        self.rows = 0
        self.batches = 0
        self.dropped_late = 0
        self.dropped_late_at: datetime | None = None
        self.durations = Histogram(BOUNDS)
        self.parts: defaultdict[str, float] = defaultdict(float)
        """Seconds, by Spark's names of the parts of a batch."""
        self.last: Batch | None = None
        self.event_time_max: datetime | None = None
        self.behind: int | None = None
        """Records that the sources had beyond the last batch."""
        self.progress_at: datetime | None = None
        """When a batch was last committed, or the query last found nothing to read."""
        self._trigger = trigger
        self._clock = clock
        self._recent: deque[tuple[float, float, int]] = deque()
        self._offsets: Mapping[Ssp, int] = {}
        self._passed = RecordShare()

    def committed(self, batch: Batch) -> wire_agents.StageMetricsBody:
        """Add a batch that was just committed. Returns the metrics to report with it."""
        seconds = batch.duration_ms / 1000
        self.rows += batch.rows
        self.batches += 1
        self.durations.add(seconds)
        for part, millis in batch.parts_ms.items():
            self.parts[part] += millis / 1000
        if batch.state is not None and batch.state.dropped_late:
            self.dropped_late += batch.state.dropped_late
            self.dropped_late_at = self._clock.now()
        self.event_time_max = batch.event_time_max or self.event_time_max
        if self._offsets.keys() == batch.offsets.keys():  # else it is not known where partitions began
            self._passed.add(sum(at - self._offsets[ssp] for ssp, at in batch.offsets.items()), batch.rows)
        self._offsets = batch.offsets
        self.behind = None if batch.behind is None else records_in(batch.behind, self._passed.records_per_offset)
        self.last, self.progress_at = batch, self._clock.now()
        now = self._clock.elapsed()
        self._recent.append((now - seconds, now, batch.rows))
        return self._body(batch.rows, self._rate(now))

    def idle(self) -> wire_agents.StageMetricsBody:
        """Record that the query has found nothing to read. Returns the metrics to report."""
        self.behind, self.progress_at = 0, self._clock.now()
        self._recent.clear()
        return self._body(0, 0.0)

    def between_batches(self) -> wire_agents.StageMetricsBody:
        """The metrics to report while the next batch waits."""
        return self._body(0, 0.0)

    def _rate(self, now: float) -> float:
        while len(self._recent) > 1 and self._recent[0][1] <= now - RATE_OVER.total_seconds():
            self._recent.popleft()
        over = max(now - self._recent[0][0], self._trigger.total_seconds(), RATE_OVER_AT_LEAST.total_seconds())
        return sum(rows for _, _, rows in self._recent) / over

    def _body(self, rows: int, rate: float) -> wire_agents.StageMetricsBody:
        last, state = self.last, self.last.state if self.last else None
        return wire_agents.StageMetricsBody(
            rows=rows,
            rows_per_second=round(rate, 3),
            batch_millis=last.duration_ms if last else 0,
            batch_millis_by_part=dict(last.parts_ms) if last else {},
            lag=self.behind,
            state_rows=state.rows if state else None,
            state_bytes=state.memory_bytes if state else None,
            watermark=last.watermark if last else None,
            event_time_max=self.event_time_max,
            unflushable=tuple(last.unflushable) if last is not None and last.unflushable is not None else None,
            operators=_operators(last),
            delivery={name: each.delivery.value for name, each in last.writes.items()} if last is not None else {},
            late_rows=self.dropped_late or None,
            late_rows_at=self.dropped_late_at,
            records_per_offset=self._passed.records_per_offset,
            at=self._clock.now(),
        )


def _operators(last: Batch | None) -> tuple[wire_agents.StatefulOperator, ...] | None:
    if last is None or last.operators is None:
        return None
    return tuple(wire_agents.StatefulOperator(operator=each.operator, effect=each.effect, why=each.why) for each in last.operators)


LABELS = ["task", "stage"]


class ContainerCollector(Collector):
    """`meters` (of the stages that are running), `lease_left` (None before the registration) and `tasks_held` are called at every scrape,
    on the server's threads."""

    def __init__(
        self,
        meters: Callable[[], Iterable[Meter]],
        trigger: timedelta,
        lease_left: Callable[[], timedelta | None],
        tasks_held: Callable[[], int],
        clock: Clock,
        backups: Callable[[], Iterable[Metric]] = tuple,
    ) -> None:
        self._meters = meters
        self._backups = backups
        self._trigger = trigger
        self._lease_left = lease_left
        self._tasks_held = tasks_held
        self._clock = clock

    def collect(self) -> Iterable[Metric]:
        left = self._lease_left()
        if left is not None:
            help_text = "How long this container may run without a further renewal of its lease."
            yield GaugeMetricFamily("sluice_container_lease_seconds_left", help_text, left.total_seconds())
        yield GaugeMetricFamily("sluice_container_tasks_owned", "Tasks that this container owns.", self._tasks_held())
        trigger = self._trigger.total_seconds()
        yield GaugeMetricFamily("sluice_container_trigger_seconds", "The shortest time from one batch of a query to its next.", trigger)
        stages = list(self._meters())
        yield from _counters(stages)
        yield from _gauges(stages, self._clock.now())
        yield from _writes(stages)
        yield from _row_limits(stages)
        yield from self._backups()


def _counters(stages: Iterable[Meter]) -> Iterable[Metric]:
    """Counters and histograms."""
    rows = CounterMetricFamily("sluice_stage_input_rows", "Rows that batches have read.", labels=LABELS)
    batches = CounterMetricFamily("sluice_stage_batches", "Batches committed.", labels=LABELS)
    restarts = CounterMetricFamily("sluice_stage_restarts", "How often the query was restarted after a failure.", labels=LABELS)
    late = CounterMetricFamily(
        "sluice_stage_rows_dropped_by_watermark", "Rows, or partial aggregates, that were dropped because they were late.", labels=LABELS
    )
    took = HistogramMetricFamily("sluice_stage_batch_duration_seconds", "How long batches took.", labels=LABELS)
    parts = CounterMetricFamily(
        "sluice_stage_batch_part_seconds",
        "How long each part of the batches took, by Spark's names of the parts.",
        labels=[*LABELS, "part"],
    )
    for each in stages:
        labels = [each.task, each.stage]
        rows.add_metric(labels, each.rows)
        batches.add_metric(labels, each.batches)
        restarts.add_metric(labels, each.restarts())
        late.add_metric(labels, each.dropped_late)
        took.add_metric(labels, each.durations.buckets(), each.durations.total)
        for part, seconds in sorted(dict(each.parts).items()):
            parts.add_metric([*labels, part], seconds)
    return rows, batches, restarts, late, took, parts


def _row_limits(stages: Iterable[Meter]) -> Iterable[Metric]:
    found = GaugeMetricFamily(
        "sluice_stage_batch_row_limit",
        "How many rows the last batch could read from a source, which depends on the backlog.",
        labels=LABELS,
    )
    for each in stages:
        if each.last is not None and each.last.row_limit is not None:
            found.add_metric([each.task, each.stage], each.last.row_limit)
    yield found


def _writes(stages: Iterable[Meter]) -> Iterable[Metric]:
    """Transactions of the streams that stages write, since the session started and as of the last batch."""
    labels = [*LABELS, "stream"]
    delivery = GaugeMetricFamily("sluice_stage_delivery", "1 for the delivery of what the stage writes.", labels=[*labels, "delivery"])
    took = SummaryMetricFamily(
        "sluice_stage_transaction_commit_seconds", "How long commits took, from the last record to the answer.", labels=labels
    )
    aborted = CounterMetricFamily("sluice_stage_transactions_aborted", "Transactions that failed. Their batches run again.", labels=labels)
    fenced = CounterMetricFamily("sluice_stage_transactions_fenced", "How often another producer began.", labels=labels)
    markers = CounterMetricFamily("sluice_stage_markers_renewed", "Markers written without a batch.", labels=labels)
    repeated = CounterMetricFamily("sluice_stage_batches_not_repeated", "Batches that ran again and were not sent again.", labels=labels)
    for stage in stages:
        for stream, each in sorted(stage.last.writes.items() if stage.last is not None else ()):
            key = [stage.task, stage.stage, stream]
            delivery.add_metric([*key, each.delivery.value], 1)
            if each.delivery is Delivery.EXACTLY_ONCE:
                took.add_metric(key, each.commits, each.commit_seconds)
                for family, count in ((aborted, each.aborted), (fenced, each.fenced), (markers, each.markers), (repeated, each.repeated)):
                    family.add_metric(key, count)
    return delivery, took, aborted, fenced, markers, repeated


def _gauges(stages: Iterable[Meter], now: datetime) -> Iterable[Metric]:
    """Gauges, as of the last batch. A stage without state has no series of state."""
    behind = GaugeMetricFamily("sluice_stage_lag_records", "Records that the sources had beyond the last batch.", labels=LABELS)
    rows = GaugeMetricFamily("sluice_stage_state_rows", "Rows in the state stores.", labels=LABELS)
    memory = GaugeMetricFamily("sluice_stage_state_bytes", "Memory that the state stores use.", labels=LABELS)
    disk = GaugeMetricFamily("sluice_stage_state_disk_bytes", "Size of the state stores' table files.", labels=LABELS)
    lag = GaugeMetricFamily("sluice_stage_watermark_lag_seconds", "By how much the watermark is behind the current time.", labels=LABELS)
    delay = GaugeMetricFamily(
        "sluice_stage_watermark_delay_seconds", "By how much the watermark is behind the newest event time read.", labels=LABELS
    )
    progress = GaugeMetricFamily(
        "sluice_stage_last_progress_timestamp_seconds",
        "When a batch was last committed, or the query last found nothing to read.",
        labels=LABELS,
    )
    for each in stages:
        labels, last = [each.task, each.stage], each.last
        if each.behind is not None:
            behind.add_metric(labels, each.behind)
        if each.progress_at is not None:
            progress.add_metric(labels, each.progress_at.timestamp())
        if last is not None and last.state is not None:
            rows.add_metric(labels, last.state.rows)
            memory.add_metric(labels, last.state.memory_bytes)
            disk.add_metric(labels, last.state.disk_bytes)
        if last is not None and last.watermark is not None:
            lag.add_metric(labels, (now - last.watermark).total_seconds())
            if each.event_time_max is not None:
                delay.add_metric(labels, (each.event_time_max - last.watermark).total_seconds())
    return behind, rows, memory, disk, lag, delay, progress


BackupMeters = Mapping[tuple[TaskName, StageName], BackupMeter]


Copies = Mapping[tuple[TaskName, StageName], CopyMeter]


def backup_metrics(meters: BackupMeters, requests: Requests, copies: Copies) -> Iterable[Metric]:
    yield from _of_transfers("backup", "uploaded", {key: meter.backup for key, meter in meters.items()})
    yield from _of_transfers("restore", "restored", {key: meter.restore for key, meter in meters.items()})
    yield from _of_transfers("standby", "copied", {key: meter.transfers for key, meter in copies.items()})
    yield from _of_copies(copies)
    yield from _durability(meters)
    yield from _requests(requests)


def disk_metrics(found: Mapping[str, DiskSpace], thresholds: Thresholds) -> Iterable[Metric]:
    free = GaugeMetricFamily("sluice_container_disk_free_bytes", "Free space of a disk that this container writes to.", labels=["disk"])
    low = GaugeMetricFamily("sluice_container_disk_low_bytes", "SLUICE_DISK_LOW_BYTES, for each disk.", labels=["disk"])
    for name, space in found.items():
        free.add_metric([name], space.free)
        low.add_metric([name], thresholds.low)
    return free, low


def process_metrics(driver: int | None) -> Iterable[Metric]:
    """The versions, and CPU, memory and descriptors of the driver's Python process and of this one, the agent's. `driver`: its pid, None if
    it is this process."""
    yield build_info()
    yield from ProcessCollector(pid=lambda: driver or "self", registry=None).collect()
    if driver is not None:
        yield from ProcessCollector(namespace="sluice_agent", registry=None).collect()


def jvm_metrics(usage: JvmUsage) -> Iterable[Metric]:
    """The metrics of Spark's JVM, as of its last answer to the liveness probe."""
    yield GaugeMetricFamily("sluice_container_jvm_heap_used_bytes", "Used heap of Spark's JVM.", usage.heap_used)
    if usage.heap_max is not None:
        yield GaugeMetricFamily("sluice_container_jvm_heap_max_bytes", "Maximum heap of Spark's JVM.", usage.heap_max)
    runs = CounterMetricFamily("sluice_container_jvm_collections", "Garbage collections of Spark's JVM.", labels=["collector"])
    seconds = CounterMetricFamily("sluice_container_jvm_collection_seconds", "Time spent on them.", labels=["collector"])
    for collector, (count, took) in sorted(usage.collections.items()):
        runs.add_metric([collector], count)
        seconds.add_metric([collector], took)
    yield from (runs, seconds)


def _of_transfers(what: str, done: str, found: Mapping[tuple[str, str], Transfers]) -> Iterable[Metric]:
    name = f"sluice_stage_{what}"
    files = CounterMetricFamily(f"{name}_{done}_files", f"Files {done}.", labels=LABELS)
    size = CounterMetricFamily(f"{name}_{done}_bytes", f"Bytes {done}.", labels=LABELS)
    kept_files = CounterMetricFamily(f"{name}_retained_files", "Files that were at their destination already.", labels=LABELS)
    kept_size = CounterMetricFamily(f"{name}_retained_bytes", "Bytes that were at their destination already.", labels=LABELS)
    left_files = GaugeMetricFamily(f"{name}_remaining_files", "Files that are still to be transferred.", labels=LABELS)
    left_size = GaugeMetricFamily(f"{name}_remaining_bytes", "Bytes that are still to be transferred.", labels=LABELS)
    failed = CounterMetricFamily(f"{name}_failures", "How often it failed.", labels=LABELS)
    took = HistogramMetricFamily(f"{name}_seconds", "How long it took.", labels=LABELS)
    for key, each in found.items():
        files.add_metric(key, each.done_files)
        size.add_metric(key, each.done_bytes)
        kept_files.add_metric(key, each.retained_files)
        kept_size.add_metric(key, each.retained_bytes)
        left_files.add_metric(key, each.planned_files - each.done_files)
        left_size.add_metric(key, each.planned_bytes - each.done_bytes)
        failed.add_metric(key, each.failed)
        took.add_metric(key, each.seconds.buckets(), each.seconds.total)
    return files, size, kept_files, kept_size, left_files, left_size, failed, took


def _of_copies(copies: Copies) -> Iterable[Metric]:
    at = GaugeMetricFamily(
        "sluice_stage_standby_timestamp_seconds", "When the copy of another slot's state was updated last.", labels=LABELS
    )
    batch = GaugeMetricFamily("sluice_stage_standby_batch", "The last batch in the copy of another slot's state.", labels=LABELS)
    for key, each in copies.items():
        if each.at is not None and each.batch is not None:
            at.add_metric(key, each.at.timestamp())
            batch.add_metric(key, each.batch)
    return at, batch


def _durability(meters: BackupMeters) -> Iterable[Metric]:
    at = GaugeMetricFamily("sluice_stage_snapshot_timestamp_seconds", "When the newest snapshot was reported.", labels=LABELS)
    batch = GaugeMetricFamily("sluice_stage_snapshot_batch", "The last batch in the newest snapshot.", labels=LABELS)
    replayed = CounterMetricFamily("sluice_stage_replayed_batches", "Batches run again after a restore.", labels=LABELS)
    replaced = CounterMetricFamily("sluice_stage_replaced_batches", "Batches that another owner of the task had planned.", labels=LABELS)
    for key, each in meters.items():
        if each.snapshot_at is not None and each.snapshot_batch is not None:
            at.add_metric(key, each.snapshot_at.timestamp())
            batch.add_metric(key, each.snapshot_batch)
        replayed.add_metric(key, each.replayed)
        replaced.add_metric(key, each.replaced)
    return at, batch, replayed, replaced


def _requests(requests: Requests) -> Iterable[Metric]:
    labels = ["operation", "purpose"]
    requested = CounterMetricFamily("sluice_container_blob_requests", "Requests to blob stores, every attempt.", labels=labels)
    failed = CounterMetricFamily("sluice_container_blob_requests_failed", "Requests that failed.", labels=labels)
    for kind, count in sorted(dict(requests.requests).items()):
        requested.add_metric([kind.operation, kind.purpose], count)
        failed.add_metric([kind.operation, kind.purpose], dict(requests.failed).get(kind, 0))
    return requested, failed
