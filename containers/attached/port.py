"""What the driver of a script and its agent call of each other, over `containers.rpc`.

The driver never has the container's token: it tells the agent what is to be reported, and the agent has the lease. `Agent` are the methods
of the agent, `Driver` those of the driver. All values are data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from containers.engine import Position
from containers.rpc.connection import Interface
from containers.rpc.interface import methods_of
from sluice.core.errors import Conflict
from sluice.core.ids import Generation, Instant, JobName, Lineage, RunId, StageName

UNPROTECTED = "SLUICE_WITHOUT_COORDINATOR"
"""The environment variable that `sluice exec --without-coordinator` sets."""


class NotGranted(Conflict):
    """The job may not be run by this process."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The right to run the job."""

    run: RunId
    generation: Generation


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where a checkpoint begins. `seq`: the number of the last drain that has flushed the query, 0 for none. `suffix` distinguishes
    checkpoints after an upgrade that was rolled back. `offsets`: those of Kafka's topics, by partition. `failed`: why the drain did not
    finish, "" if it did."""

    seq: int
    suffix: str
    offsets: Mapping[str, Mapping[str, int]]
    failed: str

    @property
    def folder(self) -> str:
        return "-".join(["drain", str(self.seq), *filter(None, [self.suffix])])


@dataclass(frozen=True, slots=True)
class Wanted:
    """A checkpoint that a driver asks for: <state>/<job>/<folder>/<stage>. `code` identifies the script. `replays`: see
    `containers.attached.checkpoints.recovery`. `adopts`: nothing is made if the job has never had a checkpoint of this name."""

    stage: StageName
    state: Path
    folder: str
    code: str = ""
    replays: int = 1
    adopts: bool = False


@dataclass(frozen=True, slots=True)
class Made:
    """The checkpoint is ready. `lineage`: Spark's id of its query. `adopt`: it does not exist, and the driver may copy another one.
    `restored`: the last batch of the snapshot that it was restored from, None if it was not restored. `replay`: further planned batches,
    which run after the first one. `new_lineage`: the query has got a new id."""

    lineage: Lineage | None = None
    adopt: bool = False
    restored: int | None = None
    new_lineage: bool = False
    replay: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DrainOfScript:
    """A drain in which the driver takes part. `flushing`: whether an earlier start of the script may have begun to flush."""

    uuid: str
    flushing: bool


@dataclass(frozen=True, slots=True)
class Flushed:
    """A flushed query. `rows_left` in its state, and the operators that have them."""

    position: Position
    rows_left: int = 0
    operators_left: Sequence[str] = ()


class DrainInterrupted(Conflict):
    """The queries are being stopped, so that they take part in no drain."""


class Agent(Protocol):
    """Called by the driver."""

    def attach(self, job: JobName) -> Grant:
        """Wait until the job may be run. Raises NotGranted."""
        ...

    def beginning(self, stage: StageName) -> Beginning:
        """Where a new checkpoint begins."""
        ...

    def prepare(self, wanted: Wanted) -> Made:
        """Make a checkpoint ready on this disk. Raises what `ScriptBackups.prepare` raises."""
        ...

    def keep_plan(self, stage: StageName, batch: int) -> str:
        """Make what the batch reads durable, before it writes. Returns why that failed, "" if it did not."""
        ...

    def confirm(self) -> None:
        """Return when the coordinator has confirmed that the driver owns the job. Raises LeaseLost if it does not."""
        ...

    def queries(self, queries: Sequence[Any]) -> None:
        """The queries of the script, each as `sluice.wire.agents.QueryBody` in JSON: when they have changed, and every ten seconds."""
        ...

    def stopped(self, interrupted: Sequence[str]) -> None:
        """All queries have ended after `stop`. `interrupted`: the checkpoints of those whose batch was interrupted."""
        ...

    def ending(self, error: str) -> None:
        """The script ends with this error, "" for none."""
        ...


class Driver(Protocol):
    """Called by the agent."""

    def refused(self, why: str) -> None:
        """The job may not be run; `attach` is not answered."""
        ...

    def renewed(self, ends_at: Instant) -> None:
        """The lease lasts until then."""
        ...

    def stop(self, within: timedelta, sigterm: bool) -> None:
        """Stop all queries between two batches. `sigterm`: this takes the place of a first SIGTERM."""
        ...

    def drain(self, drain: DrainOfScript) -> None:
        """Pause each query that starts from now on."""
        ...

    def pause_queries(self, drain: str, needed: Sequence[StageName]) -> Mapping[StageName, Position]:
        """Pause all queries between two batches. Returns where they are when all of them, and at least those of the stages `needed`, are
        paused. Raises DrainInterrupted, and what a batch raises."""
        ...

    def feeders(self) -> Mapping[StageName, Sequence[StageName]]:
        """Paused query -> the queries that write what it reads."""
        ...

    def flush(self, drain: str, stage: StageName, feeders: Sequence[StageName]) -> Flushed:
        """Read what these queries have written in the drain, and empty the state. May be repeated. Raises DrainInterrupted, and what a
        batch raises."""
        ...

    def leave(self, drain: str, end: bool) -> None:
        """End all paused queries, or let them continue. Returns when that is done. Does nothing the second time."""
        ...

    def refuse(self, stage: StageName, why: str) -> None:
        """The query of the stage must not run."""
        ...

    def lost(self, why: str) -> None:
        """The lease is lost; for a driver that is only observed."""
        ...


@cache
def agent_methods() -> Interface:
    return methods_of(Agent, told={"queries", "stopped", "ending"})


@cache
def driver_methods() -> Interface:
    return methods_of(Driver, told={"refused", "renewed", "stop", "drain", "refuse", "lost"})
