"""The summary of a run that `sluice status` and the coordinator's page show, and the problems found in it.

Ages are relative to the coordinator's time of its answer. An unknown number is None.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from sluice.core.jobmodels.expansion import Verdict
from sluice.core.jobmodels.spec import JobKind
from sluice.core.lifecycle import RunState
from sluice.core.waits import is_recent
from sluice.wire import body as wire_body
from sluice.wire import runs as wire_runs

N = TypeVar("N", int, float)

OLD_REPORT = timedelta(minutes=5)
LATE_ROWS_FOR = timedelta(hours=1)
"""For how long dropped rows are a problem."""

NAMED = 5
"""How many tasks a problem lists; further ones are counted."""

PORTION = 100
"""The number of tasks for which a step of an overview computes ages and rates. Simple searches look at all tasks in one step."""


class StageOverview(wire_body.Reply):
    """A stage over all its tasks: rates and lags are summed, times are the worst ones. `delivery`: how its tasks write; usually one value,
    none before the first report or if the stage writes by means of its own."""

    stage: str
    batches: int
    rows_per_second: float | None
    lag: int | None
    batch_millis: int | None
    watermark_lag_seconds: float | None
    report_age_seconds: float | None
    snapshot_age_seconds: float | None
    batches_since_snapshot: int | None = None
    """For the query of a script whose checkpoint is backed up: the batches that a lost disk costs."""
    late_rows: int = 0
    delivery: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, in one sentence, and what an operator can do about it."""

    text: str
    remedy: str


class FailingStage(wire_body.Reply):
    """Tasks in which a stage fails with one error. `failures`: the most that one of them has had within ten minutes. `retry_seconds`: until
    the next attempt of one of them, null if none tries again. `logs`: where the logs of their containers are."""

    stage: str
    tasks: tuple[str, ...]
    error: str
    failures: int
    retry_seconds: float | None
    logs: tuple[str, ...]


class RecentExit(wire_body.Reply):
    """A container that failed or was lost within the last ten minutes. `exit_code`: null if none was reported. `replaced`: its slot has a
    live container again."""

    processor_id: str
    execution_container_id: str
    at: datetime
    exit_code: int | None
    reason: str
    replaced: bool


class RunOverview(wire_body.Reply):
    """`since`: when the run entered its state. `lease_seconds_left`: of the container whose lease ends first. `containers_silent`: live
    ones of which three heartbeats are missing; `idle_since`: when the command of a script ended with exit code 0, if it does not run;
    `heartbeat_age_seconds`: the longest time since a live container was last seen. `failing`: stages whose batches fail; `restarted`: those
    that failed within the last ten minutes and have made progress since. `exits`: newest first. `problems`: what is wrong, a sentence each;
    none means healthy. `remedies`: what to do about each of them."""

    job: str
    run_id: str
    state: RunState
    since: datetime
    stopping: bool
    reason: str
    containers: int
    containers_live: int
    containers_silent: int = 0
    idle_since: datetime | None = None
    heartbeat_age_seconds: float | None = None
    lease_seconds_left: float | None
    tasks: int
    tasks_owned: int
    stages: tuple[StageOverview, ...]
    failing: tuple[FailingStage, ...] = ()
    restarted: tuple[FailingStage, ...] = ()
    exits: tuple[RecentExit, ...] = ()
    problems: tuple[str, ...]
    remedies: tuple[str, ...] = ()
    watermarks: tuple[wire_runs.StreamWatermark, ...] = ()
    missing_event_times: tuple[str, ...] = ()


class UnreadRun(wire_body.Reply):
    """A job whose current run the coordinator could not describe, and its error."""

    job: str
    run_id: str
    error: str


class StatusReply(wire_body.Reply):
    """The body of `sluice status --json`. `errors`: the jobs that are missing in `jobs`."""

    healthy: bool
    jobs: tuple[RunOverview, ...]
    errors: tuple[UnreadRun, ...] = ()

    @property
    def problems(self) -> Iterable[str]:
        """All problems, a line each, with the name of the job."""
        yield from (f"{run.job}: {each}" for run in self.jobs for each in run.problems)
        yield from map(unread, self.errors)


def unread(run: UnreadRun) -> str:
    return f"{run.job}: run {run.run_id} cannot be read: {run.error}"


