"""The offset-log entry of a batch that is running while the run's blob stores change."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest

from containers.state.checkpoint import write_offset_log
from sluice.core.ids import RunId
from tests.support.agents import Place, place
from tests.support.backups import NEVER, began, one_stage, start
from tests.support.engines import DiskEngine, FakeQuery, plan, soon

OFTEN = {"commit_interval_seconds": 0.01}


async def put_backup(there: Place, run_id: RunId, stores: list[str], restore_from: list[str]) -> httpx.Response:
    async with httpx.AsyncClient(transport=there.app, base_url="http://c") as http:
        return await http.put(f"/runs/{run_id}/backup", json={"stores": stores, "restoreFrom": restore_from})


async def writes(disk: DiskEngine, query: FakeQuery, batch: int, ends: Mapping[int, int]) -> str:
    """Plan a batch and write its output; Spark has not committed it yet. Returns its plan."""
    directory, text = disk.directory(query.start), plan(ends)

    def work() -> None:
        write_offset_log(directory, batch, text)
        for each in query.start.batch_hooks:
            each.before_batch(batch)
        for each in query.start.batch_hooks:
            each.before_write(batch)

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

        first.life.cancel()  # the machine is lost with its disk, and nothing is released or reported
        await asyncio.gather(first.life, return_exceptions=True)
        there.clock.advance(60)
        _, query2 = await began(start(there, run_id, "c2", "disk2", **NEVER))
        assert query2.start.lineage == query.start.lineage, "sinks skip a batch of this lineage that they have"
        assert dict(query2.start.replay) == {1: written}, "batch 1 has been written with this plan"
