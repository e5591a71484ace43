"""Records of intermediate streams to which a drain returns when it fails."""

from __future__ import annotations

from coordinator.drains.deadlines import DrainDeadlines
from coordinator.runs.trim import TrimStreams
from tests.integration.coordinator.test_chores import fill
from tests.support.api import Caller, Drained, chained_body, offsets_json, report, report_body, turn
from tests.support.fakes import FakeClock

TASKS = ("Partition 0", "Partition 1")


async def test_records_to_which_a_failing_drain_returns_are_not_trimmed(caller: Caller, clock: FakeClock) -> None:
    run = Drained(caller, str((await caller.deploy(chained_body(2)))["runId"]))
    await caller.registered(run.run_id, "c1")
    fill(caller, clock, "by-carrier", 10)
    clock.advance(2 * 3600)  # the container of this task was away: the records wait for longer than log_retention_seconds
    held = {task: await caller.acquired(run.run_id, "c1", task=task) for task in TASKS}
    await run.requested(hardDeadlineSeconds=600)
    read = {"route": "flights", "hourly": "by-carrier"}

    async def step(name: str, stage: str, task: int, batch: int | None, offset: int, **more: object) -> str:
        generation = held[TASKS[task]]["generation"]
        offsets = offsets_json({(read[stage], task): offset})
        return await run.phase_after(name, task, stage, batchId=batch, offsets=offsets, generation=generation, **more)

    for stage in read:  # nothing has run a batch, so nothing is pinned
        for task in (0, 1):
            phase = await step("stopped", stage, task, None, 0)
    assert phase == "FLUSHING"
    for stage in read:
        for task in (0, 1):
            phase = await step("flushed", stage, task, 0, 10 if (stage, task) == ("hourly", 0) else 0)
    assert phase == "COMMITTING"

    (lineage,) = (each["lineage"] for each in held[TASKS[0]]["stages"] if each["stage"] == "hourly")
    generation = held[TASKS[0]]["generation"]
    body = report_body(1, lineage, batchId=0, generation=generation) | {"offsets": offsets_json({("by-carrier", 0): 10})}
    answer = await report(caller, run.run_id, body)
    assert answer.status_code == 200, answer.text
    await step("committed", "hourly", 0, 0, 10, checkpointId=body["checkpointId"])
    await turn(caller, TrimStreams)  # it runs each minute; the other stages do not get their commits done
    clock.advance(601)
    await turn(caller, DrainDeadlines)
    assert (await run.drain_status())["phase"] == "FAILED"
    await caller.exited("c1")

    again = str((await caller.deploy(chained_body(2)))["runId"])
    epoch = (await caller.registered(again, "c2"))["epoch"]
    (stage,) = (each for each in (await caller.acquired(again, "c2", epoch))["stages"] if each["stage"] == "hourly")
    assert (stage["batchId"], stage["snapshot"]) == (None, None)
    (start,) = (each["offset"] for each in stage["starts"] if each["partition"] == 0)
    assert caller.log.earliest("by-carrier")[0] <= start
