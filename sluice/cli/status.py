"""`sluice status`, `runs`, `containers` and `tasks`: the state of jobs, as text or (`--json`) as JSON.

Exit codes: 0; 1 when the coordinator cannot be reached or does not know the job or run; 2 when `sluice status --check` finds a problem.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from sluice.cli.console.live import LiveDisplay
from sluice.cli.console.pages import status_page
from sluice.cli.console.tables import Screen, containers_table, duration, is_interactive, moment, runs_table, shown, tasks_table
from sluice.cli.documents import Document, Json, print_reply
from sluice.cli.runner import LOCAL, Limit, OptionalJob, OptionalRun, Url, call, find_job, find_run, with_next_page
from sluice.client import CoordinatorClient
from sluice.clock import SystemClock
from sluice.core.errors import BadOption, CoordinatorUnreachable, SluiceError
from sluice.core.ids import JobName, RunId
from sluice.status import RunOverview, StatusReply, UnreadRun, overview, status_of
from sluice.wire import body as wire_body
from sluice.wire import runs as wire_runs

REFRESH = timedelta(seconds=2)
CONCURRENT_REQUESTS = 8
DEGRADED = 2


class ContainersOfRunReply(wire_body.Reply):
    """The body of `sluice jobs containers --json`."""

    job: str
    run_id: str
    containers: tuple[wire_runs.ContainerReply, ...]


class TasksOfRunReply(wire_body.Reply):
    """The body of `sluice jobs tasks --json`."""

    job: str
    run_id: str
    tasks: tuple[wire_runs.TaskReply, ...]


# --- commands --------------------------------------------------------------------------------------------------------


def status(
    job: Annotated[str | None, typer.Argument(metavar="JOB", help="Name of the job. Default: all jobs.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh the page every two seconds until Ctrl-C.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Print only the problems found, and exit with 2 if there are any. For health checks.")
    ] = False,
    old_report_seconds: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="A stage that lags and has not reported for this long is a problem.")
    ] = 300,
    as_json: Annotated[Json, Document(StatusReply)] = False,
    coordinator: Url = LOCAL,
) -> None:
    """Show the health of jobs: containers, tasks, and the throughput and lag of each stage."""
    query = StatusQuery(job, old_report_seconds)
    if watch:
        if check or as_json:
            raise BadOption("--watch is for terminals: leave out --json and --check")
        asyncio.run(_watch(query, coordinator, Screen(sys.stdout)))
        return
    reply = call(coordinator, query.run)
    if not check:
        print_reply(reply, lambda width: status_page(reply, _now(), width), as_json=as_json)
        return
    problems = [Text(shown(each)) for each in reply.problems]
    print_reply(reply, lambda _: Group(*problems) if problems else Text("healthy"), as_json=as_json)
    raise typer.Exit(0 if reply.healthy else DEGRADED)


def runs(
    job: OptionalJob = None,
    limit: Limit = 20,
    before: Annotated[str | None, typer.Option(metavar="RUN", help="List only runs older than this one.")] = None,
    as_json: Annotated[Json, Document(wire_runs.RunsReply)] = False,
    coordinator: Url = LOCAL,
) -> None:
    """List the runs of a job, newest first."""

    async def request(client: CoordinatorClient) -> wire_runs.RunsReply:
        name = JobName((await find_job(client, job)).job)
        return await client.runs(name, limit, RunId(before) if before else None)

    reply = call(coordinator, request)
    print_reply(reply, lambda width: with_next_page(runs_table(reply, width), reply.next), as_json=as_json)


def containers(run: OptionalRun = None, as_json: Annotated[Json, Document(ContainersOfRunReply)] = False, coordinator: Url = LOCAL) -> None:
    """List the containers of a run, including those that have ended."""

    async def request(client: CoordinatorClient) -> wire_runs.RunDetail:
        described = await find_run(client, run)
        return described.model_copy(update={"incarnations": tuple(await client.containers(described))})

    found = call(coordinator, request)
    reply = ContainersOfRunReply(job=found.job, run_id=found.run_id, containers=found.incarnations)
    print_reply(reply, lambda width: _with_run(found, containers_table(found, width)), as_json=as_json)


def tasks(run: OptionalRun = None, as_json: Annotated[Json, Document(TasksOfRunReply)] = False, coordinator: Url = LOCAL) -> None:
    """List the tasks of a run: their container, progress and lag."""
    found = call(coordinator, lambda client: find_run(client, run))
    reply = TasksOfRunReply(job=found.job, run_id=found.run_id, tasks=found.tasks)
    print_reply(reply, lambda width: _with_run(found, tasks_table(found, found.server_time or _now(), width)), as_json=as_json)


def _with_run(run: wire_runs.RunDetail, page: RenderableType) -> RenderableType:
    return Group(Text(f"run {run.run_id} ({run.state})"), Text(""), page)


@dataclass(frozen=True, slots=True)
class StatusQuery:
    """One job, or None for all."""

    job: str | None
    old_report_seconds: float

    async def run(self, client: CoordinatorClient) -> StatusReply:
        """Query the runs. The error of one run does not hide the others. If all fail, raises the first error."""
        jobs = (await client.jobs()).jobs if self.job is None else (await find_job(client, self.job),)
        slots = asyncio.Semaphore(CONCURRENT_REQUESTS)

        async def one(job: wire_runs.JobReply) -> RunOverview | SluiceError:
            try:
                async with slots:
                    run = await client.run(RunId(job.current_run))
            except SluiceError as error:
                return error
            return overview(run, _now(), timedelta(seconds=self.old_report_seconds))

        found = await asyncio.gather(*(one(job) for job in jobs))
        errors = [each for each in found if isinstance(each, SluiceError)]
        if errors and len(errors) == len(found):
            raise errors[0]
        unread = [
            UnreadRun(job=job.job, run_id=job.current_run, error=str(each))
            for job, each in zip(jobs, found, strict=True)
            if isinstance(each, SluiceError)
        ]
        return status_of((each for each in found if isinstance(each, RunOverview)), unread)


def _now() -> datetime:
    return SystemClock().now()


# --- watching --------------------------------------------------------------------------------------------------------


async def _watch(query: StatusQuery, url: str, screen: Screen) -> None:
    """Show the status until SIGINT or SIGTERM, or until standard output is closed. Raises UnknownJob."""
    watching = asyncio.current_task()
    assert watching is not None
    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, watching.cancel)
    client = CoordinatorClient(url)
    try:
        with suppress(asyncio.CancelledError):
            if is_interactive(screen.console):
                with LiveDisplay(screen.console) as place:
                    await _refresh(query, client, screen, place.show)
            else:

                async def append(page: RenderableType) -> None:
                    screen.show(Group(page, Text("")))

                await _refresh(query, client, screen, append)
    finally:
        await client.close()


async def _refresh(
    query: StatusQuery, client: CoordinatorClient, screen: Screen, show: Callable[[RenderableType], Awaitable[None]]
) -> None:
    """Show the status periodically. While the coordinator does not answer, show the last status and its age."""
    last: StatusReply | None = None
    last_at = _now()
    while not screen.abandoned:
        unreachable = ""
        try:
            last = await query.run(client)
            last_at = _now()
        except CoordinatorUnreachable as error:
            unreachable = f"retrying: {error.title()} {error}"
        await show(_watch_page(last, last_at, unreachable, screen.width))
        await asyncio.sleep(REFRESH.total_seconds())


def _watch_page(last: StatusReply | None, last_at: datetime, unreachable: str, width: int | None) -> RenderableType:
    note = Text(f"{moment(_now())}  Ctrl-C to quit", style="dim")
    if unreachable:
        age = "" if last is None else f"; the status shown is {duration((_now() - last_at).total_seconds())} old"
        note = Text(f"! {shown(unreachable)}{age}", style="bold red")
    return Group(*([] if last is None else [status_page(last, last_at, width), Text("")]), note)
