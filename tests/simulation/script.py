"""A modelled script: the driver of `tests.simulation.scripts`, with up to three queries on checkpoints of `app.checkpoint`.

A query reads topics, keeps the last records in its state, and emits the others. It plans a batch, runs it and commits it, with the files of
Spark. Its sink calls `app.batch_context()`, or is `app.kafka_writer`. The product's are: the files of a script's checkpoint, the locks and
the beginnings of `driver_drains`, the flush (`QueryDrain`, `Flusher`), the plans, and the writer of transactions. Spark, threads, and the
gate are modelled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from containers.attached.batch_context import BatchContext
from containers.attached.checkpoints.kafka_opening import Opening
from containers.attached.checkpoints.plans import Plans
from containers.attached.driver_drains import lock_emptied, prepare
from containers.attached.port import DrainInterrupted, DrainOfScript, Flushed, Grant, Made, Wanted, agent_methods, driver_methods
from containers.engine import Position
from containers.rpc.connection import Connection, ConnectionLost
from containers.spark.operators import Empties, Operator
from containers.spark.scripts.active_queries import StreamSource
from containers.spark.scripts.checkpoint import LOCK_AFTER, ScriptCheckpoint, url_of
from containers.spark.scripts.drain import QueryDrain, feeders
from containers.spark.systems.kafka_markers import batch_header
from containers.spark.systems.kafka_transactions import MissingMarker, ProducerFenced, TransactionalWriter
from containers.state.checkpoint import PlannedBatches
from containers.state.offsets import offsetlog
from containers.state.offsets.offsetlog import END_OF_TIME, OffsetSeq
from sluice.core.errors import LeaseLost, StreamUnavailable
from sluice.core.ids import Generation, JobName, Lineage, Ssp, StageName
from sluice.streams.kafka import transactional_id
from tests.simulation.kafka import clients, settled_ends
from tests.simulation.link import SimulatedLink
from tests.simulation.loop import Killed, Process
from tests.support.counting_engine import write_whole

if TYPE_CHECKING:
    from tests.simulation.scripts import ScriptWorld, Start

JOB = JobName("orders")
HELD = 2
"""How many records are in the state of a query."""

STRANGE = "día 1+%20"
"""A directory whose name a URL would encode."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A query of the script. `writes`: the topic of its `kafka_writer`, "" for a sink that calls `batch_context`."""

    name: str
    sources: tuple[StreamSource, ...]
    writes: str = ""


SHAPES = (
    Shape("counts", (StreamSource("kafka", ("in",)), StreamSource("kafka", ("in",)))),
    Shape("feed", (StreamSource("kafka", ("in",)),), "mid"),
    Shape("alerts", (StreamSource("kafka", ("mid", "users")),)),
)


@dataclass
class Sink:
    """What the queries with one shape have written: the records of each batch, and the newest generation."""

    generation: int = 0
    batches: dict[tuple[str, int], Sequence[str]] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    def write(self, context: BatchContext, records: Sequence[str]) -> None:
        """Raises LeaseLost for a former start."""
        if context.generation < self.generation:
            raise LeaseLost(f"generation {self.generation} has written")
        self.generation = context.generation
        known = self.batches.setdefault((context.lineage, context.batch), records)
        if known != records:
            self.broken.append(f"batch {context.txn_id} was written with {known}, and runs again with {records}")


class Files(ScriptCheckpoint):
    """The files of a checkpoint, which Spark finds at its URL without decoding it."""

    def __init__(self, location: str) -> None:
        self.location = location
        self.directory = Path(location.removeprefix("file://"))

    def read(self, name: str) -> bytes | None:
        file = self.directory / name
        return file.read_bytes() if file.exists() else None

    def write(self, name: str, content: bytes) -> None:
        (self.directory / name).parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.directory / name, content.decode())

    def delete(self, name: str) -> None:
        (self.directory / name).unlink(missing_ok=True)

    def _names(self, directory: str) -> Sequence[str]:
        found = self.directory / directory
        return [each.name for each in found.iterdir()] if found.is_dir() else []

    @property
    def committed(self) -> int:
        return max(self.numbers("commits"), default=-1)


