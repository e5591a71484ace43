"""kill -9 at every single operation of clean-up and garbage collection: afterwards the newest snapshot can be restored, and no garbage
remains.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from itertools import count

import pytest

from coordinator.snapshots.operations import Progress
from coordinator.snapshots.rebuild import find
from coordinator.snapshots.reports import Replacement
from coordinator.store.cleanup import CleanupKind, QueueCounts
from sluice.blobs.port import BlobStore
from sluice.core.errors import BlobUnavailable, LeaseLost, SnapshotConflict
from sluice.core.snapshots.indexjson import encoded
from sluice.core.snapshots.retention import Retention, split
from sluice.core.snapshots.snapshot import BlobId, Kind, batch_of, walk
from tests.support.backups import ABOUT, KEY, LOCAL, RUN, STAGE, TASK, TTL, World, new_world
from tests.support.faults import Fault, FaultyBlobs, Killed, Plan, at, every, healthy


async def lived() -> World:
    """A world with four commits, of which two are retained, and half of a fifth."""
    world = new_world(Retention(2))
    await world.begin()
    agent = await world.acquired()
    for number in range(4):
        await world.run_batch(agent, {f"state-{number}": b"s" * number + b"x", "CURRENT": bytes([number]), "same": b"same"})
        await world.commit(agent)
    await world.run_batch(agent, {"lost": b"lost"})
    await world.upload(agent)
    return world


async def tidied_until_killed(world: World, plan: Plan) -> FaultyBlobs:
    """Run clean-up and collection with a faulty store; then restart the coordinator with a working one."""
    inner = world.blobs
    faulty = FaultyBlobs(inner, plan)
    world.wire(faulty)
    with suppress(Killed, BaseExceptionGroup, BlobUnavailable):
        await world.tidy()
    world.wire(inner)
    return faulty


async def garbage(world: World) -> Sequence[BlobId]:
    """Blobs that exist and are not needed. Offset-log entries are needed from the oldest retained snapshot on."""
    async with world.store.read() as tx:
        oldest = min(row.batch_id if row.batch_id is not None else -1 for row in await tx.snapshots.of_stage(KEY))
    unneeded = await world.listed() - await world.needed()
    plans = {blob for blob in unneeded if split(blob)[2].startswith(Kind.OFFSETS) and batch_of(blob) > oldest}
    return sorted(unneeded - plans)


async def check_settled(world: World) -> None:
    """After a while without faults the newest snapshots can be restored, and nothing else remains."""
    await world.tidy()
    await world.tidy()
    assert await garbage(world) == []
    assert len(await world.retained()) == 2
    world.clock.advance((TTL + timedelta(days=1)).total_seconds())
    await world.sweep.run_once()
    await world.check_retained()
    restored = await world.acquired()
    newest = max(world.kept, key=lambda checkpoint: checkpoint)
    assert restored.files == world.kept[newest]


async def operations() -> int:
    return len((await tidied_until_killed(await lived(), healthy)).operations)


async def test_without_a_kill_the_retained_snapshots_remain_and_no_garbage() -> None:
    world = await lived()
    before = await world.listed()
    await tidied_until_killed(world, healthy)
    assert len(await world.listed()) < len(before)
    await check_settled(world)


@pytest.mark.parametrize(
    "fault", [Fault.KILL_AFTER, *(pytest.param(each, marks=pytest.mark.long) for each in (Fault.KILL, Fault.KILL_PART))]
)
async def test_a_kill_at_any_operation_loses_no_snapshot_and_leaves_no_garbage(fault: Fault) -> None:
    total = await operations()
    assert total > 20
    killed = 0
    for number in range(1, total + 1):
        world = await lived()
        killed += (await tidied_until_killed(world, at(number, fault))).killed
        await check_settled(world)
    assert killed > total / 2  # the others are lists that were not read to the end


@pytest.mark.parametrize("fault", [Fault.LOST, *(pytest.param(each, marks=pytest.mark.long) for each in (Fault.FAIL, Fault.PART))])
async def test_clean_up_recovers_from_a_failure_of_any_operation_without_a_restart(fault: Fault) -> None:
    total = await operations()
    for number in range(1, total + 1):
        world = await lived()
        await tidied_until_killed(world, at(number, fault))
        await check_settled(world)


async def test_while_ttls_cannot_be_removed_nothing_is_swept_and_a_warning_is_logged() -> None:
    world = await lived()
    inner: BlobStore = world.blobs
    world.wire(FaultyBlobs(inner, every("remove_ttl", Fault.FAIL)))
    await world.clean_up.run_once()
    assert not world.clean_up.overdue(world.clock.now())
    world.clock.advance((TTL / 3).total_seconds() + 10)
    await world.clean_up.run_once()
    assert world.clean_up.overdue(world.clock.now())
    world.clock.advance(TTL.total_seconds())
    assert await world.sweep.run_once() == {"held_back": 1}
    await world.check_retained()
    world.wire(inner)
    await check_settled(world)


async def test_an_item_that_fails_is_counted_and_retried_after_growing_pauses() -> None:
    world = await lived()
    inner: BlobStore = world.blobs
    faulty = FaultyBlobs(inner, every("remove_ttl", Fault.FAIL))
    world.wire(faulty)
    tried = []
    for _ in range(40):
        await world.clean_up.run_once()
        tried.append(len([each for each in faulty.operations if each.name == "remove_ttl"]))
        world.clock.advance(10)
    assert 0 < tried[-1] - tried[20] < tried[20]
    queue = {each.kind: each for each in world.clean_up.queue}
    assert queue[CleanupKind.KEEP] == QueueCounts(CleanupKind.KEEP, 2, queue[CleanupKind.KEEP].oldest, 2)


async def test_blobs_that_a_commit_shares_with_the_one_before_are_not_read_again() -> None:
    world = new_world()
    await world.begin()
    agent = await world.acquired()
    await world.run_batch(agent, {f"f{number}": bytes([number]) for number in range(20)})
    await world.commit(agent)
    await world.clean_up.run_once()
    await world.run_batch(agent, {"f3": b"new"})
    await world.commit(agent)
    faulty = FaultyBlobs(world.blobs)
    world.wire(faulty)
    await world.clean_up.run_once()
    assert len([each for each in faulty.operations if each.name == "remove_ttl"]) == 2


async def test_a_former_owner_of_a_task_changes_nothing_of_the_present_one() -> None:
    world = new_world()
    await world.begin()
    old = await world.acquired()
    await world.run_batch(old, {"a": b"1"})
    await world.commit(old)
    new = await world.acquired()
    await world.run_batch(old, {"a": b"of the old"})
    left_over = await world.upload(old)
    await world.run_batch(new, {"a": b"of the new"})
    await world.commit(new)
    with pytest.raises(LeaseLost):
        await world.report(old, *left_over)
    await world.tidy()
    await world.tidy()
    await world.check_retained()
    assert (await world.acquired()).files == {"a": b"of the new"}
    assert left_over[0] not in await world.listed()


async def test_of_two_commits_with_the_same_predecessor_the_second_is_refused() -> None:
    world = new_world()
    await world.begin()
    agent = await world.acquired()
    await world.run_batch(agent, {"a": b"1"})
    await world.commit(agent)
    first, second = await world.upload(agent), await world.upload(agent)
    former = agent.previous
    await world.report(agent, *first)
    agent.previous = former
    with pytest.raises(SnapshotConflict):
        await world.report(agent, *second)
    assert next(iter(await world.retained())) == first[1].metadata.checkpoint


@pytest.mark.parametrize("skew_hours", [-9.0, 9.0, -24 * 400, 24 * 400])
async def test_a_wrong_clock_of_an_agent_loses_no_snapshot_and_leaves_no_garbage(skew_hours: float) -> None:
    world = new_world()
    await world.begin()
    for hours in (0.0, skew_hours, 0.0):
        agent = await world.acquired(hours)
        for number in range(3):
            await world.run_batch(agent, {f"{hours}-{number}": b"x", "a": bytes([number])})
            await world.commit(agent)
            await world.tidy()
    await world.tidy()
    await world.check_retained()
    assert await garbage(world) == []


async def test_an_upload_that_was_marked_by_one_pass_and_then_reported_is_kept_by_the_next() -> None:
    world = new_world()
    await world.begin()
    agent = await world.acquired()
    await world.run_batch(agent, {"a": b"1"})
    await world.commit(agent)
    await world.run_batch(agent, {"b": b"2"})
    uploaded = await world.upload(agent)
    assert (await world.collection.run_once())["condemned"] == 3
    world.clock.advance(3600)
    await world.report(agent, *uploaded)
    world.clock.advance(24 * 3600)
    assert await world.collection.run_once() == {"pardoned": 2, "deleted": 1}
    await world.check_retained()


async def test_a_dry_run_writes_nothing_and_reports_what_would_be_deleted() -> None:
    world = await lived()
    for _ in range(3):
        await world.clean_up.run_once()
        world.clock.advance(100)
    before = await world.listed()
    (planned,) = await world.collection.run(Progress("blobs"), dry=True)
    (again,) = await world.collection.run(Progress("blobs"), dry=True)
    assert (planned.condemned.blobs, planned.deleted.blobs) == (again.condemned.blobs, again.deleted.blobs) == (6, 0)
    assert (await world.collection.run_once())["condemned"] == 6
    world.clock.advance(24 * 3600 + 1)
    (planned,) = await world.collection.run(Progress("blobs"), dry=True)
    assert (planned.deleted.blobs, await world.listed()) == (6, before)
    assert (await world.collection.run_once())["deleted"] == 6


async def test_nothing_is_collected_under_unknown_names_or_with_an_unreadable_index() -> None:
    world = await lived()
    await world.tidy()
    strange = BlobId("jobs/without_root_rights-job/Partition_0/s/data/0000000000001-0000000000000001")
    await world.blobs.put(strange, b"x", ABOUT)
    index = sorted((await world.retained()).values())[0]
    await world.blobs.put(index, b'{"broken":', ABOUT)
    before = await world.listed()
    for _ in range(3):
        (found,) = await world.collection.run(Progress("blobs"), dry=False)
        assert set(found.not_judged) == {"jobs/without_root_rights-job/Partition_0/s/", "jobs/flight-delays/Partition_0/s/"}
        world.clock.advance(25 * 3600)
    assert await world.listed() == before


async def test_a_new_catalog_collects_no_blobs_of_the_old_one() -> None:
    old = await lived()
    new = World(old.blobs, old.clock, new_world().store, Retention(2))
    new.number = count(1000)
    await new.begin()
    agent = await new.acquired()
    await new.run_batch(agent, {"a": b"1"})
    await new.commit(agent)
    before = await old.listed()
    await new.tidy()
    assert all("/offsets/l1000/" in blob for blob in before - await old.listed())  # the offset-log entries of the new lineage
    await old.check_retained()


async def test_stages_that_a_job_no_longer_has_are_retired_after_a_while() -> None:
    world = await lived()
    await world.tidy()
    async with world.store.begin() as tx:
        (run,) = await tx.runs.active()
        await tx.runs.put(replace(run, spec=replace(run.spec, stages=()), created_at=world.clock.now()))
    assert await world.retire.run_once() == {}
    world.clock.advance(8 * 86400)
    assert await world.retire.run_once() == {}  # a container still owns the task
    await world.released()
    assert await world.retire.run_once() == {"stores": 1}
    assert await world.retained() == {}
    await world.tidy()
    assert await world.listed() == set()


async def test_deletions_stay_below_their_rate_limit() -> None:
    world = await lived()
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    await world.clean_up.run_once()
    slow = type(world.collection)(
        world.store, world.blob_stores, world.clock, world.hold, grace=timedelta(0), every=timedelta(1), deletes_per_second=2, pause=pause
    )
    await slow.run_once()
    deleted = (await slow.run_once())["deleted"]
    assert sum(pauses) == deleted / 2
    assert slow.totals[LOCAL].deleted == deleted


async def test_the_blobs_of_a_replacing_index_are_kept_and_the_former_index_is_collected() -> None:
    world = new_world(Retention(2))
    await world.begin()
    agent = await world.acquired()
    await world.run_batch(agent, {"a": b"1"})
    checkpoint = await world.commit(agent)
    former = (await world.retained())[checkpoint]
    index = await world.index_of(former)
    (file,) = index.root.files
    again, replacing = world.fresh(Kind.DATA, agent), world.fresh(Kind.SNAPSHOTS, agent)
    await world.blobs.put(again, b"1", ABOUT, ttl=TTL)
    changed = replace(index, root=replace(index.root, files=(replace(file, blobs=(replace(file.blobs[0], blob=again),)),)))
    await world.blobs.put(replacing, encoded(changed), ABOUT, ttl=TTL)
    await world.snapshots.replace_index(RUN, TASK, STAGE, Replacement(agent.generation, checkpoint, LOCAL, former, replacing))
    await world.blobs.delete([file.blobs[0].blob], ABOUT)
    found = await find(world.blob_stores, Progress("blobs"), world.clock.now())
    assert [row.markers[LOCAL].index for row in found.snapshots] == [replacing]
    agent.previous, agent.known = replacing, dict(walk(changed.root))
    await world.run_batch(agent, {"b": b"2"})
    await world.commit(agent)
    await world.tidy()
    world.clock.advance(TTL.total_seconds() * 2)
    await world.sweep.run_once()
    await world.check_retained()
    assert (await world.retained()).keys() >= {checkpoint}
    assert former not in await world.listed()
