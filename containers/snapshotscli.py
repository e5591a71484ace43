"""`sluice snapshots`: what is backed up, pins, and going back to a snapshot.

Exit codes: 0; 1 when the coordinator cannot be reached or refuses; `verify` has 2 for a snapshot that is not whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from containers.statuscli import LOCAL, Json, Url

app = typer.Typer(no_args_is_help=True, help="Snapshots of jobs' state in the blob stores: look at them, keep them, go back to one.")

Job = Annotated[str, typer.Argument(help="The job.")]
Task = Annotated[str, typer.Argument(help='The task, as "Partition 0".')]
Stage = Annotated[str, typer.Argument(help="The stage.")]
Checkpoint = Annotated[str, typer.Argument(help='The snapshot\'s checkpoint id, or "head" for the one that the store goes on from.')]
OneTask = Annotated[str | None, typer.Option("--task", help="Only this task's.")]
OneStage = Annotated[str | None, typer.Option("--stage", help="Only this stage's.")]
OneStore = Annotated[str | None, typer.Option("--blob-store", help="Of this blob store only.")]


@app.command("ls")
def list_snapshots(
    job: Annotated[str | None, typer.Argument(metavar="JOB", help="Default: the only job.")] = None,
    task: OneTask = None,
    stage: OneStage = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="How many at most.")] = 20,
    before: Annotated[int | None, typer.Option(min=1, help="Only those with lower numbers.")] = None,
    as_json: Json = False,
    coordinator: Url = LOCAL,
) -> None:
    """The snapshots of a job that are retained, newest first, and why."""
    from containers.snapshots import show_snapshots

    show_snapshots(coordinator, job, task, stage, before, limit, as_json=as_json)


@app.command()
def show(job: Job, task: Task, stage: Stage, checkpoint: Checkpoint, as_json: Json = False, coordinator: Url = LOCAL) -> None:
    """One snapshot."""
    from containers.snapshots import show_snapshot

    show_snapshot(coordinator, job, task, stage, checkpoint, as_json=as_json)


@app.command()
def pins(job: Job, as_json: Json = False, coordinator: Url = LOCAL) -> None:
    """The pins of a job."""
    from containers.snapshots import show_pins

    show_pins(coordinator, job, as_json=as_json)


@app.command()
def pin(
    job: Job,
    task: OneTask = None,
    stage: OneStage = None,
    checkpoint: Annotated[str | None, typer.Option(help="This snapshot; default: the newest of each store.")] = None,
    name: Annotated[str | None, typer.Option(help="The pin's id; one that is there is replaced. Default: a new one.")] = None,
    reason: Annotated[str, typer.Option(help="Why, for others.")] = "",
    hours: Annotated[float | None, typer.Option(min=0, help="How long it holds; default: until it is taken away.")] = None,
    as_json: Json = False,
    coordinator: Url = LOCAL,
) -> None:
    """Keep snapshots, whatever the retention says."""
    from containers.snapshots import Pinning, pin_snapshots

    pin_snapshots(coordinator, job, Pinning(task, stage, checkpoint, name, reason, hours), as_json=as_json)


@app.command()
def unpin(job: Job, pin: Annotated[str, typer.Argument(metavar="PIN", help="The pin's id.")], coordinator: Url = LOCAL) -> None:
    """Take a pin away. What it alone kept goes."""
    from containers.snapshots import unpin_snapshots

    unpin_snapshots(coordinator, job, pin)


@app.command()
def verify(
    job: Job,
    task: Task,
    stage: Stage,
    checkpoint: Checkpoint,
    blob_store: OneStore = None,
    as_json: Json = False,
    coordinator: Url = LOCAL,
) -> None:
    """Read a snapshot whole and compare every size and hash."""
    from containers.snapshots import verify_snapshot

    raise typer.Exit(verify_snapshot(coordinator, job, task, stage, checkpoint, blob_store, as_json=as_json))


@app.command()
def restore(
    job: Job,
    task: Task,
    stage: Stage,
    checkpoint: Checkpoint,
    into: Annotated[
        Path | None, typer.Option(help="Only copy it to this directory, which must not be there; the job is left alone.")
    ] = None,
    blob_store: OneStore = None,
    as_json: Json = False,
    coordinator: Url = LOCAL,
) -> None:
    """Go back to a snapshot: the next container that takes the task restores it, and goes on from it. The run must have been stopped."""
    from containers.snapshots import choose_snapshot, copy_snapshot

    if into is not None:
        copy_snapshot(coordinator, job, task, stage, checkpoint, into, blob_store)
    else:
        choose_snapshot(coordinator, job, task, stage, checkpoint, as_json=as_json)
