"""A database is restored from an older copy while containers run, or is lost: no number is issued twice, and no snapshot is lost."""

from __future__ import annotations

import asyncio
import subprocess
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from shutil import rmtree
from typing import Any, Protocol

import httpx
import pytest

from coordinator.store import copies
from sluice.core.errors import BlobStoreUnusable, CoordinatorUnavailable
from sluice.core.ids import Generation, RunId
from sluice.status import overview
from tests.support.agents import Incarnation, Place, place
from tests.support.api import problem_slug
from tests.support.backups import BACKED_UP, EVERY_BATCH, began, one_stage, start
from tests.support.engines import DiskEngine, FakeQuery
from tests.support.fakes import FakeClock
from tests.support.servers import Postgres

pytestmark = pytest.mark.real_time

GENEROUS = 300
TASK = "Partition 0"


class Database(Protocol):
    @property
    def url(self) -> str | None: ...

    def back_up(self) -> None:
        """Called while the coordinator runs."""

    def restore(self) -> None:
        """Called while the coordinator does not run."""


@dataclass(frozen=True, slots=True)
class Sqlite:
    home: Path
    url: None = None

    def back_up(self) -> None:
        copies.backup(self.home / "coordinator.db", self.home.parent / "copy", force=True)

    def restore(self) -> None:
        copies.restore(self.home.parent / "copy", self.home / "coordinator.db", force=True)


@dataclass(frozen=True, slots=True)
class OnPostgres:
    """With the commands that docs/operating.md names."""

    url: str
    programs: Path
    copy: Path

    @property
    def _name(self) -> str:
        return self.url.replace("+asyncpg", "")

    def back_up(self) -> None:
        self._run("pg_dump", "--format=custom", f"--file={self.copy}", self._name)

    def restore(self) -> None:
        self._run("pg_restore", "--clean", "--if-exists", "--single-transaction", f"--dbname={self._name}", str(self.copy))

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run([str(self.programs / program), *arguments], check=True, capture_output=True, timeout=300)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, home: Path, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        return Sqlite(home)
    server: Postgres = request.getfixturevalue("postgres_server")
    return OnPostgres(server.new_database(), server.programs, tmp_path / "copy")


@pytest.fixture
def settings(database: Database) -> dict[str, Any]:
    return {**BACKED_UP, "lease_seconds": 30} | ({} if database.url is None else {"database_url": database.url})


async def call(there: Place, method: str, path: str, **body: Any) -> httpx.Response:
    async with httpx.AsyncClient(transport=there.app, base_url="http://c") as http:
        return await http.request(method, path, json=body or None)


async def batches(there: Place) -> list[int]:
    """The last batches of the registered snapshots, newest first."""
    return [each["batchId"] for each in await there.snapshots()]


async def run_batches(container: Incarnation, disk: DiskEngine, query: FakeQuery, numbers: range) -> None:
    """Run these batches, each with its own snapshot."""
    for batch in numbers:
        before = container.wire.answered["snapshots"]
        await disk.runs(query, batch, {0: batch + 1, 1: 0})
        await container.wire.after("snapshots", before + 1)


async def acquire(there: Place, run_id: RunId, execution_id: str) -> httpx.Response:
    """Acquire the task by a container that has just registered."""
    registered = await call(there, "POST", f"/runs/{run_id}/containers", processorId="0", executionContainerId=execution_id)
    assert registered.status_code == 201, registered.text
    body = {"executionContainerId": execution_id, "epoch": registered.json()["epoch"]}
    return await call(there, "POST", f"/runs/{run_id}/tasks/{TASK}/acquire", **body)


async def catalog_check(there: Place) -> str:
    """Its line in `/readyz?verbose`."""
    answer = await call(there, "GET", "/readyz?verbose")
    return next(line for line in answer.text.splitlines() if "catalog" in line)


IN_ORDER = "[+] catalog: as new as the blob stores"


