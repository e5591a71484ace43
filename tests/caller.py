"""Calls a coordinator as containers and operators do, without a socket between them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from coordinator.app import Coordinator, build
from coordinator.settings import read_settings
from sluice.streams.log import Log
from tests.fakes import FakeClock

Json = dict[str, Any]

INPUT = {"name": "flights", "system": "log"}
OUTPUT = {"name": "delays", "system": "log"}


def run_body(**changes: Any) -> Json:
    """A job of one stage from `flights` to `delays`, changed as told; a change to None leaves the field out."""
    body: Json = {
        "job": "flight-delays",
        "containers": 1,
        "inputs": [INPUT],
        "outputs": [OUTPUT],
        "stages": [{"name": "hourly", "reads": ["flights"], "writes": ["delays"]}],
    }
    return {name: value for name, value in (body | changes).items() if value is not None}


def chained_body(partitions: int = 4, **changes: Any) -> Json:
    """The same with an intermediate stream between two stages."""
    stages = [
        {"name": "route", "reads": ["flights"], "writes": ["by-carrier"]},
        {"name": "hourly", "reads": ["by-carrier"], "writes": ["delays"]},
    ]
    return run_body(intermediates=[{"name": "by-carrier", "system": "log", "partitions": partitions}], stages=stages, **changes)


@dataclass(frozen=True, slots=True)
class Caller:
    coordinator: Coordinator
    http: httpx.AsyncClient
    log: Log

    async def deploy(self, body: Json | None = None) -> Json:
        answer = await self.http.post("/runs", json=body or run_body())
        assert answer.status_code == 201, answer.text
        return answer.json()  # type: ignore[no-any-return]

    async def run(self, run_id: str) -> Json:
        return (await self.http.get(f"/runs/{run_id}")).json()  # type: ignore[no-any-return]

    async def register(self, run_id: str, execution_id: str, slot: str = "0", **more: Any) -> httpx.Response:
        body = {"processorId": slot, "executionContainerId": execution_id, "host": f"host-of-{execution_id}", **more}
        return await self.http.post(f"/runs/{run_id}/containers", json=body)

    async def registered(self, run_id: str, execution_id: str, slot: str = "0", **more: Any) -> Json:
        answer = await self.register(run_id, execution_id, slot, **more)
        assert answer.status_code == 201, answer.text
        return answer.json()  # type: ignore[no-any-return]

    async def beat(self, execution_id: str, epoch: int | None = None) -> httpx.Response:
        headers = {} if epoch is None else {"Sluice-Epoch": str(epoch)}
        return await self.http.get("/containerHeartbeat", params={"executionContainerId": execution_id}, headers=headers)

    async def alive(self, execution_id: str, epoch: int | None = None) -> bool:
        answer = await self.beat(execution_id, epoch)
        assert answer.status_code == 200
        return bool(answer.json()["alive"])

    async def acquire(self, run_id: str, execution_id: str, epoch: int = 1, task: str = "Partition 0") -> httpx.Response:
        body = {"executionContainerId": execution_id, "epoch": epoch}
        return await self.http.post(f"/runs/{run_id}/tasks/{quote(task, safe='')}/acquire", json=body)

    async def acquired(self, run_id: str, execution_id: str, epoch: int = 1, task: str = "Partition 0") -> Json:
        answer = await self.acquire(run_id, execution_id, epoch, task)
        assert answer.status_code == 200, answer.text
        return answer.json()  # type: ignore[no-any-return]

    async def progress(
        self, run_id: str, generation: int, lineage: str, batch: int, offsets: Sequence[tuple[str, int, int]] = ()
    ) -> httpx.Response:
        listed = [{"system": "log", "stream": stream, "partition": p, "offset": offset} for stream, p, offset in offsets]
        body = {"generation": generation, "stage": "hourly", "lineage": lineage, "batchId": batch, "offsets": listed}
        return await self.http.post(f"/runs/{run_id}/tasks/Partition 0/progress", json=body)

    async def release(self, run_id: str, generation: int, task: str = "Partition 0") -> httpx.Response:
        return await self.http.post(f"/runs/{run_id}/tasks/{task}/release", json={"generation": generation})

    async def exited(self, execution_id: str, code: int = 0) -> Json:
        answer = await self.http.post(f"/containers/{quote(execution_id, safe='')}/exit", json={"exitCode": code, "reason": "told"})
        assert answer.status_code == 200, answer.text
        return answer.json()  # type: ignore[no-any-return]

    async def stop(self, run_id: str, **body: Any) -> httpx.Response:
        return await self.http.post(f"/runs/{run_id}/stop", json=body)

    async def notices(self, run_id: str, after: int = 0, wait: float = 0) -> list[Json]:
        answer = await self.http.get(f"/runs/{run_id}/notices", params={"after": after, "wait": wait})
        assert answer.status_code == 200, answer.text
        return answer.json()["notices"]  # type: ignore[no-any-return]


@asynccontextmanager
async def calling(home: Path, clock: FakeClock, **settings: object) -> AsyncIterator[Caller]:
    """A coordinator on that home from its start to its end. What the chores do is left to them and to `Caller` calls."""
    coordinator = build(read_settings(home=home, **{"lease_seconds": 30, **settings}), clock=clock)
    transport = httpx.ASGITransport(coordinator.asgi, raise_app_exceptions=False)
    async with (
        coordinator.api.router.lifespan_context(coordinator.api),
        httpx.AsyncClient(transport=transport, base_url="http://c") as http,
    ):
        yield Caller(coordinator, http, Log(home / "log"))


def problem_slug(answer: httpx.Response) -> tuple[int, str]:
    """Status and kind of a refusal, which must have the form of RFC 9457."""
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body["status"] == answer.status_code
    assert body["title"]
    return answer.status_code, body["type"].removeprefix("urn:sluice:")
