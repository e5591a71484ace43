"""Blob stores that have lost blobs: the disk, the other blob store or an older snapshot replaces them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from containers.supervision.exit_report import EXIT_FAILED
from coordinator.blobpool import BlobStores
from coordinator.snapshots.audit import Audits
from coordinator.snapshots.operations import Progress
from sluice.blobs.locations import open_blob_store
from sluice.blobs.port import Purpose
from sluice.core.errors import BlobUnavailable
from sluice.core.ids import JobName, RunId, StageKey, StageName, TaskName
from sluice.core.snapshots.snapshot import BlobStoreName
from sluice.status import overview
from tests.contracts.rows import NOON
from tests.support.agents import Place, place
from tests.support.backups import BACKED_UP, EVERY_BATCH, NEVER, began, one_stage, start, stopped
from tests.support.engines import DiskEngine, FakeQuery, soon
from tests.support.faults import Fault, FaultyBlobs, Operation
from tests.support.s3servers import S3Server

pytestmark = pytest.mark.real_time

OFTEN = {"commit_interval_seconds": 0.01}


@pytest.fixture(params=["filesystem", "s3"])
async def there(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    """Two blob stores. Those on S3 are two buckets, whose objects are files under `tmp_path`, too."""
    stores = {name: (tmp_path / name).as_uri() for name in ("one", "two")}
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3")
        assert server.directory is not None
        for name in stores:
            bucket = server.new_bucket()
            (tmp_path / name).symlink_to(server.directory / "s3" / bucket)
            stores[name] = f"s3://{bucket}?endpoint={server.endpoint}&region=us-east-1"
    async with place(tmp_path / "home", **BACKED_UP, blob_stores=stores) as made:
        yield made


def in_store(there: Place, store: str) -> Path:
    return there.home.parent / store


def lose(there: Place, store: str, blob: str) -> None:
    """Delete a blob without Sluice."""
    found = list(in_store(there, store).rglob(blob.rpartition("/")[2]))
    assert found, blob
    for each in found:
        each.unlink()


def data_in(there: Place, store: str) -> list[Path]:
    """The data blobs, in the order of their upload."""
    return sorted(
        file for file in in_store(there, store).rglob("*") if file.is_file() and "/only/data/" in str(file) and "/ttl/" not in str(file)
    )


async def batches(there: Place, run_id: RunId, number: int, **settings: Any) -> tuple[DiskEngine, FakeQuery]:
    """A container runs batches on disk1, each with a commit, and stops."""
    container = start(there, run_id, "c1", "disk1", **settings)
    disk, query = await began(container)
    for batch in range(number):
        await disk.runs(query, batch, {0: batch + 1, 1: 0})
    await stopped(container)
    return disk, query


async def restores_from(there: Place, run_id: RunId, store: str) -> None:
    async with httpx.AsyncClient(transport=there.app, base_url="http://c") as http:
        answer = await http.put(f"/runs/{run_id}/backup", json={"stores": ["one", "two"], "restoreFrom": [store]})
        assert answer.status_code == 200, answer.text


async def test_a_container_with_the_state_on_its_disk_starts_without_the_index_and_uploads_the_state_whole(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    disk, query = await batches(there, run_id, 3, **EVERY_BATCH)
    for store, marker in (await there.snapshots())[0]["markers"].items():
        lose(there, store, marker["index"])
        for blob in data_in(there, store):
            blob.unlink()
    second = start(there, run_id, "c2", "disk1", **OFTEN)
    disk2, query2 = await began(second)
    await second.wire.after("snapshots")
    assert (disk2.outputs, query2.start.lineage) == ({}, query.start.lineage)
    await stopped(second)
    disk3, query3 = await began(start(there, run_id, "c3", "disk3", **NEVER))
    assert disk3.state(query3.start) == disk.state(query.start)


async def test_without_the_newest_index_an_older_snapshot_is_restored_and_the_batches_since_run_again_as_planned(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    disk, query = await batches(there, run_id, 3, **EVERY_BATCH)
    newest, older, *_ = await there.snapshots()
    for store, marker in newest["markers"].items():
        lose(there, store, marker["index"])
    second = start(there, run_id, "c2", "disk2", **OFTEN)
    disk2, query2 = await began(second)
    assert query2.start.lineage == query.start.lineage
    assert [batch for batch, _ in disk2.outputs[query2.start.query]] == list(range(older["batchId"] + 1, newest["batchId"] + 1))
    assert disk2.state(query2.start) == disk.state(query.start)
    await disk2.runs(query2, 3, {0: 4, 1: 0})
    await second.wire.after("snapshots")
    await stopped(second)
    disk3, query3 = await began(start(there, run_id, "c3", "disk3", **NEVER))
    assert disk3.state(query3.start) == disk2.state(query2.start)


async def test_an_older_snapshot_whose_next_batches_cannot_run_again_begins_a_lineage_at_it(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    _, query = await batches(there, run_id, 3, **EVERY_BATCH)
    newest, older, *_ = await there.snapshots()
    for store, marker in newest["markers"].items():
        lose(there, store, marker["index"])
        for entry in in_store(there, store).rglob(f"offsets/*/{newest['batchId']:012}*"):
            entry.unlink()
    second = start(there, run_id, "c2", "disk2", **OFTEN)
    disk2, query2 = await began(second)
    assert query2.start.lineage != query.start.lineage
    assert len(disk2.state(query2.start)) == older["batchId"] + 1
    await disk2.runs(query2, older["batchId"] + 1, {0: 9, 1: 0})
    await second.wire.after("snapshots")
    await stopped(second)
    disk3, query3 = await began(start(there, run_id, "c3", "disk3", **NEVER))
    assert disk3.state(query3.start) == disk2.state(query2.start)


async def test_without_a_readable_snapshot_the_container_ends_with_an_error_that_names_the_newest_index(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    await batches(there, run_id, 3, **EVERY_BATCH)
    found = await there.snapshots()
    for snapshot in found:
        for store, marker in snapshot["markers"].items():
            lose(there, store, marker["index"])
    second = start(there, run_id, "c2", "disk2", **NEVER)
    ending = await second.ending()
    assert ending.exit_code == EXIT_FAILED
    assert found[0]["markers"]["one"]["index"] in ending.reason


async def test_a_snapshot_that_the_first_blob_store_has_lost_is_restored_from_the_second_and_the_first_is_repaired(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    disk, query = await batches(there, run_id, 2, **EVERY_BATCH)
    lose(there, "one", (await there.snapshots())[0]["markers"]["one"]["index"])
    for blob in data_in(there, "one"):
        blob.unlink()
    second = start(there, run_id, "c2", "disk2", **OFTEN)
    disk2, query2 = await began(second)
    assert disk2.state(query2.start) == disk.state(query.start)
    assert disk2.outputs == {}
    await second.wire.after("snapshots")
    await stopped(second)
    await restores_from(there, run_id, "one")
    disk3, query3 = await began(start(there, run_id, "c3", "disk3", **NEVER))
    assert disk3.state(query3.start) == disk.state(query.start)


async def test_files_come_from_the_blob_store_that_has_them(there: Place) -> None:
    """Each blob store has lost a part, and none has the whole snapshot."""
    run_id = await there.deploy(job=one_stage())
    disk, query = await batches(there, run_id, 3, **EVERY_BATCH)
    one, two = data_in(there, "one"), data_in(there, "two")
    assert len(one) == len(two) >= 2
    one[0].unlink()
    two[-1].unlink()
    second = start(there, run_id, "c2", "disk2", **OFTEN)
    disk2, query2 = await began(second)
    assert disk2.state(query2.start) == disk.state(query.start)
    await second.wire.after("snapshots")
    await stopped(second)
    for store in ("one", "two"):
        await restores_from(there, run_id, store)
        again = start(there, run_id, f"c3-{store}", f"disk-{store}", **NEVER)
        disk3, query3 = await began(again)
        assert disk3.state(query3.start) == disk.state(query.start)
        await stopped(again)


async def test_an_offset_log_entry_that_the_first_blob_store_has_damaged_comes_from_the_second(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    disk, query = await batches(there, run_id, 3, **EVERY_BATCH)
    newest, *_ = await there.snapshots()
    (entry,) = (path for path in in_store(there, "one").rglob(f"offsets/*/{newest['batchId']:012}") if "/ttl/" not in str(path))
    entry.write_bytes(b"{")
    disk2, query2 = await began(start(there, run_id, "c2", "disk2", **NEVER))
    assert disk2.state(query2.start) == disk.state(query.start)
    assert query2.start.lineage == query.start.lineage


async def test_lost_blobs_are_shown_with_the_snapshots_that_need_them_while_the_job_runs(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    container = start(there, run_id, "c1", "disk1", **EVERY_BATCH)
    disk, query = await began(container)
    for batch in range(2):
        await disk.runs(query, batch, {0: batch + 1, 1: 0})
        await container.wire.after("snapshots", batch + 1)
    await there.parts.lost_blobs.run_once()
    assert (await there.run(run_id)).backup_problems == ()
    data_in(there, "one")[0].unlink()
    await there.parts.lost_blobs.run_once()
    (problem,) = (await there.run(run_id)).backup_problems
    assert problem.startswith("blob store one has lost 1 blob of Partition 0/only: the newest snapshot")
    assert problem in overview(await there.run(run_id), NOON).problems
    async with httpx.AsyncClient(transport=there.app, base_url="http://c") as http:
        lines = (await http.get("/metrics")).text.splitlines()
    assert 'sluice_job_blobs_lost{blob_store="one",sluice_job="delays"} 1.0' in lines
    assert 'sluice_job_blobs_lost{blob_store="two",sluice_job="delays"} 0.0' in lines


async def test_the_comparison_lists_blobs_and_reads_indexes_and_no_data(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    await batches(there, run_id, 2, **EVERY_BATCH)
    chore = there.parts.lost_blobs
    recorded: list[FaultyBlobs] = []

    def recording(name: str, url: str) -> FaultyBlobs:
        recorded.append(FaultyBlobs(open_blob_store(url)))
        return recorded[-1]

    stores = BlobStores({str(name): url for name, url in chore.blob_stores.places.items()}, recording, chore.blob_stores.by_default)
    assert await replace(chore, blob_stores=stores, found={}).run_once() == {}
    await stores.close()
    for blobs in recorded:
        read = [each.blob for each in blobs.operations if each.name == "get"]
        assert len(read) >= 2
        assert all("/snapshots/" in blob for blob in read)
        assert any(each.name == "list" and each.blob.endswith("/data/") for each in blobs.operations)
    assert len(recorded) == 2


async def wholly_verified(there: Place) -> None:
    """Every retained snapshot can be read in both blob stores."""
    key = StageKey(JobName("delays"), TaskName("Partition 0"), StageName("only"))
    audits = Audits(there.parts.lost_blobs.store, there.parts.lost_blobs.blob_stores)
    for snapshot in await there.snapshots():
        result = await audits.verify(key, snapshot["checkpointId"], None, Progress("bytes"))
        assert result["whole"], result


async def test_verifying_a_snapshot_while_its_blob_store_fails_says_that_it_is_unavailable(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    await batches(there, run_id, 2, **EVERY_BATCH)
    chore = there.parts.lost_blobs

    def fails(operation: Operation) -> Fault | None:
        return Fault.FAIL if operation.name == "get" and "/data/" in operation.blob else None

    def failing(name: str, url: str) -> FaultyBlobs:
        return FaultyBlobs(open_blob_store(url), fails)

    stores = BlobStores({str(name): url for name, url in chore.blob_stores.places.items()}, failing, chore.blob_stores.by_default)
    key = StageKey(JobName("delays"), TaskName("Partition 0"), StageName("only"))
    (newest, *_) = await there.snapshots()
    with pytest.raises(BlobUnavailable):
        await Audits(chore.store, stores).verify(key, newest["checkpointId"], None, Progress("bytes"))
    await stores.close()


@pytest.mark.parametrize("lost", ["first", "last", "all"])
async def test_a_container_uploads_lost_blobs_again_from_its_disk_for_all_snapshots_although_no_record_arrives(
    there: Place, lost: str
) -> None:
    run_id = await there.deploy(job=one_stage())
    container = start(there, run_id, "c1", "disk1", **OFTEN)
    disk, query = await began(container)
    for batch in range(3):
        await disk.runs(query, batch, {0: batch + 1, 1: 0})
        await container.wire.after("snapshots", batch + 1)
    before = await there.snapshots()
    data = data_in(there, "one")
    for blob in {"first": data[:1], "last": data[-1:], "all": data}[lost]:
        blob.unlink()
    await there.parts.lost_blobs.run_once()
    (problem,) = (await there.run(run_id)).backup_problems
    costs = 1 if lost == "last" else len(before)
    assert problem.endswith(f"the newest snapshot{f' and {costs - 1} more' if costs > 1 else ''} cannot be restored")
    await container.wire.after("index", costs)
    await there.parts.lost_blobs.run_once()
    assert (await there.run(run_id)).backup_problems == ()
    after = await there.snapshots()
    assert [each["checkpointId"] for each in after] == [each["checkpointId"] for each in before], "the same snapshots"
    assert [each["markers"]["two"]["index"] for each in after] == [each["markers"]["two"]["index"] for each in before]
    assert sum(a["markers"]["one"]["index"] != b["markers"]["one"]["index"] for a, b in zip(after, before, strict=True)) == costs
    await wholly_verified(there)
    await disk.runs(query, 3, {0: 4, 1: 0})
    await container.wire.after("snapshots", 4)
    await stopped(container)
    await wholly_verified(there)
    await restores_from(there, run_id, "one")
    disk2, query2 = await began(start(there, run_id, "c2", "disk2", **NEVER))
    assert disk2.state(query2.start) == disk.state(query.start)


async def test_an_upload_of_everything_continues_when_its_blob_store_is_found_again_to_lack_blobs(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    disk, query = await batches(there, run_id, 3, **EVERY_BATCH)
    files = [each for each in disk.directory(query.start).rglob("*") if each.is_file()]
    for file in files:
        os.utime(file, (0, 0))  # as if the state were old
    newest = (await there.snapshots())[0]["markers"]["one"]["index"]
    lose(there, "one", newest)
    places = there.parts.lost_blobs.blob_stores.places
    blobs = {url: FaultyBlobs(open_blob_store(url)) for url in places.values()}
    tried, failed = list[Operation](), asyncio.Event()

    def fails_once(operation: Operation) -> Fault | None:
        if operation.about is None or operation.about.purpose is not Purpose.DATA or operation.name != "put":
            return None
        tried.append(operation)
        if len(tried) != 5:
            return None
        failed.set()
        return Fault.FAIL

    blobs[places[BlobStoreName("one")]].plan = fails_once
    container = start(there, run_id, "c2", "disk1", open_blobs=blobs.__getitem__, backup_concurrency=1, backup_packing=False, **OFTEN)
    await soon(failed.wait())
    await there.parts.lost_blobs.run_once()
    await container.wire.after("snapshots", 2)  # the list of them is a request, too
    assert 4 < len(tried) <= len(files) + 1
    await stopped(container)


async def test_lost_blobs_that_are_on_no_disk_make_their_snapshots_unusable_but_not_newer_ones(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    container = start(there, run_id, "c1", "disk1", **OFTEN)
    disk, query = await began(container)
    for batch in range(2):
        await disk.runs(query, batch, {0: batch + 1, 1: 0})
        await container.wire.after("snapshots", batch + 1)
    for file in (path for path in disk.directory(query.start).rglob("0*") if path.is_file()):
        file.unlink()  # Spark deletes files of old batches
    for blob in data_in(there, "one"):
        blob.unlink()
    await there.parts.lost_blobs.run_once()
    await container.wire.after("snapshots", 4)  # the list of them is a request, too
    await there.parts.lost_blobs.run_once()
    (problem,) = (await there.run(run_id)).backup_problems
    assert ": snapshot" in problem, "older ones"
    await stopped(container)
