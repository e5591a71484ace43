"""`sluice exec`."""

from __future__ import annotations

import asyncio
import os
import socket
from datetime import timedelta
from typing import Annotated

import typer

from containers.attached.agent_process import run_command
from containers.attached.claim import Request, command_digest
from containers.attached.drivers import not_started
from containers.attached.port import UNPROTECTED
from containers.attached.submit import check_deploy_mode
from sluice import logconfig
from sluice.cli.runner import LOCAL, Url, call
from sluice.core.errors import CoordinatorUnreachable
from sluice.core.ids import ExecutionContainerId, JobName, checked_name
from sluice.randomness import new_uuid


def execute(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="The command and its arguments, after `--`.")],
    job: Annotated[str, typer.Option("--job", metavar="JOB", help="Name of the job. It is created by its first start.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Stop the command of this job that runs elsewhere, instead of waiting for its end.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until the command may be started, or fail if it may not be started now.")
    ] = True,
    stop_timeout: Annotated[
        float, typer.Option("--stop-timeout", metavar="SECONDS", min=0, help="How long `sluice stop` waits before the command is killed.")
    ] = 120,
    without_coordinator: Annotated[
        bool, typer.Option("--without-coordinator", help="If the coordinator cannot be reached, start the command without any protection.")
    ] = False,
    coordinator: Url = LOCAL,
) -> None:
    """Run a command, such as spark-submit, as the only one of its job: `sluice exec --job orders -- spark-submit orders.py`.

    The command is started when no other machine runs the job, and ended with all its processes when the lease is lost. The exit code is the
    command's; 128 and the number of the signal that ended it; 3 if the lease was lost; 1 if it may not be started.
    """
    checked_name("job", job)
    stamp = logconfig.configure(logconfig.read_log_settings())
    stamp.fields["job"] = job
    check_deploy_mode(command, os.environ)
    if without_coordinator and not _reachable(coordinator):
        typer.echo(f"sluice: NO LEASE: {coordinator} cannot be reached; another copy of {job} may run elsewhere", err=True)
        os.environ[UNPROTECTED] = "1"
        try:
            os.execvp(command[0], command)  # noqa: S606 - it takes the place of this process
        except OSError as error:
            typer.echo(f"sluice: {command[0]}: {error.strerror}", err=True)
            raise typer.Exit(not_started(error)) from error
    request = Request(
        JobName(job),
        ExecutionContainerId(f"container-{new_uuid().hex}"),
        host=socket.gethostname(),
        replace=replace,
        wait=wait,
        command=command_digest(command),
    )
    raise typer.Exit(asyncio.run(run_command(request, command, coordinator, timedelta(seconds=stop_timeout))))


def _reachable(url: str) -> bool:
    try:
        call(url, lambda client: client.live())
    except CoordinatorUnreachable:
        return False
    return True
