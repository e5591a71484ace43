"""What the commands share: options, one call to a coordinator, finding a job or run by name, and output as text or JSON."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from importlib.metadata import entry_points
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from sluice.cli.console.tables import Screen
from sluice.client import CoordinatorClient
from sluice.core.errors import ClientError, UnknownJob, UnknownRun
from sluice.core.ids import RunId
from sluice.wire import body as wire_body
from sluice.wire import runs as wire_runs

Url = Annotated[str, typer.Option("--coordinator", envvar="SLUICE_COORDINATOR_URL", help="The coordinator's URL.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document, spelled as the API spells it.")]
JobArgument = Annotated[str | None, typer.Argument(metavar="JOB", help="Default: the only job.")]
RunArgument = Annotated[str | None, typer.Argument(metavar="RUN", help="A run, or a job for its current run. Default: the only job's.")]

LOCAL = "http://127.0.0.1:8180"


T = TypeVar("T")


# --- asking ----------------------------------------------------------------------------------------------------------


def asked(url: str, ask: Callable[[CoordinatorClient], Awaitable[T]]) -> T:
    """Raises what `CoordinatorClient` raises."""

    async def run() -> T:
        client = CoordinatorClient(url)
        try:
            return await ask(client)
        finally:
            await client.close()

    return asyncio.run(run())


async def find_job(client: CoordinatorClient, name: str | None) -> wire_runs.JobReply:
    """The job of that name, or the only one. Raises UnknownJob, and ClientError when there are several to choose from."""
    jobs = (await client.jobs()).jobs
    if not jobs:
        raise UnknownJob("there is no job yet")
    if name is None and len(jobs) == 1:
        return jobs[0]
    choices = ", ".join(each.job for each in jobs)
    if name is None:
        raise ClientError(f"there are {len(jobs)} jobs, so name one: {choices}")
    found = next((each for each in jobs if each.job == name), None)
    if found is None:
        raise UnknownJob(f"there is no job {name!r}: there is {choices}")
    return found


async def find_run(client: CoordinatorClient, name: str | None) -> wire_runs.RunDetail:
    """The run of that id, or the current one of the job of that name, or of the only job. Raises UnknownRun, UnknownJob, ClientError."""
    jobs = (await client.jobs()).jobs
    if name is not None:
        current = {each.job: each.current_run for each in jobs}
        return await client.run(RunId(current.get(name, name)))
    if len(jobs) > 1:
        choices = ", ".join(f"{each.current_run} ({each.state})" for each in jobs)
        raise ClientError(f"there are {len(jobs)} jobs, so name a run or a job: {choices}")
    if not jobs:
        raise UnknownRun("there is no run yet")
    return await client.run(RunId(jobs[0].current_run))


def _with_note(page: RenderableType, following: str | None) -> RenderableType:
    return page if following is None else Group(page, Text(f"older ones: --before {following}", style="dim"))


def extension(name: str) -> Any:
    """What another package provides for a command of this one, which does not import it: an entry point of `sluice.extensions`."""
    return next(iter(entry_points(group="sluice.extensions", name=name))).load()


def tell(reply: wire_body.Reply, show: Callable[[int | None], RenderableType], *, as_json: bool) -> None:
    screen = Screen(sys.stdout)
    if as_json:
        screen.say(reply.model_dump_json(by_alias=True, indent=2))
    else:
        screen.show(show(screen.width))
