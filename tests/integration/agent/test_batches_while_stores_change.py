"""The offset-log entry of a batch that is running while the run's blob stores change."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from containers.engine import StageStart
from containers.state.checkpoint import write_offset_log
from sluice.core.ids import RunId
from tests.support.agents import Incarnation, Place, place
from tests.support.backups import NEVER, began, one_stage, start
from tests.support.engines import DiskEngine, FakeEngine, FakeQuery, plan, soon

OFTEN: Mapping[str, Any] = {"commit_interval_seconds": 0.01}


class SlowEngine(DiskEngine):
    """Its queries have not yet run again what was planned before."""

    def start(self, start: StageStart) -> str:
        return FakeEngine.start(self, start)


async def put_backup(there: Place, run_id: RunId, stores: list[str], restore_from: list[str]) -> httpx.Response:
    async with httpx.AsyncClient(transport=there.app, base_url="http://c") as http:
        return await http.put(f"/runs/{run_id}/backup", json={"stores": stores, "restoreFrom": restore_from})


async def writes(disk: DiskEngine, query: FakeQuery, batch: int, ends: Mapping[int, int]) -> str:
    """Plan a batch and write its output; Spark has not committed it yet. Returns its plan."""
    directory, text = disk.directory(query.start), plan(ends)

    def work() -> None:
        write_offset_log(directory, batch, text)
        query.before_batch(batch)
        query.before_write(batch)

    await asyncio.to_thread(work)
    return text


async def until_in(there: Place, store: str) -> None:
    for _ in range(1000):
        if (found := await there.snapshots()) and store in found[0]["markers"]:
            return
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("before", [["old"], []], ids=["moved to another store", "backups switched on"])
async def test_a_batch_that_was_written_while_blob_stores_changed_runs_again_as_it_was_planned(tmp_path: Path, before: list[str]) -> None:
    stores = {name: (tmp_path / name).as_uri() for name in ("old", "new")}
    config = {} if before else {"backup.stores": "", "restore.from": ""}
    async with place(tmp_path / "home", blob_stores=stores, backup_stores=("old",), restore_from=("old",)) as there:
        run_id = await there.deploy(job=one_stage(), config=config)
        first = start(there, run_id, "c1", "disk1", **OFTEN)
        disk, query = await began(first)
        await disk.runs(query, 0, {0: 1, 1: 0})
        if before:
            await soon(until_in(there, "old"))
        written = await writes(disk, query, 1, {0: 5, 1: 0})  # a slow sink: its output is there, its commit is not yet

        # docs/operating.md: "To move to another blob store while the job runs"
        assert (await put_backup(there, run_id, [*before, "new"], before or ["new"])).status_code == 200
        await soon(until_in(there, "new"))
        assert (await put_backup(there, run_id, ["new"], ["new"])).status_code == 200
        await asyncio.sleep(0.2)

        await ends_without_a_word(there, first)
        _, query2 = await began(start(there, run_id, "c2", "disk2", **NEVER))
        assert query2.start.lineage == query.start.lineage, "sinks skip a batch of this lineage that they have"
        assert dict(query2.start.replay) == {1: written}, "batch 1 has been written with this plan"


async def test_a_batch_that_an_earlier_process_had_written_before_blob_stores_changed_runs_again_as_it_was_planned(tmp_path: Path) -> None:
    stores = {name: (tmp_path / name).as_uri() for name in ("old", "new")}
    async with place(tmp_path / "home", blob_stores=stores, backup_stores=("old",), restore_from=("old",)) as there:
        run_id = await there.deploy(job=one_stage())
        first = start(there, run_id, "c1", "disk1", **OFTEN)
        disk, query = await began(first)
        await disk.runs(query, 0, {0: 1, 1: 0})
        await soon(until_in(there, "old"))
        written = await writes(disk, query, 1, {0: 5, 1: 0})
        await ends_without_a_word(there, first)
        root = there.home.parent / "disk1"
        second = there.start(run_id, "c2", engine=SlowEngine(root=root), job=one_stage(), state_dir=root, **OFTEN)
        _, query2 = await began(second)
        await move(there, run_id)
        await ends_without_a_word(there, second)
        _, query3 = await began(start(there, run_id, "c3", "disk3", **NEVER))
        assert query3.start.lineage == query2.start.lineage == query.start.lineage
        assert dict(query3.start.replay) == {1: written}


async def test_a_first_batch_that_was_written_while_blob_stores_changed_runs_again_as_it_was_planned(tmp_path: Path) -> None:
    stores = {name: (tmp_path / name).as_uri() for name in ("old", "new")}
    async with place(tmp_path / "home", blob_stores=stores, backup_stores=("old",), restore_from=("old",)) as there:
        run_id = await there.deploy(job=one_stage())
        first = start(there, run_id, "c1", "disk1", **OFTEN)
        disk, query = await began(first)
        written = await writes(disk, query, 0, {0: 5, 1: 0})
        assert (await put_backup(there, run_id, ["old", "new"], ["old"])).status_code == 200
        await soon(until_planned(tmp_path / "new"))
        assert (await put_backup(there, run_id, ["new"], ["new"])).status_code == 200
        await ends_without_a_word(there, first)
        _, query2 = await began(start(there, run_id, "c2", "disk2", **NEVER))
        assert query2.start.lineage == query.start.lineage
        assert dict(query2.start.replay) == {0: written}


async def ends_without_a_word(there: Place, container: Incarnation) -> None:
    """Its machine is lost; nothing is released or reported."""
    container.life.cancel()
    await asyncio.gather(container.life, return_exceptions=True)
    there.clock.advance(60)


async def move(there: Place, run_id: RunId) -> None:
    """As docs/operating.md says."""
    assert (await put_backup(there, run_id, ["old", "new"], ["old"])).status_code == 200
    await soon(until_in(there, "new"))
    assert (await put_backup(there, run_id, ["new"], ["new"])).status_code == 200
    await asyncio.sleep(0.2)


async def until_planned(store: Path) -> None:
    """Wait until the blob store has a plan."""
    while not await asyncio.to_thread(lambda: [each for each in store.glob("blobs/jobs/*/*/*/offsets/*/*") if each.is_file()]):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