class KafkaSource:
    """As the JVM's."""

    def getClass(self) -> KafkaSource:
        return self

    def getName(self) -> str:
        return "kafka"


@dataclass(frozen=True, slots=True)
class Paused:
    """A query that is paused; what the product calls of a `PausedQuery`."""

    query: Query

    def sources(self) -> Sequence[KafkaSource]:
        return [KafkaSource() for _ in self.query.shape.sources]

    def run(self, batch: int, plan: OffsetSeq) -> tuple[()]:
        """Run a batch of a drain."""
        self.query.files.write_offset_log(batch, plan.text)
        self.query.run_planned()
        return ()


class ModelledDrain(QueryDrain):
    """The product's drain of a query, with the offsets of the model."""

    def __init__(self, query: Query) -> None:
        self._spark: Any = None
        self._query: Any = query
        self._clock = query.script.world.clock
        self._checkpoint = query.files
        self.paused: Any = Paused(query)

    def _lines(self, batch: int) -> Sequence[str]:
        return super()._lines(batch) if batch >= 0 else self._query.beginning()

    def _settled_ends(self, place: int, source: Any, line: str, topics: Collection[str]) -> Mapping[Ssp, int]:
        world = self._query.script.world
        read = [topic for topic in self._query.shape.sources[place].topics if topic in topics]
        return {Ssp("kafka", each, 0): settled_ends(world.brokers, each, self._query.script.step)[0] for each in read}

    def _first_plan(self) -> OffsetSeq:
        found: OffsetSeq = self._query.first_plan()
        return found


