"""`sluice container`, `sluice deploy`, `sluice run` and `sluice class-archive`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

JobFile = Annotated[Path, typer.Argument(help="The Python file that holds the Job.")]
Containers = Annotated[int, typer.Option(help="How many containers.")]
Start = Annotated[
    str, typer.Option(help="checkpoint (go on), or drained (where the last drain ended), earliest, latest or an ISO time (a new history).")
]
System = Annotated[str, typer.Option(help="The system of all streams: log or kafka.")]
Bind = Annotated[list[str] | None, typer.Option(help="NAME=SYSTEM[:STREAM] for one stream of the job; may be repeated.")]
Config = Annotated[list[str] | None, typer.Option(help="key=value for the run; may be repeated.")]


def container(job_file: JobFile) -> None:
    """Run one container of a run, with its watchdog. Settings come from SLUICE_COORDINATOR_URL, SLUICE_RUN_ID, SLUICE_PROCESSOR_ID and
    EXECUTION_ENV_CONTAINER_ID. Exit codes: 0 stopped in order, 1 failure, 3 lease lost."""
    from containers.settings import read_container_settings
    from containers.watchdog import Watchdog
    from sluice import logconfig
    from sluice.clock import SystemClock

    stamp = logconfig.configure(logconfig.read_log_settings())
    settings = read_container_settings()
    stamp.fields |= settings.log_fields
    raise typer.Exit(asyncio.run(Watchdog(job_file, settings, SystemClock()).run()))


def deploy(
    job_file: JobFile,
    containers: Containers = 1,
    start: Start = "checkpoint",
    system: System = "log",
    bind: Bind = None,
    config: Config = None,
    coordinator: Annotated[str, typer.Option(envvar="SLUICE_COORDINATOR_URL", help="The coordinator's URL.")] = "http://127.0.0.1:8180",
) -> None:
    """Make a run of the job and print its id, the SLUICE_RUN_ID of its containers; nothing is started. A live run of the job is told to
    stop, and the new one goes on where it stopped."""
    from sluice import logconfig
    from sluice.deploy import deploy, job_request

    logconfig.configure(logconfig.read_log_settings())
    request = job_request(job_file, containers, start, system, config or [], bind or [])
    typer.echo(asyncio.run(deploy(coordinator, request)))


def run(
    job_file: JobFile,
    containers: Containers = 1,
    home: Annotated[Path, typer.Option(help="Directory of the database, the log, local state and logs.")] = Path(".sluice"),
    port: Annotated[int, typer.Option(help="The coordinator's port on 127.0.0.1 (0 = any free one).")] = 8180,
    start: Start = "checkpoint",
    system: System = "log",
    bind: Bind = None,
    config: Config = None,
    master: Annotated[
        str | None, typer.Option(envvar="SLUICE_SPARK_MASTER", help="Spark's master of each container; local[2] if none is said.")
    ] = None,
    restarts: Annotated[int, typer.Option(min=0, help="How often a crashing container is started again within ten minutes.")] = 5,
) -> None:
    """Run a job on this machine: a coordinator and containers as processes, restarted when they crash. Ctrl-C stops it in order."""
    from containers.local.run import LocalRun, run_options
    from sluice import logconfig

    logconfig.read_log_settings()  # of the processes to come: refused here, before there are any
    logconfig.configure(logconfig.LogSettings(log_format="text", log_level="WARNING"))
    options = run_options(job_file, containers, home, port, start, system, config or [], bind or [], master)
    raise typer.Exit(asyncio.run(LocalRun(options, restarts).run()))


def class_archive() -> None:
    """Make an archive of Spark's classes, unless it is there, and print its file. Containers on this machine then start with a quarter
    less CPU, and share the archive's memory. For images, and for machines whose containers start often. It is in SLUICE_JARS_DIR, and of
    this Java and this PySpark alone: make it again after an upgrade."""
    import os

    from containers.spark.cds import made
    from sluice import logconfig

    logconfig.configure(logconfig.read_log_settings())
    typer.echo(made(os.environ).file)