async def test_after_a_restore_no_generation_is_issued_twice_and_snapshots_newer_than_the_copy_are_kept(
    home: Path, database: Database, settings: dict[str, Any]
) -> None:
    async with place(home, **settings) as there:
        run_id = await there.deploy(job=one_stage())
        first = start(there, run_id, "c1", "disk1", **EVERY_BATCH)
        await run_batches(first, *await began(first), range(1))
        database.back_up()
        first.agent.stop_requested()
        await first.ending()
        second = start(there, run_id, "c2", "disk2", **EVERY_BATCH)
        disk, query = await began(second)
        assert query.start.generation == 2
        await run_batches(second, disk, query, range(1, 3))
        assert await batches(there) == [2, 1, 0]
        second.life.cancel()
        await there.parts.issued.run_once()
    database.restore()
    async with place(home, **settings) as there:
        await there.parts.issued.run_once()
        assert await batches(there) == [2, 1, 0]
        assert "restored from an older copy" in await catalog_check(there)
        report = {"generation": 2, "stage": "only", "lineage": query.start.lineage, "batchId": 3, "offsets": []}
        late = await call(there, "POST", f"/runs/{run_id}/tasks/{TASK}/progress", **report)
        assert problem_slug(late) == (409, "lease-lost")
        waiting = (await acquire(there, run_id, "probe")).json()["waitSeconds"]
        assert waiting >= 35
        there.clock.advance(waiting + 1)
        third = start(there, run_id, "c3", "disk3", **EVERY_BATCH)
        disk, query = await began(third)
        assert query.start.generation > 10_000
        assert query.start.reported == 2
        await there.parts.issued.run_once()
        assert await catalog_check(there) == IN_ORDER


async def operation(there: Place, path: str, **body: Any) -> dict[str, Any]:
    """The result of a long-running operation."""
    started = await call(there, "POST", path, **body)
    assert started.status_code == 202, started.text
    found: dict[str, Any] = started.json()
    async with asyncio.timeout(GENEROUS):
        while found["state"] == "RUNNING":
            found = (await call(there, "GET", f"/operations/{found['operation']}")).json()
    assert found["state"] == "DONE", found["error"]
    result: dict[str, Any] = found["result"]
    return result


async def retained(there: Place, *numbers: int) -> None:
    """Wait until only the snapshots of these batches are retained."""
    async with asyncio.timeout(GENEROUS):
        while await batches(there) != list(numbers):
            pass


async def retained_until_the_clock_is_trusted(there: Place, *numbers: int) -> None:
    """Wait until the snapshots of these batches are retained, and perhaps others: no snapshot is retired for a while after a restart,
    because the newest one in the copy is so old that the clock may have jumped."""
    async with asyncio.timeout(GENEROUS):
        while not set(numbers) <= set(await batches(there)):
            pass


async def test_restoring_a_day_old_copy_while_containers_run_loses_no_snapshot(
    home: Path, database: Database, settings: dict[str, Any]
) -> None:
    """Since the copy was made, all snapshots in it were deleted, and the container in it has never stopped."""
    lease = 30 * 3600
    settings, clock = {**settings, "lease_seconds": lease, "grace_seconds": lease / 50, "keep_last": 2}, FakeClock()
    async with place(home, clock, **settings) as there:
        run_id = await there.deploy(job=one_stage())
        container = start(there, run_id, "c1", "disk1", **EVERY_BATCH)
        disk, query = await began(container)
        await run_batches(container, disk, query, range(3))
        await retained(there, 2, 1)
        database.back_up()
        await run_batches(container, disk, query, range(3, 6))
        await retained(there, 5, 4)
        for hours in (0, 25):
            clock.advance(hours * 3600)
            await container.wire.after("containerHeartbeat", container.wire.answered["containerHeartbeat"] + 2)
            collected = await operation(there, "/gc/run")
        assert collected["stores"][0]["deleted"]["blobs"] > 0
        await run_batches(container, disk, query, range(6, 8))
        await there.parts.issued.run_once()
        clock.advance(61)  # a snapshot is noted within a minute
        await there.parts.issued.run_once()
        container.wire.cut = True
        there.incarnations.remove(container)
    database.restore()
    try:
        async with place(home, clock, **settings) as there:
            there.incarnations.append(container)
            container.wire.to, container.wire.cut = there.app, False
            await there.parts.issued.run_once()
            await retained_until_the_clock_is_trusted(there, 7, 6)
            await run_batches(container, disk, query, range(8, 9))
            await retained_until_the_clock_is_trusted(there, 8, 7)
            assert (await operation(there, "/jobs/delays/snapshots/verify", blobStore=None))["whole"]
            assert await there.holders(run_id) == {TASK: "c1"}
            assert not container.life.done()
            container.agent.stop_requested()
            await container.ending()
            clock.advance(2 * lease)  # containers that the copy does not know may have acted until now
            successor = start(there, run_id, "c2", "disk2", **EVERY_BATCH)
            _, query = await began(successor)
            assert (query.start.reported, query.start.generation > 10_000) == (8, True)
    finally:
        container.life.cancel()


