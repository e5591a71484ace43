"""Shared by all commands: options, calls to the coordinator, finding a job or run by name, and output as text or JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from sluice.client import LOCAL as LOCAL
from sluice.client import URL, CoordinatorClient, OperatorClient, Refused
from sluice.core.errors import ClientError, UnknownJob, UnknownRun
from sluice.core.ids import RunId
from sluice.wire import runs as wire_runs

T = TypeVar("T")

# --- options ---------------------------------------------------------------------------------------------------------

Url = Annotated[str, typer.Option("--coordinator", metavar="URL", envvar=URL, help="URL of the coordinator, or several with commas.")]
Job = Annotated[str, typer.Argument(metavar="JOB", help="Name of the job.")]
OptionalJob = Annotated[str | None, typer.Argument(metavar="JOB", help="Name of the job. May be omitted if there is only one.")]
OptionalRun = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help="Id of a run, or name of a job for its current run. May be omitted if there is only one job."),
]
Limit = Annotated[int, typer.Option(min=1, max=200, metavar="N", help="Maximum number of entries.")]


# --- calls to the coordinator ----------------------------------------------------------------------------------------


def call(url: str, request: Callable[[OperatorClient], Awaitable[T]]) -> T:
    """Run `request` with a client for the coordinator at `url`. Raises the errors of `CoordinatorClient`."""

    async def run() -> T:
        client = OperatorClient(url)
        try:
            return await request(client)
        finally:
            await client.close()

    return asyncio.run(run())


async def find_job(client: CoordinatorClient, name: str | None) -> wire_runs.JobReply:
    """The job of that name, or the only job. Raises UnknownJob, and ClientError if no name is given and there are several jobs."""
    jobs = (await client.jobs()).jobs
    if not jobs:
        raise UnknownJob("there are no jobs yet")
    if name is None and len(jobs) == 1:
        return jobs[0]
    choices = ", ".join(each.job for each in jobs)
    if name is None:
        raise ClientError(f"there are {len(jobs)} jobs; name one of: {choices}")
    found = next((each for each in jobs if each.job == name), None)
    if found is None:
        raise UnknownJob(f"no job {name!r}; the jobs are: {choices}")
    return found


async def find_run(client: CoordinatorClient, name: str | None) -> wire_runs.RunDetail:
    """The run of that id, or the current one of the job of that name, or of the only job. Raises UnknownRun, UnknownJob, ClientError."""
    jobs = (await client.jobs()).jobs
    if name is not None:
        current = {each.job: each.current_run for each in jobs}
        try:
            return await client.run(RunId(current.get(name, name)))
        except Refused as refused:
            if refused.refused_as != UnknownRun.slug:
                raise
            raise UnknownRun(f"no job or run {name!r}; the jobs are: {', '.join(current) or 'none'}") from None
    if len(jobs) > 1:
        choices = ", ".join(f"{each.current_run} ({each.state})" for each in jobs)
        raise ClientError(f"there are {len(jobs)} jobs; name a job or one of the runs: {choices}")
    if not jobs:
        raise UnknownRun("there are no runs yet")
    return await client.run(RunId(jobs[0].current_run))


# --- output ----------------------------------------------------------------------------------------------------------


def with_next_page(page: RenderableType, before: str | int | None) -> RenderableType:
    """The page with a hint for the next page, if there is one."""
    return page if before is None else Group(page, Text(f"for older entries: --before {before}", style="dim"))
