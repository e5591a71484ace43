"""`sluice rebuild`: rebuild the catalog of snapshots from the blob stores alone."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Annotated

import typer

from coordinator.app import stores_of_blobs, take
from coordinator.cli.serve import Database, Home
from coordinator.settings import Settings, read_settings
from coordinator.snapshots.operations import Progress
from coordinator.snapshots.rebuild import RebuiltCatalog, find, write
from coordinator.store.sql import open_store
from sluice.cli.console.bars import Bars
from sluice.cli.documents import Document, Json, print_reply
from sluice.clock import SystemClock
from sluice.wire.body import Reply


class RebuiltStage(Reply):
    """A stage that continues from the snapshot `checkpoint_id`, after the batch `batch_id`."""

    job: str
    task: str
    stage: str
    checkpoint_id: str
    lineage: str
    batch_id: int | None


class RebuiltRun(Reply):
    """A run that the next one continues. `first_run`: the run that began its history."""

    job: str
    run_id: str
    first_run: str


class RebuiltReply(Reply):
    """`snapshots`: how many are registered, or would be. `left_out`: what is not, and why."""

    dry_run: bool
    snapshots: int
    stores: tuple[RebuiltStage, ...]
    runs: tuple[RebuiltRun, ...]
    left_out: dict[str, str]


def rebuild(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be registered.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Discard the snapshots that the catalog already has.")] = False,
    as_json: Annotated[Json, Document(RebuiltReply)] = False,
    home: Home = None,
    database_url: Database = None,
) -> None:
    """Rebuild the catalog of snapshots from the blob stores.

    Use it after the database was lost. The coordinator must not be running.
    """
    settings = read_settings(home=home, database_url=database_url)
    rebuilt = asyncio.run(_rebuilt(settings, dry_run=dry_run, force=force, quiet=as_json))
    print_reply(_reply(rebuilt, dry_run=dry_run), lambda _: _page(rebuilt, dry_run=dry_run), as_json=as_json)


async def _rebuilt(settings: Settings, *, dry_run: bool, force: bool, quiet: bool) -> RebuiltCatalog:
    clock, store = SystemClock(), open_store(settings.database)
    blob_stores = stores_of_blobs(settings, clock, {})  # this database becomes their owner after the catalog is written
    try:
        if not dry_run:
            await take(settings, store)
        progress = Progress("blobs")
        title = "reading indexes"
        keeping = nullcontext() if dry_run else store.keeping_claim()
        async with keeping:
            with Bars(title, unit=progress.unit, quiet=quiet) as bars:
                finding = asyncio.create_task(find(blob_stores, progress, clock.now()))
                while not (await asyncio.wait([finding], timeout=0.5))[0]:
                    bars.show(title, progress.done, None)
                rebuilt = finding.result()
        if not dry_run:
            await write(store, blob_stores, clock, rebuilt, force=force)
        return rebuilt
    finally:
        await blob_stores.close()
        await store.close()


def _reply(rebuilt: RebuiltCatalog, *, dry_run: bool) -> RebuiltReply:
    stages = [
        RebuiltStage(
            job=each.job,
            task=each.task,
            stage=each.stage,
            checkpoint_id=str(each.head),
            lineage=str(each.lineage),
            batch_id=each.batch_id,
        )
        for each in rebuilt.stores
    ]
    runs = [RebuiltRun(job=job, run_id=each.run.run_id, first_run=str(each.run.first_run)) for job, each in rebuilt.runs.items()]
    return RebuiltReply(
        dry_run=dry_run,
        snapshots=len(rebuilt.snapshots),
        stores=tuple(stages),
        runs=tuple(runs),
        left_out={str(blob): why for blob, why in rebuilt.left_out.items()},
    )


def _page(rebuilt: RebuiltCatalog, *, dry_run: bool) -> str:
    lines = [
        f"{each.job}\t{each.task}\t{each.stage}\tcontinues from snapshot {each.head}, after batch {each.batch_id}"
        for each in rebuilt.stores
    ]
    lines += [f"{job}\tcontinues run {each.run.run_id}" for job, each in rebuilt.runs.items()]
    lines += [f"skipped: {blob}: {why}" for blob, why in rebuilt.left_out.items()]
    would = "would be registered" if dry_run else "are registered"
    return "\n".join([*lines, f"{len(rebuilt.snapshots)} snapshots of {len(rebuilt.stores)} stages {would}"])
