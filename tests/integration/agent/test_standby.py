"""Agents that keep standby copies of other tasks' state, with a real coordinator and real blob stores, and a fake engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from containers.state.checkpoint import Checkpoints, inspect
from containers.state.copies import Copies
from sluice.blobs.locations import open_blob_store
from sluice.blobs.port import BlobStore
from sluice.core.ids import RunId, TaskName
from tests.support.agents import Incarnation, Place, acting, counting, place
from tests.support.backups import BACKED_UP, EVERY_BATCH, NEVER, disk_of, stopped
from tests.support.engines import DiskEngine, FakeQuery
from tests.support.faults import Fault, FaultyBlobs, every, healthy
from tests.support.virtual_time import LoopClock

STANDBY = {"standby.replicas": "1"}
SOON: dict[str, Any] = {"standby_seconds": 0.02, "disk_low_bytes": 0}
OTHERS = "Partition 1"
HOURLY = f"{OTHERS}/hourly"


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Place]:
    async with place(tmp_path / "home", **{**BACKED_UP, "failover_after_seconds": 60}) as made:
        yield made


def start(there: Place, run_id: RunId, slot: str, name: str = "", **settings: Any) -> Incarnation:
    """A container on a host of its own, by default its slot's."""
    root = there.home.parent / f"disk{slot}"
    given: dict[str, Any] = {"SLUICE_CONTAINER_HOST": f"host{slot}", **NEVER, **SOON, **settings}
    return there.start(run_id, name or f"c{slot}", slot, engine=DiskEngine(root=root), job=counting(), state_dir=root, **given)


async def two_hosts(there: Place, **settings: Any) -> tuple[RunId, Incarnation, Incarnation, FakeQuery]:
    """Two containers with a task each; the query of the second, which commits every batch."""
    run_id = await there.deploy(2, job=counting(), config=STANDBY)
    zero, one = start(there, run_id, "0", **settings), start(there, run_id, "1", **EVERY_BATCH)
    await acting(zero.engine, 1)
    queries = await acting(one.engine, 1)
    return run_id, zero, one, queries[HOURLY]


def copy_of(there: Place, slot: str = "0", task: str = OTHERS) -> Path:
    return Checkpoints(there.home.parent / f"disk{slot}", "delays").copies(slot) / task.replace(" ", "_") / "hourly"


async def until(met: Callable[[], bool], container: Incarnation) -> None:
    """Wait for the next check of what the container must keep."""
    seen = container.wire.answered["standby"]
    while not met():
        seen += 1
        await container.wire.after("standby", seen)


def at_batch(there: Place, batch: int) -> Callable[[], bool]:
    def met() -> bool:
        found = inspect(copy_of(there))
        return found is not None and found.committed == batch

    return met


async def lost(there: Place, container: Incarnation, other: Incarnation, tasks: int = 2) -> None:
    """Lose the container, and wait until the other one has its tasks."""
    container.life.cancel()
    while len(other.engine.acting) < tasks:
        there.clock.advance(10)
        seen = other.wire.answered["containerHeartbeat"]
        await other.wire.after("containerHeartbeat", seen + 3)


async def test_a_copy_follows_the_snapshots_and_becomes_the_store_when_the_task_moves_to_its_host(there: Place) -> None:
    _, zero, one, query = await two_hosts(there)
    for batch in range(3):
        await disk_of(one).runs(query, batch, {1: 10 * batch})
        await until(at_batch(there, batch), zero)
    fetched = zero.agent._standby.meters[TaskName(OTHERS), query.start.stage.name].transfers
    assert fetched.retained_files > 0
    await lost(there, one, zero)
    taken = (await acting(zero.engine, 1))[HOURLY]
    assert taken.start.lineage == query.start.lineage
    assert disk_of(zero).state(taken.start) == disk_of(one).state(query.start)
    restored = zero.agent._backups.meter(taken.start).restore
    assert (restored.done_files, restored.retained_files) == (0, 0)
    assert not copy_of(there).exists()


async def test_batches_after_the_snapshot_of_the_copy_run_again_on_the_copy(there: Place) -> None:
    """The offset-log entry of a batch is durable before its output, and its snapshot follows later."""
    run_id = await there.deploy(2, job=counting(), config=STANDBY)
    zero, one = start(there, run_id, "0"), start(there, run_id, "1", **{**NEVER, "max_replay": 2})
    await acting(zero.engine, 1)
    query = (await acting(one.engine, 1))[HOURLY]
    for batch in range(2):
        await disk_of(one).runs(query, batch, {1: 10 * batch})
    await until(at_batch(there, 1), zero)
    await disk_of(one).runs(query, 2, {1: 20})
    await lost(there, one, zero)
    taken = (await acting(zero.engine, 1))[HOURLY]
    assert sorted(taken.start.replay) == [2]
    assert disk_of(zero).state(taken.start) == disk_of(one).state(query.start)


