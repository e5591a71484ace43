"""Makes the stream systems of a run: the objects with which stages read and write, from the coordinator's description of each system."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
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
from sluice.core.ids import Ssp
from sluice.streams.kafka_properties import KafkaProperties

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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


class EndsOfSystems:
    """The ends of streams of several systems, for one thread that asks often."""

    def __init__(self, systems: Mapping[str, TaskSystem]) -> None:
        self._systems = systems
        self._open: dict[str, StreamEnds] = {}

    def latest(self, partitions: Collection[Ssp]) -> Mapping[Ssp, int]:
        """The offsets up to which a query can read now. Partitions that do not exist are left out. Blocks. Raises StreamUnavailable,
        UnknownStream."""
        wanted: defaultdict[str, defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for ssp in partitions:
            wanted[ssp.system][ssp.stream].append(ssp.partition)
        found: dict[Ssp, int] = {}
        for name, streams in wanted.items():
            if name not in self._open:
                self._open[name] = self._systems[name].stream_ends()
            for stream, ends in self._open[name].latest(streams).items():
                found |= {Ssp(name, stream, partition): end for partition, end in ends.items()}
        return found

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()
