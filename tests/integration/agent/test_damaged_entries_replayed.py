"""A damaged offset-log entry of a batch that must run again, while another blob store has the entry."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.agents import place
from tests.support.backups import BACKED_UP, NEVER, began, one_stage, start, stopped


@pytest.mark.parametrize("damaged", [False, True], ids=["whole", "truncated"])
async def test_a_batch_whose_entry_the_first_blob_store_has_damaged_runs_again_with_that_of_the_second(
    tmp_path: Path, damaged: bool
) -> None:
    stores = {name: (tmp_path / name).as_uri() for name in ("one", "two")}
    async with place(tmp_path / "home", **BACKED_UP, blob_stores=stores) as there:
        run_id = await there.deploy(job=one_stage())
        first = start(there, run_id, "c1", "disk1", **NEVER)
        disk, query = await began(first)
        await disk.runs(query, 0, {0: 1, 1: 0})
        await stopped(first)  # its last commit has batch 0
        second = start(there, run_id, "c2", "disk1", **NEVER)
        disk, query = await began(second)
        await disk.runs(query, 1, {0: 2, 1: 0})
        second.life.cancel()  # the machine is lost with its disk
        there.clock.advance(60)
        (entry,) = (path for path in (tmp_path / "one").rglob(f"offsets/*/{1:012}") if "/ttl/" not in str(path))
        if damaged:
            entry.write_bytes(entry.read_bytes()[:-1])
        third = start(there, run_id, "c3", "disk3", **NEVER)
        beginning = asyncio.ensure_future(began(third))
        await asyncio.wait({beginning, third.life}, timeout=20, return_when=asyncio.FIRST_COMPLETED)
        assert not third.life.done(), third.life.result()
        disk3, query3 = await beginning
        assert disk3.state(query3.start) == disk.state(query.start)
        assert query3.start.lineage == query.start.lineage
