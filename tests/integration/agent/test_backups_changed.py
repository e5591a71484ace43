"""Runs that are not backed up, and runs whose blob stores are changed while they run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from containers.supervision.exit_report import EXIT_FAILED, EXIT_OK
from coordinator.snapshots.degraded import TOLERATED_FOR
from sluice.blobs.locations import open_blob_store
from sluice.core.ids import RunId
from sluice.status import overview
from tests.contracts.rows import NOON
from tests.support.agents import Place, place
from tests.support.backups import BACKED_UP, EVERY_BATCH, NEVER, began, one_stage, start, stopped
from tests.support.engines import soon
from tests.support.faults import Fault, FaultyBlobs, every, healthy
from tests.support.s3servers import S3Server, toxiproxy

pytestmark = pytest.mark.real_time

OVERDUE_AT_ONCE: dict[str, Any] = {"commit_interval_seconds": 0.001, "commit_max_delay_seconds": 0, "commit_timeout_seconds": 3600}
"""A batch waits as soon as the one before it is not durable after a millisecond."""


OFTEN = {"commit_interval_seconds": 0.01}


@pytest.fixture(params=["filesystem", "s3"])
def new_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """Makes the URL of an empty blob store."""
    server: S3Server | None = request.getfixturevalue("s3") if request.param == "s3" else None

    def made(name: str) -> str:
        if server is None:
            return (tmp_path / name).as_uri()
        return f"s3://{server.new_bucket()}?endpoint={server.endpoint}&region=us-east-1"

    return made


async def put_backup(there: Place, run_id: RunId, stores: list[str], restore_from: list[str]) -> httpx.Response:
    async with httpx.AsyncClient(transport=there.app, base_url="http://c") as http:
        return await http.put(f"/runs/{run_id}/backup", json={"stores": stores, "restoreFrom": restore_from})


@pytest.mark.parametrize(
    ("settings", "config"),
    [(BACKED_UP, {"backup.stores": ""}), ({"backup_stores": (), "restore_from": None}, {})],
    ids=["by the job's configuration", "by the coordinator's settings"],
)
async def test_batches_of_a_run_without_backups_wait_for_none(
    tmp_path: Path, new_store: Callable[[str], str], settings: Mapping[str, Any], config: dict[str, str]
) -> None:
    async with place(tmp_path / "home", **settings, blob_stores={"local": new_store("local")}) as there:
        run_id = await there.deploy(job=one_stage(), config=config)
        disk, query = await began(start(there, run_id, "c1", "disk1", **OVERDUE_AT_ONCE))
        for batch in range(3):
            await soon(disk.runs(query, batch, {0: batch + 1, 1: 0}))


async def test_a_batch_that_waits_for_a_backup_continues_when_backups_are_switched_off(
    tmp_path: Path, new_store: Callable[[str], str]
) -> None:
    local = new_store("local")
    async with place(tmp_path / "home", **BACKED_UP, blob_stores={"local": local}) as there:
        run_id = await there.deploy(job=one_stage())
        blobs = FaultyBlobs(open_blob_store(local))
        disk, query = await began(start(there, run_id, "c1", "disk1", open_blobs=lambda url: blobs, **OVERDUE_AT_ONCE))
        blobs.plan = lambda operation: Fault.FAIL if operation.name == "put" else None
        await disk.runs(query, 0, {0: 1, 1: 0})
        waiting = asyncio.create_task(disk.runs(query, 1, {0: 2, 1: 0}))
        await asyncio.wait({waiting}, timeout=0.3)
        assert not waiting.done()
        assert (await put_backup(there, run_id, [], ["local"])).status_code == 200
        await soon(waiting)
        await soon(disk.runs(query, 2, {0: 3, 1: 0}))


async def test_a_run_that_names_no_blob_store_to_restore_from_restores_from_its_backups_and_can_be_drained(
    tmp_path: Path, new_store: Callable[[str], str]
) -> None:
    async with place(tmp_path / "home", **BACKED_UP, blob_stores={"local": new_store("local")}) as there:
        run_id = await there.deploy(job=one_stage(), config={"restore.from": ""})
        first = start(there, run_id, "c1", "disk1", **NEVER)
        disk, query = await began(first)
        await disk.runs(query, 0, {0: 1, 1: 0})
        await stopped(first)
        second = start(there, run_id, "c2", "disk2", **NEVER)
        disk2, query2 = await began(second)
        assert disk2.state(query2.start) == disk.state(query.start)
        async with httpx.AsyncClient(transport=there.app, base_url="http://c") as http:
            assert (await http.post("/drain", json={"runId": run_id, "drainMode": "DEFAULT"})).status_code == 202
        assert (await second.ending()).exit_code == EXIT_OK
        assert await there.state(run_id) == "DRAINED"


async def test_a_run_deployed_without_backups_is_backed_up_from_the_next_commit_after_they_are_switched_on(
    tmp_path: Path, new_store: Callable[[str], str]
) -> None:
    async with place(tmp_path / "home", **BACKED_UP, blob_stores={"local": new_store("local")}) as there:
        run_id = await there.deploy(job=one_stage(), config={"backup.stores": "", "restore.from": ""})
        first = start(there, run_id, "c1", "disk1", **OFTEN)
        disk, query = await began(first)
        await disk.runs(query, 0, {0: 1, 1: 0})
        assert (await put_backup(there, run_id, ["local"], ["local"])).status_code == 200
        await first.wire.after("snapshots")
        await stopped(first)
        disk2, query2 = await began(start(there, run_id, "c2", "disk2", **NEVER))
        assert disk2.state(query2.start) == disk.state(query.start)


async def test_an_upload_that_takes_longer_than_the_limit_is_continued_as_long_as_it_puts_files(tmp_path: Path) -> None:
    """As of a large state to a new blob store over a slow network, or to one that often fails."""
    async with place(tmp_path / "home", **BACKED_UP) as there:
        run_id = await there.deploy(job=one_stage(), config={"backup.stores": "", "restore.from": ""})
        blobs = FaultyBlobs(open_blob_store((there.home / "blobs").as_uri()))
        limits = {"commit_interval_seconds": 0.05, "commit_max_delay_seconds": 0.05, "commit_timeout_seconds": 3}
        one_at_a_time = {"backup_concurrency": 1, "backup_packing": False}
        first = start(there, run_id, "c1", "disk1", open_blobs=lambda url: blobs, **limits, **one_at_a_time)
        disk, query = await began(first)
        for batch in range(2):
            await disk.runs(query, batch, {0: batch + 1, 1: 0})
        for file in disk.directory(query.start).rglob("*"):
            os.utime(file, (0, 0))  # as if the state were old
        tried = count(1)
        # The last attempt that fails, one of several each second, puts nothing.
        blobs.plan = lambda operation: Fault.FAIL if operation.name == "put" and next(tried) in (2, 4, 6, 8, 9) else None
        assert (await put_backup(there, run_id, ["local"], ["local"])).status_code == 200
        await first.wire.after("snapshots")
        assert next(tried) > 9, "not all attempts have failed"
        await stopped(first)
        disk2, query2 = await began(start(there, run_id, "c2", "disk2", **NEVER))
        assert disk2.state(query2.start) == disk.state(query.start)


@pytest.mark.parametrize("settings", [OFTEN, EVERY_BATCH], ids=["at intervals", "after each batch"])
async def test_an_added_blob_store_gets_the_state_of_a_stage_that_has_nothing_to_read(
    tmp_path: Path, new_store: Callable[[str], str], settings: Mapping[str, Any]
) -> None:
    stores = {name: new_store(name) for name in ("old", "new")}
    async with place(tmp_path / "home", blob_stores=stores, backup_stores=("old",), restore_from=("old",)) as there:
        run_id = await there.deploy(job=one_stage())
        container = start(there, run_id, "c1", "disk1", **settings)
        disk, query = await began(container)
        await disk.runs(query, 0, {0: 1, 1: 0})
        await container.wire.after("snapshots")
        assert (await put_backup(there, run_id, ["old", "new"], ["new"])).status_code == 200
        await container.wire.after("snapshots", 2)
        await stopped(container)
        assert sorted((await there.snapshots())[0]["markers"]) == ["new", "old"]
        disk2, query2 = await began(start(there, run_id, "c2", "disk2", **NEVER))
        assert disk2.state(query2.start) == disk.state(query.start)


async def test_a_task_is_acquired_after_backups_were_switched_off(tmp_path: Path, new_store: Callable[[str], str]) -> None:
    async with place(tmp_path / "home", **BACKED_UP, blob_stores={"local": new_store("local")}) as there:
        run_id = await there.deploy(job=one_stage())
        first = start(there, run_id, "c1", "disk1", **NEVER)
        disk, query = await began(first)
        await disk.runs(query, 0, {0: 1, 1: 0})
        await stopped(first)
        assert (await put_backup(there, run_id, [], [])).status_code == 200
        second = start(there, run_id, "c2", "disk1", **NEVER)
        disk2, query2 = await began(second)
        assert disk2.state(query2.start) == disk.state(query.start)
        await stopped(second)
        elsewhere = start(there, run_id, "c3", "disk3", **NEVER)
        ending = await elsewhere.ending()
        assert ending.exit_code == EXIT_FAILED
        assert "restore.from" in ending.reason


async def test_blob_stores_that_cannot_be_used_at_first_are_tried_again(tmp_path: Path, new_store: Callable[[str], str]) -> None:
    stores = {name: new_store(name) for name in ("old", "new")}
    opened = count(1)

    def faulty(url: str) -> FaultyBlobs:
        fails = url == stores["new"] and next(opened) < 3
        return FaultyBlobs(open_blob_store(url), every("open", Fault.FAIL) if fails else healthy)

    async with place(tmp_path / "home", blob_stores=stores, backup_stores=("old",), restore_from=("old",)) as there:
        run_id = await there.deploy(job=one_stage())
        container = start(there, run_id, "c1", "disk1", open_blobs=faulty, **OFTEN)
        disk, query = await began(container)
        await disk.runs(query, 0, {0: 1, 1: 0})
        await container.wire.after("snapshots")
        assert (await put_backup(there, run_id, ["new"], ["new"])).status_code == 200
        await container.wire.after("snapshots", 2)
        assert sorted((await there.snapshots())[0]["markers"]) == ["new"]


# --- degraded --------------------------------------------------------------------------------------------------------


async def shown(there: Place, run_id: RunId) -> tuple[list[str], list[str], str]:
    """The problems in `sluice status`, the text of `/readyz?verbose`, and the lines of the metric that are not 0."""
    problems = overview((await there.run(run_id)), NOON).problems
    async with httpx.AsyncClient(transport=there.app, base_url="http://c") as http:
        ready = [line for line in (await http.get("/readyz?verbose")).text.splitlines() if "backups" in line]
        lines = (await http.get("/metrics")).text.splitlines()
    return (
        [each for each in problems if "blob store" in each],
        ready,
        "\n".join(line for line in lines if line.startswith("sluice_job_backup_degraded{") and not line.endswith(" 0.0")),
    )


async def test_a_run_whose_blob_store_is_no_longer_configured_is_degraded_at_once(tmp_path: Path, new_store: Callable[[str], str]) -> None:
    home, url = tmp_path / "home", new_store("blobs")
    async with place(home, **BACKED_UP, blob_stores={"old": url}) as there:
        run_id = await there.deploy(job=one_stage(), config={"backup.stores": "old"})
    async with place(home, **BACKED_UP, blob_stores={"renamed": url}) as there:
        await there.parts.backup_monitor.run_once()
        problems, ready, metric = await shown(there, run_id)
        assert len(problems) == 1
        assert "blob store old, which is no longer configured" in problems[0]
        assert "blob store old" in ready[0]
        assert metric == 'sluice_job_backup_degraded{blob_store="old",reason="not-configured",sluice_job="delays"} 1.0'


async def test_a_stage_without_a_snapshot_in_a_blob_store_is_degraded_after_some_time_until_it_has_one(
    tmp_path: Path,
    new_store: Callable[[str], str],
) -> None:
    local = new_store("local")
    async with place(tmp_path / "home", **BACKED_UP, blob_stores={"local": local}) as there:
        run_id = await there.deploy(job=one_stage())
        blobs = FaultyBlobs(open_blob_store(local))
        container = start(there, run_id, "c1", "disk1", open_blobs=lambda url: blobs, **OFTEN)
        disk, query = await began(container)
        blobs.plan = lambda operation: Fault.FAIL if operation.name == "put" else None
        await disk.runs(query, 0, {0: 1, 1: 0})
        await container.wire.after("progress")
        await there.parts.backup_monitor.run_once()
        assert (await shown(there, run_id))[::2] == ([], "")
        there.clock.advance(TOLERATED_FOR.total_seconds())
        await there.parts.backup_monitor.run_once()
        problems, _, metric = await shown(there, run_id)
        assert problems == ["the newest state is not backed up to blob store local: Partition 0/only"]
        assert metric == 'sluice_job_backup_degraded{blob_store="local",reason="no-snapshot",sluice_job="delays"} 1.0'
        blobs.plan = healthy
        await container.wire.after("snapshots")
        await there.parts.backup_monitor.run_once()
        assert (await shown(there, run_id))[::2] == ([], "")


@pytest.mark.parametrize("interval", [0.01, 0], ids=["at intervals", "after each batch"])
async def test_a_run_whose_uploads_fail_after_its_first_snapshot_is_degraded_until_they_succeed(
    tmp_path: Path, new_store: Callable[[str], str], interval: float
) -> None:
    local = new_store("local")
    async with place(tmp_path / "home", **BACKED_UP, blob_stores={"local": local}) as there:
        run_id = await there.deploy(job=one_stage())
        blobs = FaultyBlobs(open_blob_store(local))
        settings = {"commit_interval_seconds": interval, "commit_late_seconds": 0.1}
        container = start(there, run_id, "c1", "disk1", open_blobs=lambda url: blobs, **settings)
        disk, query = await began(container)
        await disk.runs(query, 0, {0: 1, 1: 0})
        await container.wire.after("snapshots")
        await there.parts.backup_monitor.run_once()
        assert (await shown(there, run_id))[::2] == ([], "")
        blobs.plan = lambda operation: Fault.FAIL if operation.name == "put" else None
        await disk.runs(query, 1, {0: 2, 1: 0})
        next_one = asyncio.create_task(disk.runs(query, 2, {0: 3, 1: 0}))
        problems, metric = await until_shown(there, run_id, bool)
        assert problems[0].startswith("the backup of Partition 0/only to blob store local is overdue: put of jobs/delays/")
        assert metric == 'sluice_job_backup_degraded{blob_store="local",reason="overdue",sluice_job="delays"} 1.0'
        blobs.plan = healthy
        await soon(next_one)
        assert await until_shown(there, run_id, lambda problems: not problems) == ([], "")


async def test_a_run_whose_blob_store_is_out_of_reach_is_degraded_while_its_container_repeats_its_requests(
    tmp_path: Path, s3: S3Server
) -> None:
    address = urlsplit(s3.endpoint).netloc
    with toxiproxy(tmp_path) as proxies:
        far = f"s3://{s3.new_bucket()}/x?endpoint=http://{proxies.proxy(address)}&region=us-east-1"
        async with place(tmp_path / "home", **BACKED_UP, blob_stores={"local": far}) as there:
            run_id = await there.deploy(job=one_stage())
            container = start(there, run_id, "c1", "disk1", commit_interval_seconds=0.01, commit_late_seconds=0.1)
            disk, query = await began(container)
            await disk.runs(query, 0, {0: 1, 1: 0})
            await container.wire.after("snapshots")
            proxies.cut(address, on=True)
            waiting = asyncio.create_task(disk.runs(query, 1, {0: 2, 1: 0}))
            problems, _ = await until_shown(there, run_id, bool)
            assert "overdue: batch 1 waits, because its offset-log entry is not durable: " in problems[0]
            proxies.cut(address, on=False)
            await soon(waiting)
            assert (await until_shown(there, run_id, lambda problems: not problems))[0] == []


async def until_shown(there: Place, run_id: RunId, expected: Callable[[list[str]], bool]) -> tuple[list[str], str]:
    """The problems in `sluice status`, and the metric, as soon as they are as expected."""
    async with asyncio.timeout(300):
        while True:
            await there.parts.backup_monitor.run_once()
            problems, _, metric = await shown(there, run_id)
            if expected(problems):
                return problems, metric
            await asyncio.sleep(0.05)
