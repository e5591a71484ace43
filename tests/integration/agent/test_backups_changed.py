"""Runs that are not backed up, and runs whose blob stores are changed while they run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from sluice.blobs.locations import open_blob_store
from sluice.core.ids import RunId
from tests.support.agents import Place, place
from tests.support.backups import BACKED_UP, began, one_stage, start
from tests.support.engines import soon
from tests.support.faults import Fault, FaultyBlobs

OVERDUE_AT_ONCE = {"commit_interval_seconds": 0.001, "commit_max_delay_seconds": 0, "commit_timeout_seconds": 3600}
"""A batch waits as soon as the one before it is not durable after a millisecond."""


async def put_backup(there: Place, run_id: RunId, stores: list[str], restore_from: list[str]) -> httpx.Response:
    async with httpx.AsyncClient(transport=there.app, base_url="http://c") as http:
        return await http.put(f"/runs/{run_id}/backup", json={"stores": stores, "restoreFrom": restore_from})


@pytest.mark.parametrize(
    ("settings", "config"),
    [(BACKED_UP, {"backup.stores": ""}), ({"backup_stores": (), "restore_from": None}, {})],
    ids=["by the job's configuration", "by the coordinator's settings"],
)
async def test_batches_of_a_run_without_backups_wait_for_none(tmp_path: Path, settings: Mapping[str, Any], config: dict[str, str]) -> None:
    async with place(tmp_path / "home", **settings) as there:
        run_id = await there.deploy(job=one_stage(), config=config)
        disk, query = await began(start(there, run_id, "c1", "disk1", **OVERDUE_AT_ONCE))
        for batch in range(3):
            await soon(disk.runs(query, batch, {0: batch + 1, 1: 0}))


async def test_a_batch_that_waits_for_a_backup_goes_on_when_backups_are_switched_off(tmp_path: Path) -> None:
    async with place(tmp_path / "home", **BACKED_UP) as there:
        run_id = await there.deploy(job=one_stage())
        blobs = FaultyBlobs(open_blob_store((there.home / "blobs").as_uri()))
        disk, query = await began(start(there, run_id, "c1", "disk1", open_blobs=lambda url: blobs, **OVERDUE_AT_ONCE))
        blobs.plan = lambda operation: Fault.FAIL if operation.name == "put" else None
        await disk.runs(query, 0, {0: 1, 1: 0})
        waiting = asyncio.create_task(disk.runs(query, 1, {0: 2, 1: 0}))
        await asyncio.wait({waiting}, timeout=0.3)
        assert not waiting.done()
        assert (await put_backup(there, run_id, [], ["local"])).status_code == 200
        await soon(waiting)
        await soon(disk.runs(query, 2, {0: 3, 1: 0}))
