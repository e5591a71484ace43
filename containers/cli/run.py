"""`sluice run`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from containers.local.run import LocalRun, run_options
from sluice import logconfig
from sluice.cli.deploy import Bind, Config, Containers, JobFile, Start, System
from sluice.streams.settings import read_stream_settings


def run(
    job_file: JobFile,
    containers: Containers = 1,
    home: Annotated[
        Path | None,
        typer.Option(envvar="SLUICE_HOME", help="Directory of the database, the log, local state and logs. Default: .sluice."),
    ] = None,
    port: Annotated[int, typer.Option(help="Port of the coordinator on 127.0.0.1. 0 chooses a free one.")] = 8180,
    start: Start = "checkpoint",
    system: System = "log",
    bind: Bind = None,
    config: Config = None,
    master: Annotated[
        str | None, typer.Option(envvar="SLUICE_SPARK_MASTER", help="Spark master URL of each container. Default: local[2].")
    ] = None,
    restarts: Annotated[int, typer.Option(min=0, metavar="N", help="How often to restart a crashing container within ten minutes.")] = 5,
) -> None:
    """Run a job on this machine: a coordinator and its containers. They are processes, which are restarted when they crash. Ctrl-C stops
    the job between two batches.
    """
    logconfig.read_log_settings()  # the processes read them, too: reject bad ones before any process is started
    logconfig.configure(logconfig.LogSettings(log_format="text", log_level="WARNING"))
    home = read_stream_settings(home=home).home  # of the settings file, too, where `sluice streams` looks for it
    options = run_options(job_file, containers, home, port, start, system, config or [], bind or [], master)
    raise typer.Exit(asyncio.run(LocalRun(options, restarts).run()))
