"""The pages of `sluice status` and `sluice run`: a few lines and tables for each run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sluice.cli.console.tables import NONE, STYLES, Column, count, duration, moment, rate, shown, stages_table, state, table
from sluice.core.lifecycle import RunState
from sluice.status import RunOverview, StatusReply, failing_line, live_containers, unread
from sluice.wire import runs as wire_runs


def _problems(problems: Iterable[str]) -> Iterable[Text]:
    return (Text(f"! {shown(each)}", style="bold red") for each in problems)


def _headline(run: RunOverview, at: datetime) -> Text:
    word = "stopping" if run.stopping else run.state
    line = Text.assemble((run.job, "bold"), "  ", (str(run.state), STYLES.get(word, "")))
    line.append(f" since {moment(run.since)} ({duration((at - run.since).total_seconds())}){', stopping' if run.stopping else ''}")
    return line


def run_page(run: RunOverview, at: datetime, width: int | None) -> Group:
    """A run on a few lines; an ended run on three."""
    parts: list[RenderableType] = [_headline(run, at), Text(f"  run         {run.run_id}")]
    if run.state.ended:
        if run.reason and run.state is not RunState.FAILED:  # the reason of a failed run is among its problems
            parts.append(Text(f"  reason      {shown(run.reason)}"))
        return Group(*parts, *_problems(run.problems))
    parts.append(Text(f"  containers  {_live(run)}"))
    parts.append(Text(f"  tasks       {run.tasks_owned}/{run.tasks} owned"))
    parts += [Text(f"  watermark   {shown(line)}") for line in _watermarks(run)]
    return Group(*parts, *_recovered(run, at), *_problems(run.problems), Text(""), stages_table(run.stages, width))


def _recovered(run: RunOverview, at: datetime) -> Iterable[Text]:
    """Failures of the last ten minutes from which a restart has recovered. They are not problems."""
    if run.restarted:
        last = run.restarted[0]
        yield Text(f"  restarts    stage {last.stage} of {last.tasks[0]} was restarted after {shown(last.error)}")
    replaced = [each for each in run.exits if each.replaced]
    if replaced:
        ago = duration((at - replaced[0].at).total_seconds())
        code = "lost" if replaced[0].exit_code is None else f"exit code {replaced[0].exit_code}"
        yield Text(f"  exits       {len(replaced)} within 10 min, the last {ago} ago: slot {replaced[0].processor_id}, {code}")


def _live(run: RunOverview) -> str:
    """Text such as "4/4 live, last heartbeat 2s ago, lease left 38s". If containers are silent, the longest time since a last heartbeat."""
    if run.idle_since is not None:
        return f"idle since {run.idle_since:%H:%M:%S}: the script has ended with exit code 0"
    contact = ""
    if run.heartbeat_age_seconds is not None:
        age = duration(run.heartbeat_age_seconds)
        contact = f", {run.containers_silent} silent for {age}" if run.containers_silent else f", last heartbeat {age} ago"
    lease = "" if run.lease_seconds_left is None else f", lease left {duration(run.lease_seconds_left)}"
    return f"{run.containers_live}/{run.containers} live{contact}{lease}"


def _watermarks(run: RunOverview) -> Iterable[str]:
    """A line for each intermediate stream behind which the watermark waits for a task, and for each stage that could report its event
    time."""
    yield from run.missing_event_times
    for each in run.watermarks:
        if each.held_by:
            lag = "" if each.lag_seconds is None else f", {duration(each.lag_seconds)} behind the newest"
            yield f"behind {each.system}.{each.stream} waits for {each.held_by[0].task}/{each.held_by[0].stage}{lag}: {each.held_by[0].why}"


def status_page(status: StatusReply, at: datetime, width: int | None) -> RenderableType:
    if not status.jobs and not status.errors:
        return Text("there are no jobs yet")
    pages: list[RenderableType] = []
    for run in status.jobs:
        pages += [run_page(run, at, width), Text("")]
    for line in _problems(map(unread, status.errors)):
        pages += [line, Text("")]
    return Group(*pages[:-1])


# --- a run of this machine -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """A process of `sluice run`; `slot` is the container's, None for the coordinator."""

    name: str
    slot: str | None
    state: str
    pid: int | None
    restarts: int


TASKS_NAMED = 16
"""Maximum number of tasks of a container that are listed; the others are counted."""


def local_page(
    processes: Sequence[ProcessRow], run: wire_runs.RunDetail | None, seen: RunOverview | None, at: datetime, note: str, width: int | None
) -> Group:
    """`sluice run` in one table: totals, processes with their tasks, stages. Without a run: only the processes."""
    parts: list[RenderableType] = [Text("")]
    if seen is not None:
        parts += [_headline(seen, at), _totals(seen), Text("")]
    parts.append(_processes(processes, run, width))
    if seen is not None:
        parts += _problems(map(failing_line, seen.failing))
        parts += [Text(""), stages_table(seen.stages, width)]
    if note:
        parts.append(Text(shown(note), style="yellow"))
    return Group(*parts)


def _totals(run: RunOverview) -> Text:
    lags = [each.lag for each in run.stages if each.lag is not None]
    rows = [each.rows_per_second for each in run.stages if each.rows_per_second is not None]
    silent = f" ({run.containers_silent} silent for {duration(run.heartbeat_age_seconds)})" if run.containers_silent else ""
    return Text(
        f"containers {run.containers_live}/{run.containers}{silent}  tasks {run.tasks_owned}/{run.tasks}  "
        f"rows/s {rate(sum(rows)) if rows else NONE}  lag {count(sum(lags)) if lags else NONE}  "
        f"batches {count(sum(each.batches for each in run.stages))}"
    )


def _processes(processes: Sequence[ProcessRow], run: wire_runs.RunDetail | None, width: int | None) -> Table:
    columns = [
        *(Column("PROCESS"), Column("STATE"), Column("PID", right=True, rank=1), Column("RESTARTS", right=True)),
        *(Column("LEASE", right=True), Column("TASKS (GENERATION)", folds=True)),
    ]
    live = {each.processor_id: each for each in live_containers(run)} if run else {}
    rows: list[Sequence[str | Text]] = []
    for each in processes:
        container = live.get(each.slot) if each.slot is not None else None
        mine = [task for task in run.tasks if container and task.holder == container.execution_container_id] if run else []
        left = duration(container.lease_seconds_left) if container else NONE
        pid = NONE if each.pid is None else str(each.pid)
        rows.append((each.name, state(each.state), pid, str(each.restarts), left, _tasks(mine)))
    held = {each.execution_container_id for each in live.values()}
    if run and not run.state.ended and (others := [task for task in run.tasks if task.holder not in held]):
        rows.append((Text("no container", style="bold red"), "", "", "", "", _tasks(others)))
    return table(columns, rows, width)


def _tasks(tasks: Sequence[wire_runs.TaskReply]) -> str:
    named = [f"{task.task} ({NONE if task.generation is None else task.generation})" for task in tasks[:TASKS_NAMED]]
    rest = [f"and {len(tasks) - TASKS_NAMED} more"] if len(tasks) > TASKS_NAMED else []
    return ", ".join(named + rest)
