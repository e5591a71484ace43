"""Makes the stream systems of a run: the objects with which stages read and write, from the coordinator's description of each system."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from containers.jars import connector_jars
from containers.settings import ContainerSettings
from containers.spark.systems.kafka import KafkaTaskSystem
from containers.spark.systems.kafka_transactions import MissingMarker
from containers.spark.systems.log import LogTaskSystem
from containers.spark.systems.port import StreamEnds, TaskSystem
from sluice.clock import Clock
from sluice.core.errors import LeaseLost, UnknownSystem
from sluice.core.ids import Instant, Ssp, StreamId
from sluice.streams.kafka_properties import KafkaProperties

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

Connections = Mapping[str, Mapping[str, str]]
"""System -> the coordinator's description: "type", and its path or address."""


def jars_for(connections: Connections, spark_conf: Mapping[str, str]) -> dict[str, str]:
    """The Spark setting for the jars that the systems need, unless `spark_conf` names a connector already. Raises JarsUnavailable."""
    if not any(connection.get("type") == "kafka" for connection in connections.values()):
        return {}
    named = [spark_conf.get(name, "") for name in ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")]
    if any("spark-sql-kafka" in each for each in named):
        return {}
    return {"spark.jars": ",".join([*filter(None, [spark_conf.get("spark.jars", "")]), *map(str, connector_jars())])}


def task_systems(
    spark: SparkSession, connections: Connections, settings: ContainerSettings, clock: Clock, on_lease_lost: Callable[[LeaseLost], None]
) -> dict[str, TaskSystem]:
    """Raises UnknownSystem for an unknown type, BadSettings."""
    systems: dict[str, TaskSystem] = {}
    for name, connection in connections.items():
        match connection.get("type"):
            case "log":
                systems[name] = LogTaskSystem(spark, Path(connection["path"]), clock, on_lease_lost)
            case "kafka":
                bootstrap = settings.kafka_bootstrap or connection["bootstrap.servers"]
                properties, missing_marker = KafkaProperties.read(settings.kafka_properties), MissingMarker(settings.kafka_missing_marker)
                systems[name] = KafkaTaskSystem(spark, bootstrap, properties, on_lease_lost, missing_marker)
            case other:
                raise UnknownSystem(f"the system {name!r} is of type {other!r}, which this version of Sluice does not support")
    return systems


AGAIN_AFTER = timedelta(seconds=1)
"""How long a stream that is unavailable is not asked for again."""

WAITED = 4
"""A system that takes long to fail is not asked again for this many times as long: otherwise queries on other systems would wait for it."""

QUICK = timedelta(seconds=3)
"""Longer than the embedded log waits for a lock. If a system takes longer to fail, it is the system that does not answer, and its streams
are not asked for one by one."""


class EndsOfSystems:
    """The ends of streams of several systems, for one thread that asks often. A stream that is unavailable does not affect the others. A
    warning is logged for it once, until it is available again."""

    def __init__(self, systems: Mapping[str, TaskSystem], clock: Clock) -> None:
        self._systems = systems
        self._clock = clock
        self._open: dict[str, StreamEnds] = {}
        self._unavailable: dict[StreamId, Instant] = {}
        """When each is asked for again."""

    def latest(self, partitions: Collection[Ssp]) -> Mapping[Ssp, int]:
        """The offsets up to which a query can read now. Partitions that do not exist are left out, and those of streams that are
        unavailable. Blocks."""
        now = self._clock.elapsed()
        wanted: defaultdict[tuple[str, bool], defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for ssp in partitions:
            again_at = self._unavailable.get(ssp.stream_id)
            if again_at is None or again_at <= now:
                wanted[ssp.system, again_at is not None][ssp.stream].append(ssp.partition)
        found: dict[Ssp, int] = {}
        for (name, _), streams in wanted.items():
            for stream, ends in self._ask(name, streams).items():
                found |= {Ssp(name, stream, partition): end for partition, end in ends.items()}
        return found

    def _ask(self, system: str, streams: Mapping[str, Collection[int]]) -> Mapping[str, Mapping[int, int]]:
        began = self._clock.elapsed()
        try:
            if system not in self._open:
                self._open[system] = self._systems[system].stream_ends()
            found = self._open[system].latest(streams)
        except Exception as error:  # whatever it is, no query on another stream may wait for it
            took = timedelta(seconds=self._clock.elapsed() - began)
            if len(streams) > 1 and took <= QUICK:
                return {stream: ends for each in streams for stream, ends in self._ask(system, {each: streams[each]}).items()}
            for stream in streams:
                self._failed(StreamId(system, stream), error, max(AGAIN_AFTER, WAITED * took))
            return {}
        for stream in streams:
            if self._unavailable.pop(StreamId(system, stream), None) is not None:
                log.info("the end of %s.%s is known again", system, stream)
        return found

    def _failed(self, stream: StreamId, error: Exception, pause: timedelta) -> None:
        if stream not in self._unavailable:
            log.warning("queries that read %s look for input only every few seconds, because its end is not known: %s", stream, error)
        self._unavailable[stream] = Instant(self._clock.elapsed() + pause.total_seconds())

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()