def status_of(runs: Iterable[RunOverview], errors: Iterable[UnreadRun] = ()) -> StatusReply:
    jobs, unread_runs = tuple(runs), tuple(errors)
    return StatusReply(healthy=not (unread_runs or any(run.problems for run in jobs)), jobs=jobs, errors=unread_runs)


def overview(run: wire_runs.RunDetail, received_at: datetime, old_report: timedelta = OLD_REPORT) -> RunOverview:
    """`received_at` is used where a coordinator does not send the time of its answer. A report older than `old_report` is a problem unless
    its stage had nothing left to read."""
    steps = overview_steps(run, received_at, old_report)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            made: RunOverview = end.value
            return made


def overview_steps(
    run: wire_runs.RunDetail, received_at: datetime, old_report: timedelta = OLD_REPORT
) -> Generator[None, None, RunOverview]:
    """The same in short steps. The coordinator answers other requests between them."""
    at = run.server_time or received_at
    live = live_containers(run)
    found = []
    for each in problems(run, at, old_report):
        if each is None:
            yield
        else:
            found.append(each)
    stages = []
    for stage in run.stages:
        parts = []
        for tasks in _portions(run.tasks):
            parts.append(_stage(stage.name, _progress(tasks, stage.name), at))
            yield
        stages.append(_of_all_tasks(stage.name, parts))
    failing = () if run.state.ended else tuple(failing_stages(run, at, over=False))
    yield
    restarted = () if run.state.ended else tuple(failing_stages(run, at, over=True))
    yield
    return RunOverview(
        job=run.job,
        run_id=run.run_id,
        state=run.state,
        since=_since(run),
        stopping=run.stop_requested_at is not None and not run.state.ended,
        reason=run.reason,
        containers=run.containers,
        containers_live=len(live),
        idle_since=idle_since(run),
        containers_silent=sum(1 for each in live if each.silent),
        heartbeat_age_seconds=_most(each.heartbeat_age_seconds for each in live),
        lease_seconds_left=_least(each.lease_seconds_left for each in live),
        tasks=len(run.tasks),
        tasks_owned=sum(1 for task in run.tasks if task.holder),
        stages=tuple(stages),
        failing=failing,
        restarted=restarted,
        exits=tuple(recent_exits(run, at)),
        problems=tuple(each.text for each in found),
        remedies=tuple(each.remedy for each in found),
        watermarks=run.watermarks,
        missing_event_times=run.missing_event_times,
    )


def live_containers(run: wire_runs.RunDetail) -> Sequence[wire_runs.ContainerReply]:
    return [each for each in run.incarnations if each.state == "LIVE"]


def idle_since(run: wire_runs.RunDetail) -> datetime | None:
    """When the command of a script ended with exit code 0, as one does that is started from time to time; None if it runs or has failed."""
    last = max(run.incarnations, key=lambda each: each.epoch, default=None)
    clean = run.kind is JobKind.ATTACHED and last is not None and last.state == "EXITED" and last.exit_code == 0
    return last.ended_at if clean and last is not None and not live_containers(run) else None


def unowned_tasks(run: wire_runs.RunDetail) -> Sequence[wire_runs.TaskReply]:
    """The tasks without an owner. Those of a slot with a bare container do not count: it runs them without acquiring them."""
    bare = {each.processor_id for each in live_containers(run) if each.bare}
    return [task for task in run.tasks if not task.holder and task.processor_id not in bare]


def _since(run: wire_runs.RunSummary) -> datetime:
    if run.state.ended:
        return run.ended_at or run.created_at
    return (run.started_at if run.state is not RunState.CREATED else None) or run.created_at


def _portions(tasks: Sequence[wire_runs.TaskReply]) -> Iterator[Sequence[wire_runs.TaskReply]]:
    return (tasks[start : start + PORTION] for start in range(0, len(tasks), PORTION))


def _progress(tasks: Iterable[wire_runs.TaskReply], stage: str) -> Sequence[wire_runs.StageProgress]:
    return [each for task in tasks for each in task.stages if each.stage == stage]


def _of_all_tasks(name: str, parts: Sequence[StageOverview]) -> StageOverview:
    """The stage over all its tasks, from overviews over some of them each."""
    return StageOverview(
        stage=name,
        batches=sum(each.batches for each in parts),
        rows_per_second=_sum(each.rows_per_second for each in parts),
        lag=_sum(each.lag for each in parts),
        batch_millis=_most(each.batch_millis for each in parts),
        watermark_lag_seconds=_most(each.watermark_lag_seconds for each in parts),
        report_age_seconds=_most(each.report_age_seconds for each in parts),
        snapshot_age_seconds=_most(each.snapshot_age_seconds for each in parts),
        batches_since_snapshot=_most(each.batches_since_snapshot for each in parts),
        late_rows=sum(each.late_rows for each in parts),
        delivery=tuple(sorted({how for each in parts for how in each.delivery})),
    )


