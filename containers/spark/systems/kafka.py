"""Kafka as a task's system. Stages read through Spark's connector.

A batch is written as one transaction by the driver (`kafka_transactions`), or with `delivery="at-least-once"` by Spark's executors: a topic
may then contain a batch's records twice after a crash, and a container whose lease has ended can write until it exits.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, TypeVar, assert_never

from pyspark.sql import functions as F

from containers.engine import Writes
from containers.spark.systems.kafka_transactions import KafkaClients, MissingMarker, ProducerFenced, TransactionalWriter, TransactionMeter
from containers.spark.systems.port import Grant, StreamEnds
from containers.spark.systems.row_transfer import Transfers
from containers.state.checkpoint import PlannedBatches
from sluice.core.errors import BadSettings, LeaseLost, SluiceError, StreamConflict
from sluice.job import Delivery
from sluice.streams.kafka import KafkaSystem, transactional_id
from sluice.streams.kafka_properties import KafkaProperties

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


log = logging.getLogger(__name__)

T = TypeVar("T")

_HEADERS = "array<struct<key:string,value:binary>>"

SOURCE_OPTIONS: Mapping[str, str] = {
    "includeHeaders": "true",
    "failOnDataLoss": "true",
    "kafka.fetch.max.wait.ms": "10",
    "kafka.allow.auto.create.topics": "false",
    "kafka.isolation.level": "read_committed",
}
"""By default, a fetch waits 500 ms for records, once per batch. Without that wait, the median batch takes 240 ms instead of 729."""


class KafkaTaskSystem:
    """`properties` override Sluice's own options, because a broker may have limits."""

    def __init__(
        self,
        spark: SparkSession,
        bootstrap: str,
        properties: KafkaProperties,
        on_lease_lost: Callable[[LeaseLost], None] = lambda lost: None,
        missing_marker: MissingMarker = MissingMarker.STOP,
        clients: KafkaClients | None = None,
    ) -> None:
        self._missing_marker = missing_marker
        self._clients = KafkaClients() if clients is None else clients
        self._spark = spark
        self._on_lease_lost = on_lease_lost
        self._writers: dict[str, TransactionalWriter] = {}
        self._forgetting = threading.Lock()
        self._given_up: dict[str, int] = {}
        """Transactional id -> the last batch that was written exactly once, of stages that write at-least-once now."""
        self._meters: defaultdict[str, TransactionMeter] = defaultdict(TransactionMeter)
        self._transfers: defaultdict[str, Transfers] = defaultdict(Transfers)
        self._bootstrap = bootstrap
        self._properties = properties
        self._options = {"kafka.bootstrap.servers": bootstrap, **properties.connector_options()}

    def read(self, grant: Grant, stream: str, starts: Mapping[int, int], max_rows: int) -> DataFrame:
        rows = (
            self._spark.readStream.format("kafka")
            .options(**{**SOURCE_OPTIONS, **self._options, **({"failOnDataLoss": "false"} if grant.opening else {})})
            .option("assign", json.dumps({stream: sorted(starts)}))
            .option("startingOffsets", json.dumps({stream: {str(p): offset for p, offset in sorted(starts.items())}}))
            .option("maxOffsetsPerTrigger", str(max_rows))
            .load()
        )
        headers = F.coalesce("headers", F.array().cast(_HEADERS)).alias("headers")  # null where a record has none
        return rows.select("key", "value", F.col("topic").alias("stream"), "partition", "offset", "timestamp", headers)

    def append(
        self,
        grant: Grant,
        records: DataFrame,
        batch: int,
        stream: str,
        headers: Mapping[str, str],
        ready: Callable[[], None] = lambda: None,
        delivery: Delivery = Delivery.EXACTLY_ONCE,
        partitions: int | None = None,
    ) -> None:
        match delivery:
            case Delivery.EXACTLY_ONCE:
                self._append_once(grant, records, batch, stream, headers, ready, partitions)
            case Delivery.AT_LEAST_ONCE:
                name = transactional_id(grant.job, grant.stage, stream, grant.task)
                if batch <= self._given_up.get(name, -1):
                    self._compute_only(name, batch, records, stream)
                else:
                    self._append_with_spark(records, stream, headers, ready, partitions)
            case _:
                assert_never(delivery)

    def _append_once(
        self,
        grant: Grant,
        records: DataFrame,
        batch: int,
        stream: str,
        headers: Mapping[str, str],
        ready: Callable[[], None],
        partitions: int | None,
    ) -> None:
        name = transactional_id(grant.job, grant.stage, stream, grant.task)
        if name not in self._writers:
            self.fence(grant, stream, Delivery.EXACTLY_ONCE, lambda: PlannedBatches(batch - 1))
        writer = self._writers[name]
        if writer.has(batch):
            self._compute_only(name, batch, records, stream)
            return
        ready()
        encoded = [(header, value.encode()) for header, value in headers.items()]
        try:
            transfers = self._transfers[name]
            writer.write(batch, lambda send: transfers.run(records, lambda piece: send(piece, encoded)), partitions)
        except BaseException as error:
            self._forget(name, writer)
            if isinstance(error, ProducerFenced):
                self._confirm(grant)
            raise

    def _compute_only(self, name: str, batch: int, records: DataFrame, stream: str) -> None:
        """Run the plan of a batch whose records the topic has, so that its state can be committed."""
        self._meters[name].repeated += 1
        log.info("batch %d of %s is in %s: its records are not sent again", batch, name, stream)
        records.write.format("noop").mode("overwrite").save()

    def _confirm(self, grant: Grant) -> None:
        """Confirm that the task is still owned. Raises LeaseLost, which ends the process."""
        try:
            grant.confirm_owner()
        except LeaseLost as lost:
            self._on_lease_lost(lost)
            raise

    def _append_with_spark(
        self, records: DataFrame, stream: str, headers: Mapping[str, str], ready: Callable[[], None], partitions: int | None
    ) -> None:
        if headers:
            entries = [F.struct(F.lit(name).alias("key"), F.lit(value.encode()).alias("value")) for name, value in headers.items()]
            records = records.withColumn("headers", F.array(*entries))
        ready()  # executors write as they compute
        self._check_grown(stream, partitions)
        records.write.format("kafka").options(**self._options).option("topic", stream).save()
        self._check_grown(stream, partitions)  # the batch is not committed, so its rows are written again

    def _check_grown(self, stream: str, partitions: int | None) -> None:
        """Raises StreamConflict if the topic has more partitions than the job reads: Spark's sink writes to all of them."""
        if partitions is not None and partitions < (present := self._ask(lambda system: system.partitions(stream))):
            raise StreamConflict(
                f"the topic {stream!r} has grown to {present} partitions, and the job reads {partitions}: Spark's sink would write to all. "
                'Write with delivery="exactly-once", or give the stream another name'
            )

    def writes(self, grant: Grant, stream: str, delivery: Delivery) -> Writes:
        meter = self._meters.get(transactional_id(grant.job, grant.stage, stream, grant.task))
        return Writes(delivery) if meter is None else meter.writes(delivery)

    def renew(self) -> None:
        """Renew each marker on a thread of its own, because an unreachable broker takes minutes."""
        for name, writer in list(self._writers.items()):
            if writer.due:
                threading.Thread(target=self._renew, args=(name, writer), name="sluice-renew", daemon=True).start()

    def _renew(self, name: str, writer: TransactionalWriter) -> None:
        try:
            writer.renew()
        except SluiceError as error:
            log.warning("the marker of %s is not renewed: %s", name, error)
            self._forget(name, writer)  # the next batch opens another

    def _forget(self, name: str, writer: TransactionalWriter) -> None:
        """Close a writer that has failed. A batch and a renewal may find this at the same time."""
        with self._forgetting:
            if self._writers.get(name) is writer:
                del self._writers[name]
        writer.close()

    def close(self) -> None:
        """Close the producers."""
        while self._writers:
            self._writers.popitem()[1].close()

    def ends(self, stream: str) -> Mapping[int, int]:
        return self._ask(lambda system: system.settled_ends(stream))

    def stream_ends(self) -> StreamEnds:
        return _KafkaStreamEnds(KafkaSystem(self._bootstrap, self._properties))

    def _ask(self, request: Callable[[KafkaSystem], Awaitable[T]]) -> T:
        async def ask() -> T:
            system = KafkaSystem(self._bootstrap, self._properties)
            try:
                return await request(system)
            finally:
                await system.close()

        return asyncio.run(ask())

    def fence(self, grant: Grant, stream: str, delivery: Delivery | None, planned: Callable[[], PlannedBatches] = PlannedBatches) -> int:
        name = transactional_id(grant.job, grant.stage, stream, grant.task)
        former = self._writers.pop(name, None)
        self._given_up.pop(name, None)
        if former is not None:
            former.close()
        if delivery is None:
            return -1
        try:
            properties = {"bootstrap.servers": self._bootstrap, **self._properties.librdkafka_properties()}
        except BadSettings:
            if delivery is Delivery.EXACTLY_ONCE:
                raise
            return -1  # so the stage has not written exactly-once with these properties
        writer = TransactionalWriter(
            properties,
            name,
            stream,
            grant.lineage,
            grant.generation,
            lambda: self._confirm(grant),
            missing_marker=self._missing_marker,
            meter=self._meters[name],
            clients=self._clients,
        )
        try:
            match delivery:
                case Delivery.EXACTLY_ONCE:
                    self._ask(lambda system: system.check_transactions(stream))
                    written = writer.open(planned)
                case Delivery.AT_LEAST_ONCE:
                    self._given_up[name] = writer.give_up()
                    return -1
                case _:
                    assert_never(delivery)
        except LeaseLost as lost:
            self._on_lease_lost(lost)
            raise
        with self._forgetting:
            self._writers[name] = writer
        return written


class _KafkaStreamEnds:
    """Keeps its connections, and the event loop to which they belong."""

    def __init__(self, system: KafkaSystem) -> None:
        self._system = system
        self._runner = asyncio.Runner()

    def latest(self, partitions: Mapping[str, Collection[int]]) -> Mapping[str, Mapping[int, int]]:
        return self._runner.run(self._system.readable_ends(partitions))

    def close(self) -> None:
        with self._runner:
            self._runner.run(self._system.close())
