"""`sluice export`: checkpoints of a job as plain checkpoints of Spark. It uses the container's restore code, so it is in this package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from containers.cli.snapshots import copied
from containers.state.checkpoint import relocate
from sluice.cli.documents import Document, Json, print_reply
from sluice.cli.runner import LOCAL, Job, Url, call
from sluice.client import OperatorClient
from sluice.core.errors import BadOption, UnknownSnapshot
from sluice.core.ids import directory_name
from sluice.core.jobmodels.spec import ATTACHED_TASK
from sluice.wire import snapshots as wire_snapshots
from sluice.wire.body import Reply

PAGE = 200


class ExportedCheckpoint(Reply):
    """`directory`: a checkpoint of Spark. `batchId`: its last batch. `files` and `bytes`: of the directory."""

    task: str
    stage: str
    checkpoint_id: str
    batch_id: int | None
    directory: str
    files: int
    bytes: int


class ExportReply(Reply):
    job: str
    checkpoints: tuple[ExportedCheckpoint, ...]


def export(
    job: Job,
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Where to write the checkpoints.")],
    stage: Annotated[
        str | None, typer.Option("--checkpoint", metavar="NAME", help="Only this checkpoint: its name in app.checkpoint, or a stage.")
    ] = None,
    task: Annotated[str | None, typer.Option("--task", metavar="TASK", help="Only this task of a job file.")] = None,
    blob_store: Annotated[str | None, typer.Option("--blob-store", metavar="NAME", help="Read from this blob store only.")] = None,
    as_json: Annotated[Json, Document(ExportReply)] = False,
    coordinator: Url = LOCAL,
) -> None:
    """Write the newest snapshot of each checkpoint of a job as a plain checkpoint of Spark, which needs no Sluice.

    The checkpoint "counts" of a script is written to DIRECTORY/counts, and stage "counts" of a task to DIRECTORY/TASK/counts. The job does
    not change. Stop it first: the batches after the snapshot are not in the copy.
    """
    reply = call(coordinator, lambda client: write_checkpoints(client, job, directory.absolute(), stage, task, blob_store, quiet=as_json))
    lines = [
        f"{each.directory}: {each.files} files, {each.bytes} bytes, to batch {'none' if each.batch_id is None else each.batch_id}"
        for each in reply.checkpoints
    ]
    print_reply(reply, lambda _: "\n".join(lines), as_json=as_json)


async def write_checkpoints(
    client: OperatorClient, job: str, into: Path, stage: str | None, task: str | None, blob_store: str | None, *, quiet: bool
) -> ExportReply:
    """Raises UnknownSnapshot if the job has no snapshot, and BadOption if a directory exists."""
    found = await _heads(client, job, stage, task)
    if not found:
        of = f" of {stage}" if stage else ""
        raise UnknownSnapshot(f"job {job} has no snapshot{of} to export: it is not backed up, no batch was, or a drain has ended its state")
    directories = {each.checkpoint_id: into / _name(each.task) / each.stage for each in found}
    for directory in directories.values():
        if directory.exists():
            raise BadOption(f"{directory} exists: name a directory that does not exist")
    exported = []
    for each in found:
        directory = directories[each.checkpoint_id]
        restored = await copied(client, job, each.task, each.stage, each.checkpoint_id, directory, blob_store, quiet=quiet)
        relocate(directory)
        exported.append(
            ExportedCheckpoint(
                task=each.task,
                stage=each.stage,
                checkpoint_id=each.checkpoint_id,
                batch_id=each.batch_id,
                directory=str(directory),
                files=restored.files,
                bytes=restored.bytes,
            )
        )
    return ExportReply(job=job, checkpoints=tuple(exported))


def _name(task: str) -> str:
    """A script has one task, which is not in the path."""
    return "" if task == ATTACHED_TASK else directory_name(task)


async def _heads(client: OperatorClient, job: str, stage: str | None, task: str | None) -> list[wire_snapshots.SnapshotReply]:
    heads: list[wire_snapshots.SnapshotReply] = []
    before: int | None = None
    while True:
        page = await client.snapshots(job, task, stage, before, PAGE)
        heads += [each for each in page.snapshots if each.head]
        if page.next is None:
            return sorted(heads, key=lambda each: (each.task, each.stage))
        before = page.next
