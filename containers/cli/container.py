"""`sluice container`."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from containers.settings import read_container_settings
from containers.watchdog import AGENT, DRIVER, Watchdog
from sluice import logconfig
from sluice.clock import SystemClock


def container(
    job_file: Annotated[Path, typer.Argument(metavar="JOBFILE", help="Python file that declares the job.")],
    spare: Annotated[
        bool, typer.Option("--spare", help="Open Spark, and wait for a slot without a container. SLUICE_SPARE does the same.")
    ] = False,
) -> None:
    """Run one container of a run, under a watchdog.

    Settings come from the environment: SLUICE_COORDINATOR_URL, SLUICE_RUN_ID, SLUICE_PROCESSOR_ID and EXECUTION_ENV_CONTAINER_ID. Exit
    codes: 0 stopped cleanly, 1 failure, 3 lease lost, 4 a failure that would recur at every start.
    """
    if spare:
        os.environ["SLUICE_SPARE"] = "true"  # the driver reads it, too
    stamp = logconfig.configure(logconfig.read_log_settings())
    settings = read_container_settings()
    stamp.fields |= settings.log_fields
    driver = AGENT if settings.separate_driver else DRIVER
    raise typer.Exit(asyncio.run(Watchdog(job_file, settings, SystemClock(), driver).run()))
