"""What the agent needs of Spark, as a port: `containers/spark/engine.py` is the real one, and tests have one that is simpler.

Methods block and run on the engine's own threads, never on the agent's event loop. What it calls back is called on any thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

from sluice.core.errors import LeaseLost
from sluice.core.ids import Generation, Lineage, RunId, Ssp, TaskName
from sluice.core.snapshot import Snapshot
from sluice.job import DeclaredStage

STARTING = os.cpu_count() or 1
"""How many queries start at a time: each starts a Python process that needs up to a second of a core, and Spark gives it ten seconds."""


class BatchHooks(Protocol):
    """Called for each batch of a stage that writes through its task, on Spark's threads. Both methods may block, and raise."""

    def before_batch(self, batch: int) -> None:
        """The batch is planned, and is about to be computed."""
        ...

    def before_write(self, batch: int) -> None:
        """The batch is about to write: from here on its output may be visible."""
        ...


@dataclass(frozen=True, slots=True)
class StageStart:
    """A stage of a task, to be started under what its acquire gave it."""

    declared: DeclaredStage
    task: TaskName
    generation: Generation
    lineage: Lineage
    reported: int | None
    starts: Mapping[Ssp, int]
    origin: RunId
    around: Sequence[BatchHooks] = ()
    replay: Mapping[int, str] = field(default_factory=dict)
    """Plans of batches (Spark's text of `offsets/N`) that the store must run again before it goes on, if it has not yet."""
    restored: bool = False
    """Whether the store was made ready on this disk: then `reported` is no measure of it."""
    drain: str = ""
    """The drain under which the stage empties itself: all that it writes then, the rest of its input as well as what its flush gives, is
    written under it. "" while it runs."""
    failed_drains: Sequence[str] = ()
    """What these wrote to intermediate streams does not count."""
    snapshot: Snapshot | None = None
    """What its checkpoint is restored from when this disk has none that is as new."""

    @property
    def query(self) -> str:
        """The name of its query, unique in the container."""
        return f"{self.task}/{self.declared.stage.name}"


@dataclass(frozen=True, slots=True)
class StateSize:
    """What a batch left in the stage's state stores, and how many rows it dropped because they came too late."""

    rows: int
    memory_bytes: int
    disk_bytes: int
    dropped_late: int


@dataclass(frozen=True, slots=True)
class Batch:
    """A committed batch of the query of that name."""

    query: str
    batch: int
    rows: int
    duration_ms: int
    offsets: Mapping[Ssp, int]
    event_time_max: datetime | None = None
    """The newest event time in the batch, of a query with a watermark."""
    parts_ms: Mapping[str, int] = field(default_factory=dict)
    """What the time went to, by Spark's names."""
    behind: int | None = None
    """What the sources held beyond the batch when it was planned; None where they do not tell."""
    state: StateSize | None = None
    watermark: datetime | None = None
    unflushable: Sequence[str] | None = None
    """The query's operators whose state a drain could not empty; None where that is not known."""


@dataclass(frozen=True, slots=True)
class Callbacks:
    """`on_end` gets the query's token (from `start`) and its error, None for an orderly end; `on_idle`, every ten seconds or so, the name
    of a query that finds nothing to read."""

    on_batch: Callable[[Batch], None]
    on_end: Callable[[str, str | None], None]
    on_lease_lost: Callable[[LeaseLost], None]
    on_idle: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Emptied:
    """What a drain left of a stage: its last batch (-1 for none), and the rows that its flush could not empty, by operator."""

    batch: int
    rows_left: int = 0
    operators_left: Sequence[str] = ()


class Engine(Protocol):
    def open(self, callbacks: Callbacks) -> None:
        """Start the session; seconds. Once, before all else."""
        ...

    def start(self, start: StageStart) -> tuple[str, Any]:
        """Call the stage's function and start its query: a token that is new for each start, and the query.

        Raises StateElsewhere (also for a store that a drain has emptied), CheckpointUnreadable, LeaseLost, and whatever the user's function
        raises.
        """
        ...

    def stop(self, query: Any, deadline: timedelta, forced: threading.Event) -> bool:
        """Stop between batches; False if the batch had to be interrupted."""
        ...

    def hold(self, query: Any, deadline: timedelta, forced: threading.Event) -> bool:
        """Let the running batch finish, and the query wait before the next one: from now on it reads nothing, and its store stays as it is,
        until `release`, `empty` or `stop`. False when it cannot be held, or was not there by `deadline` or when `forced` was set: then it
        goes on as ever."""
        ...

    def release(self, query: Any) -> None:
        """Let a query that is held go on."""
        ...

    def finish(self, start: StageStart) -> None:
        """Run the batch that the stage's store has planned and not committed, if there is one. Its query is stopped, or held. Raises as
        `start`."""
        ...

    def ends(self, start: StageStart) -> Mapping[Ssp, int]:
        """The ends of the intermediate streams that the stage reads, of the partitions of its task, as they are now."""
        ...

    def empty(self, start: StageStart, ends: Mapping[Ssp, int]) -> Emptied:
        """Read on to these ends, close all windows and fire all timers, under `start.drain`. The stage's query is stopped, or held: then it
        does this, and stays held. May be interrupted anywhere and done again; afterwards `start` refuses the store. Raises as `start`."""
        ...

    def check(self) -> None:
        """Get a sign of life: milliseconds, unless the JVM hangs. Raises SparkGone when there is no session any more. Any thread."""
        ...

    def close(self) -> None: ...
