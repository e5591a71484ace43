"""A database that was copied in a drain is restored after the snapshots that the drain had pinned were collected."""

from __future__ import annotations

from coordinator.drains.deadlines import DrainDeadlines
from coordinator.snapshots.merge import complete
from tests.support.api import Caller, Drained, checkpoint_id, report, report_body, run_body, running, turn
from tests.support.fakes import FakeClock


async def test_tasks_can_be_acquired_after_a_drain_of_a_restored_database_fails_whose_pinned_snapshots_are_gone(
    caller: Caller, clock: FakeClock
) -> None:
    run = Drained(caller, str((await caller.deploy(run_body()))["runId"]))
    await caller.registered(run.run_id, "c1")
    held = [await caller.acquired(run.run_id, "c1", task=f"Partition {task}") for task in (0, 1)]
    (lineage,) = (each["lineage"] for each in held[0]["stages"])
    generations = [each["generation"] for each in held]
    assert (await report(caller, run.run_id, report_body(1, lineage, generation=generations[0]))).status_code == 200
    await run.requested(hardDeadlineSeconds=600)
    await run.phase_after("stopped", 0, generation=generations[0], batchId=10, checkpointId=checkpoint_id(1), offsets=[])
    assert await run.phase_after("stopped", 1, generation=generations[1], batchId=None, offsets=[]) == "FLUSHING"
    answer = await report(caller, run.run_id, report_body(2, lineage, 1, generation=generations[0]))
    assert answer.status_code == 200, answer.text
    # Here the copy is made. The drain ends, the job goes on, snapshot 1 is retired and its blobs are collected. The copy is restored:
    state = caller.coordinator.api.state
    await complete(state.parts.health.store, state.backups.blob_stores, clock)
    clock.advance(601)
    await turn(caller, DrainDeadlines)
    assert (await run.drain_status())["phase"] == "FAILED"
    await caller.exited("c1")
    again = str((await caller.deploy(run_body()))["runId"])
    epoch = (await caller.registered(again, "d1"))["epoch"]
    answer = await caller.acquire(again, "d1", epoch)
    assert answer.status_code < 500, answer.text


async def test_no_drain_fails_while_the_catalog_of_a_restored_database_is_completed(caller: Caller, clock: FakeClock) -> None:
    run, held = await running(caller), [True]
    await run.requested(hardDeadlineSeconds=600)
    (watch,) = (each for each in caller.coordinator.api.state.parts.health.maintenance._chores if isinstance(each, DrainDeadlines))
    deadlines = DrainDeadlines(watch.store, watch.drains, clock, watch.longest_lease, lambda: held[0])
    await deadlines.run_once()
    clock.advance(601)
    await deadlines.run_once()
    assert (await run.drain_status())["phase"] == "STOPPING"
    held[0] = False
    await deadlines.run_once()
    assert (await run.drain_status())["phase"] == "FAILED"
