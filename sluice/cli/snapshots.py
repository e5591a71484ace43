"""`sluice snapshots`: list snapshots, pin them, verify them, and go back to one.

Exit codes: 0; 1 when the coordinator cannot be reached or refuses; `verify` has 2 for a snapshot that is not whole.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from sluice.cli.client import BackupClient
from sluice.cli.console.bars import bar
from sluice.cli.console.tables import NONE, Column, Screen, count, moment, shown, table
from sluice.cli.runner import LOCAL, Json, Url, extension, find_job, tell
from sluice.core.errors import CoordinatorUnreachable
from sluice.wire import snapshots as wire_snapshots

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

    show_snapshots(coordinator, job, task, stage, before, limit, as_json=as_json)


@app.command()
def show(job: Job, task: Task, stage: Stage, checkpoint: Checkpoint, as_json: Json = False, coordinator: Url = LOCAL) -> None:
    """One snapshot."""

    show_snapshot(coordinator, job, task, stage, checkpoint, as_json=as_json)


@app.command()
def pins(job: Job, as_json: Json = False, coordinator: Url = LOCAL) -> None:
    """The pins of a job."""

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

    pin_snapshots(coordinator, job, Pinning(task, stage, checkpoint, name, reason, hours), as_json=as_json)


@app.command()
def unpin(job: Job, pin: Annotated[str, typer.Argument(metavar="PIN", help="The pin's id.")], coordinator: Url = LOCAL) -> None:
    """Take a pin away. What it alone kept goes."""

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
    if into is not None:
        extension("copy-snapshot")(coordinator, job, task, stage, checkpoint, into, blob_store)
    else:
        choose_snapshot(coordinator, job, task, stage, checkpoint, as_json=as_json)


T = TypeVar("T")

NOT_WHOLE = 2


def asked(url: str, ask: Callable[[BackupClient], Awaitable[T]]) -> T:
    """Raises what `Coordinator` raises."""

    async def run() -> T:
        client = BackupClient(url)
        try:
            return await ask(client)
        finally:
            await client.close()

    return asyncio.run(run())


def errand(
    url: str, what: str, ask: Callable[[BackupClient], Awaitable[wire_snapshots.ErrandReply]], *, quiet: bool
) -> wire_snapshots.ErrandReply:
    """Ask for something that takes long, and show how it goes on until it is over. Raises CoordinatorUnreachable when it failed there."""

    async def run(client: BackupClient) -> wire_snapshots.ErrandReply:
        begun = await ask(client)
        with bar(what, unit=begun.unit, quiet=quiet) as shown_by:
            return await client.done(begun, shown_by.show)

    over = asked(url, run)
    if over.state == "FAILED":
        raise CoordinatorUnreachable(f"{url}: {over.error}")
    return over


# --- looking ---------------------------------------------------------------------------------------------------------


def show_snapshots(
    url: str, job: str | None, task: str | None, stage: str | None, before: int | None, limit: int, *, as_json: bool
) -> None:
    async def ask(client: BackupClient) -> wire_snapshots.SnapshotsReply:
        name = job or (await find_job(client, None)).job
        return await client.snapshots(name, task, stage, before, limit)

    reply = asked(url, ask)
    tell(reply, lambda width: _with_note(snapshots_table(reply, width), reply.next), as_json=as_json)


def snapshots_table(reply: wire_snapshots.SnapshotsReply, width: int | None) -> RenderableType:
    columns = [
        *(Column("NUMBER", right=True, rank=4), Column("TASK"), Column("STAGE"), Column("CHECKPOINT"), Column("BATCH", right=True)),
        *(Column("REPORTED", rank=1), Column("FILES", right=True, rank=3), Column("BYTES", right=True, rank=2)),
        *(Column("IN", rank=5), Column("KEPT BY", folds=True)),
    ]
    rows = [
        (
            *(str(each.seq), shown(each.task), each.stage, each.checkpoint_id, NONE if each.batch_id is None else str(each.batch_id)),
            *(moment(each.reported_at), count(_largest(each, "files")), count(_largest(each, "bytes"))),
            *(", ".join(sorted(each.markers)), shown(", ".join(each.retained_by)) or "nothing: it is about to go"),
        )
        for each in reply.snapshots
    ]
    return table(columns, rows, width)


def _largest(snapshot: wire_snapshots.SnapshotReply, what: str) -> int:
    return max((int(getattr(each, what)) for each in snapshot.markers.values()), default=0)


def _with_note(page: RenderableType, following: int | None) -> RenderableType:
    return page if following is None else Group(page, Text(f"older ones: --before {following}", style="dim"))


def show_snapshot(url: str, job: str, task: str, stage: str, checkpoint: str, *, as_json: bool) -> None:
    reply = asked(url, lambda client: client.snapshot(job, task, stage, checkpoint))
    tell(reply, lambda width: _snapshot_page(reply, width), as_json=as_json)


def _snapshot_page(reply: wire_snapshots.SnapshotReply, width: int | None) -> RenderableType:
    facts = {
        "snapshot": f"{reply.checkpoint_id} of stage {reply.stage} of task {shown(reply.task)} of job {reply.job}",
        "batch": NONE if reply.batch_id is None else str(reply.batch_id),
        "lineage": shown(reply.lineage),
        "reported": f"{moment(reply.reported_at)} by generation {reply.generation}, run {reply.run_id}",
        "kept by": ", ".join(reply.retained_by) or "nothing: it is about to go",
    }
    if reply.head:
        facts["head"] = "chosen by an operator: the next container restores it" if reply.chosen else "the store goes on from it"
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


@dataclass(frozen=True, slots=True)
class Pinning:
    """The options of `sluice snapshots pin`."""

    task: str | None
    stage: str | None
    checkpoint: str | None
    name: str | None
    reason: str
    hours: float | None


def show_pins(url: str, job: str, *, as_json: bool) -> None:
    reply = asked(url, lambda client: client.pins(job))
    tell(reply, lambda width: pins_table(reply, width), as_json=as_json)


def pins_table(reply: wire_snapshots.PinsReply, width: int | None) -> RenderableType:
    columns = [
        *(Column("PIN"), Column("SNAPSHOTS", right=True), Column("CREATED", rank=1), Column("EXPIRES")),
        Column("REASON", folds=True),
    ]
    rows = [
        (each.pin_id, str(len(each.snapshots)), moment(each.created_at), moment(each.expires_at), shown(each.reason)) for each in reply.pins
    ]
    return table(columns, rows, width)


def pin_snapshots(url: str, job: str, pinning: Pinning, *, as_json: bool) -> None:
    body = wire_snapshots.PinRequest(
        pin_id=pinning.name,
        task=pinning.task,
        stage=pinning.stage,
        checkpoint_id=pinning.checkpoint,
        reason=pinning.reason,
        expires_seconds=None if pinning.hours is None else pinning.hours * 3600,
    )
    reply = asked(url, lambda client: client.pin(job, body))
    until = "until it is taken away" if reply.expires_at is None else f"until {moment(reply.expires_at)}"
    tell(reply, lambda _: Text(f"{reply.pin_id}: {len(reply.snapshots)} snapshots are kept {until}"), as_json=as_json)


def unpin_snapshots(url: str, job: str, pin: str) -> None:
    asked(url, lambda client: client.unpin(job, pin))
    Screen(sys.stdout).say(f"{pin} is taken away")


# --- verifying, going back -------------------------------------------------------------------------------------------


def verify_snapshot(url: str, job: str, task: str, stage: str, checkpoint: str, blob_store: str | None, *, as_json: bool) -> int:
    """The exit code."""

    async def ask(client: BackupClient) -> wire_snapshots.ErrandReply:
        found = await client.snapshot(job, task, stage, checkpoint)
        return await client.verify(job, found.checkpoint_id, wire_snapshots.StoreBody(task=task, stage=stage, blob_store=blob_store))

    reply = errand(url, "verifying", ask, quiet=as_json)
    result: Mapping[str, Any] = reply.result or {}
    tell(reply, lambda _: _verified(result), as_json=as_json)
    return 0 if result.get("whole") else NOT_WHOLE


def _verified(result: Mapping[str, Any]) -> RenderableType:
    if result.get("whole"):
        return Text(f"whole: {count(result['files'])} files of {count(result['bytes'])} bytes are as they were uploaded")
    lines = [f"{name}: {shown(path)}: {shown(told)}" for name, wrong in result["wrong"].items() for path, told in wrong.items()]
    return Group(*(Text(line, style="bold red") for line in lines))


def choose_snapshot(url: str, job: str, task: str, stage: str, checkpoint: str, *, as_json: bool) -> None:
    async def ask(client: BackupClient) -> wire_snapshots.RestoreReply:
        found = await client.snapshot(job, task, stage, checkpoint)
        return await client.choose(job, found.checkpoint_id, wire_snapshots.StoreBody(task=task, stage=stage))

    reply = asked(url, ask)
    batch = "before its first batch" if reply.batch_id is None else f"after batch {reply.batch_id}"
    lines = [
        Text(f"the next container that takes task {shown(task)} goes on from {reply.checkpoint_id}, {batch}"),
        *(Text(f"mind: {shown(each)}", style="yellow") for each in reply.warnings),
    ]
    tell(reply, lambda _: Group(*lines), as_json=as_json)
