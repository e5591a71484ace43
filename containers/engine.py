"""The port through which the agent uses Spark. `containers/spark/engine.py` implements it; tests have a simpler engine.

Methods block, and run on threads that are for them, never on the agent's event loop. Callbacks are called on any thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

from sluice.core.drain import Effect
from sluice.core.errors import LeaseLost
from sluice.core.ids import Generation, Lineage, RunId, Ssp, StreamId, TaskName
from sluice.core.jobmodels.graph import Stage
from sluice.core.snapshots.snapshot import Snapshot
from sluice.core.watermarks import FeederProgress, WatermarkStep
from sluice.job import Delivery

STARTING = os.cpu_count() or 1
"""How many queries start concurrently. Each starts a Python process that needs up to a second of a core, and Spark waits ten seconds for
it."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A stream of the job, bound to a system. `partitions`: its number of partitions in the job model, None if that is not known."""

    stream: StreamId
    intermediate: bool
    partitions: int | None = None

    @property
    def written_partitions(self) -> int | None:
        """Write only the first so many partitions; None for all. No task reads the partitions that an intermediate stream gets later."""
        return self.partitions if self.intermediate else None


@dataclass(frozen=True, slots=True)
class RunOfJob:
    """What an engine needs to know of a run. `streams`: by the job's names. `systems`: as the coordinator describes them. `config`: that of
    the run."""

    streams: Mapping[str, Bound]
    systems: Mapping[str, Mapping[str, str]]
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class StageStart:
    """How a stage of a task starts, from the answer to the acquire of the task and from the preparation of the checkpoint. `reported`: the
    last batch that was reported to the coordinator; None if there is none. `starts`: the offsets at which a new checkpoint begins, of all
    partitions that the stage reads. `first_run`: the run in which the present history began."""

    stage: Stage
    task: TaskName
    generation: Generation
    lineage: Lineage
    reported: int | None
    starts: Mapping[Ssp, int]
    first_run: RunId
    asks: bool = False
    """Whether the batches of the stage call `Callbacks.before_batch` and `before_write`."""
    replay: Mapping[int, str] = field(default_factory=dict)
    """Offset-log entries by batch (Spark's text of `offsets/N`). These batches must be run again before the query continues, unless the
    checkpoint has them already."""
    restored: bool = False
    """Whether the checkpoint was made ready on this disk. It may then be older than `reported`."""
    drain: str = ""
    """The drain in which the stage is flushed; "" while the stage runs normally. Everything that the stage writes during the drain is
    marked with it: the output of its remaining input and of the flush."""
    failed_drains: Sequence[str] = ()
    """Readers of intermediate streams skip records that were written during these drains."""
    kept_operators: Sequence[str] | None = None
    """The stateful operators whose state a drain has kept for this start; None if there is no such drain."""
    earlier_histories: Sequence[RunId] = ()
    """The first runs of the histories whose state drains have kept for this one. A checkpoint that is restored from one of their snapshots
    reads their records of intermediate streams again."""
    continuation: Mapping[str, Any] | None = None
    """Data for a rebuild, which the index of each snapshot contains (`sluice.wire.snapshots.Continuation`)."""
    snapshot: Snapshot | None = None
    """The snapshot to restore the checkpoint from if this disk has none that is as new."""

    @property
    def query(self) -> str:
        """The name of its query, which is unique in the container."""
        return f"{self.task}/{self.stage.name}"


@dataclass(frozen=True, slots=True)
class StateSize:
    """The size of the stage's state stores after a batch, and how many rows the batch dropped because they were late."""

    rows: int
    memory_bytes: int
    disk_bytes: int
    dropped_late: int


@dataclass(frozen=True, slots=True)
class Writes:
    """How a stage writes a stream, and its transactions since the session started. `commit_seconds`: their total time from the last record
    to the brokers' answer. `aborted`: those that failed. `fenced`: how often another producer began. `markers`: those that were written
    without a batch, because there was none or it was a day old. `repeated`: batches that ran again and were in the stream already."""

    delivery: Delivery
    commits: int = 0
    commit_seconds: float = 0.0
    aborted: int = 0
    fenced: int = 0
    markers: int = 0
    repeated: int = 0


@dataclass(frozen=True, slots=True)
class StatefulOperator:
    """An operator with its name in the DataFrame API, what a flush does to its state, and why a flush cannot empty it ("" if it can)."""

    operator: str
    effect: Effect
    why: str = ""


@dataclass(frozen=True, slots=True)
class Batch:
    """A committed batch of the query with that name."""

    query: str
    batch: int
    rows: int
    duration_ms: int
    offsets: Mapping[Ssp, int]
    event_time_max: datetime | None = None
    """The newest event time in the batch, of a query with a watermark."""
    parts_ms: Mapping[str, int] = field(default_factory=dict)
    """How long each part of the batch took, by Spark's names."""
    behind: int | None = None
    """How many records the sources had beyond the batch when it was planned; None where they do not report it."""
    state: StateSize | None = None
    watermark: datetime | None = None
    unflushable: Sequence[str] | None = None
    """The query's operators whose state a flush could not empty; None if that is not known."""
    progress: FeederProgress | None = None
    """The progress of the query as a feeder of the intermediate streams that it writes; None if it writes none."""
    delays: Mapping[StreamId, timedelta] = field(default_factory=dict)
    """The largest delay of a `withWatermark` above each stream that the query reads."""
    operators: Sequence[StatefulOperator] | None = None
    """All stateful operators of the query; None if they are not known."""
    row_limit: int | None = None
    """How many rows the batch could read from a source; None if its limit is fixed."""
    writes: Mapping[str, Writes] = field(default_factory=dict)
    """How it writes streams, by the job's names of them."""


