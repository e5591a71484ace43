"""Which offset-log entries a start reads and requires: only those that decide where it continues. A job of one task, with a real
coordinator and two real blob stores."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest

from containers.supervision.exit_report import EXIT_FAILED
from sluice.blobs.locations import open_blob_store
from sluice.blobs.port import BlobStore
from sluice.core.ids import RunId
from tests.support.agents import Incarnation, Place, place
from tests.support.backups import BACKED_UP, EVERY_BATCH, NEVER, began, one_stage, start, stopped
from tests.support.engines import DiskEngine, FakeQuery
from tests.support.faults import Fault, FaultyBlobs, Operation

BOTH = ("one", "two")


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Place]:
    stores = {name: (tmp_path / name).as_uri() for name in BOTH}
    async with place(tmp_path / "home", **{**BACKED_UP, "blob_stores": stores, "backup_stores": BOTH, "restore_from": BOTH}) as made:
        yield made


class Blobs:
    """The blob stores of a container. Those in `silent` do not answer once they are open."""

    def __init__(self, silent: Iterable[str] = ()) -> None:
        self._silent = silent
        self.made: list[FaultyBlobs] = []

    def open(self, url: str) -> BlobStore:
        silent = url.rpartition("/")[2] in self._silent

        def plan(operation: Operation) -> Fault | None:
            return Fault.FAIL if silent and operation.name != "open" else None

        self.made.append(FaultyBlobs(open_blob_store(url), plan))
        return self.made[-1]

    def plans_read(self, query: FakeQuery) -> set[int]:
        """The batches whose entries were read."""
        asked = [each for store in self.made for each in store.operations if each.name == "get" and "/offsets/" in each.blob]
        return {int(each.blob.rpartition("/")[2]) for each in asked if f"/{query.start.lineage}/" in each.blob}


async def ran(there: Place, run_id: RunId, name: str, disk: str, batches: Iterable[int], **settings: Any) -> tuple[DiskEngine, FakeQuery]:
    """A container has run the batches, and was stopped."""
    container = start(there, run_id, name, disk, **settings)
    engine, query = await began(container)
    for batch in batches:
        await engine.runs(query, batch, {0: batch + 1, 1: 0})
    await stopped(container)
    return engine, query


async def killed_after(there: Place, run_id: RunId, name: str, disk: str, batch: int) -> None:
    """A container has run the batch without a snapshot of it, and was killed."""
    container = start(there, run_id, name, disk, **NEVER)
    engine, query = await began(container)
    await engine.runs(query, batch, {0: batch + 1, 1: 0})
    container.life.cancel()
    there.clock.advance(60)


def damage(there: Place, *batches: int) -> None:
    """Damage the entries of the batches in both blob stores."""
    for name in BOTH:
        for batch in batches:
            (file,) = (there.home.parent / name).rglob(f"blobs/**/offsets/*/{batch:012}")
            file.write_text("damaged")


async def restore_explicitly(there: Place, batch: int) -> None:
    (wanted,) = (each for each in await there.snapshots() if each["batchId"] == batch)
    async with httpx.AsyncClient(transport=there.app, base_url="http://c") as http:
        stage = {"task": wanted["task"], "stage": wanted["stage"]}
        answer = await http.post(f"/jobs/delays/snapshots/{wanted['checkpointId']}/restore", json=stage)
        assert answer.status_code == 200, answer.text


async def test_a_chosen_snapshot_is_restored_without_reading_a_plan_of_a_later_batch(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    disk, query = await ran(there, run_id, "c1", "disk1", range(4), **EVERY_BATCH)
    await restore_explicitly(there, 1)
    damage(there, 2, 3)
    blobs = Blobs(silent=["two"])
    disk2, query2 = await began(start(there, run_id, "c2", "disk2", open_blobs=blobs.open, **NEVER))
    assert query2.start.lineage != query.start.lineage
    assert disk2.state(query2.start) == {batch: file for batch, file in disk.state(query.start).items() if batch <= 1}
    assert blobs.plans_read(query) == set()


async def test_a_chosen_snapshot_that_no_blob_store_has_is_named_although_a_plan_is_damaged(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    await ran(there, run_id, "c1", "disk1", range(3), **EVERY_BATCH)
    await restore_explicitly(there, 1)
    damage(there, 2)
    (wanted,) = (each for each in await there.snapshots() if each["batchId"] == 1)
    indexes = [wanted["markers"][name]["index"] for name in BOTH]
    for name in BOTH:
        shutil.rmtree(there.home.parent / name / "blobs" / Path(indexes[0]).parent)
    ending = await start(there, run_id, "c2", "disk2", **NEVER).ending()
    assert ending.exit_code == EXIT_FAILED
    assert any(index in ending.reason for index in indexes), ending.reason


async def test_a_disk_that_is_older_than_the_snapshot_does_not_decide_which_plans_are_read(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    await ran(there, run_id, "c1", "disk1", range(2), **EVERY_BATCH)
    disk, query = await ran(there, run_id, "c2", "disk2", range(2, 10), **EVERY_BATCH)
    blobs = Blobs()
    disk3, query3 = await began(start(there, run_id, "c3", "disk1", open_blobs=blobs.open, **NEVER))
    assert disk3.state(query3.start) == disk.state(query.start)
    assert blobs.plans_read(query) == {7, 8, 9}


@pytest.mark.parametrize(("batch", "starts"), [(0, True), (1, True), (2, True), (3, False)])
async def test_a_damaged_plan_prevents_a_start_on_an_empty_disk_only_if_its_batch_must_run_again(
    there: Place, batch: int, starts: bool
) -> None:
    run_id = await there.deploy(job=one_stage())
    await ran(there, run_id, "c1", "disk1", range(3), **EVERY_BATCH)
    await killed_after(there, run_id, "c2", "disk1", 3)
    damage(there, batch)
    container = start(there, run_id, "c3", "disk3", **NEVER)
    if starts:
        assert list((await began(container))[1].start.replay) == [3]
    else:
        await refused(container, batch)


@pytest.mark.parametrize("batch", [1, 3])
async def test_a_damaged_plan_that_cannot_be_compared_with_that_of_the_disk_prevents_a_start(there: Place, batch: int) -> None:
    run_id = await there.deploy(job=one_stage())
    await ran(there, run_id, "c1", "disk1", range(3), **EVERY_BATCH)
    await killed_after(there, run_id, "c2", "disk1", 3)
    damage(there, batch)
    await refused(start(there, run_id, "c3", "disk1", **NEVER), batch)


async def refused(container: Incarnation, batch: int) -> None:
    ending = await container.ending()
    assert ending.exit_code == EXIT_FAILED
    assert f"{batch:012}" in ending.reason, ending.reason
