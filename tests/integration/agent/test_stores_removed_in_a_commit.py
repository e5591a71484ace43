"""The run's blob stores are taken away while a commit is under way: `PUT /runs/{runId}/backup`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from sluice.core.ids import RunId
from sluice.core.snapshots.snapshot import BlobStoreName
from tests.support.agents import Incarnation, Place, place
from tests.support.backups import BACKED_UP, began, one_stage, start
from tests.support.engines import soon
from tests.support.virtual_time import Gate

OFTEN = {"commit_interval_seconds": 0.01}


async def put_backup(there: Place, run_id: RunId, stores: list[str], restore_from: list[str]) -> httpx.Response:
    async with httpx.AsyncClient(transport=there.app, base_url="http://c") as http:
        return await http.put(f"/runs/{run_id}/backup", json={"stores": stores, "restoreFrom": restore_from})


async def until_only(container: Incarnation, stores: set[str]) -> None:
    """Wait until the container backs up into these blob stores."""

    async def there() -> None:
        while set(container.agent._backups.destinations.to) != stores:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    await soon(there())


@pytest.mark.real_time  # only real threads are limited in number
async def test_a_container_survives_that_backups_are_switched_off_while_it_freezes_a_checkpoint(tmp_path: Path) -> None:
    async with place(tmp_path / "home", **BACKED_UP, blob_stores={"local": (tmp_path / "local").as_uri()}) as there:
        run_id = await there.deploy(job=one_stage())
        container = start(there, run_id, "c1", "disk1", commit_interval_seconds=0.5)
        disk, query = await began(container)
        await disk.runs(query, 0, {0: 1, 1: 0})
        go = Gate()
        waits = [asyncio.ensure_future(container.agent._backups.in_thread(go.wait)) for _ in range(32)]  # a busy disk
        await asyncio.sleep(1)
        assert (await put_backup(there, run_id, [], ["local"])).status_code == 200
        await until_only(container, set())
        go.open()
        await asyncio.gather(*waits)
        await asyncio.sleep(0.5)
        assert not container.life.done(), container.life.result()
        await soon(disk.runs(query, 1, {0: 2, 1: 0}))


async def test_a_container_survives_that_a_blob_store_is_removed_while_it_repairs_it(tmp_path: Path) -> None:
    stores = {name: (tmp_path / name).as_uri() for name in ("bad", "good")}
    async with place(tmp_path / "home", blob_stores=stores, backup_stores=("bad", "good"), restore_from=("good",)) as there:
        run_id = await there.deploy(job=one_stage())
        container = start(there, run_id, "c1", "disk1", **OFTEN)
        disk, query = await began(container)
        await disk.runs(query, 0, {0: 1, 1: 0})
        await container.wire.after("snapshots")
        held = container.wire.hold("/snapshots")  # the list of snapshots, which the repair asks for first
        queries = container.agent._queries
        assert queries is not None
        queries.repair(query.start.task, query.start.stage.name, BlobStoreName("bad"))
        await soon(container.wire.held.wait())
        assert (await put_backup(there, run_id, ["good"], ["good"])).status_code == 200  # the operator gives the bad store up
        await until_only(container, {"good"})
        held.set()
        await asyncio.sleep(0.5)
        assert not container.life.done(), container.life.result()
        await soon(disk.runs(query, 1, {0: 2, 1: 0}))


async def test_a_report_without_an_answer_is_repeated_when_the_blob_store_that_it_was_for_is_removed(tmp_path: Path) -> None:
    stores = {name: (tmp_path / name).as_uri() for name in ("old", "new")}
    async with place(tmp_path / "home", blob_stores=stores, backup_stores=("old",), restore_from=("old",)) as there:
        run_id = await there.deploy(job=one_stage())
        container = start(there, run_id, "c1", "disk1", **OFTEN, commit_max_delay_seconds=0.5, commit_timeout_seconds=0.5)
        disk, query = await began(container)
        await disk.runs(query, 0, {0: 1, 1: 0})
        await container.wire.after("snapshots")
        answered = container.wire.hold("/snapshots")
        assert (await put_backup(there, run_id, ["old", "new"], ["old"])).status_code == 200
        await soon(container.wire.held.wait())
        assert (await put_backup(there, run_id, ["old"], ["old"])).status_code == 200
        await until_only(container, {"old"})
        await asyncio.sleep(2)  # the commit is given up, and begins again
        answered.set()
        await soon(disk.runs(query, 1, {0: 2, 1: 0}))
        assert not container.life.done(), container.life.result()
