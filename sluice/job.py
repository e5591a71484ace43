"""The API for job files: a job, its streams, and one function per stage. Importing it does not import Spark."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import TYPE_CHECKING, Protocol, TypeAlias

from sluice.core.errors import BadGraph, BadJobFile, SluiceError
from sluice.core.ids import JobName, StageName, checked_name, checked_stream
from sluice.core.jobmodels.graph import Graph, Stage, chain
from sluice.core.jobmodels.spec import broadcast_partitions, broadcast_text
from sluice.installed_spark import find_pyspark, missing

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


class NoJobFile(BadJobFile):
    """There is no such job file."""


@dataclass(frozen=True, slots=True)
class Input:
    """A stream that another program writes. A broadcast stream is read completely by every task; with text such as "#0" or "#[0-3]", those
    partitions of it. `event_time`: see `Job.input`."""

    name: str
    broadcast: bool | str = False
    event_time: str | None = None


@dataclass(frozen=True, slots=True)
class Intermediate:
    """A stream between two stages. The coordinator creates it."""

    name: str
    partitions: int


@dataclass(frozen=True, slots=True)
class Output:
    """A stream that the job writes. It is created with that many partitions if it does not exist."""

    name: str
    partitions: int = 1


class Delivery(StrEnum):
    """How often a row is in the stream if the batch that writes it runs again: after a crash, a lost disk or a move of the task.

    EXACTLY_ONCE: once. For Kafka, the driver writes each batch as one transaction. AT_LEAST_ONCE: for Kafka, Spark's executors write, and
    the rows of a batch that runs again may be in the topic twice. Use it for rates that one driver cannot write. The embedded log is always
    exactly-once."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


Readable: TypeAlias = Input | Intermediate
Writable: TypeAlias = Intermediate | Output


class Task(Protocol):
    """The argument of a stage's function: the task that the stage runs for."""

    @property
    def name(self) -> str:
        """ "Partition 3"."""
        ...

    @property
    def spark(self) -> SparkSession: ...

    @property
    def config(self) -> dict[str, str]:
        """The configuration that the run was deployed with."""
        ...

    def read(self, stream: Readable) -> DataFrame:
        """The records of this task's partitions of the stream, as a streaming DataFrame with the same columns for every system:

        key binary, value binary, stream string, partition int, offset long, timestamp timestamp,
        headers array<struct<key string, value binary>>
        """
        ...

    def write(
        self,
        rows: DataFrame,
        stream: Writable,
        *,
        key: str | Column | None = None,
        value: str | Column | None = None,
        event_time: str | Column | None = None,
        delivery: str = Delivery.EXACTLY_ONCE,
    ) -> DataStreamWriter:
        """A writer, not started, that appends every row to the stream, exactly once unless `delivery` says otherwise (`Delivery`).

        `key`: the column or expression whose value, as a string, chooses the partition: records with equal keys share a partition. `value`:
        the column or expression with the record's value (string or binary); by default the whole row as a JSON object. `event_time`: the
        column or expression with the time (a timestamp, or seconds since 1970) for which the readers of the stream call `withWatermark`. It
        is not written. It tells the readers how far this task has come, so that their watermarks wait for the slowest task. Without it, the
        watermark of this query serves the same purpose, if there is one.
        """
        ...

    def foreach_batch(self, rows: DataFrame, function: Callable[[DataFrame, int], None]) -> DataStreamWriter:
        """A writer, not started, that calls `function(batch, batch_id)` for every batch, as Spark's foreachBatch does. The offsets of the
        batch are durable before the call. A batch that runs again, even after the loss of a disk, therefore has the same rows and the same
        `txn_id`.
        """
        ...

    def txn_id(self, batch: int) -> str:
        """An id by which your own sink can recognise and skip a batch that it has already written. It is the same each time the batch runs,
        and is never used for other rows. It consists of `lineage` and the batch id. Use these two for a sink that needs an application id
        and a version (Delta's txnAppId and txnVersion)."""
        ...

    @property
    def generation(self) -> int:
        """The number of this owner of the task; it grows with each owner. Your own sink can store it with each batch, and reject a batch of
        a lower generation."""
        ...

    @property
    def draining(self) -> str:
        """The id of the drain that is flushing the stage, "" otherwise. It changes between two batches. Records written to streams during
        the flush, from remaining input and from windows closed early, carry it in the header `sluice-drain`."""
        ...

    @property
    def lineage(self) -> str:
        """The id of the uninterrupted sequence of batches that this stage continues. Spark calls it the query id."""
        ...


StageFunction: TypeAlias = "Callable[[Task], DataStreamWriter]"


@dataclass(frozen=True, slots=True)
class DeclaredStage:
    stage: Stage
    function: StageFunction