async def test_a_restore_uses_the_files_of_a_copy_that_is_behind(there: Place) -> None:
    _, zero, one, query = await two_hosts(there)
    await disk_of(one).runs(query, 0, {1: 10})
    await until(at_batch(there, 0), zero)
    zero.wire.hold("/standby")
    await zero.wire.held.wait()
    for batch in (1, 2, 3):
        await disk_of(one).runs(query, batch, {1: 10 * batch})
    await one.wire.after("snapshots", 4)
    await lost(there, one, zero)
    taken = (await acting(zero.engine, 1))[HOURLY]
    assert disk_of(zero).state(taken.start) == disk_of(one).state(query.start)


async def test_a_damaged_snapshot_of_a_task_does_not_keep_the_copies_of_others_from_being_updated(there: Place) -> None:
    there.log.grow("in", 4)
    run_id = await there.deploy(2, job=counting(), config=STANDBY)
    one = start(there, run_id, "1", **EVERY_BATCH)
    for name, query in (await acting(one.engine, 2)).items():
        await disk_of(one).runs(query, 0, {int(name.split("/")[0].removeprefix("Partition ")): 10})
    await one.wire.after("snapshots", 2)
    damaged = [each for each in there.home.rglob(f"{OTHERS.replace(' ', '_')}/hourly/snapshots/*") if each.is_file()]
    for each in damaged:
        each.write_bytes(each.read_bytes()[:-10])
    assert damaged
    zero = start(there, run_id, "0")
    await acting(zero.engine, 2)
    copy = copy_of(there, task="Partition 3")
    await until(lambda: (found := inspect(copy)) is not None and found.committed == 0, zero)
    assert not copy_of(there).exists()


async def test_a_container_that_is_started_again_continues_with_its_copies(there: Place) -> None:
    run_id, zero, one, query = await two_hosts(there)
    await disk_of(one).runs(query, 0, {1: 10})
    await until(at_batch(there, 0), zero)
    await stopped(zero)
    again = start(there, run_id, "0", "c0b")
    await acting(again.engine, 1)
    await disk_of(one).runs(query, 1, {1: 20})
    await until(at_batch(there, 1), again)
    fetched = again.agent._standby.meters[TaskName(OTHERS), query.start.stage.name].transfers
    assert fetched.retained_files > 0


async def test_no_copies_are_kept_on_the_host_of_the_task_or_of_a_job_without_standby(there: Place) -> None:
    for host, config in (("host0", STANDBY), ("host1", {})):
        run_id = await there.deploy(2, job=counting(), config=config)
        zero = start(there, run_id, "0", f"zero on {host}".replace(" ", "-"))
        one = start(there, run_id, "1", f"one-on-{host}", **EVERY_BATCH, SLUICE_CONTAINER_HOST=host)
        await acting(zero.engine, 1)
        query = (await acting(one.engine, 1))[HOURLY]
        batch = 0 if query.start.reported is None else query.start.reported + 1
        await disk_of(one).runs(query, batch, {1: 10})
        if config:
            await zero.wire.after("standby", 5)
        assert (zero.wire.answered["standby"] > 0) == bool(config)
        assert not copy_of(there).exists()
        await stopped(zero)
        await stopped(one)


async def test_a_container_keeps_no_copies_while_a_former_incarnation_has_them_locked(there: Place) -> None:
    """A container that was suspended continues writing."""
    root = there.home.parent / "disk0"

    async def at_once(work: Callable[[], Any]) -> Any:
        return work()

    frozen = Copies(Checkpoints(root, "delays"), "0", at_once)
    assert frozen.lock()
    _, zero, one, query = await two_hosts(there)
    await disk_of(one).runs(query, 0, {1: 10})
    await zero.wire.after("standby", 5)
    assert not copy_of(there).exists()
    frozen.close()
    await until(at_batch(there, 0), zero)


async def test_a_failing_blob_store_changes_no_copy_and_does_not_end_the_container(there: Place) -> None:
    blobs: list[FaultyBlobs] = []

    def faulty(url: str) -> BlobStore:
        blobs.append(FaultyBlobs(open_blob_store(url, LoopClock())))
        return blobs[-1]

    run_id = await there.deploy(2, job=counting(), config=STANDBY)
    root = there.home.parent / "disk0"
    given: dict[str, Any] = {"SLUICE_CONTAINER_HOST": "host0", **NEVER, **SOON}
    zero = there.start(run_id, "c0", "0", engine=DiskEngine(root=root), job=counting(), state_dir=root, open_blobs=faulty, **given)
    one = start(there, run_id, "1", **EVERY_BATCH)
    await acting(zero.engine, 1)
    query = (await acting(one.engine, 1))[HOURLY]
    await disk_of(one).runs(query, 0, {1: 10})
    await until(at_batch(there, 0), zero)
    blobs[0].plan = every("get", Fault.FAIL)
    await disk_of(one).runs(query, 1, {1: 20})
    await zero.wire.after("standby", zero.wire.answered["standby"] + 5)
    assert at_batch(there, 0)()
    assert len(zero.engine.acting) == 1
    blobs[0].plan = healthy
    await until(at_batch(there, 1), zero)
