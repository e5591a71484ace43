"""`sluice drain`: finish what a job has read, empty its state, and end its run.

Exit codes: 0; 1 when the coordinator cannot be reached or refuses; 2 when the drain was cancelled or failed, and for `--dry-run` when a
flush would leave rows or that is not known.
"""

from __future__ import annotations

from typing import Annotated

import typer

from containers.statuscli import LOCAL, Json, Url


def drain(
    job: Annotated[str | None, typer.Argument(metavar="JOB", help="Default: the only job.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Show how it goes on until it is over.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what a flush could not empty.")] = False,
    require_empty: Annotated[bool, typer.Option("--require-empty", help="Refuse if a flush would leave rows in some state.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel the drain that is on, if nothing is flushed yet.")] = False,
    soft_seconds: Annotated[float | None, typer.Option(min=0.001, max=1e9, help="When to name the late.")] = None,
    hard_seconds: Annotated[float | None, typer.Option(min=0.001, max=1e9, help="When to give up.")] = None,
    as_json: Json = False,
    coordinator: Url = LOCAL,
) -> None:
    """Drain a job: process all that it has read, close every window, fire every timer, commit, and end its run.

    The next run starts at the drained offsets with empty state.
    """
    from containers.draincommand import Wish, drain_job

    wish = Wish(wait, dry_run, require_empty, cancel, soft_seconds, hard_seconds)
    raise typer.Exit(drain_job(coordinator, job, wish, as_json=as_json))
