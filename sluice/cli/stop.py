"""`sluice stop` and `sluice start`, for jobs of all kinds.

Exit codes: 0; 1 when the coordinator cannot be reached or refuses.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Annotated

import typer

from sluice.cli.console.tables import shown
from sluice.cli.documents import Document, Json, print_reply
from sluice.cli.runner import LOCAL, OptionalRun, Url, call, find_run
from sluice.client import OperatorClient
from sluice.core.errors import Conflict
from sluice.core.ids import RunId
from sluice.wire import runs as wire_runs

POLL = timedelta(seconds=0.5)
SILENT = timedelta(seconds=2)
"""A stop that takes longer says what it waits for, and names at most NAMED tasks."""
NAMED = 5


class AlreadyRunning(Conflict):
    """The job has a run that has not ended."""


def stop(
    run: OptionalRun = None,
    reason: Annotated[str, typer.Option("--reason", help="Reason, recorded with the run.")] = "",
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Return when the last container has stopped, or immediately.")] = True,
    as_json: Annotated[Json, Document(wire_runs.RunReply, wire_runs.BasicRun)] = False,
    coordinator: Url = LOCAL,
) -> None:
    """Stop a job between two batches. It starts again with `sluice start`, and continues where it stopped."""
    ended = call(coordinator, lambda client: _stopped(client, run, reason, wait=wait))
    state = ended.state.value if ended.state.ended else "is stopping"
    print_reply(ended, lambda _: f"{ended.run_id} {state}", as_json=as_json)


async def _stopped(client: OperatorClient, name: str | None, reason: str, *, wait: bool) -> wire_runs.RunReply:
    found = await find_run(client, name)
    run: wire_runs.RunReply = await client.stop_run(RunId(found.run_id), reason)
    waited, said = timedelta(0), False
    while wait and not run.state.ended:
        await asyncio.sleep(POLL.total_seconds())
        waited += POLL
        run = await client.basic_run(RunId(found.run_id))
        if waited >= SILENT and not said and not run.state.ended:
            said = True
            typer.echo(f"waiting for {_what_runs(await client.run(RunId(found.run_id)))}", err=True)
    return run


def _what_runs(run: wire_runs.RunDetail) -> str:
    tasks = [each.task for each in run.tasks if each.holder is not None]
    if not tasks:
        return "the containers to end"
    more = f" and {len(tasks) - NAMED} more" if len(tasks) > NAMED else ""
    return f"running batches: {', '.join(map(shown, tasks[:NAMED]))}{more}"


COMMANDS = ("attached.command", "attached.refused-command")
"""Names in the config of a run with which `sluice upgrade` decides which command may start. After a stop, any may."""


def start(run: OptionalRun = None, as_json: Annotated[Json, Document(wire_runs.RunReply)] = False, coordinator: Url = LOCAL) -> None:
    """Start a job that was stopped or drained: create its next run, and print its id.

    The run has the settings of the last one. A waiting `sluice exec` starts its command. Start the containers of a job file with this id as
    SLUICE_RUN_ID.
    """
    started = call(coordinator, lambda client: _started(client, run))
    print_reply(started, lambda _: started.run_id, as_json=as_json)


async def _started(client: OperatorClient, name: str | None) -> wire_runs.RunReply:
    found = await find_run(client, name)
    if not found.state.ended:
        what = "is stopping: wait until it has" if found.stop_requested_at is not None else f"is {found.state.value}"
        raise AlreadyRunning(f"run {found.run_id} {what}")
    request = await client.request_of(RunId(found.run_id))
    config = {name: value for name, value in request.config.items() if name not in COMMANDS}
    return await client.deploy(request.model_copy(update={"start": "checkpoint", "config": config}), replaces=RunId(found.run_id))
