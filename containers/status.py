"""What `sluice status` and its siblings do: ask the coordinator, and show or spell the answer."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from rich.console import Group, RenderableType
from rich.text import Text

from containers.client import Coordinator
from containers.inplace import InPlace
from containers.overview import RunOverview, StatusReply, overview, status_of
from containers.pages import status_page
from containers.tables import Screen, containers_table, duration, is_interactive, jobs_table, moment, runs_table, shown, tasks_table
from sluice.clock import SystemClock
from sluice.core.errors import BadSettings, CoordinatorUnreachable, UnknownJob, UnknownRun, YourRequest
from sluice.core.ids import JobName, RunId
from sluice.wire import body as wire_body
from sluice.wire import runs as wire_runs

T = TypeVar("T")

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


# --- asking ----------------------------------------------------------------------------------------------------------


def asked(url: str, ask: Callable[[Coordinator], Awaitable[T]]) -> T:
    """Raises what `Coordinator` raises."""

    async def run() -> T:
        client = Coordinator(url)
        try:
            return await ask(client)
        finally:
            await client.close()

    return asyncio.run(run())


async def the_job(client: Coordinator, name: str | None) -> wire_runs.JobReply:
    """The job of that name, or the only one. Raises UnknownJob, and YourRequest when there are several to choose from."""
    jobs = (await client.jobs()).jobs
    if not jobs:
        raise UnknownJob("there is no job yet")
    if name is None and len(jobs) == 1:
        return jobs[0]
    choices = ", ".join(each.job for each in jobs)
    if name is None:
        raise YourRequest(f"there are {len(jobs)} jobs, so name one: {choices}")
    found = next((each for each in jobs if each.job == name), None)
    if found is None:
        raise UnknownJob(f"there is no job {name!r}: there is {choices}")
    return found


async def the_run(client: Coordinator, name: str | None) -> wire_runs.RunDetail:
    """The run of that id, or the current one of the job of that name, or of the only job. Raises UnknownRun, UnknownJob, YourRequest."""
    jobs = (await client.jobs()).jobs
    if name is not None:
        current = {each.job: each.current_run for each in jobs}
        return await client.run(RunId(current.get(name, name)))
    if len(jobs) > 1:
        choices = ", ".join(f"{each.current_run} ({each.state})" for each in jobs)
        raise YourRequest(f"there are {len(jobs)} jobs, so name a run or a job: {choices}")
    if not jobs:
        raise UnknownRun("there is no run yet")
    return await client.run(RunId(jobs[0].current_run))


@dataclass(frozen=True, slots=True)
class Watched:
    """What a status is asked for: one job, or None for all."""

    url: str
    job: str | None
    old_report_seconds: float

    async def status(self, client: Coordinator) -> StatusReply:
        jobs = (await client.jobs()).jobs if self.job is None else (await the_job(client, self.job),)
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
    async def ask(client: Coordinator) -> wire_runs.RunsReply:
        name = JobName((await the_job(client, job)).job)
        return await client.runs(name, limit, RunId(before) if before else None)

    reply = asked(url, ask)
    _tell(reply, lambda width: _with_note(runs_table(reply, width), reply.next), as_json=as_json)


def _with_note(page: RenderableType, following: str | None) -> RenderableType:
    return page if following is None else Group(page, Text(f"older ones: --before {following}", style="dim"))


def show_containers(url: str, run: str | None, *, as_json: bool) -> None:
    found = asked(url, lambda client: the_run(client, run))
    reply = ContainersReply(job=found.job, run_id=found.run_id, containers=found.incarnations)
    _tell(reply, lambda width: _of_run(found, containers_table(found, width)), as_json=as_json)


def show_tasks(url: str, run: str | None, *, as_json: bool) -> None:
    found = asked(url, lambda client: the_run(client, run))
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
    client = Coordinator(watched.url)
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


async def _refresh(watched: Watched, client: Coordinator, screen: Screen, show: Callable[[RenderableType], Awaitable[None]]) -> None:
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