def lose(home: Path, *patterns: str) -> None:
    for pattern in patterns:
        for each in home.glob(pattern):
            rmtree(each) if each.is_dir() else each.unlink()


async def test_after_the_loss_of_the_database_the_first_generation_is_above_the_fences_of_the_log(home: Path) -> None:
    async with place(home) as there:
        there.log.create("out", 2)
        there.log.fence("out", f"delays/{TASK}", Generation(24))
    lose(home, "coordinator.db*", "blobs")
    async with place(home) as there:
        run_id = await there.deploy(job=one_stage())
        waiting = (await acquire(there, run_id, "c1")).json()["waitSeconds"]
        there.clock.advance(waiting)
        generation = (await acquire(there, run_id, "c2")).json()["generation"]
        there.log.fence("out", f"delays/{TASK}", generation)
        assert generation == 25


def unmount(blobs: Path) -> None:
    """Another disk is mounted in its place."""
    blobs.rename(blobs.with_name("away"))
    blobs.mkdir()
    (blobs / "photo.jpg").write_bytes(b"")


def mount(blobs: Path) -> None:
    rmtree(blobs)
    blobs.with_name("away").rename(blobs)


async def test_without_any_blob_store_at_the_start_nothing_is_granted_until_one_answers(home: Path) -> None:
    async with place(home, **BACKED_UP) as there:
        run_id = await there.deploy(job=one_stage())
    unmount(home / "blobs")
    async with place(home, **BACKED_UP) as there:
        refused = await acquire(there, run_id, "c1")
        assert problem_slug(refused) == (503, "catalog-incomplete")
        assert "no blob store has answered" in refused.json()["detail"]
        assert "`sluice status`" in refused.json()["detail"]
        assert "no blob store has answered" in await catalog_check(there)
        mount(home / "blobs")
        await there.parts.issued.run_once()
        assert (await acquire(there, run_id, "c2")).json()["generation"] == 1
        assert await catalog_check(there) == IN_ORDER


async def test_while_the_catalog_may_be_incomplete_no_job_is_deployed_removed_or_found_to_have_lost_blobs(home: Path) -> None:
    async with place(home, **BACKED_UP) as there:
        await there.client.stop_run(await there.deploy(job=one_stage()), "its last run")
    unmount(home / "blobs")
    async with place(home, **BACKED_UP) as there:
        with pytest.raises(CoordinatorUnavailable, match="nothing is granted or deleted"):
            await there.deploy(job=one_stage(), start="earliest")
        assert problem_slug(await call(there, "DELETE", "/jobs/delays")) == (503, "catalog-incomplete")
        assert await there.parts.lost_blobs.run_once() == {"held_back": 1}
        mount(home / "blobs")
        await there.parts.issued.run_once()
        assert await there.parts.lost_blobs.run_once() == {}
        await there.client.stop_run(await there.deploy(job=one_stage(), start="earliest"), "the same")
        assert (await call(there, "DELETE", "/jobs/delays")).status_code == 200


