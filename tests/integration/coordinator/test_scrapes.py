"""Scrapes of `/metrics` of a coordinator with many tasks."""

from __future__ import annotations

import asyncio
from pathlib import Path

from coordinator.api.exposition import PER_STEP
from sluice.core.ids import JobName, StageKey, StageName, TaskName
from tests.support.api import UNSAVED, calling, run_body
from tests.support.fakes import FakeClock

TASKS = 20_000
"""A fifth of max_tasks."""


async def test_a_scrape_does_not_hold_the_event_loop(tmp_path: Path) -> None:
    async with calling(tmp_path, FakeClock()) as caller:
        caller.log.create("flights", 2)
        await caller.deploy(run_body(**UNSAVED))
        await caller.run_chore("survey")
        parts = caller.coordinator.api.state.parts
        for number in range(TASKS):  # what it keeps of a reported snapshot of each task
            key = StageKey(JobName("flight-delays"), TaskName(f"Partition {number}"), StageName("hourly"))
            parts.snapshots.newest[key] = parts.runs.now()
            parts.snapshots._reported[key] = 0.0
        turns, ended = 0, asyncio.Event()

        async def count() -> None:
            nonlocal turns
            while not ended.is_set():
                await asyncio.sleep(0)
                turns += 1

        ticking = asyncio.create_task(count())
        answer = await caller.http.get("/metrics")
        ended.set()
        await ticking
        assert answer.text.count("sluice_snapshot_age_seconds{") == TASKS
        assert turns > 4 * TASKS / PER_STEP, "requests that arrive meanwhile wait for many samples"
