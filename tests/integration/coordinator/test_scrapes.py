"""Scrapes of `/metrics` of a coordinator with many tasks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coordinator.server import FrozenHeap
from sluice.core.ids import JobName, StageKey, StageName, TaskName
from tests.support.api import UNSAVED, calling, run_body
from tests.support.fakes import FakeClock

TASKS = 20_000
"""A fifth of max_tasks."""


@pytest.fixture
async def heap() -> AsyncIterator[FrozenHeap]:
    """As in a coordinator's process. Otherwise a full collection, which looks at all objects of the test run, may take longer."""
    made = FrozenHeap()
    made.start()
    yield made
    made.stop()


async def test_a_scrape_does_not_hold_the_event_loop(tmp_path: Path, heap: FrozenHeap) -> None:
    async with calling(tmp_path, FakeClock()) as caller:
        caller.log.create("flights", 2)
        await caller.deploy(run_body(**UNSAVED))
        await caller.run_chore("survey")
        parts = caller.coordinator.api.state.parts
        for number in range(TASKS):  # what it keeps of a reported snapshot of each task
            key = StageKey(JobName("flight-delays"), TaskName(f"Partition {number}"), StageName("hourly"))
            parts.snapshots.newest[key] = parts.runs.now()
            parts.snapshots._reported[key] = 0.0
        heap.collect_everything()
        longest, ended = 0.0, asyncio.Event()

        async def tick() -> None:
            nonlocal longest
            while not ended.is_set():
                began = time.thread_time()  # the CPU time of this thread, because others may use the core
                await asyncio.sleep(0)
                longest = max(longest, time.thread_time() - began)

        ticking = asyncio.create_task(tick())
        answer = await caller.http.get("/metrics")
        ended.set()
        await ticking
        assert answer.text.count("sluice_snapshot_age_seconds{") == TASKS
        assert longest < 0.1, f"no heartbeat is answered for {longest:.2f} s of CPU time"
