"""Health of a new version in its first batches, and how it is shown while one waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto

from sluice.cli.console.bars import Bars
from sluice.cli.console.overview import live_containers, offsets_behind
from sluice.cli.console.tables import shown
from sluice.core.lifecycle import RunState
from sluice.wire import runs as wire_runs

ORDERLY = (0, 3)
"""Exit codes that say nothing against a version: stopped in order, lease lost."""

SETTLED = timedelta(seconds=10)
"""How long a new version has to look well where only that it has nothing to read speaks for a stage: longer than the coordinator's view of
what there is to read may be old."""


class HealthState(Enum):
    WELL = auto()
    SETTLING = auto()
    """Well, if it stays so for SETTLED."""
    NOT_YET = auto()
    BADLY = auto()
    TAKEN_AWAY = auto()
    """Somebody drained or stopped the run: it is not for the upgrade any more."""


@dataclass(frozen=True, slots=True)
class VersionHealth:
    """How a new version does. `done` of `total` stages of tasks have shown that they work; `told`: what is wrong, or missing yet."""

    how: HealthState
    told: str
    done: int
    total: int


def look(run: wire_runs.RunDetail, batches: int, crashed: str = "") -> VersionHealth:
    """A stage has shown that it works by `batches` batches, or, with nothing to read, by its first, which Spark runs without rows, too.
    `crashed`: how a container of ours ended, if one did."""
    stages = [each for task in run.tasks for each in task.stages]
    enough = [each for each in stages if each.batch_id is not None and each.batch_id + 1 >= batches]
    idle = [each for each in stages if each not in enough and each.batch_id is not None and offsets_behind(each) == 0]
    total = sum(len(task.stages) or len(run.stages) for task in run.tasks)

    def found(how: HealthState, told: str) -> VersionHealth:
        return VersionHealth(how, told, len(enough) + len(idle), total)

    if (wrong := _wrong(run, crashed)) is not None:
        return found(*wrong)
    waits = _missing(run, len(stages) - len(enough) - len(idle), batches)
    if waits:
        return found(HealthState.NOT_YET, "; ".join(waits))
    return found(HealthState.SETTLING if idle else HealthState.WELL, "")


def _wrong(run: wire_runs.RunDetail, crashed: str) -> tuple[HealthState, str] | None:
    if run.state is RunState.FAILED:
        return HealthState.BADLY, f"the run failed: {headlines(run.reason)}"
    if run.state.ended or run.state is RunState.DRAINING:
        return HealthState.TAKEN_AWAY, f"somebody else made it {run.state}{f': {run.reason}' if run.reason else ''}"
    for each in run.incarnations:
        if each.exit_code is not None and each.exit_code not in ORDERLY:
            return (
                HealthState.BADLY,
                f"container {each.execution_container_id} ended with exit code {each.exit_code}: {headlines(each.reason)}",
            )
    return (HealthState.BADLY, crashed) if crashed else None


def headlines(reason: str) -> str:
    """A reason without the stack frames in it, which are indented in Java's traces as in Python's."""
    return " ".join(line for line in reason.splitlines() if line and not line[0].isspace())


def _missing(run: wire_runs.RunDetail, stages: int, batches: int) -> Sequence[str]:
    live = {each.processor_id for each in live_containers(run)}
    free = sum(1 for task in run.tasks if task.holder is None)
    return [
        *([f"{len(live)} of {run.containers} containers are there"] if len(live) < run.containers else []),
        *([f"{free} of {len(run.tasks)} tasks have no holder"] if free else []),
        *([f"{stages} stages have not committed {batches} batches and are not idle"] if stages else []),
        *([f"it is being stopped: {run.reason}"] if run.stop_requested_at is not None else []),
    ]


class Trial:
    """A new version's first batches, looked at again and again. It lasts `within` from the deployment, by the coordinator's clock; whoever
    comes later has the time for a verdict, but not to go back: then there may be much that would be processed again."""

    def __init__(self, batches: int, within: timedelta) -> None:
        self._batches = batches
        self._within = within
        self._began: datetime | None = None
        self._well_since: datetime | None = None
        self.too_late = False

    def seen(self, run: wire_runs.RunDetail, crashed: str = "") -> VersionHealth:
        """WELL and BADLY are final; BADLY is also what has not become well in time."""
        now = run.server_time
        assert now is not None
        if self._began is None:
            self._began = now
            self.too_late = now > run.created_at + self._within
        found = look(run, self._batches, crashed)
        ends = (self._began if self.too_late else run.created_at) + (2 * SETTLED if self.too_late else self._within)
        match found.how:
            case HealthState.SETTLING:
                self._well_since = self._well_since or now
                if now >= self._well_since + SETTLED:
                    return VersionHealth(HealthState.WELL, "", found.done, found.total)
            case HealthState.NOT_YET:
                self._well_since = None
                if now >= ends:
                    return VersionHealth(
                        HealthState.BADLY, f"not within {self._within.total_seconds():g} s: {found.told}", found.done, found.total
                    )
            case _:
                pass
        return found


def show_progress(bars: Bars, run_id: str, health: VersionHealth) -> None:
    note = "healthy so far" if health.how is HealthState.SETTLING else shown(health.told)
    bars.show(run_id, health.done, health.total, note)
    bars.say(f"{health.done} of {health.total} stages{f': {note}' if note else ''}")
