"""`sluice status`, `jobs`, `runs`, `containers` and `tasks`: what a coordinator knows, for people and (`--json`) for scripts.

Exit codes: 0; 1 when the coordinator cannot be reached or does not know what is asked for; `sluice status --check` has 2 for degraded.
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

from sluice.cli.console.live import InPlace
from sluice.cli.console.overview import RunOverview, StatusReply, overview, status_of
from sluice.cli.console.pages import status_page
from sluice.cli.console.tables import Screen, containers_table, duration, is_interactive, jobs_table, moment, runs_table, shown, tasks_table
from sluice.cli.runner import LOCAL, JobArgument, Json, RunArgument, Url, _with_note, asked, find_job, find_run
from sluice.client import CoordinatorClient
from sluice.clock import SystemClock
from sluice.core.errors import BadSettings, CoordinatorUnreachable
from sluice.core.ids import JobName, RunId
from sluice.wire import body as wire_body
from sluice.wire import runs as wire_runs


def status(
    job: Annotated[str | None, typer.Argument(metavar="JOB", help="Default: every job.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh in place until Ctrl-C.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Only say what is wrong: exit code 0 healthy, 2 degraded.")] = False,
    old_report_seconds: Annotated[float, typer.Option(min=0, help="How old the last report of a stage with arrears may be.")] = 300,
    as_json: Json = False,
    coordinator: Url = LOCAL,
) -> None:
    """How the jobs are: containers, tasks, and what each stage does."""

    watched = Watched(coordinator, job, old_report_seconds)
    if watch:
        watch_status(watched, alone=not (check or as_json))
    elif check:
        raise typer.Exit(check_status(watched, as_json=as_json))
    else:
        show_status(watched, as_json=as_json)


def jobs(as_json: Json = False, coordinator: Url = LOCAL) -> None:
    """The jobs and their current runs."""

    show_jobs(coordinator, as_json=as_json)


def runs(
    job: JobArgument = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="How many at most.")] = 20,
    before: Annotated[str | None, typer.Option(help="Only runs older than this one.")] = None,
    as_json: Json = False,
    coordinator: Url = LOCAL,
) -> None:
    """The runs of a job, newest first."""

    show_runs(coordinator, job, limit, before, as_json=as_json)


def containers(run: RunArgument = None, as_json: Json = False, coordinator: Url = LOCAL) -> None:
    """The containers of a run, those that are gone too."""

    show_containers(coordinator, run, as_json=as_json)


def tasks(run: RunArgument = None, as_json: Json = False, coordinator: Url = LOCAL) -> None:
    """The tasks of a run: who holds them, and how far their stages have come."""

    show_tasks(coordinator, run, as_json=as_json)


REFRESH = timedelta(seconds=2)
AT_ONCE = 8
"""How many runs are asked for at the same time."""

DEGRADED = 2


class ContainersReply(wire_body.Reply):
    """The body of `sluice containers --json`."""

    job: str
    run_id: str
    containers: tuple[wire_runs.ContainerReply, ...]


class TasksReply(wire_body.Reply):
    """The body of `sluice tasks --json`."""

    job: str
    run_id: str
    tasks: tuple[wire_runs.TaskReply, ...]


@dataclass(frozen=True, slots=True)
class Watched:
    """What a status is asked for: one job, or None for all."""

    url: str
    job: str | None
    old_report_seconds: float

    async def status(self, client: CoordinatorClient) -> StatusReply:
        jobs = (await client.jobs()).jobs if self.job is None else (await find_job(client, self.job),)
        free = asyncio.Semaphore(AT_ONCE)

        async def one(job: wire_runs.JobReply) -> RunOverview:
            async with free:
                run = await client.run(RunId(job.current_run))
            return overview(run, _now(), timedelta(seconds=self.old_report_seconds))

        return status_of(await asyncio.gather(*(one(job) for job in jobs)))


def _now() -> datetime:
    return SystemClock().now()


# --- showing ---------------------------------------------------------------------------------------------------------


def _spelled(reply: wire_body.Reply) -> str:
    return reply.model_dump_json(by_alias=True, indent=2)


def _tell(reply: wire_body.Reply, show: Callable[[int | None], RenderableType], *, as_json: bool) -> None:
    screen = Screen(sys.stdout)
    if as_json:
        screen.say(_spelled(reply))
    else:
        screen.show(show(screen.width))


def show_jobs(url: str, *, as_json: bool) -> None:
    reply = asked(url, lambda client: client.jobs())
    _tell(reply, lambda width: jobs_table(reply, width), as_json=as_json)


def show_runs(url: str, job: str | None, limit: int, before: str | None, *, as_json: bool) -> None:
    async def ask(client: CoordinatorClient) -> wire_runs.RunsReply:
        name = JobName((await find_job(client, job)).job)
        return await client.runs(name, limit, RunId(before) if before else None)

    reply = asked(url, ask)
    _tell(reply, lambda width: _with_note(runs_table(reply, width), reply.next), as_json=as_json)


def show_containers(url: str, run: str | None, *, as_json: bool) -> None:
    found = asked(url, lambda client: find_run(client, run))
    reply = ContainersReply(job=found.job, run_id=found.run_id, containers=found.incarnations)
    _tell(reply, lambda width: _of_run(found, containers_table(found, width)), as_json=as_json)


def show_tasks(url: str, run: str | None, *, as_json: bool) -> None:
    found = asked(url, lambda client: find_run(client, run))
    reply = TasksReply(job=found.job, run_id=found.run_id, tasks=found.tasks)
    _tell(reply, lambda width: _of_run(found, tasks_table(found, found.told_at or _now(), width)), as_json=as_json)


def _of_run(run: wire_runs.RunDetail, page: RenderableType) -> RenderableType:
    return Group(Text(f"run {run.run_id} ({run.state})"), Text(""), page)


def show_status(watched: Watched, *, as_json: bool) -> None:
    reply = asked(watched.url, watched.status)
    _tell(reply, lambda width: status_page(reply, _now(), width), as_json=as_json)


def check_status(watched: Watched, *, as_json: bool) -> int:
    """The exit code, after a line for each trouble."""
    reply = asked(watched.url, watched.status)
    troubles = [Text(f"{run.job}: {shown(trouble)}") for run in reply.jobs for trouble in run.troubles]
    _tell(reply, lambda _: Group(*troubles) if troubles else Text("healthy"), as_json=as_json)
    return 0 if reply.healthy else DEGRADED


# --- watching --------------------------------------------------------------------------------------------------------


def watch_status(watched: Watched, *, alone: bool) -> None:
    """Until SIGINT or SIGTERM, or until nobody reads. Raises BadSettings, UnknownJob."""
    if not alone:
        raise BadSettings("--watch is for people: leave out --json and --check")
    asyncio.run(_watch(watched, Screen(sys.stdout)))


async def _watch(watched: Watched, screen: Screen) -> None:
    watching = asyncio.current_task()
    assert watching is not None
    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, watching.cancel)
    client = CoordinatorClient(watched.url)
    try:
        with suppress(asyncio.CancelledError):
            if is_interactive(screen.console):
                with InPlace(screen.console) as place:
                    await _refresh(watched, client, screen, place.show)
            else:
                await _refresh(watched, client, screen, _after_one_another(screen))
    finally:
        await client.close()


def _after_one_another(screen: Screen) -> Callable[[RenderableType], Awaitable[None]]:
    async def show(page: RenderableType) -> None:
        screen.show(Group(page, Text("")))

    return show


async def _refresh(watched: Watched, client: CoordinatorClient, screen: Screen, show: Callable[[RenderableType], Awaitable[None]]) -> None:
    """Show again and again; while the coordinator is away, what it said last and that it is away."""
    last: StatusReply | None = None
    last_at = _now()
    while not screen.abandoned:
        away = ""
        try:
            last = await watched.status(client)
            last_at = _now()
        except CoordinatorUnreachable as error:
            away = f"the coordinator does not answer, trying again: {error}"
        await show(_watched_page(last, last_at, away, screen.width))
        await asyncio.sleep(REFRESH.total_seconds())


def _watched_page(last: StatusReply | None, last_at: datetime, away: str, width: int | None) -> RenderableType:
    note = Text(f"{moment(_now())}  Ctrl-C ends this", style="dim")
    if away:
        age = "" if last is None else f"; what is shown is {duration((_now() - last_at).total_seconds())} old"
        note = Text(f"! {shown(away)}{age}", style="bold red")
    return Group(*([] if last is None else [status_page(last, last_at, width), Text("")]), note)
