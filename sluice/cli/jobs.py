"""`sluice jobs`: list jobs, their runs, containers and tasks, and remove a finished job.

Exit codes: 0; 1 when the coordinator cannot be reached or refuses.
"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from sluice.cli import status
from sluice.cli.console.tables import count, duration, jobs_table
from sluice.cli.documents import Document, Json, print_reply
from sluice.cli.runner import LOCAL, Job, Url, call
from sluice.wire import runs as wire_runs

app = typer.Typer(invoke_without_command=True, help="List jobs, their runs, containers and tasks, and remove finished jobs.")
app.command("runs")(status.runs)
app.command("containers")(status.containers)
app.command("tasks")(status.tasks)


@app.callback()
def jobs(context: typer.Context, as_json: Annotated[Json, Document(wire_runs.JobsReply)] = False, coordinator: Url = LOCAL) -> None:
    """List jobs, their runs, containers and tasks, and remove finished jobs."""
    if context.invoked_subcommand is not None:
        return
    reply = call(coordinator, lambda client: client.jobs())
    print_reply(reply, lambda width: jobs_table(reply, width), as_json=as_json)


@app.command("rm")
def remove(
    job: Job,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    as_json: Annotated[Json, Document(wire_runs.JobRemovalReply)] = False,
    coordinator: Url = LOCAL,
) -> None:
    """Remove a job whose run has ended, with its history and its snapshots. Its state cannot be restored afterwards."""
    reply = call(coordinator, lambda client: client.remove_job(job, dry_run=dry_run))
    print_reply(reply, lambda _: Text(_sentence(reply)), as_json=as_json)


def _sentence(reply: wire_runs.JobRemovalReply) -> str:
    counts = {"runs": reply.runs, "containers": reply.containers, "versions of the job model": reply.versions}
    counts |= {"drains": reply.drains, "snapshots": reply.snapshots, "pins": reply.pins}
    listed = ", ".join(f"{count(number)} {name}" for name, number in counts.items())
    verb = "would be removed" if reply.dry_run else "is removed"
    return f"job {reply.job} {verb}, with {listed}; its blobs are deleted after {duration(reply.garbage_grace_seconds)}"
