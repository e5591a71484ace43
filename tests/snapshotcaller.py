"""Reports of snapshots, as agents send them."""

from __future__ import annotations

from typing import Any

import httpx

from tests.caller import Caller, Json

PREFIX = "jobs/flight-delays/Partition_0/hourly"


def checkpoint_id(number: int) -> str:
    return f"17000000{number:05}-123456"


def index_id(number: int) -> str:
    return f"{PREFIX}/snapshots/17000000{number:05}-00000000000000aa"


def marker(number: int, previous: int | None = None) -> Json:
    follows = None if previous is None else index_id(previous)
    return {"index": index_id(number), "previous": follows, "files": 3, "bytes": 70, "uploadedFiles": 1, "uploadedBytes": 9, "puts": 2}


def report_body(number: int, lineage: str, previous: int | None = None, **changes: Any) -> Json:
    """The commit of that number, of batch 10 times it; `previous` is the number of the commit that it follows."""
    return {
        "generation": 1,
        "lineage": lineage,
        "batchId": number * 10,
        "offsets": [{"system": "log", "stream": "flights", "partition": 0, "offset": number * 100}],
        "checkpointId": checkpoint_id(number),
        "markers": {"local": marker(number, previous)},
        **changes,
    }


async def report(caller: Caller, run_id: str, body: Json, task: str = "Partition 0", stage: str = "hourly") -> httpx.Response:
    return await caller.http.post(f"/runs/{run_id}/tasks/{task}/stages/{stage}/snapshots", json=body)


async def held(caller: Caller) -> tuple[str, str]:
    """A run whose slot 0 is c1, which holds "Partition 0" under generation 1: its id, and the lineage of the stage."""
    run_id = str((await caller.deploy())["runId"])
    await caller.registered(run_id, "c1")
    return run_id, str((await caller.acquired(run_id, "c1"))["stages"][0]["lineage"])