def _stage(name: str, progress: Sequence[wire_runs.StageProgress], at: datetime) -> StageOverview:
    measured = [each.metrics for each in progress if each.metrics is not None]
    return StageOverview(
        stage=name,
        batches=sum(each.batch_id + 1 for each in progress if each.batch_id is not None),
        rows_per_second=_sum(each.rows_per_second for each in measured),
        lag=_sum(lag_of(each) for each in progress),
        batch_millis=_most(each.batch_millis for each in measured),
        watermark_lag_seconds=_most(watermark_lag(each) for each in measured),
        report_age_seconds=_most(report_age(each, at) for each in progress),
        snapshot_age_seconds=_most(snapshot_age(each, at) for each in progress),
        batches_since_snapshot=_most(batches_since_snapshot(each) for each in progress),
        late_rows=sum(each.late_rows for each in progress),
        delivery=tuple(sorted({how for each in measured for how in each.delivery.values()})),
    )


def lag_of(progress: wire_runs.StageProgress) -> int | None:
    """The lag as seen by the coordinator; for a stream that it cannot read, as measured by the container."""
    if progress.lag is None and progress.metrics is not None:
        return progress.metrics.lag
    return progress.lag


def last_report(progress: wire_runs.StageProgress) -> datetime | None:
    """When the stage last reported a batch or its metrics."""
    reports = (progress.reported_at, progress.metrics.at if progress.metrics else None)
    return max((each for each in reports if each is not None), default=None)


def report_age(progress: wire_runs.StageProgress, at: datetime) -> float | None:
    """Seconds; None before the first report."""
    last = last_report(progress)
    return None if last is None else max(0.0, (at - last).total_seconds())


def snapshot_age(progress: wire_runs.StageProgress, at: datetime) -> float | None:
    """Seconds since the stage's newest snapshot was reported; None without one."""
    return None if progress.snapshot_at is None else max(0.0, (at - progress.snapshot_at).total_seconds())


def batches_since_snapshot(progress: wire_runs.StageProgress) -> int | None:
    """None for a stage of a job file, and for a query whose checkpoint is not backed up."""
    if progress.snapshot_batch_id is None or progress.batch_id is None:
        return None
    return max(0, progress.batch_id - progress.snapshot_batch_id)


def watermark_lag(measures: wire_runs.StageMetricsReply) -> float | None:
    """Seconds by which the watermark was behind the time of day when it was measured. None without a watermark."""
    return None if measures.watermark is None else (measures.at - measures.watermark).total_seconds()


def _sum(numbers: Iterable[N | None]) -> N | None:
    return _of(numbers, sum)


def _most(numbers: Iterable[N | None]) -> N | None:
    return _of(numbers, max)


def _least(numbers: Iterable[N | None]) -> N | None:
    return _of(numbers, min)


def _of(numbers: Iterable[N | None], fold: Callable[[Sequence[N]], N]) -> N | None:
    known = [each for each in numbers if each is not None]
    return fold(known) if known else None


# --- failures and exits ----------------------------------------------------------------------------------------------

RECENT = timedelta(minutes=10)
"""Containers count the failures of a query over the same time."""

NO_FAILURES = (0, 3)
"""Exit codes of containers that have not failed: stopped in order, lease lost."""


def failing_stages(run: wire_runs.RunDetail, at: datetime, *, over: bool) -> Iterable[FailingStage]:
    """The stages that fail, by their errors; with `over`, those that failed recently and make progress again."""
    found: defaultdict[tuple[str, str], dict[str, wire_runs.StageFailure]] = defaultdict(dict)
    for task in run.tasks:
        for each in task.stages:
            failure = each.failure
            if failure is not None and failure.over is over and (not over or is_recent(failure.at, at, RECENT)):
                found[each.stage, failure.error][task.task] = failure
    for (stage, error), failures in found.items():
        retries = [(each.retry_at - at).total_seconds() for each in failures.values() if each.retry_at is not None]
        yield FailingStage(
            stage=stage,
            tasks=tuple(failures),
            error=error,
            failures=max(each.failures for each in failures.values()),
            retry_seconds=max(0.0, min(retries)) if retries else None,
            logs=tuple(sorted({each.log for each in failures.values() if each.log})),
        )