@dataclass(frozen=True, slots=True)
class JobDescription:
    """What a process knows of a job whose file another process has loaded. `stages`: in the order of the chain. `code` and `directory`: see
    `Job`."""

    name: JobName
    stages: tuple[Stage, ...]
    code: str = ""
    directory: Path | None = None


class Job:
    """A job and its streams and stages, as declared at the top level of a job file.

    >>> job = Job("flight-delays")
    >>> flights = job.input("flights")
    >>> delays = job.output("delays")
    >>> @job.stage(reads=flights, writes=delays)
    ... def hourly(task): ...
    """

    def __init__(
        self,
        name: str,
        *,
        stateful: bool = True,
        grouper: str = "GroupByPartition",
        max_tasks: int | None = None,
    ) -> None:
        """`name`: of the job, as commands and the API use it. Its state and its history belong to this name.

        `stateful`: False if no stage keeps anything about a key. Then the job may be deployed with other tasks at any time, and its inputs
        may grow to any number of partitions.

        `grouper`: which partitions make up a task: GroupByPartition, GroupBySystemStreamPartition, AllSspToSingleTask, or a class of your
        own as `module:Class`, which the coordinator's operator must allow. `max_tasks`: with GroupByPartition, partition p belongs to the
        task p % max_tasks.

        Raises BadName, BadJobFile."""
        self.name = JobName(checked_name("job", name))
        self.stateful = stateful
        self.grouper = grouper
        if max_tasks is not None and (not isinstance(max_tasks, int) or isinstance(max_tasks, bool) or max_tasks < 1):
            raise BadJobFile(f"max_tasks must be an integer greater than 0, not {max_tasks!r}")
        self.max_tasks = max_tasks
        self.inputs: list[Input] = []
        self.intermediates: list[Intermediate] = []
        self.outputs: list[Output] = []
        self.stages: list[DeclaredStage] = []
        self.code = ""
        """A hash of the job file, without what it imports. "" for a job that was not loaded from a file."""
        self.directory: Path | None = None
        """The directory of the job file and of the modules beside it. None for a job that was not loaded from a file."""

    def input(self, name: str, *, broadcast: bool | str = False, event_time: str | None = None) -> Input:
        """Declare a stream to read. The deployment names its system, and its name there if it differs.

        `broadcast`: True if every task reads the whole stream. If every task reads only some of its partitions, write them as in Apache
        Samza's `task.broadcast.inputs`, without the name of the stream: "#0", "#[0-3]", or several of these with commas.

        `event_time`: the event time for which the stages call `withWatermark`: a timestamp, or seconds since 1970. Either the name of a
        field of the records' values, which are JSON objects, or an SQL expression over the columns of `Task.read`. If one task reads
        several partitions, its watermark then waits for the slowest of them that has unread records.

        Raises BadJobFile."""
        if not isinstance(broadcast, bool):
            try:
                broadcast = broadcast_text(broadcast_partitions(str(broadcast)))
            except BadGraph as error:
                raise BadJobFile(f"the input {name!r}: {error}") from error
        self.inputs.append(Input(checked_stream(name), broadcast, event_time))
        return self.inputs[-1]

    def intermediate(self, name: str, *, partitions: int) -> Intermediate:
        """Declare a stream between two stages, with that many partitions. Raises BadJobFile."""
        _check_partitions("intermediate stream", name, partitions)
        self.intermediates.append(Intermediate(checked_stream(name), partitions))
        return self.intermediates[-1]

    def output(self, name: str, *, partitions: int = 1) -> Output:
        """Declare a stream to write. `partitions` is used if the stream does not exist yet. Raises BadJobFile."""
        _check_partitions("output", name, partitions)
        self.outputs.append(Output(checked_stream(name), partitions))
        return self.outputs[-1]

    def stage(
        self,
        *,
        reads: Readable | Sequence[Readable],
        writes: Writable | Sequence[Writable] = (),
        name: str | None = None,
        stateful: bool = True,
    ) -> Callable[[StageFunction], StageFunction]:
        """Declare a stage. The decorated function gets a `Task` and returns a `DataStreamWriter` that is not started; the agent adds
        checkpoint location, trigger and query name.

        `stateful=False` says that the stage keeps no state: its query has no aggregation, join of streams, deduplication or other stateful
        operator. The container checks this. An input that only such stages read may grow to any number of partitions; other inputs may grow
        only to multiples of their first partition count.

        Raises BadJobFile.
        """
        read, written = _streams("reads", reads), _streams("writes", writes)

        def declare(function: StageFunction) -> StageFunction:
            names = tuple(each.name for each in read), tuple(each.name for each in written)
            _check_function(name or function.__name__, function)
            stage = Stage(StageName(name or function.__name__), *names, stateful=stateful)
            self.stages.append(DeclaredStage(stage, function))
            return function

        return declare

    def chain(self) -> Sequence[DeclaredStage]:
        """The stages in the order of the chain. Raises BadGraph."""
        declared = {each.stage.name: each for each in self.stages}
        return [declared[stage.name] for stage in chain(self.graph())]

    def description(self) -> JobDescription:
        """Raises BadGraph."""
        return JobDescription(self.name, tuple(each.stage for each in self.chain()), self.code, self.directory)

    def graph(self) -> Graph:
        """Raises BadGraph when a name is declared twice."""
        return Graph.declared(
            inputs=[each.name for each in self.inputs],
            intermediates=[each.name for each in self.intermediates],
            outputs=[each.name for each in self.outputs],
            stages=[each.stage for each in self.stages],
        )


