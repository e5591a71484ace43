"""`app.kafka_writer`: a script writes the batches of a query to Kafka, each once.

A batch is one transaction with a marker, as in a stage of a job (`containers.spark.systems.kafka_transactions`). The transactional id
consists of `sluice`, the job, "script", the topic and the lineage. So two queries that write to one topic do not fence one another, and a
query that starts again, also on another machine, fences its former start.

Before the first batch of a start the generation is confirmed with the coordinator. A producer that was fenced confirms it again: if it is
current, the producer begins again, and otherwise the query ends. A script does not start a failed query again, so the batch is tried again
here after an error that may pass, unless the query is to stop.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from containers.attached.batch_context import BatchContext
from containers.attached.checkpoints.kafka_opening import Opening
from containers.attached.kafka_columns import CannotWrite, record_columns
from containers.engine import Writes
from containers.spark.scripts.active_queries import SPARK_ERRORS, TEMPORARY, TOPIC_OPTION, ActiveQueries, ActiveQuery
from containers.spark.scripts.checkpoint import ScriptCheckpoint
from containers.spark.systems.kafka import KafkaTaskSystem
from containers.spark.systems.kafka_transactions import KafkaClients, MissingMarker, ProducerFenced
from containers.spark.systems.port import Grant
from containers.spark.systems.row_transfer import TransferFailed
from containers.state.checkpoint import PlannedBatches
from sluice.clock import Clock
from sluice.core.errors import BadSettings, LeaseLost, StreamUnavailable
from sluice.core.ids import Generation, JobName, Lineage, RunId, StageName, TaskName
from sluice.job import Delivery
from sluice.streams.kafka_properties import KafkaProperties

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

log = logging.getLogger("sluice")

SCRIPT = StageName("script")
"""In transactional ids, in the place of the name of a stage."""

TRY_FOR = timedelta(minutes=5)
"""How long after its first error a batch is tried again."""

PAUSE = timedelta(seconds=1)

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PREFIX = "kafka."
_BOOTSTRAP = "bootstrap.servers"


def kafka_settings(options: Mapping[str, str], environment: Mapping[str, str]) -> tuple[str, KafkaProperties]:
    """The bootstrap servers and the properties of Kafka's clients, from options as Spark's sink has them (`kafka.…`) and from the variables
    of containers. Options have precedence. Raises CannotWrite, BadSettings."""
    wrong = [name for name in options if not name.startswith(_PREFIX)]
    if wrong:
        raise CannotWrite(
            f"kafka_writer has no option {wrong[0]!r}: options are properties of Kafka's clients, with the prefix {_PREFIX!r}"
        )
    file = environment.get("SLUICE_KAFKA_PROPERTIES")
    properties = {**KafkaProperties.read(Path(file) if file else None)}
    properties |= {name.removeprefix(_PREFIX): str(value) for name, value in options.items()}
    bootstrap = properties.pop(_BOOTSTRAP, "") or environment.get("SLUICE_KAFKA_BOOTSTRAP", "")
    if not bootstrap:
        raise CannotWrite('kafka_writer needs the brokers: set the option "kafka.bootstrap.servers", or SLUICE_KAFKA_BOOTSTRAP')
    return bootstrap, KafkaProperties(properties, "the options of kafka_writer")


def is_continued(checkpoint: str, name: str, root: str) -> bool:
    """Whether the next start of a query finds this checkpoint. It does not without a checkpoint location; nor, for a query without a name,
    with `spark.sql.streaming.checkpointLocation` (`root`) only, because Spark then makes a directory with a random name in that."""
    parent, _, last = checkpoint.rpartition("/")
    is_random = not name and bool(root) and parent.endswith(root.rstrip("/").rpartition(":")[2]) and _UUID.fullmatch(last) is not None
    return TEMPORARY.search(checkpoint) is None and not is_random


class KafkaWriters:
    """The writers of a script. `context` returns the batch that runs now, `confirm` confirms the generation with the coordinator; see
    `App.batch_context` and `Confirmations.ask`. `stopping` is set when the script is to stop, or ends."""

    def __init__(
        self,
        spark: SparkSession,
        job: JobName,
        clock: Clock,
        context: Callable[[], BatchContext],
        confirm: Callable[[], None],
        environment: Mapping[str, str] | None = None,
        stopping: threading.Event | None = None,
        clients: KafkaClients | None = None,
    ) -> None:
        self._spark = spark
        self._job = job
        self.clock = clock
        self.context = context
        self._confirm = confirm
        self._environment = os.environ if environment is None else environment
        self._systems: dict[tuple[str, frozenset[tuple[str, str]]], KafkaTaskSystem] = {}
        self._open: dict[tuple[str, str], tuple[KafkaTaskSystem, Grant]] = {}
        """By lineage and topic."""
        self._ended: Collection[tuple[str, str]] = ()
        self.stopping = threading.Event() if stopping is None else stopping
        self._clients = clients

    def writer(self, rows: DataFrame, topic: str, options: Mapping[str, str]) -> DataStreamWriter:
        """See `App.kafka_writer`."""
        if not hasattr(rows, "isStreaming"):
            raise CannotWrite(f"`rows` must be a DataFrame, not {type(rows).__name__}")
        if not rows.isStreaming:
            raise CannotWrite("kafka_writer writes streaming queries: read the rows with spark.readStream")
        system = self._system(*kafka_settings(options, self._environment))
        writer = rows.selectExpr(*record_columns(rows.dtypes)).writeStream.option(TOPIC_OPTION, topic)
        return writer.foreachBatch(_Batches(self, system, topic, self.clock.now()).write)

    def _system(self, bootstrap: str, properties: KafkaProperties) -> KafkaTaskSystem:
        properties.librdkafka_properties()  # raises BadSettings here, and not in the first batch
        key = (bootstrap, frozenset(properties.items()))
        if key not in self._systems:
            missing = self._environment.get("SLUICE_KAFKA_MISSING_MARKER", MissingMarker.STOP)
            try:
                self._systems[key] = KafkaTaskSystem(
                    self._spark, bootstrap, properties, missing_marker=MissingMarker(missing), clients=self._clients
                )
            except ValueError as error:
                raise BadSettings(f"SLUICE_KAFKA_MISSING_MARKER is {missing!r}: use {', '.join(MissingMarker)}") from error
        return self._systems[key]

    def open(self, system: KafkaTaskSystem, topic: str, context: BatchContext, since: datetime) -> Grant:
        """Fence former starts off, and read what they have written. `since`: when this start began. Raises CannotWrite,
        CheckpointUnreadable, and what `KafkaTaskSystem.fence` raises."""
        query = self._query(context.lineage)
        opening = Opening(ScriptCheckpoint(self._spark, query.checkpoint), topic)
        planned = query.planned_at(context.batch)
        unwritten = planned >= since or opening.left(context)  # this start leaves a marker before each batch
        if unwritten:
            opening.begin(context)
        grant = self._grant(context)
        unfinished = {} if unwritten else {context.batch: planned}
        system.fence(grant, topic, Delivery.EXACTLY_ONCE, lambda: PlannedBatches(context.batch - 1, unfinished))
        opening.end()
        return grant

    def record(self, system: KafkaTaskSystem, topic: str, grant: Grant) -> None:
        """Record that the query writes now. Its producer is closed when it has ended."""
        self._open[grant.lineage, topic] = (system, grant)

    def _grant(self, context: BatchContext) -> Grant:
        lineage, generation = Lineage(context.lineage), Generation(context.generation)
        return Grant(self._job, TaskName(lineage), SCRIPT, generation, lineage, RunId(""), {}, confirm_owner=self._confirm)

    def _query(self, lineage: str) -> ActiveQuery:
        """Raises CannotWrite if the query has no checkpoint location."""
        query = next((each for each in ActiveQueries(self._spark).find() if each.id == lineage), None)
        if query is None:
            raise CannotWrite(f"the query {lineage} has ended")
        root = str(self._spark.conf.get("spark.sql.streaming.checkpointLocation", "") or "")
        if not is_continued(query.checkpoint, query.name, root):
            raise CannotWrite(
                "the query has no checkpoint location, so that its next start could not recognize what it has written: set the option "
                "checkpointLocation of the writer"
            )
        return query

    def await_retry(self, lineage: str) -> bool:
        """Wait before a batch is tried again. False if it must not be: the script or the query is to stop, and would wait for it."""
        return not self.stopping.wait(PAUSE.total_seconds()) and self._is_active(lineage)

    def _is_active(self, lineage: str) -> bool:
        """Whether the query has not been stopped. It is, by its script or after the stop timeout, before its batch has ended."""
        try:
            return any(each.id == lineage and each.query.isActive for each in ActiveQueries(self._spark).find())
        except SPARK_ERRORS:
            return False

    def lost(self, lost: LeaseLost) -> LeaseLost:
        """The error that ends the query."""
        found = LeaseLost(f"this driver has lost the lease of {self._job} and writes nothing more, because another one may run: {lost}")
        log.error("%s", found)
        return found

    def writes_of(self, lineage: str) -> Mapping[str, Writes]:
        """What a running query has written since the script started, by topic."""
        return {
            topic: system.writes(grant, topic, Delivery.EXACTLY_ONCE)
            for (writing, topic), (system, grant) in list(self._open.items())
            if writing == lineage
        }

    def renew(self, active: Collection[str]) -> None:
        """Renew markers before Kafka deletes them, and close the producers of queries that have ended. Called often. `active`: the lineages
        of the queries that run. One that has just been started may not be among them yet, so a producer is closed at the second call."""
        ended = {each for each in list(self._open) if each[0] not in active}
        for each in ended.intersection(self._ended):
            system, grant = self._open.pop(each)
            system.fence(grant, each[1], None)
        self._ended = ended
        for system in list(self._systems.values()):
            system.renew()

    def close(self) -> None:
        """Abort open transactions, and close the producers, because the script ends."""
        self.stopping.set()
        for system in list(self._systems.values()):
            system.close()


class _Batches:
    """The function of one `foreachBatch`. `since`: when the script asked for it."""

    def __init__(self, writers: KafkaWriters, system: KafkaTaskSystem, topic: str, since: datetime) -> None:
        self._writers = writers
        self._system = system
        self._topic = topic
        self._since = since
        self._grants: dict[str, Grant] = {}

    def write(self, rows: DataFrame, batch: int) -> None:
        """Write the batch, unless the topic has it. Raises LeaseLost, CannotWrite, and what `KafkaTaskSystem.append` raises."""
        writers = self._writers
        context, first_error = writers.context(), None
        while True:
            try:
                if context.lineage not in self._grants:
                    self._grants[context.lineage] = writers.open(self._system, self._topic, context, self._since)
                grant = self._grants[context.lineage]
                writers.record(self._system, self._topic, grant)  # also if this is another start of the query
                self._system.append(grant, rows, batch, self._topic, {})
                return
            except LeaseLost as lost:
                raise writers.lost(lost) from lost
            except (ProducerFenced, StreamUnavailable, TransferFailed) as error:
                now = writers.clock.elapsed()
                first_error = now if first_error is None else first_error
                if now - first_error >= TRY_FOR.total_seconds() or not writers.await_retry(context.lineage):
                    raise
                log.warning("batch %d is written to %s again: %s", batch, self._topic, error)