def failing_line(failing: FailingStage) -> str:
    """The error, which begins with the line of user code, and then where and how often it occurred."""
    times = "once" if failing.failures == 1 else f"{failing.failures} times"
    again = "no further attempt" if failing.retry_seconds is None else f"next attempt in {failing.retry_seconds:.0f} s"
    logs = f"; log: {', '.join(failing.logs[:NAMED])}" if failing.logs else ""
    return f"{failing.error} (stage {failing.stage} of {named(failing.tasks)} failed {times}; {again}{logs})"


def recent_exits(run: wire_runs.RunDetail, at: datetime) -> Sequence[RecentExit]:
    """The containers that failed within the last ten minutes, newest first."""
    live = {each.processor_id for each in live_containers(run)}
    found = [
        RecentExit(
            processor_id=each.processor_id,
            execution_container_id=each.execution_container_id,
            at=each.ended_at,
            exit_code=each.exit_code,
            reason=each.reason,
            replaced=each.processor_id in live,
        )
        for each in run.incarnations
        if each.ended_at is not None and is_recent(each.ended_at, at, RECENT) and _has_failed(each)
    ]
    return sorted(found, key=lambda each: each.at, reverse=True)


def _has_failed(container: wire_runs.ContainerReply) -> bool:
    return container.state == "LOST" or (container.exit_code is not None and container.exit_code not in NO_FAILURES)


def exit_line(exits: Sequence[RecentExit]) -> str:
    """The exits of one slot, newest first."""
    last = exits[0]
    code = "was lost" if last.exit_code is None else f"exited with code {last.exit_code}"
    times = f"{len(exits)} containers of slot {last.processor_id} failed within 10 min; the last" if len(exits) > 1 else "container"
    return f"{times} {last.execution_container_id} {code}: {last.reason}"


def _of_exits(exits: Sequence[RecentExit]) -> Iterable[str]:
    """Slots that have no container since the last one failed, or whose containers failed repeatedly. One failure followed by a successful
    restart is not a problem."""
    by_slot: defaultdict[str, list[RecentExit]] = defaultdict(list)
    for each in exits:
        by_slot[each.processor_id].append(each)
    for found in by_slot.values():
        if len(found) > 1 or not found[0].replaced:
            yield exit_line(found)


# --- what is wrong ---------------------------------------------------------------------------------------------------


def problems(run: wire_runs.RunDetail, at: datetime, old_report: timedelta) -> Iterator[Problem | None]:
    """The problems of a run. A run that ended in order, or is being stopped, has only those of the catalog, which prevent a deployment.
    None: the end of a step."""
    yield from _with(run.catalog_problems, "Containers continue to run. Make the named blob stores available.")
    if run.state is RunState.FAILED:
        text = f"run {run.run_id} has failed: {run.reason}" if run.reason else f"run {run.run_id} has failed"
        yield Problem(text, "Fix the cause, then deploy the job again.")
    if run.state.ended or run.stop_requested_at is not None:
        return
    live, script, idle = len(live_containers(run)), run.kind is JobKind.ATTACHED, idle_since(run) is not None
    if live < run.containers and not idle:
        remedy = "Start the script again; its" if script else "Start the missing containers; their"
        yield Problem(f"{live} of {run.containers} containers are live", f"{remedy} last exits are listed.")
    yield None
    yield from _with(_of_exits(recent_exits(run, at)), "Read the log of that container. Exit code 4: one batch failed repeatedly.")
    yield None
    yield from _with(_silent(run), "Check the host and the process. When the lease ends, the tasks move to another container.")
    yield None
    failing = map(failing_line, failing_stages(run, at, over=False))
    then = "start the script again" if script else "deploy the new version with `sluice upgrade`"
    yield from _with(failing, f"Correct the line that is named first, then {then}.")
    yield None
    unowned = _counted("without an owner", [] if idle else [task.task for task in unowned_tasks(run)])
    yield from _with(unowned, "A task waits until the lease of its former container has ended, or for a container of its slot.")
    yield None
    yield from _with(_of_its_model(run, at - old_report), "`sluice plan` shows what the next version of the job model would be, and why.")
    yield from _with(run.backup_problems, "Until this is fixed, a lost disk costs the batches since the last snapshot.")
    yield None
    yield from _with(_of_watermarks(run, at, old_report), "Look at the named task: windows behind it stay open until it continues.")
    for stage in run.stages:
        late: list[str] = []
        for tasks in _portions(run.tasks):
            yield None
            owned = (task for task in tasks if task.holder and task.runs(stage.name))
            late += [task.task for task in owned if _is_late(task, stage.name, run, at - old_report)]
        silent = _counted(f"without a report of stage {stage.name} for more than {old_report.total_seconds():g} s", late)
        yield from _with(silent, "A batch takes too long or hangs: look at the log and at Spark's UI of its container.")


