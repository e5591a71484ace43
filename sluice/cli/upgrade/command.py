"""The options of `sluice upgrade`, and its exit code."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from sluice.cli.client import DrainClient
from sluice.cli.console.tables import shown
from sluice.cli.runner import LOCAL, Json, Url, tell
from sluice.cli.upgrade.decide import EXIT_CODES, UpgradeOptions, UpgradeReply, say
from sluice.cli.upgrade.run import Upgrade
from sluice.core.errors import SluiceError


def upgrade(
    job_file: Annotated[Path, typer.Argument(help="The Python file of the new version; the job is the one that it names.")],
    containers: Annotated[int | None, typer.Option(help="How many containers (default: as the present run).")] = None,
    system: Annotated[str | None, typer.Option(help="The system of all streams (default: as the present run).")] = None,
    bind: Annotated[list[str] | None, typer.Option(help="NAME=SYSTEM[:STREAM] for one stream of the job; may be repeated.")] = None,
    config: Annotated[list[str] | None, typer.Option(help="key=value over what the present run has; may be repeated.")] = None,
    within: Annotated[float | None, typer.Option(min=0.001, max=1e9, help="Seconds until the drain gives up.")] = None,
    watch: Annotated[float, typer.Option(min=1, max=1e6, help="Seconds from its deployment in which the new version must do well.")] = 180,
    batches: Annotated[int, typer.Option(min=1, max=1000, help="Batches that each stage must commit, unless it has nothing to read.")] = 2,
    allow_left: Annotated[bool, typer.Option("--allow-left", help="Go on without rows that a flush cannot empty.")] = False,
    no_back: Annotated[bool, typer.Option("--no-back", help="Leave a new version that fails as it is.")] = False,
    anew: Annotated[bool, typer.Option("--anew", help="Upgrade although the present run is of this very file.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check all that can be checked, and print the steps.")] = False,
    local: Annotated[bool, typer.Option("--local", help="Start the containers here, as `sluice run` does, and stay with them.")] = False,
    old: Annotated[Path | None, typer.Option(help="With --local: the old job file, to start its containers after going back.")] = None,
    home: Annotated[Path, typer.Option(envvar="SLUICE_HOME", help="With --local: as for `sluice run`.")] = Path(".sluice"),
    master: Annotated[str | None, typer.Option(envvar="SLUICE_SPARK_MASTER", help="With --local: Spark's master.")] = None,
    restarts: Annotated[int, typer.Option(min=0, help="With --local: how often a crashing container is started again.")] = 5,
    as_json: Json = False,
    coordinator: Url = LOCAL,
) -> None:
    """Upgrade a job: drain it, check that its state is empty, start the new version from the drained offsets, watch its first batches, and
    go back to the old version from the same point if it fails.

    The same command again goes on after any interruption. Exit codes: 0 upgraded; 1 refused, or the coordinator was not reached; 2 not
    drained, or rows are left, also foreseen by --dry-run; 3 the new version does not do well and was left as it is; 4 went back to the old
    version.
    """
    from sluice import logconfig
    from sluice.cli.upgrade.decide import LocalOptions, Settings, UpgradeOptions
    from sluice.core.errors import BadSettings

    if old is not None and not local:
        raise BadSettings("--old is for --local: elsewhere the deployment platform starts the old version's containers")
    if local and as_json:
        raise BadSettings("--local stays in the foreground and shows the run: leave out --json")
    logconfig.configure(logconfig.read_log_settings())
    wish = UpgradeOptions(
        job_file=job_file,
        settings=Settings(containers, system, bind or (), config or ()),
        within=within,
        watch=timedelta(seconds=watch),
        batches=batches,
        allow_left=allow_left,
        back=not no_back,
        anew=anew,
        dry_run=dry_run,
        local=LocalOptions(home, master, restarts, old) if local else None,
    )
    raise typer.Exit(upgrade_job(coordinator, wish, as_json=as_json))


def upgrade_job(url: str, wish: UpgradeOptions, *, as_json: bool) -> int:
    """The exit code. Raises BadJobFile, BadSettings, UnknownJob, ClientError, and what `Coordinator` raises, before anything is changed."""
    made: list[Upgrade] = []

    async def run() -> int:
        client = DrainClient(url)
        try:
            made.append(Upgrade(client, wish, quiet=as_json))
            reply = await made[0].run()
            tell(reply, lambda _: _page(reply), as_json=as_json)
            return await made[0].stay(EXIT_CODES[reply.outcome])
        finally:
            if made:
                await made[0].close()
            await client.close()

    try:
        return asyncio.run(run())
    except (KeyboardInterrupt, SluiceError):
        if made:
            say(made[0].standing)
        raise


def _page(reply: UpgradeReply) -> RenderableType:
    steps = [Text(f"{number}. {shown(line)}") for number, line in enumerate(reply.steps, 1)]
    return Group(Text(shown(reply.told)), *steps)