async def shown(there: Place, run_id: RunId) -> list[str]:
    """What users see: the problems of `sluice status`, `/readyz?verbose`, and the page of the job."""
    found = overview(await there.run(run_id), there.clock.now())
    (page,) = [await call(there, "GET", "/ui/jobs/delays")]
    assert page.status_code == 200
    return ["\n".join(found.problems), await catalog_check(there), unescape(page.text)]


async def metric(there: Place, series: str) -> float:
    lines = (await call(there, "GET", "/metrics")).text.splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{series} "))


async def test_until_each_blob_store_was_read_a_restored_database_reports_the_missing_one_and_deletes_nothing(
    home: Path, tmp_path: Path
) -> None:
    far = tmp_path / "far"
    settings = {**BACKED_UP, "blob_stores": {"near": (home / "blobs").as_uri(), "far": far.as_uri()}}
    copy = Sqlite(home)
    async with place(home, **settings) as there:
        run_id = await there.deploy(job=one_stage())
        copy.back_up()
        assert (await acquire(there, run_id, "c1")).json()["generation"] == 1
        await there.parts.issued.run_once()
    copy.restore()
    unmount(far)
    async with place(home, **settings) as there:
        with pytest.raises(BlobStoreUnusable):
            await there.parts.issued.run_once()
        for text in await shown(there, run_id):
            assert "restored from an older copy" in text
            assert "nothing is granted or deleted" in text
            assert "blob store far was not compared with the database" in text
            assert "remove it from SLUICE_BLOB_STORES" in text
        named = ("sluice_database_restored", "sluice_grants_held", 'sluice_ledger_unread{blob_store="far"}')
        assert [await metric(there, each) for each in named] == [1, 1, 1]
        assert await metric(there, 'sluice_ledger_unread{blob_store="near"}') == 0
        assert problem_slug(await acquire(there, run_id, "c2")) == (503, "catalog-incomplete")
        mount(far)
        there.clock.advance(60)
        await there.parts.issued.run_once()
        assert (await acquire(there, run_id, "c3")).json()["generation"] > 10_000
        assert [await metric(there, each) for each in named] == [0, 0, 0]
        assert (await there.run(run_id)).catalog_problems == ()


@pytest.mark.parametrize(("left", "above"), [({"near"}, 10_000), (set(), 1_000_000)], ids=["another is left", "none is left"])
async def test_a_restored_database_waits_for_a_lost_blob_store_until_it_is_removed_from_the_settings(
    home: Path, tmp_path: Path, left: set[str], above: int
) -> None:
    far = tmp_path / "far"
    places = {"near": (home / "blobs").as_uri(), "far": far.as_uri()}
    with_far, without = ({name: url for name, url in places.items() if name in names} for names in ({*left, "far"}, left))
    copy = Sqlite(home)
    async with place(home, blob_stores=with_far) as there:
        run_id = await there.deploy(job=one_stage())
        copy.back_up()
        assert (await acquire(there, run_id, "c1")).json()["generation"] == 1
        await there.parts.issued.run_once()
    copy.restore()
    rmtree(far)
    far.write_bytes(b"no directory")
    async with place(home, blob_stores=with_far) as there:
        if left:
            assert problem_slug(await acquire(there, run_id, "c2")) == (503, "catalog-incomplete")
        else:
            refused = await call(there, "POST", f"/runs/{run_id}/containers", processorId="0", executionContainerId="c2")
            assert problem_slug(refused) == (503, "numbers-not-reserved")
        assert "remove it from SLUICE_BLOB_STORES and start the coordinator again" in (await shown(there, run_id))[0]
    async with place(home, blob_stores=without) as there:
        await there.parts.issued.run_once()
        there.clock.advance(60)
        await there.parts.issued.run_once()
        assert (await there.run(run_id)).catalog_problems == ()
        assert (await acquire(there, run_id, "c3")).json()["generation"] > above
