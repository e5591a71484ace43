"""`sluice container`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from containers.agent_process import run_container


def container(
    job_file: Annotated[Path, typer.Argument(metavar="JOBFILE", help="Python file that declares the job.")],
    spare: Annotated[
        bool, typer.Option("--spare", help="Open Spark, and wait for a slot without a container. SLUICE_SPARE does the same.")
    ] = False,
) -> None:
    """Run one container of a run.

    Settings come from the environment: SLUICE_COORDINATOR_URL, SLUICE_RUN_ID, SLUICE_PROCESSOR_ID and EXECUTION_ENV_CONTAINER_ID. Exit
    codes: 0 stopped cleanly, 1 failure, 3 lease lost, 4 a failure that would recur at every start.
    """
    if spare:
        os.environ["SLUICE_SPARE"] = "true"  # the driver reads it
    run_container(job_file)
