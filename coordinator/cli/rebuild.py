"""`sluice rebuild`: rebuild the catalog of snapshots from the blob stores alone."""

from __future__ import annotations

import asyncio
import json
from contextlib import nullcontext
from typing import Annotated, Any

import typer

from coordinator.app import stores_of_blobs, take
from coordinator.cli.serve import Database, Home
from coordinator.settings import Settings, read_settings
from coordinator.snapshots.operations import Progress
from coordinator.snapshots.rebuild import RebuiltCatalog, find, write
from coordinator.store.sql import open_store
from sluice.cli.console.bars import Bars
from sluice.cli.runner import Json
from sluice.clock import SystemClock


def rebuild(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be registered.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Discard the snapshots that the catalog already has.")] = False,
    as_json: Json = False,
    home: Home = None,
    database_url: Database = None,
) -> None:
    """Rebuild the catalog of snapshots from the blob stores.

    Use it after the database was lost. The coordinator must not be running.
    """
    settings = read_settings(home=home, database_url=database_url)
    rebuilt = asyncio.run(_rebuilt(settings, dry_run=dry_run, force=force, quiet=as_json))
    typer.echo(json.dumps(_document(rebuilt, dry_run=dry_run), indent=2) if as_json else _page(rebuilt, dry_run=dry_run))


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


def _document(rebuilt: RebuiltCatalog, *, dry_run: bool) -> dict[str, Any]:
    return {
        "dryRun": dry_run,
        "snapshots": len(rebuilt.snapshots),
        "stores": [
            {
                "job": each.job,
                "task": each.task,
                "stage": each.stage,
                "checkpointId": each.head,
                "lineage": each.lineage,
                "batchId": each.batch_id,
            }
            for each in rebuilt.stores
        ],
        "runs": [{"job": job, "runId": each.run.run_id, "firstRun": each.run.first_run} for job, each in rebuilt.runs.items()],
        "leftOut": rebuilt.left_out,
    }


def _page(rebuilt: RebuiltCatalog, *, dry_run: bool) -> str:
    lines = [
        f"{each.job}\t{each.task}\t{each.stage}\tcontinues from snapshot {each.head}, after batch {each.batch_id}"
        for each in rebuilt.stores
    ]
    lines += [f"{job}\tcontinues run {each.run.run_id}" for job, each in rebuilt.runs.items()]
    lines += [f"skipped: {blob}: {why}" for blob, why in rebuilt.left_out.items()]
    would = "would be registered" if dry_run else "are registered"
    return "\n".join([*lines, f"{len(rebuilt.snapshots)} snapshots of {len(rebuilt.stores)} stages {would}"])
