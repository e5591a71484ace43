"""Health of a new version, according to its first batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto
from types import MappingProxyType

from sluice.cli.console.bars import Bars
from sluice.cli.console.tables import shown
from sluice.clock import Clock
from sluice.core.ids import Instant
from sluice.core.lifecycle import RunState
from sluice.core.waits import age
from sluice.status import failing_line, failing_stages, lag_of, live_containers, unowned_tasks
from sluice.wire import runs as wire_runs

ORDERLY_CODES = (0, 3)
"""Exit codes that are not failures of the version: stopped cleanly, lease lost."""

SETTLED = timedelta(seconds=10)
"""How long a stage that is healthy only because it has nothing to read must stay healthy: longer than the maximum age of the coordinator's
data about the streams."""


class HealthState(Enum):
    HEALTHY = auto()
    SETTLING = auto()
    """Healthy if this state lasts for SETTLED."""
    PENDING = auto()
    FAILED = auto()
    SUPERSEDED = auto()
    """Another client has drained or stopped the run, and the upgrade does not change it."""


@dataclass(frozen=True, slots=True)
class VersionHealth:
    """`done` of `total` stages, counted over all tasks, are healthy. `reason`: the problem, or the missing conditions."""

    how: HealthState
    reason: str
    done: int
    total: int


NONE_BEFORE: Mapping[tuple[str, str], int] = MappingProxyType({})


def assess(run: wire_runs.RunDetail, batches: int, crashed: str = "", before: Mapping[tuple[str, str], int] = NONE_BEFORE) -> VersionHealth:
    """The health of a run. A stage is healthy after `batches` batches, or after its first batch if it has nothing to read, because Spark
    runs the first batch even without rows. `crashed`: the error of a container that this command started, if one has ended. `before`: the
    last batches, by task and stage, of the state with which the version began. With such state Spark runs no batch without rows, so a
    report with nothing to read is enough."""
    stages = [each for task in run.tasks for each in task.stages if task.runs(each.stage)]
    made = {id(each): _made(each, before.get((task.task, each.stage))) for task in run.tasks for each in task.stages}
    enough = [each for each in stages if made[id(each)] >= batches]
    idle = [each for each in stages if each not in enough and lag_of(each) == 0 and (made[id(each)] or each.metrics is not None)]
    total = sum(sum(task.runs(each.name) for each in run.stages) for task in run.tasks)

    def found(how: HealthState, reason: str) -> VersionHealth:
        return VersionHealth(how, reason, len(enough) + len(idle), total)

    if (wrong := _wrong(run, crashed)) is not None:
        return found(*wrong)
    waits = _missing(run, len(stages) - len(enough) - len(idle), batches)
    if waits:
        return found(HealthState.PENDING, "; ".join(waits))
    return found(HealthState.SETTLING if idle else HealthState.HEALTHY, "")


def _made(stage: wire_runs.StageProgress, before: int | None) -> int:
    """The number of batches that the version has committed."""
    return 0 if stage.batch_id is None else max(0, stage.batch_id - (-1 if before is None else before))


def _wrong(run: wire_runs.RunDetail, crashed: str) -> tuple[HealthState, str] | None:
    if run.state is RunState.FAILED:
        return HealthState.FAILED, f"the run failed: {headlines(run.reason)}"
    if run.state.ended or run.state is RunState.DRAINING:
        return HealthState.SUPERSEDED, f"it was changed to {run.state} by another client{f': {run.reason}' if run.reason else ''}"
    for each in run.incarnations:
        if each.exit_code is not None and each.exit_code not in ORDERLY_CODES:
            return (
                HealthState.FAILED,
                f"container {each.execution_container_id} ended with exit code {each.exit_code}: {headlines(each.reason)}",
            )
    return (HealthState.FAILED, crashed) if crashed else None


def headlines(reason: str) -> str:
    """A reason without its stack frames, which are the indented lines of Java's and Python's stack traces."""
    return " ".join(line for line in reason.splitlines() if line and not line[0].isspace())


def _missing(run: wire_runs.RunDetail, stages: int, batches: int) -> Sequence[str]:
    live = {each.processor_id for each in live_containers(run)}
    free = len(unowned_tasks(run))
    return [
        *([f"{len(live)} of {run.containers} containers are live"] if len(live) < run.containers else []),
        *([f"{free} of {len(run.tasks)} tasks have no owner"] if free else []),
        *([f"{stages} stages have not committed {batches} batches and are not idle"] if stages else []),
        *([f"it is being stopped: {run.reason}"] if run.stop_requested_at is not None else []),
        *(map(failing_line, failing_stages(run, run.server_time, over=False)) if run.server_time is not None else []),
    ]


class HealthWatch:
    """Checks a new version repeatedly until `within` after its deployment. A command that starts later still gets a result, but `too_late`
    prevents the rollback, because it could write much output again. The time before the first check is measured with the coordinator's wall
    clock, the time since then with the monotonic clock."""

    def __init__(self, batches: int, within: timedelta, clock: Clock, before: Mapping[tuple[str, str], int] = NONE_BEFORE) -> None:
        """`before`: see `look`."""
        self._batches = batches
        self._before = before
        self._within = within
        self._clock = clock
        self._deployed: float | None = None
        self._first_check = Instant(0.0)
        self._well_since: Instant | None = None
        self.too_late = False

    def seen(self, run: wire_runs.RunDetail, crashed: str = "") -> VersionHealth:
        """The health after this observation. HEALTHY and FAILED are final. When the time has passed, the result is FAILED."""
        now = self._clock.elapsed()
        if self._deployed is None:
            assert run.server_time is not None
            before = age(run.created_at, run.server_time)
            self._first_check, self._deployed = now, now - before.total_seconds()
            self.too_late = before > self._within
        found = assess(run, self._batches, crashed, self._before)
        settled, within = SETTLED.total_seconds(), self._within.total_seconds()
        ends = self._first_check + 2 * settled if self.too_late else self._deployed + within
        match found.how:
            case HealthState.SETTLING:
                self._well_since = now if self._well_since is None else self._well_since
                if now >= self._well_since + settled:
                    return VersionHealth(HealthState.HEALTHY, "", found.done, found.total)
            case HealthState.PENDING:
                self._well_since = None
                if now >= ends:
                    return VersionHealth(HealthState.FAILED, f"not within {within:g} s: {found.reason}", found.done, found.total)
            case _:
                pass
        return found


def show_progress(bars: Bars, run_id: str, health: VersionHealth) -> None:
    note = "healthy so far" if health.how is HealthState.SETTLING else shown(health.reason)
    bars.show(run_id, health.done, health.total, note)
    bars.say(f"{health.done} of {health.total} stages{f': {note}' if note else ''}")
