"""Reads of as many rows as a large job has stages: the event loop serves others meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count

import pytest

from coordinator.store.columns import ROWS_PER_TURN
from coordinator.store.sql import ReadTransaction, Store
from tests.contracts.rows import JOB, drain_row, drain_stage_row, pin_row, snapshot_row, stage_state_row
from tests.support.databases import temporary_store

TURNS = 40
DRAIN = drain_row(1, "r1").drain_id

READS: dict[str, Callable[[ReadTransaction], Awaitable[object]]] = {
    "the states of stages": lambda tx: tx.fleet.stage_states(JOB),
    "the stages of a drain": lambda tx: tx.drains.stages(DRAIN),
    "the snapshots of a drain": lambda tx: tx.drains.snapshots(DRAIN, JOB, "pinned"),
    "the rows of a pin": lambda tx: tx.snapshots.pin("p"),
    "the pins of a job": lambda tx: tx.snapshots.pins(JOB),
}


@pytest.mark.long
@pytest.mark.parametrize("read", READS.values(), ids=READS)
async def test_the_event_loop_serves_others_while_many_rows_are_read(read: Callable[[ReadTransaction], Awaitable[object]]) -> None:
    store = temporary_store(Store)
    async with store.begin() as tx:
        for number in range(TURNS * ROWS_PER_TURN):
            made = snapshot_row(number, f"t-{number}")
            await tx.snapshots.put_all([made])
            await tx.fleet.put_stage_states([stage_state_row(made.task)])
            await tx.drains.put_stages([drain_stage_row(made.task, drain_id=DRAIN, pinned=made.checkpoint)])
            await tx.snapshots.put_pins([pin_row("p", made.task)])
    turns = count()

    async def others() -> None:
        while True:
            next(turns)
            await asyncio.sleep(0)

    async with store.read() as reading:
        working = asyncio.create_task(others())
        await read(reading)
        working.cancel()
    assert next(turns) >= TURNS
