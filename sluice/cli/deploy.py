"""`sluice deploy`, and the options that it shares with `sluice run`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from sluice import deploy as deployment
from sluice import logconfig, tracing
from sluice.cli.documents import Document, Json, print_reply
from sluice.cli.runner import LOCAL, Url
from sluice.wire import runs as wire_runs

JobFile = Annotated[Path, typer.Argument(metavar="JOBFILE", help="Python file that declares the job.")]
Containers = Annotated[int, typer.Option("--containers", metavar="N", help="Number of containers.")]
Start = Annotated[
    str,
    typer.Option(
        "--start",
        help="Where to start reading: checkpoint (continue where the last run stopped), drained (at the offsets of the last drain), "
        "earliest, latest, or an ISO 8601 time. The last three start with empty state; drained too, unless the drain kept the state.",
    ),
]
System = Annotated[str, typer.Option("--system", help="System of the streams: log or kafka.")]
Bind = Annotated[
    list[str] | None,
    typer.Option("--bind", metavar="NAME=SYSTEM[:STREAM]", help="System and name of one stream of the job. May be repeated."),
]
Config = Annotated[list[str] | None, typer.Option("--config", metavar="KEY=VALUE", help="Configuration of the run. May be repeated.")]


def deploy(
    job_file: JobFile,
    containers: Containers = 1,
    start: Start = "checkpoint",
    system: System = "log",
    bind: Bind = None,
    config: Config = None,
    as_json: Annotated[Json, Document(wire_runs.RunReply)] = False,
    coordinator: Url = LOCAL,
) -> None:
    """Create a run of a job, and print its id.

    No process is started. Start the containers with this id as SLUICE_RUN_ID. A live run of the job is stopped, and the new one continues
    where it stopped.
    """
    logconfig.configure(logconfig.read_log_settings())
    tracing.configure("sluice-deploy")
    request = deployment.job_request(job_file, containers, start, system, config or [], bind or [])
    made = asyncio.run(deployment.deploy(coordinator, request))
    print_reply(made, lambda _: made.run_id, as_json=as_json)
