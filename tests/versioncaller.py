"""Changes of job models as operators, the partition monitor and containers bring them about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from coordinator.api.deps import Versioning
from tests.caller import Caller, Json


def versioning(caller: Caller) -> Versioning:
    found: Versioning = caller.coordinator.api.state.versioning
    return found


async def look(caller: Caller) -> Mapping[str, int]:
    """One turn of the partition monitor."""
    return await versioning(caller).watch.run_once()


async def patch(caller: Caller, run_id: str, body: Json, **headers: str) -> httpx.Response:
    return await caller.http.patch(f"/runs/{run_id}", json=body, headers={name.replace("_", "-"): value for name, value in headers.items()})


async def patched(caller: Caller, run_id: str, body: Json, **headers: str) -> Json:
    answer = await patch(caller, run_id, body, **headers)
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


async def adopt(caller: Caller, run_id: str, execution_id: str, version: int, epoch: int = 1) -> httpx.Response:
    return await caller.http.post(f"/runs/{run_id}/containers/{execution_id}/adopted", json={"version": version, "epoch": epoch})


async def adopted(caller: Caller, run_id: str, execution_id: str, version: int, epoch: int = 1) -> Json:
    answer = await adopt(caller, run_id, execution_id, version, epoch)
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


async def plan(caller: Caller, job: str = "flight-delays", **body: Any) -> Json:
    answer = await caller.http.post("/jobModel/plan", json={"job": job, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


async def history(caller: Caller, job: str = "flight-delays") -> list[Json]:
    answer = await caller.http.get(f"/jobs/{job}/models")
    assert answer.status_code == 200, answer.text
    return answer.json()["models"]  # type: ignore[no-any-return]


async def roll_back(caller: Caller, version: int, job: str = "flight-delays", **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await caller.http.post(f"/jobs/{job}/models/{version}/rollback", json={"why": "too soon"}, headers=named)


async def slots_of(caller: Caller, job: str = "flight-delays") -> dict[str, list[str]]:
    """Slot -> its tasks, by the job model that is served."""
    served = (await caller.http.get("/jobModel", params={"job": job})).json()
    return {slot: sorted(each["tasks"]) for slot, each in served["containers"].items()}


async def partitions_of(caller: Caller, job: str = "flight-delays") -> dict[str, list[int]]:
    """Task -> the partitions that it reads, by the job model that is served."""
    served = (await caller.http.get("/jobModel", params={"job": job})).json()
    tasks = {name: task for each in served["containers"].values() for name, task in each["tasks"].items()}
    return {name: [ssp["partition"] for ssp in task["system-stream-partitions"]] for name, task in sorted(tasks.items())}


def watched(run: Json, name: str = "flights") -> Json:
    """What the partition monitor found of an input, in the detail of its run."""
    return next(each for each in run["watched"] if each["name"] == name)  # type: ignore[no-any-return]