@dataclass(frozen=True, slots=True)
class Callbacks:
    """`on_end`: the token of a query (see `Engine.start`) and its error, None if it was stopped. `on_idle`: the name of a query that finds
    nothing to read, about every ten seconds.

    These block, and are called on Spark's threads. `before_batch`: a batch of a stage that writes through its task is planned, and is about
    to be computed; with the name of the query and its generation. It may raise. `before_write`: the same batch is about to write, and from
    here on its output may be visible. It may raise. `confirm_owner`: confirm with the coordinator that the task is still owned under the
    generation. It raises LeaseLost, and Unavailable if the container exits before the coordinator answers."""

    on_batch: Callable[[Batch], None]
    on_end: Callable[[str, str | None], None]
    on_lease_lost: Callable[[LeaseLost], None]
    on_idle: Callable[[str], None]
    before_batch: Callable[[str, Generation, int], None]
    before_write: Callable[[str, Generation, int], None]
    confirm_owner: Callable[[TaskName, Generation], None]


@dataclass(frozen=True, slots=True)
class Emptied:
    """The result of a flush: the last batch (-1 for none), how many rows of state are left, and the operators that have them."""

    batch: int
    rows_left: int = 0
    operators_left: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Position:
    """The last committed batch of a query, None for none, and the next offsets."""

    batch: int | None
    offsets: Mapping[Ssp, int]


@dataclass(frozen=True, slots=True)
class Kept:
    """The result of a drain of a stage that keeps its state: the last batch (-1 for none), and the stateful operators as text, from the
    sink to the sources."""

    batch: int
    operators: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class JvmUsage:
    """Memory and garbage collection of Spark's JVM, in bytes and seconds. `heap_max`: None if the heap is not limited. `collections`: for
    each collector, how often it has run, and for how long together."""

    heap_used: int
    heap_max: int | None
    collections: Mapping[str, tuple[int, float]]


class Engine(Protocol):
    def open(self, callbacks: Callbacks) -> None:
        """Start the session, which takes seconds. Called once, before all other methods but `check`."""
        ...

    def warm_up(self) -> None:
        """Do what makes the first batches of a session slow, before there is a task. Takes seconds. Raises what Spark raises."""
        ...

    def start(self, start: StageStart) -> str:
        """Call the stage's function and start its query. Returns a token, unique for each start, which names the query from now on.

        Raises StateNotLocal (also for a checkpoint that a drain has flushed), CheckpointUnreadable, LeaseLost, OperatorsDiffer if the
        query has other operators than `start.kept_operators`, and what the user's function raises.
        """
        ...

    def stop(self, token: str, deadline: timedelta) -> bool:
        """Stop between two batches. False if the batch had to be interrupted, at the deadline or by `interrupt_batches`."""
        ...

    def interrupt_batches(self) -> None:
        """Wait for no batch any more in `stop` and `pause`, now and later. Thread-safe; does not block."""
        ...

    def pause(self, token: str, deadline: timedelta) -> bool:
        """Pause the query: let the running batch finish, and wait before the next one. Until `resume`, `empty` or `stop`, the query reads
        nothing and its checkpoint does not change. False if it cannot be paused, or if the batch did not finish by `deadline` or before
        `interrupt_batches`; it then keeps running."""
        ...

    def resume(self, token: str) -> None:
        """Resume a paused query."""
        ...

    def finish(self, start: StageStart) -> None:
        """Run the batch that is planned in the stage's checkpoint and not committed, if there is one. The query must be stopped or paused.
        Raises what `start` raises."""
        ...

    def ends(self, start: StageStart) -> Mapping[Ssp, int]:
        """The current ends of the intermediate streams that the stage reads, in the partitions of its task."""
        ...

    def empty(self, start: StageStart, ends: Mapping[Ssp, int]) -> Emptied:
        """Flush the stage under `start.drain`: read up to these ends, close all windows and fire all timers. The query must be stopped or
        paused, and remains so. May be interrupted anywhere and repeated; afterwards `start` rejects the checkpoint. Raises what `start`
        raises."""
        ...

    def limit_watermark(self, query: str, steps: Mapping[StreamId, Sequence[WatermarkStep]] | None) -> None:
        """Set how far the watermark of the query `<task>/<stage>` may rise: the steps of each intermediate stream that it reads. They
        replace those of the previous call. Until the first call, and for a stream without a step that the query has passed, the watermark
        stays at that of the last planned batch. None: the coordinator knows no caps, and the watermark is not limited. The query need not
        have started. Thread-safe; does not block."""
        ...

    def keep(self, start: StageStart, ends: Mapping[Ssp, int]) -> Kept:
        """Read up to these ends, and leave the state unchanged. The query must be stopped or paused, and remains so; it may continue
        afterwards. May be interrupted anywhere and repeated. Raises what `start` raises."""
        ...

    def progress(self, query: str) -> FeederProgress | None:
        """The progress of the query `<task>/<stage>` as a feeder; after its start, the progress in its checkpoint. None if it has not
        started. Thread-safe; does not block."""
        ...

    def forget(self, query: str) -> None:
        """Forget the query `<task>/<stage>`, which has ended, and what is known of it. It may start again later."""
        ...

    def check(self) -> JvmUsage | None:
        """Return once the JVM has answered, within milliseconds unless it hangs: what it uses, None if it does not say or has not started.
        Raises SparkStopped if the session has ended. Thread-safe; may be called before `open`."""
        ...

    def close(self) -> None: ...
