"""Caps of watermarks from end to end without Spark: agents report, the coordinator decides, the engines are limited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from containers.engine import Batch, StateSize
from sluice.core.ids import Generation, Lineage, RunId, Ssp, StreamId
from sluice.core.watermarks import TICK, FeederProgress, ProgressSource, WatermarkStep
from sluice.streams.log import Record, Writer
from tests.support.agents import Incarnation, Place, place
from tests.support.engines import VIRTUAL_SECONDS, FakeQuery

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
MID = StreamId("log", "mid")


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Place]:
    async with place(tmp_path) as made:
        records = [Record(b"x", partition=n % 2) for n in range(20)]
        made.log.append("in", records, writer=Writer(Lineage("f"), "f", Generation(1)), batch=0, now_micros=1)
        yield made


def at(minute: int) -> datetime:
    return NOON + timedelta(minutes=minute)


async def commits(query: FakeQuery, number: int, minute: int, read: int, *, late: int = 0) -> None:
    """A batch of the stage `first`: it has read that many records of its partition; the newest is of that minute."""
    partition = int(query.start.task.removeprefix("Partition "))
    state = StateSize(rows=0, memory_bytes=0, disk_bytes=0, dropped_late=late)
    progress = FeederProgress(at(minute), timedelta(0), ProgressSource.COLUMN)
    offsets = {Ssp("log", "in", partition): read}
    reported = Batch(query.start.query, number, 10, 5, offsets, state=state, progress=progress)
    await asyncio.to_thread(query.callbacks.on_batch, reported)


async def seconds_pass(there: Place) -> None:
    """Advance the clock of leases by a part of a lease. Each container has renewed its lease before."""
    for container in there.incarnations:
        beats = asyncio.ensure_future(container.wire.after("containerHeartbeat", container.wire.answered["containerHeartbeat"] + 1))
        await asyncio.wait({beats, container.life}, return_when=asyncio.FIRST_COMPLETED)
        beats.cancel()
    there.clock.advance(2)


async def steps_of(there: Place, container: Incarnation, task: str, allowed: datetime | None) -> Sequence[WatermarkStep]:
    """Wait until the newest step of the task's reader allows that minute, or with None until there is no step. Returns the steps."""
    for _ in range(VIRTUAL_SECONDS * 100):
        await seconds_pass(there)
        limits = container.engine.limits.get(f"{task}/second")
        if limits is not None:
            steps = limits[MID]
            if (steps[-1].event_time if steps else None) == allowed:
                return steps
        await asyncio.sleep(0.01)
    raise AssertionError(f"{container.engine.limits}")


async def held_by(there: Place, run_id: RunId, tasks: list[str]) -> None:
    """Wait until the watermark waits for these tasks."""
    found: list[str] = []
    for _ in range(VIRTUAL_SECONDS * 100):
        await seconds_pass(there)
        found = [holder.task for each in (await there.run(run_id)).watermarks for holder in each.held_by]
        if found == tasks:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(found)


async def test_a_reader_waits_for_the_container_that_starts_late_and_then_for_the_slowest_task(there: Place) -> None:
    run_id = await there.deploy(containers=2, start="earliest")
    early = there.start(run_id, "c0", "0")
    queries = await early.engine.all_started(2)
    await commits(queries["Partition 0/first"], 0, 40, read=10)
    await held_by(there, run_id, ["Partition 1"])
    assert await steps_of(there, early, "Partition 0", None) == []
    late = there.start(run_id, "c1", "1")
    others = await late.engine.all_started(2)
    await commits(others["Partition 1/first"], 0, 3, read=5)
    await steps_of(there, early, "Partition 0", at(3))
    await steps_of(there, late, "Partition 1", at(3))
    await commits(others["Partition 1/first"], 1, 30, read=10)
    await steps_of(there, early, "Partition 0", at(40) + TICK)


async def test_caps_do_not_change_during_an_outage_of_the_coordinator(there: Place) -> None:
    run_id = await there.deploy(start="earliest")
    container = there.start(run_id, "c0")
    queries = await container.engine.all_started(4)
    for partition in (0, 1):
        await commits(queries[f"Partition {partition}/first"], 0, 3 + partition, read=5)
    before = await steps_of(there, container, "Partition 0", at(3))
    container.wire.cut = True
    await commits(queries["Partition 0/first"], 1, 20, read=7)
    await commits(queries["Partition 1/first"], 1, 20, read=7)
    await container.wire.after("unreachable", 5)
    assert container.engine.limits["Partition 0/second"] == {MID: before}
    container.wire.cut = False
    await steps_of(there, container, "Partition 0", at(20))


async def test_late_rows_are_added_up_over_all_owners_of_a_task(there: Place) -> None:
    run_id = await there.deploy(start="earliest")
    container = there.start(run_id, "c0")
    queries = await container.engine.all_started(4)
    for number in (0, 1):
        await commits(queries["Partition 0/first"], number, 3, read=5 + number, late=4)
    assert await late_rows(there, run_id, 8) == 8
    container.agent.stop_requested()
    await container.ending()
    again = there.start(run_id, "c0-again")
    queries = await again.engine.all_started(4)
    await commits(queries["Partition 0/first"], 2, 3, read=7, late=1)
    assert await late_rows(there, run_id, 9) == 9


async def late_rows(there: Place, run_id: RunId, at_least: int) -> int:
    found = 0
    for _ in range(VIRTUAL_SECONDS * 100):
        await seconds_pass(there)
        stages = [stage for task in (await there.run(run_id)).tasks for stage in task.stages]
        found = sum(stage.late_rows for stage in stages)
        if found >= at_least:
            break
        await asyncio.sleep(0.01)
    return found
