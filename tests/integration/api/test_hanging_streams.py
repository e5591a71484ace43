"""A stream system that does not answer must hold no connection to the database: a pool has 15, and all requests share them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any

import pytest

from sluice.streams.port import Offsets, StreamSystem
from tests.support.api import Caller, Drained, Json, appended, run_body, running

Ask = Callable[[Drained], Coroutine[Any, Any, None]]


class Hanging:
    """A system of which every call waits until it is released, then is answered by the system behind it."""

    def __init__(self, inner: StreamSystem) -> None:
        self.inner = inner
        self.asked = asyncio.Event()
        self.released = asyncio.Event()

    async def _wait(self) -> None:
        self.asked.set()
        await self.released.wait()

    async def partitions(self, stream: str) -> int:
        await self._wait()
        return await self.inner.partitions(stream)

    async def identity(self, stream: str) -> str | None:
        await self._wait()
        return await self.inner.identity(stream)

    async def create(self, stream: str, partitions: int, *, kept: bool = False) -> None:
        await self._wait()
        await self.inner.create(stream, partitions, kept=kept)

    async def earliest(self, stream: str) -> Offsets:
        await self._wait()
        return await self.inner.earliest(stream)

    async def latest(self, stream: str) -> Offsets:
        await self._wait()
        return await self.inner.latest(stream)

    async def readable(self, stream: str) -> Offsets:
        await self._wait()
        return await self.inner.readable(stream)

    async def at_time(self, stream: str, when: datetime) -> Offsets:
        await self._wait()
        return await self.inner.at_time(stream, when)

    async def trim(self, stream: str, before: Offsets) -> int:
        await self._wait()
        return await self.inner.trim(stream, before)

    @property
    def transactional(self) -> bool:
        return True

    async def abort(self, stream: str, job: str, stage: str, task: str) -> None:
        await self._wait()

    async def open_transactions(self, stream: str, offsets: Offsets) -> dict[int, str]:
        await self._wait()
        return {}

    def connection(self) -> Any:
        return self.inner.connection()

    async def close(self) -> None:
        await self.inner.close()


OTHER = run_body(job="another")


async def deploy(run: Drained) -> None:
    answer = await run.caller.http.post("/runs", json=OTHER)
    assert answer.status_code == 201, answer.text


async def plan(run: Drained) -> None:
    assert (await run.caller.http.post("/runs/plan", json=OTHER)).status_code == 200


async def drain(run: Drained) -> None:
    await run.requested()
    for stage in ("route", "hourly"):
        for task in range(2):
            await run.step("stopped", task, stage)
    for step in ("flushing", "flushed"):
        for task in range(2):
            await run.step(step, task, "route")


async def report_watermarks(run: Drained) -> None:
    stages: list[Json] = [
        {"task": f"Partition {n}", "generation": 1, "stage": stage, "eventTime": None, "source": None}
        for n in range(2)
        for stage in ("route", "hourly")
    ]
    assert (await run.caller.http.post(f"/runs/{run.run_id}/watermarks", json={"stages": stages})).status_code == 200


def chore(name: str) -> Ask:
    async def run_chore(run: Drained) -> None:
        await run.caller.run_chore(name)

    return run_chore


ASKS: dict[str, Ask] = {
    "deploy": deploy,
    "plan": plan,
    "drain": drain,
    "watermarks": report_watermarks,
    "monitor of partitions": chore("watch_partitions"),
    "trim": chore("trim_streams"),
    "lag": chore("survey"),
    "open transactions": chore("abort_transactions"),
}


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS.keys())
async def test_a_request_or_chore_that_waits_for_a_stream_system_holds_no_connection_to_the_database(caller: Caller, ask: Ask) -> None:
    run = await running(caller, chained=True)
    appended(caller, "flights", partition=0, records=3)
    parts = caller.coordinator.api.state.parts
    hanging = parts.systems["log"] = Hanging(parts.systems["log"])
    pool = parts.backup_monitor.store.engine.sync_engine.pool
    asking = asyncio.create_task(ask(run))
    waiting = asyncio.create_task(hanging.asked.wait())
    await asyncio.wait({asking, waiting}, return_when=asyncio.FIRST_COMPLETED)
    assert not asking.done(), "the system was not asked"
    assert pool.checkedout() == 0
    assert (await caller.run(run.run_id))["runId"] == run.run_id
    hanging.released.set()
    await asking
