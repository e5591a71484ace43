"""The container's metrics, for Prometheus: an HTTP server on a thread of its own. docs/operating.md lists them.

Labels say which task and which stage. Job, run, slot and container are known to whoever finds this server: the coordinator tells them to
Prometheus (`GET /prometheus/targets`).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from containers.meters import Meter, Meters
from sluice.clock import Clock
from sluice.wire import body as wire_body

LABELS = ["task", "stage"]

WILDCARDS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104
"""Every address of the machine: others need its name instead."""


class ContainerCollector(Collector):
    """`lease_left` and `tasks_held` are asked at every scrape; the lease is None before the registration."""

    def __init__(
        self,
        meters: Meters,
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
            told = "How long this container may still act without an answer to a heartbeat."
            yield GaugeMetricFamily("sluice_container_lease_seconds_left", told, left.total_seconds())
        yield GaugeMetricFamily("sluice_container_tasks_held", "Tasks that this container holds.", self._tasks_held())
        trigger = self._trigger.total_seconds()
        yield GaugeMetricFamily("sluice_container_trigger_seconds", "The shortest time from one batch of a query to its next.", trigger)
        stages = self._meters.all()
        yield from _work(stages)
        yield from _standing(stages, self._clock.now())
        yield from self._backups()


def _work(stages: Iterable[Meter]) -> Iterable[Metric]:
    """What adds up."""
    rows = CounterMetricFamily("sluice_stage_input_rows", "Rows that batches have read.", labels=LABELS)
    batches = CounterMetricFamily("sluice_stage_batches", "Batches committed.", labels=LABELS)
    restarts = CounterMetricFamily("sluice_stage_restarts", "How often the query was started again after a failure.", labels=LABELS)
    late = CounterMetricFamily(
        "sluice_stage_rows_dropped_by_watermark", "Rows, or partial aggregates, that came too late and were dropped.", labels=LABELS
    )
    took = HistogramMetricFamily("sluice_stage_batch_duration_seconds", "How long batches took.", labels=LABELS)
    parts = CounterMetricFamily(
        "sluice_stage_batch_part_seconds", "What the time of batches went to, by Spark's names of the parts.", labels=[*LABELS, "part"]
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


def _standing(stages: Iterable[Meter], now: datetime) -> Iterable[Metric]:
    """How things stand after the last batch; what a stage has not, such as state, has no series."""
    behind = GaugeMetricFamily("sluice_stage_offsets_behind", "Records that the sources held beyond the last batch.", labels=LABELS)
    rows = GaugeMetricFamily("sluice_stage_state_rows", "Rows in the state stores.", labels=LABELS)
    memory = GaugeMetricFamily("sluice_stage_state_bytes", "Memory that the state stores use.", labels=LABELS)
    disk = GaugeMetricFamily("sluice_stage_state_disk_bytes", "Size of the state stores' table files.", labels=LABELS)
    lag = GaugeMetricFamily("sluice_stage_watermark_lag_seconds", "By how much the watermark is behind the time of day.", labels=LABELS)
    delay = GaugeMetricFamily(
        "sluice_stage_watermark_delay_seconds", "By how much the watermark is behind the newest event time read.", labels=LABELS
    )
    heard = GaugeMetricFamily(
        "sluice_stage_last_heard_timestamp_seconds", "When a batch was committed last, or nothing was found to read.", labels=LABELS
    )
    for each in stages:
        labels, last = [each.task, each.stage], each.last
        if each.behind is not None:
            behind.add_metric(labels, each.behind)
        if each.heard_at is not None:
            heard.add_metric(labels, each.heard_at.timestamp())
        if last is not None and last.state is not None:
            rows.add_metric(labels, last.state.rows)
            memory.add_metric(labels, last.state.memory_bytes)
            disk.add_metric(labels, last.state.disk_bytes)
        if last is not None and last.watermark is not None:
            lag.add_metric(labels, (now - last.watermark).total_seconds())
            if each.event_time_max is not None:
                delay.add_metric(labels, (each.event_time_max - last.watermark).total_seconds())
    return behind, rows, memory, disk, lag, delay, heard


@dataclass(frozen=True, slots=True)
class Exposition:
    """A server of metrics. `address` is what others find it by, "host:port"; None if that cannot be said so that they would."""

    server: WSGIServer
    address: str | None

    @property
    def port(self) -> int:
        return int(self.server.server_port)

    def close(self) -> None:
        """It ends within half a second; nobody waits for that."""
        threading.Thread(target=self._end, name="sluice-metrics-end", daemon=True).start()

    def _end(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def expose(collector: Collector, host: str, port: int, known_as: str) -> Exposition:
    """Serve on the address; port 0 takes a free one. Where that is every address of the machine, others are told the name `known_as`.
    Blocks while the machine's name is looked up. Raises OSError when the address cannot be had."""
    registry = CollectorRegistry()
    registry.register(collector)
    server, _ = start_http_server(port, host, registry)
    name = known_as if host in WILDCARDS else host
    address = f"[{name}]:{server.server_port}" if ":" in name else f"{name}:{server.server_port}"
    return Exposition(server, address if re.match(wire_body.HOST_AND_PORT, address) else None)