class Query:
    """One start of a query; what the product calls of an `ActiveQuery` and of a `PausedQuery`."""

    is_temporary, can_be_paused = False, True

    def __init__(self, script: Script, shape: Shape, stage: StageName, files: Files, made: Made) -> None:
        self.script, self.shape, self.stage, self.files = script, shape, stage, files
        self.id = str(made.lineage)
        self.run_id = str(script.started)
        self.name, self.checkpoint = stage, files.location
        self.replay = made.replay
        self.since: datetime = script.world.clock.now()
        self.active = True
        self.ends = self.interrupted = self.held = self.at_gate = False
        self.reported: tuple[int, bool] | None = None
        """The last batch in the last report, and whether it was active."""
        self.last = files.committed
        self._writer: TransactionalWriter | None = None

    # --- what the product calls ------------------------------------------------------------------------------------

    def sources(self) -> Sequence[Any]:
        return self.shape.sources

    def reads(self, topic: str) -> bool:
        return any(each.reads(topic) for each in self.shape.sources)

    def operators(self) -> Sequence[Operator]:
        return [Operator("window", Empties.EVENT_TIME)]

    # --- the query -------------------------------------------------------------------------------------------------

    def live(self, batches: float) -> None:
        """Batch after batch on its own thread, until it is stopped, or has run so many. Raises what ends it."""
        try:
            self._start()
            self.run_planned()
            for batch, text in sorted(self.replay.items()):
                if self.ends:
                    return
                if batch > self.files.committed:
                    self.files.write_offset_log(batch, text)
                    self.run_planned()
            while batches > 0:
                while self.held and not self.ends:
                    self.at_gate = True
                    self.script.sleep(0.1)
                self.at_gate = False
                if self.ends:
                    return
                if self._plan():
                    self.run_planned()
                    batches -= 1
                self.script.sleep(self.script.world.chance.uniform(1, 5))
        finally:
            self.active = False
            if self._writer is not None and not self.script.process.dead:
                self._writer.close()

    def _start(self) -> None:
        """As the listener of starts does, and then Spark."""
        script = self.script
        self.held = script.drain is not None and not script.drain.over
        prepare(self.files, self, script.drain.uuid if script.drain is not None and self.held else None)
        if max(self.files.numbers("offsets"), default=-1) > self.files.committed + 1:
            raise RuntimeError(f"the checkpoint of {self.stage} is locked")
        if self.files.committed < 0:
            script.world.committed.discard(self.stage)
        for place, line in enumerate(self.beginning()):
            self.files.write(f"sources/{self._place(place)}/0", b"\0v1\n" + line.encode())
        if self.files.committed < 0 and (expected := script.world.drained.get(self.files.directory.parent.name, {}).get(self.stage)):
            begins = {topic: int(each["0"]) for line in self.beginning() for topic, each in json.loads(line).items()}
            if begins != expected:
                script.world.broken.append(f"{self.stage} begins at {begins}, and the drain has ended at {expected}")
        script.world.say(f"{script.start.name}: {self.stage} starts after batch {self.files.committed}, replay {sorted(self.replay)}")

    def _place(self, place: int) -> str:
        return self.shape.sources[place].name or str(place)

    def beginning(self) -> Sequence[str]:
        """Where each source begins: at the offsets that it finds in the checkpoint."""
        found = [self.files.read(f"sources/{self._place(place)}/0") for place in range(len(self.shape.sources))]
        starts = [json.dumps({topic: {"0": 0} for topic in each.topics}) for each in self.shape.sources]
        return [start if text is None else text.decode().splitlines()[1] for text, start in zip(found, starts, strict=True)]

    def first_plan(self) -> OffsetSeq:
        metadata = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": offsetlog.millis(self.script.world.clock.now())})
        return offsetlog.parse("\n".join([offsetlog.VERSION, metadata, *self.beginning()]), "the first entry")

    def entry(self, batch: int) -> OffsetSeq:
        return self.first_plan() if batch < 0 else offsetlog.parse(self.files.read_offset_log(batch), f"offsets/{batch}")

    def _plan(self) -> bool:
        """Plan a batch, whose sources read what each of them may; whether there is something to read."""
        world, last = self.script.world, self.entry(self.files.committed)
        lines = []
        for line in last.sources:
            read = json.loads(line)
            for topic, at in read.items():
                at["0"] = max(at["0"], min(world.readable(topic), at["0"] + world.chance.choice((3, 10, 40))))
            lines.append(json.dumps(read))
        if tuple(lines) == last.sources:
            return False
        entry = replace(last, sources=tuple(lines)).at(world.clock.now())
        self.files.write_offset_log(self.files.committed + 1, entry.text)
        return True

    def run_planned(self) -> None:
        """Run the batch that is planned and not committed, if there is one."""
        batch, world = self.files.committed + 1, self.script.world
        if self.files.read(f"offsets/{batch}") is None:
            return
        entry, before, flush = self.entry(batch), self.entry(batch - 1), False
        state: list[str] = [] if batch == 0 else json.loads(self._state(batch).read_text())
        flush = entry.watermark == END_OF_TIME
        for place, (start, end) in enumerate(zip(before.sources, entry.sources, strict=True)):
            since = json.loads(start)
            for topic, offsets in json.loads(end).items():
                read = world.read_records(topic, since[topic]["0"], offsets["0"])
                state += [] if flush else [f"{place}:{topic}:{each}" for each in read]  # a flush drops new rows as late
        emitted, state = (state, []) if flush else (state[:-HELD], state[-HELD:])
        self.script.step()
        self._sink(batch, entry, emitted)
        self.script.step()
        self.files.write(f"state/0/0/{batch + 1}.delta", json.dumps(state).encode())
        stores = [{"storeName": "default", "stateSchemaFilePaths": [f"file:{self.files.directory}/state/0/_stateSchema/default/0_1"]}]
        self.files.write("state/0/_metadata/v2/0", f"v2\n{json.dumps({'operatorInfo': {}, 'stateStoreInfo': stores})}".encode())
        self.script.step()
        self.files.write(f"commits/{batch}", b'v1\n{"nextBatchWatermarkMs":0}')
        self.last = batch
        if self.script.drain is None or not self.script.drain.flushing:
            world.committed.add(self.stage)

    def _state(self, batch: int) -> Path:
        return self.files.directory / f"state/0/0/{batch}.delta"

    # --- its sink --------------------------------------------------------------------------------------------------

    def _sink(self, batch: int, entry: OffsetSeq, records: Sequence[str]) -> None:
        """The function of `foreachBatch`."""
        script, world = self.script, self.script.world
        assert script.grant is not None
        context = BatchContext(self.id, batch, script.grant.generation)
        if batch > max(self.replay, default=-1):
            script.plans.keep(Lineage(self.id), batch)
        if self.interrupted:
            raise RuntimeError("the batch is interrupted")
        script.step()
        world.check_only_holder(script.start)
        if not self.shape.writes:
            world.sinks[self.shape.name].write(context, records)
            return
        while True:
            try:
                writer = self._opened(context, entry)
                if not writer.has(batch):
                    writer.write(batch, lambda send: self._send(send, records))
                return
            except (ProducerFenced, StreamUnavailable) as error:
                world.say(f"{script.start.name}: batch {batch} of {self.stage} is written again: {error}")
                if self._writer is not None:
                    self._writer.close()
                self._writer = None
                script.sleep(1)
                if self.ends or self.interrupted:
                    raise

    def _opened(self, context: BatchContext, entry: OffsetSeq) -> TransactionalWriter:
        """As `KafkaWriters.open`."""
        if self._writer is not None:
            return self._writer
        world, topic = self.script.world, self.shape.writes
        opening = Opening(self.files, topic)
        unwritten = entry.timestamp >= self.since or opening.left(context)
        if unwritten:
            opening.begin(context)
        written = batch_header(Lineage(self.id), context.batch)[1] in world.kafka.written
        writer = TransactionalWriter(
            {},
            transactional_id(JOB, "script", topic, self.id),
            topic,
            Lineage(self.id),
            Generation(context.generation),
            lambda: self.script.agent.call("confirm"),
            missing_marker=MissingMarker.SKIP if written else MissingMarker.SEND,  # what an operator chooses who knows
            clients=clients(world.kafka, self.script.step, self.script.dies),
        )
        writer.open(lambda: PlannedBatches(context.batch - 1, {} if unwritten else {context.batch: entry.timestamp}))
        opening.end()
        self._writer = writer
        return writer

    def _send(self, send: Callable[[pa.RecordBatch, list[tuple[str, bytes]]], None], records: Sequence[str]) -> int:
        values = [each.rpartition(":")[2].encode() for each in records]
        if values:
            send(pa.RecordBatch.from_arrays([pa.array(values, pa.binary())] * 2, names=["key", "value"]), [])
            self.script.step()
        return len(values)


