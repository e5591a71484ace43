"""`sluice status`, `jobs`, `runs`, `containers` and `tasks`: what a coordinator knows, for people and (`--json`) for scripts.

Exit codes: 0; 1 when the coordinator cannot be reached or does not know what is asked for; `sluice status --check` has 2 for degraded.
"""

from __future__ import annotations

from typing import Annotated

import typer

Url = Annotated[str, typer.Option("--coordinator", envvar="SLUICE_COORDINATOR_URL", help="The coordinator's URL.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document, spelled as the API spells it.")]
JobArgument = Annotated[str | None, typer.Argument(metavar="JOB", help="Default: the only job.")]
RunArgument = Annotated[str | None, typer.Argument(metavar="RUN", help="A run, or a job for its current run. Default: the only job's.")]

LOCAL = "http://127.0.0.1:8180"


def status(
    job: Annotated[str | None, typer.Argument(metavar="JOB", help="Default: every job.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh in place until Ctrl-C.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Only say what is wrong: exit code 0 healthy, 2 degraded.")] = False,
    old_report_seconds: Annotated[float, typer.Option(min=0, help="How old the last report of a stage with arrears may be.")] = 300,
    as_json: Json = False,
    coordinator: Url = LOCAL,
) -> None:
    """How the jobs are: containers, tasks, and what each stage does."""
    from containers.status import Watched, check_status, show_status, watch_status

    watched = Watched(coordinator, job, old_report_seconds)
    if watch:
        watch_status(watched, alone=not (check or as_json))
    elif check:
        raise typer.Exit(check_status(watched, as_json=as_json))
    else:
        show_status(watched, as_json=as_json)


def jobs(as_json: Json = False, coordinator: Url = LOCAL) -> None:
    """The jobs and their current runs."""
    from containers.status import show_jobs

    show_jobs(coordinator, as_json=as_json)


def runs(
    job: JobArgument = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="How many at most.")] = 20,
    before: Annotated[str | None, typer.Option(help="Only runs older than this one.")] = None,
    as_json: Json = False,
    coordinator: Url = LOCAL,
) -> None:
    """The runs of a job, newest first."""
    from containers.status import show_runs

    show_runs(coordinator, job, limit, before, as_json=as_json)


def containers(run: RunArgument = None, as_json: Json = False, coordinator: Url = LOCAL) -> None:
    """The containers of a run, those that are gone too."""
    from containers.status import show_containers

    show_containers(coordinator, run, as_json=as_json)


def tasks(run: RunArgument = None, as_json: Json = False, coordinator: Url = LOCAL) -> None:
    """The tasks of a run: who holds them, and how far their stages have come."""
    from containers.status import show_tasks

    show_tasks(coordinator, run, as_json=as_json)
