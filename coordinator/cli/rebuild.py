"""`sluice rebuild`: the registry from the blob stores alone."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from coordinator.settings import Settings
    from coordinator.snapshots.rebuild import Rebuilt


Home = Annotated[Path | None, typer.Option(help="Directory of the database (default .sluice).")]
Database = Annotated[str | None, typer.Option(help="SQLAlchemy URL with an async driver (default: SQLite under home).")]


def rebuild(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be registered.")] = False,
    anew: Annotated[bool, typer.Option("--anew", help="Also when the registry knows snapshots: they are forgotten first.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
    home: Home = None,
    database_url: Database = None,
) -> None:
    """Make the registry of snapshots from the blob stores of the settings, when the database was lost. No coordinator may run on it."""
    from coordinator.settings import read_settings

    settings = read_settings(home=home, database_url=database_url)
    rebuilt = asyncio.run(_rebuilt(settings, dry_run=dry_run, anew=anew, quiet=as_json))
    typer.echo(json.dumps(_document(rebuilt, dry_run=dry_run), indent=2) if as_json else _told(rebuilt, dry_run=dry_run))


async def _rebuilt(settings: Settings, *, dry_run: bool, anew: bool, quiet: bool) -> Rebuilt:
    from rich.console import Console
    from rich.progress import Progress as Bars

    from coordinator.app import stores_of_blobs, take
    from coordinator.snapshots.operations import Progress
    from coordinator.snapshots.rebuild import find, write
    from coordinator.store.sql import open_store
    from sluice.clock import SystemClock

    clock, store = SystemClock(), open_store(settings.database)
    blob_stores = stores_of_blobs(settings, clock, {})  # they become this registry's when all is written, not before
    try:
        if not dry_run:
            await take(settings, store)
        progress = Progress("blobs")
        with Bars(console=Console(stderr=True), disable=quiet or not sys.stderr.isatty(), transient=True) as bars:
            bar = bars.add_task("reading indexes", total=None)
            looking = asyncio.create_task(find(blob_stores, progress))
            while not (await asyncio.wait([looking], timeout=0.5))[0]:
                bars.update(bar, completed=progress.done)
            rebuilt = looking.result()
        if not dry_run:
            await write(store, blob_stores, clock, rebuilt, anew=anew)
        return rebuilt
    finally:
        await blob_stores.close()
        await store.close()


def _document(rebuilt: Rebuilt, *, dry_run: bool) -> dict[str, Any]:
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
        "leftOut": rebuilt.left_out,
    }


def _told(rebuilt: Rebuilt, *, dry_run: bool) -> str:
    lines = [f"{each.job}\t{each.task}\t{each.stage}\tgoes on from {each.head}, after batch {each.batch_id}" for each in rebuilt.stores]
    lines += [f"left out: {blob}: {why}" for blob, why in rebuilt.left_out.items()]
    would = "would be registered" if dry_run else "are registered"
    return "\n".join([*lines, f"{len(rebuilt.snapshots)} snapshots of {len(rebuilt.stores)} stores {would}"])
