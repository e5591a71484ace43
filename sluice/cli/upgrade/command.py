"""The options of `sluice upgrade`, and its exit code."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from sluice import logconfig
from sluice.cli.console.tables import shown
from sluice.cli.deploy import Bind
from sluice.cli.documents import Document, Json, print_reply
from sluice.cli.main import load
from sluice.cli.runner import LOCAL, Url
from sluice.cli.upgrade.decide import EXIT_CODES, Settings, UpgradeOptions, UpgradeReply, say
from sluice.cli.upgrade.run import Upgrade
from sluice.client import OperatorClient
from sluice.core.errors import BadOption, SluiceError


def upgrade(
    job_file: Annotated[
        Path,
        typer.Argument(metavar="JOBFILE", help="Python file of the new version, which names the job; with a COMMAND: the job."),
    ],
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- COMMAND...]", help="The new command of an existing script, as for `sluice exec`.")
    ] = None,
    containers: Annotated[int | None, typer.Option(metavar="N", help="Number of containers. Default: as in the current run.")] = None,
    system: Annotated[str | None, typer.Option(help="System of the streams: log or kafka. Default: as in the current run.")] = None,
    bind: Bind = None,
    config: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Configuration, added to that of the current run. May be repeated.")
    ] = None,
    timeout: Annotated[float | None, typer.Option(min=0.001, max=1e9, metavar="SECONDS", help="Fail the drain after this long.")] = None,
    watch: Annotated[
        float,
        typer.Option(min=1, max=1e6, metavar="SECONDS", help="The new version must become healthy within this time of its deployment."),
    ] = 180,
    batches: Annotated[
        int, typer.Option(min=1, max=1000, metavar="N", help="Batches that each stage must commit, unless it has nothing to read.")
    ] = 2,
    allow_leftover_state: Annotated[
        bool,
        typer.Option("--allow-leftover-state", help="Upgrade even if the flush leaves rows in state. The new version does not get them."),
    ] = False,
    keep_state: Annotated[
        bool,
        typer.Option("--keep-state", help="Continue with the state. The new version must have the same stateful operators."),
    ] = False,
    no_rollback: Annotated[bool, typer.Option("--no-rollback", help="Do not roll back if the new version fails.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Upgrade even if the job file has not changed.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Run all checks, and print the steps. Changes nothing.")] = False,
    as_json: Annotated[Json, Document(UpgradeReply)] = False,
    coordinator: Url = LOCAL,
) -> None:
    """Replace a job by a new version, and roll back if it fails.

    The job is drained, the new version starts at the drained offsets with empty state, and its first batches are watched. If they fail, the
    old version is deployed again at the same offsets. After an interruption, run the same command again: it continues. With --keep-state
    the new version continues with the state of the old one, and so does the old one after a rollback.

    `sluice upgrade JOB -- COMMAND` drains an existing script, runs the new command in its place, as `sluice exec` does, and watches it. If
    it fails, the job is given back to the former command.

    Exit codes: 0 upgraded. 1 refused, or the coordinator cannot be reached. 2 not drained, or rows are left in state (or would be, for
    --dry-run). 3 the new version is not healthy and was left running. 4 rolled back.
    """
    if keep_state and allow_leftover_state:
        raise BadOption("--keep-state leaves nothing behind: leave out --allow-leftover-state")
    if command:
        _check_for_script(containers, system, bind, config, keep_state=keep_state, force=force, as_json=as_json)
        logconfig.configure(logconfig.read_log_settings()).fields["job"] = str(job_file)
        script = load("containers.attached.upgrade:ScriptUpgrade")(
            job=str(job_file),
            command=command,
            timeout=timeout,
            watch=timedelta(seconds=watch),
            batches=batches,
            rollback=not no_rollback,
            dry_run=dry_run,
            allow_leftover_state=allow_leftover_state,
        )
        raise typer.Exit(load("containers.attached.upgrade:upgrade_script")(coordinator, script))
    logconfig.configure(logconfig.read_log_settings())
    options = UpgradeOptions(
        job_file=job_file,
        settings=Settings(containers, system, bind or (), config or ()),
        timeout=timeout,
        watch=timedelta(seconds=watch),
        batches=batches,
        allow_leftover_state=allow_leftover_state,
        keep_state=keep_state,
        rollback=not no_rollback,
        force=force,
        dry_run=dry_run,
    )
    raise typer.Exit(upgrade_job(coordinator, options, as_json=as_json))


def _check_for_script(*values: object, **flags: bool) -> None:
    """Raises BadOption for options that are only for job files."""
    given = [f"--{name.replace('_', '-').removeprefix('as-')}" for name, on in flags.items() if on]
    if given or any(value for value in values):
        raise BadOption(
            f"{', '.join(given) or '--containers, --system, --bind and --config'} cannot be used with a command, because a script has its "
            "own settings"
        )


def upgrade_job(url: str, options: UpgradeOptions, *, as_json: bool) -> int:
    """Run an upgrade. Returns the exit code. Before anything is changed, raises BadJobFile, BadSettings, UnknownJob, ClientError, and the
    errors of `OperatorClient`."""
    made: list[Upgrade] = []

    async def run() -> int:
        client = OperatorClient(url)
        try:
            made.append(Upgrade(client, options, quiet=as_json))
            reply = await made[0].run()
            print_reply(reply, lambda _: _page(reply), as_json=as_json)
            return EXIT_CODES[reply.outcome]
        finally:
            await client.close()

    try:
        return asyncio.run(run())
    except (KeyboardInterrupt, SluiceError):
        if made:
            say(made[0].standing)
        raise


def _page(reply: UpgradeReply) -> RenderableType:
    steps = [Text(f"{number}. {shown(line)}") for number, line in enumerate(reply.steps, 1)]
    return Group(Text(shown(reply.summary)), *steps)