def _check_function(stage: str, function: StageFunction) -> None:
    """Raises BadJobFile for a function that cannot be called with a task."""
    try:
        signature = inspect.signature(function, follow_wrapped=False)  # a decorator may pass further arguments by itself
    except (TypeError, ValueError):  # of something that Python cannot inspect
        return
    try:
        signature.bind(object())
    except TypeError:
        raise BadJobFile(f"the function of the stage {stage!r} must take one argument, the task, as in def {stage}(task)") from None


def _check_partitions(kind: str, name: str, partitions: object) -> None:
    """Raises BadJobFile."""
    if not isinstance(partitions, int) or partitions < 1:
        raise BadJobFile(f"the {kind} {name!r} needs at least one partition, not {partitions!r}")


def _streams(argument: str, given: object) -> Sequence[Input | Intermediate | Output]:
    """The streams that a stage names. Raises BadJobFile."""
    if isinstance(given, Input | Intermediate | Output):
        return [given]
    found = list(given) if isinstance(given, Iterable) and not isinstance(given, str | bytes) else [given]
    streams = [each for each in found if isinstance(each, Input | Intermediate | Output)]
    for each in found:
        if each not in streams:
            method = "input" if argument == "reads" else "output"
            raise BadJobFile(
                f"{argument}={each!r} is a {type(each).__name__}, not a stream: pass what job.{method}(…) or job.intermediate(…) returned"
            )
    return streams


def load_job(file: Path) -> Job:
    """Import a job file and return the one `Job` in it, its graph checked.

    Raises BadJobFile, naming the file and what is wrong with it, and PySparkMissing if it imports PySpark and there is none.
    """
    if not file.is_file():
        raise NoJobFile(f"there is no file {file}")
    spec = importlib.util.spec_from_file_location("sluice_job", file)
    if spec is None or spec.loader is None:
        raise NoJobFile(f"{file} is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    directory = file.parent.absolute()
    _add_to_path(directory, sys.modules.get("sluice_job"))
    sys.modules["sluice_job"] = module
    find_pyspark(os.environ)
    try:
        spec.loader.exec_module(module)
    except SluiceError as error:
        raise BadJobFile(f"{file}{_line(file, error)}: {error}") from error
    except SystemExit as error:
        raise BadJobFile(f"{file} ends the interpreter when it is imported (exit {error.code})") from error
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "pyspark":
            raise missing(os.environ) from error
        if str(error).startswith("Job.stage() takes 1 positional argument"):
            raise BadJobFile(f"{file}{_line(file, error)}: a stage names its streams: write @job.stage(reads=…, writes=…)") from error
        raise BadJobFile(f"{file}{_line(file, error)} cannot be imported: {type(error).__name__}: {error}") from error
    jobs = {id(each): each for each in vars(module).values() if isinstance(each, Job)}
    if len(jobs) != 1:
        raise BadJobFile(f"{file} must define exactly one Job at its top level; it defines {len(jobs)}")
    job = next(iter(jobs.values()))
    job.code = hashlib.sha256(file.read_bytes()).hexdigest()[:32]
    job.directory = directory
    try:
        job.chain()
    except SluiceError as error:
        raise BadJobFile(f"{file}: {error}") from error
    return job


def _add_to_path(directory: Path, earlier: ModuleType | None) -> None:
    """Let the job file import modules beside it, now and later. The directory is last on the path, so that its files do not shadow modules
    of Sluice or of the standard library. It replaces the directory of the job that was loaded before."""
    if earlier is not None and earlier.__file__ is not None and sys.path[-1] == str(Path(earlier.__file__).parent):
        del sys.path[-1]
    sys.path.append(str(directory))


def _line(file: Path, error: Exception) -> str:
    """ ":7" for an error that line 7 of the file raised, directly or in a call; "" for any other error."""
    lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == str(file.absolute())]
    return f":{lines[-1]}" if lines else ""
