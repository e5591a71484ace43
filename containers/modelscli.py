"""`sluice plan`, `sluice scale` and `sluice models`: what would become of a job's model, and what became of it.

Exit codes: 0; 1 when the coordinator cannot be reached or refuses; `plan` has 2 when what is supposed would be refused, or nobody can tell.
"""

from __future__ import annotations

from typing import Annotated

import typer

from containers.statuscli import LOCAL, JobArgument, Json, Url

app = typer.Typer(no_args_is_help=True, help="The versions of a job's model: who made each, when and why, and what changed.")

Job = Annotated[str, typer.Argument(help="The job.")]
Version = Annotated[int, typer.Argument(min=1, help="A version's number.")]
Why = Annotated[str, typer.Option(help="Why, for others.")]
IfVersion = Annotated[int | None, typer.Option(min=1, help="Only while this version is in force.")]


def plan(
    job: JobArgument = None,
    stream: Annotated[list[str] | None, typer.Option(help="An input of the job, by its name for it; may be repeated.")] = None,
    partitions: Annotated[list[int] | None, typer.Option(min=1, help="How many partitions that stream would have.")] = None,
    containers: Annotated[int | None, typer.Option(help="How many containers the run would have.")] = None,
    as_json: Json = False,
    coordinator: Url = LOCAL,
) -> None:
    """Tell what would happen if streams had other partition counts, or the run another number of containers. Nothing is changed."""
    from containers.models import show_plan

    raise typer.Exit(show_plan(coordinator, job, stream or [], partitions or [], containers, as_json=as_json))


def scale(
    job: Job,
    containers: Annotated[int, typer.Argument(metavar="N", help="How many containers the run is to have.")],
    why: Why = "",
    if_version: IfVersion = None,
    as_json: Json = False,
    coordinator: Url = LOCAL,
) -> None:
    """Change the number of containers of a job that runs. As few tasks as balance allows move, between batches. Start the new ones."""
    from containers.models import scale_job

    scale_job(coordinator, job, containers, why, if_version, as_json=as_json)


@app.command("ls")
def list_versions(
    job: JobArgument = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="How many at most.")] = 20,
    before: Annotated[int | None, typer.Option(min=1, help="Only those with lower numbers.")] = None,
    as_json: Json = False,
    coordinator: Url = LOCAL,
) -> None:
    """The versions of a job's model, newest first."""
    from containers.models import show_versions

    show_versions(coordinator, job, before, limit, as_json=as_json)


@app.command()
def show(job: Job, version: Version, as_json: Json = False, coordinator: Url = LOCAL) -> None:
    """One version: which slot has which task, and what each task reads."""
    from containers.models import show_version

    show_version(coordinator, job, version, as_json=as_json)


@app.command()
def diff(job: Job, version: Version, later: Version, as_json: Json = False, coordinator: Url = LOCAL) -> None:
    """What a later version changed."""
    from containers.models import show_difference

    show_difference(coordinator, job, version, later, as_json=as_json)


@app.command()
def grow(job: Job, why: Why = "", as_json: Json = False, coordinator: Url = LOCAL) -> None:
    """Look at the partition counts of the job's inputs now, and let it grow as far as is safe; also to what was rolled back."""
    from containers.models import grow_job

    grow_job(coordinator, job, why, as_json=as_json)


@app.command()
def rollback(
    job: Job, version: Version, why: Why = "", if_version: IfVersion = None, as_json: Json = False, coordinator: Url = LOCAL
) -> None:
    """Put an older version in force again, as long as no container has adopted a later one."""
    from containers.models import roll_back

    roll_back(coordinator, job, version, why, if_version, as_json=as_json)
