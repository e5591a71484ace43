"""`sluice snapshots`: list snapshots, pin them, verify them, and restore one.

Exit codes: 0; 1 when the coordinator cannot be reached or refuses; 2 when `verify` finds a damaged snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from sluice.cli.console.tables import NONE, Column, count, moment, shown, table
from sluice.cli.documents import Document, Json, print_reply
from sluice.cli.main import load
from sluice.cli.operations import call_operation
from sluice.cli.runner import LOCAL, Job, Limit, OptionalJob, Url, call, find_job, with_next_page
from sluice.client import OperatorClient
from sluice.wire import snapshots as wire_snapshots
from sluice.wire.body import Reply

app = typer.Typer(no_args_is_help=True, help="List, pin, verify and restore the snapshots of jobs' state in the blob stores.")

Task = Annotated[str, typer.Argument(metavar="TASK", help='Name of the task, such as "Partition 0".')]
Stage = Annotated[str, typer.Argument(metavar="STAGE", help="Name of the stage.")]
Checkpoint = Annotated[
    str, typer.Argument(metavar="SNAPSHOT", help='Id of the snapshot, or "head" for the one that the stage continues from.')
]
OneTask = Annotated[str | None, typer.Option("--task", metavar="TASK", help="Only this task.")]
OneStage = Annotated[str | None, typer.Option("--stage", metavar="STAGE", help="Only this stage.")]
OneStore = Annotated[str | None, typer.Option("--blob-store", metavar="NAME", help="Read from this blob store only.")]

DAMAGED = 2


# --- listing ---------------------------------------------------------------------------------------------------------


class UnpinnedReply(Reply):
    pin_id: str


class CopiedSnapshotReply(Reply):
    """`directory`: where the snapshot was copied to. `files` and `bytes`: of the copy."""

    directory: str
    files: int
    bytes: int


@app.command("ls")
def list_snapshots(
    job: OptionalJob = None,
    task: OneTask = None,
    stage: OneStage = None,
    limit: Limit = 20,
    before: Annotated[int | None, typer.Option(min=1, metavar="NUMBER", help="List only snapshots with lower numbers.")] = None,
    as_json: Annotated[Json, Document(wire_snapshots.SnapshotsReply)] = False,
    coordinator: Url = LOCAL,
) -> None:
    """List the snapshots of a job, newest first, and why each is retained."""

    async def request(client: OperatorClient) -> wire_snapshots.SnapshotsReply:
        name = job or (await find_job(client, None)).job
        return await client.snapshots(name, task, stage, before, limit)

    reply = call(coordinator, request)
    print_reply(reply, lambda width: with_next_page(snapshots_table(reply, width), reply.next), as_json=as_json)


def snapshots_table(reply: wire_snapshots.SnapshotsReply, width: int | None) -> RenderableType:
    columns = [
        *(Column("NUMBER", right=True, rank=4), Column("TASK"), Column("STAGE"), Column("CHECKPOINT"), Column("BATCH", right=True)),
        *(Column("REPORTED", rank=1), Column("FILES", right=True, rank=3), Column("BYTES", right=True, rank=2)),
        *(Column("BLOB STORES", rank=5), Column("RETAINED BY", folds=True)),
    ]
    rows = [
        (
            *(str(each.seq), shown(each.task), each.stage, each.checkpoint_id, NONE if each.batch_id is None else str(each.batch_id)),
            *(moment(each.reported_at), count(_largest(each, "files")), count(_largest(each, "bytes"))),
            *(", ".join(sorted(each.markers)), shown(", ".join(each.retained_by)) or "no rule: about to be deleted"),
        )
        for each in reply.snapshots
    ]
    return table(columns, rows, width)


def _largest(snapshot: wire_snapshots.SnapshotReply, what: str) -> int:
    return max((int(getattr(each, what)) for each in snapshot.markers.values()), default=0)


@app.command()
def show(
    job: Job,
    task: Task,
    stage: Stage,
    checkpoint: Checkpoint,
    as_json: Annotated[Json, Document(wire_snapshots.SnapshotReply)] = False,
    coordinator: Url = LOCAL,
) -> None:
    """Show one snapshot."""
    reply = call(coordinator, lambda client: client.snapshot(job, task, stage, checkpoint))
    print_reply(reply, lambda width: _snapshot_page(reply, width), as_json=as_json)


def _snapshot_page(reply: wire_snapshots.SnapshotReply, width: int | None) -> RenderableType:
    facts = {
        "snapshot": f"{reply.checkpoint_id} of stage {reply.stage} of task {shown(reply.task)} of job {reply.job}",
        "batch": NONE if reply.batch_id is None else str(reply.batch_id),
        "lineage": shown(reply.lineage),
        "reported": f"{moment(reply.reported_at)} by generation {reply.generation}, run {reply.run_id}",
        "retained": ", ".join(reply.retained_by) or "no rule: about to be deleted",
    }
    if reply.head:
        facts["head"] = "chosen by an operator: the next container restores it" if reply.chosen else "the stage continues from it"
    columns = [
        *(Column("BLOB STORE"), Column("FILES", right=True), Column("BYTES", right=True), Column("UPLOADED", right=True, rank=1)),
        *(Column("TTL REMOVED", rank=2), Column("INDEX", folds=True)),
    ]
    rows = [
        (name, count(each.files), count(each.bytes), count(each.uploaded_bytes), "yes" if each.kept else "not yet", each.index)
        for name, each in sorted(reply.markers.items())
    ]
    return Group(*(Text(f"{name:<10}{value}") for name, value in facts.items()), Text(""), table(columns, rows, width))


# --- pins ------------------------------------------------------------------------------------------------------------


@app.command()
def pins(job: Job, as_json: Annotated[Json, Document(wire_snapshots.PinsReply)] = False, coordinator: Url = LOCAL) -> None:
    """List the pins of a job."""
    reply = call(coordinator, lambda client: client.pins(job))
    print_reply(reply, lambda width: pins_table(reply, width), as_json=as_json)


def pins_table(reply: wire_snapshots.PinsReply, width: int | None) -> RenderableType:
    columns = [
        *(Column("PIN"), Column("SNAPSHOTS", right=True), Column("CREATED", rank=1), Column("EXPIRES")),
        Column("REASON", folds=True),
    ]
    rows = [
        (each.pin_id, str(len(each.snapshots)), moment(each.created_at), moment(each.expires_at), shown(each.reason)) for each in reply.pins
    ]
    return table(columns, rows, width)


@app.command()
def pin(
    job: Job,
    task: OneTask = None,
    stage: OneStage = None,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="SNAPSHOT", help="Pin this snapshot. Needs --task and --stage. Default: the newest of each stage.")
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="PIN", help="Id of the pin; an existing one is replaced. Default: a new id.")] = None,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Reason, recorded with the pin.")] = "",
    hours: Annotated[float | None, typer.Option(min=0, metavar="HOURS", help="When the pin expires. Default: when it is removed.")] = None,
    as_json: Annotated[Json, Document(wire_snapshots.PinReply)] = False,
    coordinator: Url = LOCAL,
) -> None:
    """Pin snapshots, so that they are kept beyond their retention. What they need of intermediate streams is kept, too, so a stream grows
    until the pin expires or is removed."""
    body = wire_snapshots.PinRequest(
        pin_id=name,
        task=task,
        stage=stage,
        checkpoint_id=checkpoint,
        reason=reason,
        expires_seconds=None if hours is None else hours * 3600,
    )
    reply = call(coordinator, lambda client: client.pin(job, body))
    until = "until it is removed" if reply.expires_at is None else f"until {moment(reply.expires_at)}"
    kept = f"{len(reply.snapshots)} snapshots, and the records of intermediate streams that they need, {until}"
    print_reply(reply, lambda _: Text(f"pin {reply.pin_id} keeps {kept}"), as_json=as_json)


@app.command()
def unpin(
    job: Job,
    pin: Annotated[str, typer.Argument(metavar="PIN", help="Id of the pin.")],
    as_json: Annotated[Json, Document(UnpinnedReply)] = False,
    coordinator: Url = LOCAL,
) -> None:
    """Remove a pin. Snapshots that only this pin kept are deleted."""
    call(coordinator, lambda client: client.unpin(job, pin))
    print_reply(UnpinnedReply(pin_id=pin), lambda _: f"pin {pin} removed", as_json=as_json)


# --- verifying, restoring --------------------------------------------------------------------------------------------


@app.command()
def verify(
    job: Annotated[str | None, typer.Argument(metavar="JOB", help="Name of the job.", show_default=False)] = None,
    task: Annotated[str | None, typer.Argument(metavar="TASK", help='Name of the task, such as "Partition 0".', show_default=False)] = None,
    stage: Annotated[str | None, typer.Argument(metavar="STAGE", help="Name of the stage.", show_default=False)] = None,
    checkpoint: Annotated[
        str | None,
        typer.Argument(
            metavar="SNAPSHOT", help='Id of the snapshot, or "head" for the one that the stage continues from.', show_default=False
        ),
    ] = None,
    whole_job: Annotated[
        str | None, typer.Option("--job", metavar="JOB", help="Read all retained snapshots of this job, each file once.")
    ] = None,
    blob_store: OneStore = None,
    as_json: Annotated[Json, Document(wire_snapshots.OperationReply)] = False,
    coordinator: Url = LOCAL,
) -> None:
    """Read a whole snapshot, or with --job all snapshots of a job, and compare sizes and hashes with the index."""
    match job, task, stage, checkpoint, whole_job:
        case str(), str(), str(), str(), None:
            of_task, of_stage = task, stage

            async def request(client: OperatorClient) -> wire_snapshots.OperationReply:
                found = await client.snapshot(job, of_task, of_stage, checkpoint)
                body = wire_snapshots.StoreBody(task=of_task, stage=of_stage, blob_store=blob_store)
                return await client.verify(job, found.checkpoint_id, body)

        case None, None, None, None, str():

            async def request(client: OperatorClient) -> wire_snapshots.OperationReply:
                return await client.verify_job(whole_job, wire_snapshots.VerifyRequest(blob_store=blob_store))

        case _:
            raise typer.BadParameter("name a snapshot (JOB TASK STAGE SNAPSHOT), or a job (--job JOB)")
    reply = call_operation(coordinator, "verifying", request, quiet=as_json)
    result: Mapping[str, Any] = reply.result or {}
    print_reply(reply, lambda _: _verified(result), as_json=as_json)
    raise typer.Exit(0 if result.get("whole") else DAMAGED)


def _verified(result: Mapping[str, Any]) -> RenderableType:
    if result.get("whole"):
        snapshots = f"{count(result['snapshots'])} snapshots, " if "snapshots" in result else ""
        return Text(f"intact: {snapshots}{count(result['files'])} files, {count(result['bytes'])} bytes")
    lines = [f"{name}: {shown(path)}: {shown(problem)}" for name, wrong in result["wrong"].items() for path, problem in wrong.items()]
    return Group(*(Text(line, style="bold red") for line in lines))


@app.command()
def restore(
    job: Job,
    task: Task,
    stage: Stage,
    checkpoint: Checkpoint,
    into: Annotated[
        Path | None,
        typer.Option(metavar="DIRECTORY", help="Copy the snapshot to this new directory instead, and do not change the job."),
    ] = None,
    blob_store: OneStore = None,
    as_json: Annotated[Json, Document(wire_snapshots.RestoreReply, CopiedSnapshotReply)] = False,
    coordinator: Url = LOCAL,
) -> None:
    """Let the next container that acquires the task restore this snapshot and continue from it. The run must have been stopped."""
    if into is not None:
        load("containers.cli.snapshots:copy_snapshot")(coordinator, job, task, stage, checkpoint, into, blob_store, as_json=as_json)
        return

    async def request(client: OperatorClient) -> wire_snapshots.RestoreReply:
        found = await client.snapshot(job, task, stage, checkpoint)
        return await client.choose(job, found.checkpoint_id, wire_snapshots.StoreBody(task=task, stage=stage))

    reply = call(coordinator, request)
    batch = "before its first batch" if reply.batch_id is None else f"after batch {reply.batch_id}"
    lines = [
        Text(f"the next container that acquires task {shown(task)} continues from snapshot {reply.checkpoint_id}, {batch}"),
        *(Text(f"warning: {shown(each)}", style="yellow") for each in reply.warnings),
    ]
    print_reply(reply, lambda _: Group(*lines), as_json=as_json)
