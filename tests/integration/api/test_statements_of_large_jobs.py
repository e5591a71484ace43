"""Requests that change each stage of each task of a job execute as many statements for many tasks as for few. On PostgreSQL all of them
must end within the time limit of one transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from coordinator.store.sql import Store
from sluice.core.ids import JobName
from tests.contracts.query_plans import listening
from tests.support.api import UNSAVED, Caller, Drained, Json, calling_on, run_body, snapshot
from tests.support.databases import quick_store
from tests.support.fakes import FakeClock

SAVED: Json = {"config": {}}
KNOWN: Json = {"drainModes": ["DEFAULT", "KEEP_STATE"]}
HARD = 20

Request = Callable[[], Awaitable[object]]


@dataclass(slots=True)
class Large:
    """A job of one stage with a task for each partition, all in one container."""

    caller: Caller
    store: Store
    clock: FakeClock
    tasks: int

    async def running(self, body: Json, container: str = "c1") -> Drained:
        run = Drained(self.caller, str((await self.caller.deploy(body))["runId"]))
        await self.owned(run, container)
        return run

    async def owned(self, run: Drained, container: str) -> None:
        await self.caller.registered(run.run_id, container, **KNOWN)
        for each in (await self.caller.run(run.run_id))["tasks"]:
            await self.caller.acquired(run.run_id, container, task=each["task"])

    async def saved(self, run: Drained, number: int, previous: int | None = None) -> str:
        """Report a snapshot of each task. Returns its checkpoint id."""
        lineages = {each["task"]: each["stages"][0]["lineage"] for each in (await self.caller.run(run.run_id))["tasks"]}
        for task in range(self.tasks):
            made = await snapshot(self.caller, run.run_id, number, lineages[f"Partition {task}"], task, previous)
        return made

    async def take(self, run: Drained, step: str, tasks: Sequence[int] | None = None, **changes: Any) -> str:
        for task in range(self.tasks) if tasks is None else tasks:
            phase = await run.phase_after(step, task, **changes)
        return phase

    def last(self, run: Drained, phase: str, **changes: Any) -> Request:
        """The report with which the drain ends, after those of all other tasks."""

        async def report() -> None:
            assert await self.take(run, "committed", [self.tasks - 1], **changes) == phase

        return report

    def out_of_time(self, run: Drained, state: str) -> Request:
        """The hard deadline of the drain passes."""

        async def expire() -> None:
            self.clock.advance(HARD)
            await self.caller.run_chore("watch_drains")
            assert (await run.drain_status())["phase"] == "FAILED"
            assert (await self.caller.run(run.run_id))["stopRequestedAt" if state == "stopping" else "startedAt"] is not None

        return expire


async def settled_drain(large: Large) -> Request:
    run = await large.running(run_body(**SAVED))
    await run.requested()
    await large.take(run, "stopped", checkpointId=await large.saved(run, 1))
    await large.take(run, "flushed", batchId=8)
    made = await large.saved(run, 2, 1)
    await large.take(run, "committed", range(large.tasks - 1), batchId=8, checkpointId=made)
    return large.last(run, "DRAINED", batchId=8, checkpointId=made)


async def kept_drain(large: Large) -> Request:
    """The last batch of each stage is reported by the drain only."""
    run = await large.running(run_body(**SAVED))
    await run.requested(drainMode="KEEP_STATE")
    made = await large.saved(run, 1)
    await large.take(run, "stopped", checkpointId=made)
    await large.take(run, "flushed")
    await large.take(run, "committed", range(large.tasks - 1), batchId=9, checkpointId=made)
    return large.last(run, "DRAINED", batchId=9, checkpointId=made)


async def drain_after_a_kept_drain(large: Large) -> Request:
    await (await kept_drain(large))()
    await large.caller.exited("c1")
    run = await large.running(run_body(**UNSAVED), "c2")
    await run.requested()
    for step in ("stopped", "flushed"):
        await large.take(run, step, generation=2, batchId=10)
    await large.take(run, "committed", range(large.tasks - 1), generation=2, batchId=10)
    return large.last(run, "DRAINED", generation=2, batchId=10)


async def failed_flush(large: Large) -> Request:
    run = await large.running(run_body(**SAVED))
    await run.requested(hardDeadlineSeconds=HARD)
    await large.take(run, "stopped", checkpointId=await large.saved(run, 1))
    return large.out_of_time(run, "stopping")


async def failed_flush_without_a_batch(large: Large) -> Request:
    run = await large.running(run_body(**UNSAVED))
    await run.requested(hardDeadlineSeconds=HARD)
    await large.take(run, "stopped", batchId=None, offsets=[])
    return large.out_of_time(run, "stopping")


async def failed_flush_of_a_stateless_job(large: Large) -> Request:
    run = await large.running(run_body(stateful=False, **UNSAVED))
    await run.requested(hardDeadlineSeconds=HARD)
    await large.take(run, "stopped", batchId=None, offsets=[])
    return large.out_of_time(run, "stopping")


async def drain_that_is_undone(large: Large) -> Request:
    run = await large.running(run_body(**SAVED))
    await run.requested(hardDeadlineSeconds=HARD)
    await large.take(run, "stopped", range(large.tasks - 1), checkpointId=await large.saved(run, 1))
    return large.out_of_time(run, "running")


# --- other requests of the same kind ------------------------------------------------------------------------------------


async def return_to_kept_state(large: Large) -> Request:
    """Every stage has run a batch since the drain."""
    await (await kept_drain(large))()
    await large.caller.exited("c1")
    run = await large.running(run_body(**SAVED), "c2")
    for each in (await large.caller.run(run.run_id))["tasks"]:
        body = {"generation": 2, "stage": "hourly", "lineage": each["stages"][0]["lineage"], "batchId": 10, "offsets": []}
        answer = await large.caller.http.post(f"/runs/{run.run_id}/tasks/{each['task']}/progress", json=body)
        assert answer.status_code == 204, answer.text
    await large.caller.stop(run.run_id, failed=True)
    await large.caller.exited("c2", 1)

    async def deploy() -> None:
        await large.caller.deploy(run_body(**SAVED, start="drained"))
        async with large.store.read() as tx:
            assert len(await tx.fleet.stage_states(JobName("flight-delays"), only_chosen=True)) == large.tasks

    return deploy


async def pin_of_all_heads(large: Large) -> Request:
    await large.saved(await large.running(run_body(**SAVED)), 1)

    async def pin() -> None:
        answer = await large.caller.http.post("/jobs/flight-delays/pins", json={"pinId": "all"})
        assert (answer.status_code, len(answer.json()["snapshots"])) == (201, large.tasks), answer.text

    return pin


async def memory_that_is_read_again(large: Large) -> Request:
    """As at the start of a coordinator."""
    await large.saved(await large.running(run_body(**SAVED)), 1)
    snapshots = large.caller.coordinator.api.state.parts.snapshots

    async def read() -> None:
        await snapshots.reload()
        assert len(snapshots.newest) == large.tasks

    return read


async def end_of_a_pin(large: Large) -> Request:
    await (await pin_of_all_heads(large))()

    async def unpin() -> None:
        assert (await large.caller.http.delete("/jobs/flight-delays/pins/all")).status_code == 204

    return unpin


async def regrouped_into_many_tasks(large: Large) -> Request:
    await large.running(run_body(stateful=False, maxTasks=1, **UNSAVED))
    return await first_acquire(large)


async def regrouped_into_one_task(large: Large) -> Request:
    await large.running(run_body(stateful=False, **UNSAVED))
    return await first_acquire(large, maxTasks=1)


async def first_acquire(large: Large, **changes: Any) -> Request:
    await large.caller.exited("c1")
    run_id = (await large.caller.deploy(run_body(stateful=False, **UNSAVED, **changes)))["runId"]
    await large.caller.registered(run_id, "c2")

    async def acquire() -> None:
        await large.caller.acquired(run_id, "c2")

    return acquire


SCENARIOS = [
    settled_drain,
    kept_drain,
    drain_after_a_kept_drain,
    failed_flush,
    failed_flush_without_a_batch,
    failed_flush_of_a_stateless_job,
    drain_that_is_undone,
    return_to_kept_state,
    pin_of_all_heads,
    memory_that_is_read_again,
    end_of_a_pin,
    regrouped_into_many_tasks,
    regrouped_into_one_task,
]


@asynccontextmanager
async def large_job(home: Path, clock: FakeClock, tasks: int) -> AsyncIterator[Large]:
    opened: list[Store] = []

    def opening(url: str) -> Store:
        opened.append(quick_store(url))
        return opened[-1]

    async with calling_on(opening, home, clock, {}) as caller:
        caller.log.create("flights", tasks)
        yield Large(caller, opened[-1], clock, tasks)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.__name__)
async def test_the_number_of_statements_does_not_grow_with_the_number_of_tasks(
    home: Path, clock: FakeClock, scenario: Callable[[Large], Awaitable[Request]]
) -> None:
    executed = []
    for tasks in (2, 12):
        async with large_job(home / str(tasks), clock, tasks) as large:
            request = await scenario(large)
            with listening(large.store) as heard:
                await request()
        executed.append(Counter(each.sql for each in heard))
    few, many = executed
    assert many - few == {}