def _with(texts: Iterable[str], remedy: str) -> Iterable[Problem]:
    return (Problem(text, remedy) for text in texts)


def _silent(run: wire_runs.RunDetail) -> Iterable[str]:
    """Containers that may have been killed. They own their tasks until their leases end."""
    silent = [each for each in live_containers(run) if each.silent]
    ages = [each.heartbeat_age_seconds for each in silent if each.heartbeat_age_seconds is not None]
    if silent:
        slots = named([each.processor_id for each in silent])
        yield f"{len(silent)} of {run.containers} containers silent for {min(ages, default=0):.0f} s: slot {slots}"


def _of_its_model(run: wire_runs.RunDetail, before: datetime) -> Iterable[str]:
    """Problems of growth, crash loops, failover and adoption."""
    for each in run.watched:
        if each.verdict is Verdict.REFUSED:
            yield f"{each.system}.{each.stream} does not grow the job: {each.reason}"
    for slot in run.crash_loop_backoff:
        until = f"{slot.until:%H:%M:%S}"
        yield f"slot {slot.processor_id} is backing off until {until}: it has failed {slot.failures} times in a row right after starting"
    if run.failed_over_slots:
        yield f"{len(run.failed_over_slots)} of {run.containers} slots have no container, and their tasks were reassigned"
    if run.adoption is not None and run.adoption.since < before:
        late = sorted(each.processor_id for each in run.adoption.outdated if each.since < before)
        if late:
            yield f"still not at version {run.adoption.version} of the job model: slot {', '.join(late[:NAMED])}"


def _of_watermarks(run: wire_runs.RunDetail, at: datetime, old_report: timedelta) -> Iterable[str]:
    """Watermarks that wait for a task for too long, and rows that were dropped as late."""
    for each in run.watermarks:
        if each.error:
            yield f"the watermark behind {each.system}.{each.stream} does not advance: {each.error}"
        elif each.held_by and each.held_seconds >= old_report.total_seconds():
            yield waits(each)
    for stage in run.stages:
        late = [(task.task, each) for task in run.tasks for each in task.stages if each.stage == stage.name and each.late_rows]
        if any(each.late_rows_at is not None and is_recent(each.late_rows_at, at, LATE_ROWS_FOR) for _, each in late):
            rows, given_up = sum(each.late_rows for _, each in late), sum(each.late_rows_given_up for _, each in late)
            cause = f", {given_up} of them behind a task that was not waited for" if given_up else ""
            yield from _counted(f"of stage {stage.name} dropped {rows} rows as late{cause}", [task for task, _ in late])


def waits(watermark: wire_runs.StreamWatermark) -> str:
    """Which tasks a watermark waits for, and why the first."""
    first = watermark.held_by[0]
    rest = f", and for {len(watermark.held_by) - 1} more" if len(watermark.held_by) > 1 else ""
    return (
        f"the watermark behind {watermark.system}.{watermark.stream} has not risen for {watermark.held_seconds:.0f} s: it waits for "
        f"{first.task}/{first.stage} ({first.why}){rest}"
    )


def _counted(what: str, tasks: Sequence[str]) -> Iterable[str]:
    if tasks:
        yield f"{len(tasks)} {'task' if len(tasks) == 1 else 'tasks'} {what}: {named(tasks)}"


def named(names: Sequence[str]) -> str:
    rest = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{rest}"


def _is_late(task: wire_runs.TaskReply, stage: str, run: wire_runs.RunDetail, before: datetime) -> bool:
    """A stage may be silent while there is nothing to read."""
    progress = next((each for each in task.stages if each.stage == stage), None)
    if progress is None:
        return _since(run) < before
    return (last_report(progress) or _since(run)) < before and lag_of(progress) != 0
