"""Drains as operators ask for them, and steps as agents report them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx

from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Record, Writer
from tests.caller import Caller, Json, chained_body, run_body
from tests.snapshotcaller import PREFIX, checkpoint_id

UNSAVED = {"config": {"backup.stores": ""}}
"""Of a run whose state goes nowhere."""


def offsets_json(offsets: Mapping[tuple[str, int], int]) -> list[Json]:
    return [{"system": "log", "stream": s, "partition": p, "offset": offset} for (s, p), offset in sorted(offsets.items())]


def offsets_told(listed: Sequence[Json]) -> dict[tuple[str, int], int]:
    return {(each["stream"], each["partition"]): each["offset"] for each in listed}


@dataclass(slots=True)
class Drained:
    """A run of one or two stages over two tasks, in one container or two, and the drain that it is under."""

    caller: Caller
    run_id: str
    uuid: str = ""

    async def ask(self, **body: Any) -> httpx.Response:
        return await self.caller.http.post("/drain", json={"runId": self.run_id, **body})

    async def asked(self, **body: Any) -> Json:
        answer = await self.ask(**body)
        assert answer.status_code == 202, answer.text
        self.uuid = answer.json()["uuid"]
        return answer.json()  # type: ignore[no-any-return]

    async def told(self) -> Json:
        answer = await self.caller.http.get(f"/drain/{self.uuid}")
        assert answer.status_code == 200, answer.text
        return answer.json()  # type: ignore[no-any-return]

    async def cancel(self) -> httpx.Response:
        return await self.caller.http.delete(f"/drain/{self.uuid}")

    async def step(self, step: str, task: int = 0, stage: str = "hourly", **changes: Any) -> httpx.Response:
        body = {
            "generation": 1,
            "uuid": self.uuid,
            "step": step,
            "batchId": 7,
            "offsets": offsets_json({("flights", task): 70 + task}),
            **changes,
        }
        return await self.caller.http.post(f"/runs/{self.run_id}/tasks/Partition {task}/stages/{stage}/drain", json=body)

    async def phase_after(self, step: str, task: int = 0, stage: str = "hourly", **changes: Any) -> str:
        answer = await self.step(step, task, stage, **changes)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["phase"])

    async def all_take(self, step: str, stages: Sequence[str] = ("hourly",), **changes: Any) -> str:
        """The phase after the last."""
        for stage in stages:
            for task in (0, 1):
                phase = await self.phase_after(step, task, stage, **changes)
        return phase

    async def to_flushing(self) -> None:
        assert await self.all_take("stopped") == "FLUSHING"

    async def to_drained(self) -> None:
        await self.to_flushing()
        assert await self.all_take("flushed") == "COMMITTING"
        assert await self.all_take("committed") == "DRAINED"

    async def kinds(self) -> list[tuple[str, str]]:
        """The run's notices: kind, and the phase or state that they tell."""
        return [(n["kind"], n["detail"].get("phase") or n["detail"].get("state", "")) for n in await self.caller.notices(self.run_id)]


def appended(caller: Caller, stream: str, *, partition: int, records: int) -> None:
    """Records that somebody writes to the log."""
    writer = Writer(Lineage(uuid4().hex), "somebody", Generation(1))
    caller.log.append(stream, [Record(b"x", partition=partition)] * records, writer=writer, batch=0, now_micros=0)


async def deployed(caller: Caller, *, chained: bool = False, **changes: Any) -> Drained:
    body = chained_body(partitions=2, **{**UNSAVED, **changes}) if chained else run_body(**{**UNSAVED, **changes})
    return Drained(caller, str((await caller.deploy(body))["runId"]))


async def running(caller: Caller, *, chained: bool = False, **changes: Any) -> Drained:
    """Slot 0 is c1, which holds both tasks under generation 1."""
    made = await deployed(caller, chained=chained, **changes)
    await caller.registered(made.run_id, "c1")
    for task in (0, 1):
        await caller.acquired(made.run_id, "c1", task=f"Partition {task}")
    return made


async def snapshot(caller: Caller, run_id: str, number: int, lineage: str, task: int = 0, previous: int | None = None) -> str:
    """Report a snapshot of the stage "hourly" of a task with batch 7: its checkpoint."""
    prefix = PREFIX.replace("Partition_0", f"Partition_{task}")

    def index(which: int) -> str:
        return f"{prefix}/snapshots/17000000{which:05}-00000000000000aa"

    marker = {"index": index(number), "previous": None if previous is None else index(previous)}
    body = {
        "generation": 1,
        "lineage": lineage,
        "batchId": 7 + number - 1,
        "offsets": offsets_json({("flights", task): 70 + task}),
        "checkpointId": checkpoint_id(number),
        "markers": {"local": marker},
    }
    answer = await caller.http.post(f"/runs/{run_id}/tasks/Partition {task}/stages/hourly/snapshots", json=body)
    assert answer.status_code == 200, answer.text
    return checkpoint_id(number)