@dataclass
class Drain:
    """A drain in which the driver takes part. `begun`: it has begun to flush."""

    uuid: str
    flushing: bool
    over: bool = False
    begun: bool = False
    left: bool = False
    flushes: int = 0


class Script:
    """The driver of one start, in a greenlet for each of its threads."""

    def __init__(self, world: ScriptWorld, start: Start, process: Process, link: SimulatedLink, disk: Path) -> None:
        self.world, self.start, self.process, self.disk = world, start, process, disk / STRANGE
        self.queries: dict[str, Query] = {}
        self.grant: Grant | None = None
        self.drain: Drain | None = None
        self.stopped = self.ending = self.lost = False
        self.errors: list[str] = []
        self.started = self.living = 0
        methods: dict[str, Callable[..., Any]] = {
            "refused": lambda why: None,
            "renewed": lambda ends_at: None,
            "stop": lambda within, sigterm: self.in_thread(self._on_stop, within.total_seconds()),
            "drain": self._on_drain,
            "pause_queries": self._pause,
            "feeders": self._feeders,
            "flush": self._flush,
            "leave": self._leave,
            "refuse": lambda stage, why: world.broken.append(f"{stage} is refused: {why}"),
            "lost": lambda why: self._on_lost(),
        }
        self.agent = Connection(link, agent_methods(), driver_methods(), methods, self._without_agent)
        self.plans = Plans(lambda stage, batch: str(self.agent.call("keep_plan", stage, batch)), self._of_lineage)

    # --- the script ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """The main thread: start queries, until all have ended, one has failed, or it has done enough."""
        chance = self.world.chance
        try:
            self.grant = self.agent.call("attach", JOB)
            self.start.generation = self.grant.generation
            self.in_thread(self._watch)
            for shape in self.world.shapes:
                self.living += 1
                self.in_thread(self._keep_running, shape)
            ends_at = self.world.loop.time() + chance.choice((20, 60, 1e9, 1e9))
            while self.living and not self.errors:
                self.sleep(0.5)
                if self.world.loop.time() >= ends_at and not self.stopped and chance.random() < 0.5:
                    self.world.say(f"{self.start.name} calls app.stop()")
                    self.stop(30)
                elif self.world.loop.time() >= ends_at and not self.stopped:
                    self.world.say(f"{self.start.name} ends by itself")
                    break
        except Killed:
            raise
        except Exception as error:
            self.errors.append(f"{type(error).__name__}: {error}")
        until = self.world.loop.time() + 10
        while self.drain is not None and not self.drain.left and self.world.loop.time() < until:
            self.sleep(0.1)
        self.ending = True
        why = "; ".join(self.errors)
        self.agent.tell("ending", why)
        self.world.say(f"the script of {self.start.name} ends: {why or 'in order'}")
        self.sleep(0.5)
        self.dies()

    def _keep_running(self, shape: Shape) -> None:
        """Start a query, also again when it has ended by itself."""
        chance = self.world.chance
        self.sleep(chance.choice((0, 0, 8)))
        try:
            while not (self.stopped or self.ending):
                query = self.queries[shape.name] = self._query(shape)
                query.live(chance.choice((4, 1e9, 1e9)))
                self.sleep(chance.uniform(0, 3))
        except Exception as error:
            self.errors.append(f"{type(error).__name__}: {error}")
        finally:
            self.living -= 1

    def _query(self, shape: Shape) -> Query:
        """`app.checkpoint`, as `ScriptDirectories.checkpoint`."""
        world = self.world
        stage = StageName(shape.name + world.suffixes.get(shape.name, ""))
        begins = self.agent.call("beginning", stage)
        if begins.failed:
            world.unfinished(shape.name, begins)
            raise RuntimeError(f"DrainUnfinished: {begins.failed}")
        made: Made = self.agent.call("prepare", Wanted(stage, self.disk, begins.folder, "code", 1000))
        files = Files(url_of(self.disk / JOB / begins.folder / stage))
        found = files.inspect()
        new = found is None or (found.committed < 0 and found.planned < 0)
        if begins.offsets and (new or files.begins_at() is not None) and files.begins_at() is None and not files.has_sources():
            files.begin_at(begins.offsets)
        world.prepared(self.start, shape.name, made)
        if begins.seq % 2:  # the version after a drain names its sources
            shape = replace(shape, sources=tuple(replace(each, name=f"source{place}") for place, each in enumerate(shape.sources)))
        assert made.lineage is not None
        self.plans.add(made.lineage, stage, made.replay)
        self.started += 1
        query = Query(self, shape, stage, files, made)
        if self.stopped:
            query.ends = True
        return query

    def _of_lineage(self, lineage: Lineage) -> Any:
        return next((each for each in self.queries.values() if each.id == lineage), None)

    def active(self) -> Sequence[Query]:
        return [each for each in self.queries.values() if each.active]

    def _watch(self) -> None:
        """List the queries, and report them when something has changed."""
        while not self.ending:
            self.sleep(0.5)
            found = {each: (each.last, each.active) for each in self.queries.values()}
            if any(each.reported != now for each, now in found.items()):
                self.agent.tell("queries", [self._report(each) for each in found])
                self.world.reported(self)
            for each, now in found.items():
                each.reported = now

    def _report(self, query: Query) -> Mapping[str, object]:
        batch = query.files.committed
        offsets = [{"system": "kafka", "stream": ssp.stream, "partition": 0, "offset": at} for ssp, at in self._at(query).offsets.items()]
        return {
            "stage": query.stage,
            "checkpoint": f"file://{self.start.machine}{query.files.directory}",
            "queryId": query.id,
            "batchId": None if batch < 0 else batch,
            "offsets": offsets,
            "active": query.active,
        }

    @staticmethod
    def _at(query: Query) -> Position:
        return ModelledDrain(query).position()

    # --- threads and processes -------------------------------------------------------------------------------------

    def in_thread(self, work: Callable[..., None], *values: object) -> None:
        def run() -> None:
            try:
                work(*values)
            except (Killed, ConnectionLost):  # this driver, or its agent
                raise
            except Exception as error:
                self.world.broken.append(f"a thread of {self.start.name} has failed: {error!r}")
                raise

        self.world.loop.run_in_executor(None, run)

    def step(self) -> None:
        """Others may act between two steps, and the driver may be killed."""
        if self.world.chance.random() < 0.05:
            self.sleep(self.world.chance.choice((0.01, 1.0, 8.0)))
        self.start.steps_left -= 1
        if self.start.steps_left == 0:
            self.world.say(f"the driver of {self.start.name} is killed in a step")
            self.dies()
            raise Killed

    def sleep(self, seconds: float) -> None:
        def until(wake: Callable[[], None]) -> None:
            self.world.loop.call_later(seconds, wake)

        self.world.loop.wait_in_thread(until)

    def dies(self) -> None:
        self.world.loop.kill(self.process)

    def _without_agent(self) -> None:
        if not self.start.observed:
            self.dies()
        self._on_lost()

    def _on_lost(self) -> None:
        """It is only observed, and not protected any more."""
        self.lost = True
        if self.drain is not None:
            self.in_thread(self._leave, self.drain.uuid, False)

    # --- what the agent calls --------------------------------------------------------------------------------------

    def _on_stop(self, within: float) -> None:
        self.agent.tell("stopped", self.stop(within))

    def stop(self, within: float) -> list[str]:
        """`app.stop`: end all queries between two batches. Returns those whose batch was interrupted."""
        self.stopped = True
        until = self.world.loop.time() + within
        if self.drain is not None:
            while self.drain.begun and not self.drain.left and self.world.loop.time() < until:
                self.sleep(0.1)
            self._leave(self.drain.uuid, False)
        for each in self.active():
            each.ends = True
        while (late := self.active()) and self.world.loop.time() < until:
            self.sleep(0.1)
        for each in late:
            each.interrupted = True
        return [each.checkpoint for each in late]

    def _on_drain(self, found: DrainOfScript) -> None:
        if self.stopped or (self.drain is not None and self.drain.uuid == found.uuid):
            return
        former, self.drain = self.drain, Drain(found.uuid, found.flushing)
        if former is not None and not former.over:
            former.over = former.left = True
        for each in self.active():
            each.held = True

    def _present(self, uuid: str) -> Drain:
        if self.drain is None or self.drain.uuid != uuid or self.drain.over:
            raise DrainInterrupted("the queries are being stopped")
        return self.drain

    def _pause(self, uuid: str, needed: Sequence[StageName]) -> Mapping[StageName, Position]:
        while True:
            self._present(uuid)
            active = self.active()
            waits = all(each.held and each.at_gate and each.reported is not None for each in active)
            if waits and {each.stage for each in active} >= set(needed):
                if any(self.plans.lacks(each, each.files.committed) for each in active):  # type: ignore[arg-type]
                    raise RuntimeError("PlansLeft")
                return {each.stage: self._at(each) for each in active}
            self.sleep(0.1)

    def _feeders(self) -> Mapping[StageName, Sequence[StageName]]:
        held: Any = {each.stage: each for each in self.active()}
        writes = {name: [each.shape.writes] if each.shape.writes else [] for name, each in held.items()}
        return {stage: sorted(found) for stage, found in feeders(held, writes).items()}

    def _flush(self, uuid: str, stage: str, feeding: Sequence[str]) -> Flushed:
        drain = self._present(uuid)
        query = next((each for each in self.active() if each.stage == stage), None)
        if query is None:
            raise RuntimeError(f"the query {stage} has ended")
        drain.begun = drain.flushing = True
        drain.flushes += 1
        try:
            found = ModelledDrain(query).flush(uuid, {each.shape.writes for each in self.active() if each.stage in feeding})
        except BaseException:
            query.ends = True  # a batch that fails ends its query
            raise
        finally:
            drain.flushes -= 1
        return Flushed(found.position, found.rows_left, found.operators_left)

    def _leave(self, uuid: str, end: bool) -> None:
        drain = self.drain
        if drain is None or drain.uuid != uuid:
            return
        first, drain.over = not drain.over, True
        while drain.flushes or not (first or drain.left):
            self.sleep(0.1)
        if not first:
            return
        self.stopped |= drain.begun
        for each in self.active():
            each.ends |= end or drain.flushing
            each.held = False
        while (end or drain.flushing) and self.active():
            self.sleep(0.1)
        for each in self.queries.values():
            lock_emptied(each.files)
        drain.left = True


assert LOCK_AFTER > 1000  # the lock of a checkpoint is no planned batch
