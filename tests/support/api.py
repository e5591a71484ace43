"""Calls a coordinator as containers and operators do, without a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from math import inf
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx

from coordinator.api import new_api
from coordinator.api.deps import JobModelParts
from coordinator.app import Coordinator, build
from coordinator.chores import Chore
from coordinator.settings import read_settings
from coordinator.store.sql import Store
from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Log, Record, Writer
from sluice.wire import runs as wire_runs
from tests.support.databases import create_migrated, quick_store
from tests.support.fakes import FakeClock

Json = dict[str, Any]

NAMED = {"allowed_hosts": ("c",)}
"""Settings of a coordinator whose clients call it http://c."""

INPUT = {"name": "flights", "system": "log"}
OUTPUT = {"name": "delays", "system": "log"}


@cache
def openapi_document() -> Json:
    """The description of the API, which takes a second to make."""
    return new_api().openapi()


def run_body(**changes: Any) -> Json:
    """A job of one stage from `flights` to `delays`, with these changes; None removes a field."""
    body: Json = {
        "job": "flight-delays",
        "containers": 1,
        "inputs": [INPUT],
        "outputs": [OUTPUT],
        "stages": [{"name": "hourly", "reads": ["flights"], "writes": ["delays"]}],
    }
    return {name: value for name, value in (body | changes).items() if value is not None}


def chained_body(partitions: int = 4, **changes: Any) -> Json:
    """The same job with two stages and an intermediate stream."""
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
        answer = await self.http.post(f"/containers/{quote(execution_id, safe='')}/exit", json={"exitCode": code, "reason": "stopped"})
        assert answer.status_code == 200, answer.text
        return answer.json()  # type: ignore[no-any-return]

    async def stop(self, run_id: str, **body: Any) -> httpx.Response:
        return await self.http.post(f"/runs/{run_id}/stop", json=body)

    async def run_chore(self, name: str) -> Mapping[str, int]:
        """Run the chore of that name once. Returns its counts."""
        (chore,) = [each for each in self.coordinator.api.state.parts.health.maintenance._chores if each.name == name]
        done: Mapping[str, int] = await chore.run_once()
        return done

    async def notices(self, run_id: str, after: int = 0, wait: float = 0) -> list[Json]:
        answer = await self.http.get(f"/runs/{run_id}/notices", params={"after": after, "wait": wait})
        assert answer.status_code == 200, answer.text
        return answer.json()["notices"]  # type: ignore[no-any-return]


@asynccontextmanager
async def calling(home: Path, clock: FakeClock, **settings: object) -> AsyncIterator[Caller]:
    """A coordinator with this home, from its start to its end. Its chores run once when it starts, and then when a test calls them."""
    async with calling_on(quick_store, home, clock, settings) as made:
        yield made


@asynccontextmanager
async def calling_on(
    opening: Callable[[str], Store], home: Path, clock: FakeClock, settings: Mapping[str, object]
) -> AsyncIterator[Caller]:
    """`calling` on a store that `opening` makes of the database's URL."""
    create_migrated(home)
    read = read_settings(home=home, **{**NAMED, "lease_seconds": 30, **settings})
    coordinator = build(read, clock=clock, store=opening(read.database), pace=inf)
    transport = httpx.ASGITransport(coordinator.asgi, raise_app_exceptions=False)
    async with (
        coordinator.api.router.lifespan_context(coordinator.api),
        httpx.AsyncClient(transport=transport, base_url="http://c") as http,
    ):
        yield Caller(coordinator, http, Log(home / "log"))


async def turn(caller: Caller, of: type[Chore]) -> None:
    """Run the chore once, in addition to the runs that its schedule starts."""
    (chore,) = (each for each in caller.coordinator.api.state.parts.health.maintenance._chores if isinstance(each, of))
    await chore.run_once()


def problem_slug(answer: httpx.Response) -> tuple[int, str]:
    """Status and problem type of an error response, which must have the form of RFC 9457."""
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body["status"] == answer.status_code
    assert body["title"]
    return answer.status_code, body["type"].removeprefix("urn:sluice:")


UNSAVED = {"config": {"backup.stores": ""}}
"""Configuration of a run without backups."""


def offsets_json(offsets: Mapping[tuple[str, int], int]) -> list[Json]:
    return [{"system": "log", "stream": s, "partition": p, "offset": offset} for (s, p), offset in sorted(offsets.items())]


def offsets_of(listed: Sequence[Json]) -> dict[tuple[str, int], int]:
    return {(each["stream"], each["partition"]): each["offset"] for each in listed}


@dataclass(slots=True)
class Drained:
    """A run of one or two stages over two tasks, in one or two containers, and its drain."""

    caller: Caller
    run_id: str
    uuid: str = ""

    async def request(self, **body: Any) -> httpx.Response:
        return await self.caller.http.post("/drain", json={"runId": self.run_id, **body})

    async def requested(self, **body: Any) -> Json:
        answer = await self.request(**body)
        assert answer.status_code == 202, answer.text
        self.uuid = answer.json()["uuid"]
        return answer.json()  # type: ignore[no-any-return]

    async def drain_status(self) -> Json:
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
        """Report the step for all tasks. Returns the phase after the last report."""
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
        """The notices of the run: kind, and phase or state."""
        return [(n["kind"], n["detail"].get("phase") or n["detail"].get("state", "")) for n in await self.caller.notices(self.run_id)]


def appended(caller: Caller, stream: str, *, partition: int, records: int) -> None:
    """Append records to the log."""
    writer = Writer(Lineage(uuid4().hex), "somebody", Generation(1))
    caller.log.append(stream, [Record(b"x", partition=partition)] * records, writer=writer, batch=0, now_micros=0)


async def deployed(caller: Caller, *, chained: bool = False, **changes: Any) -> Drained:
    body = chained_body(partitions=2, **{**UNSAVED, **changes}) if chained else run_body(**{**UNSAVED, **changes})
    return Drained(caller, str((await caller.deploy(body))["runId"]))


async def run_with_both_tasks(caller: Caller) -> str:
    """A run whose slot 0 is c1, which owns "Partition 0" and "Partition 1" under generation 1. Returns its id."""
    run_id = str((await caller.deploy())["runId"])
    await caller.registered(run_id, "c1")
    for task in ("Partition 0", "Partition 1"):
        await caller.acquired(run_id, "c1", task=task)
    return run_id


async def running(caller: Caller, *, chained: bool = False, **changes: Any) -> Drained:
    """Slot 0 is c1, which owns both tasks under generation 1."""
    made = await deployed(caller, chained=chained, **changes)
    await caller.registered(made.run_id, "c1")
    for task in (0, 1):
        await caller.acquired(made.run_id, "c1", task=f"Partition {task}")
    return made


async def snapshot(caller: Caller, run_id: str, number: int, lineage: str, task: int = 0, previous: int | None = None) -> str:
    """Report a snapshot of the stage "hourly" of a task, with batch 7. Returns its checkpoint id."""
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


PREFIX = "jobs/flight-delays/Partition_0/hourly"


def checkpoint_id(number: int) -> str:
    return f"17000000{number:05}-123456"


def index_id(number: int) -> str:
    return f"{PREFIX}/snapshots/17000000{number:05}-00000000000000aa"


def marker(number: int, previous: int | None = None) -> Json:
    follows = None if previous is None else index_id(previous)
    return {"index": index_id(number), "previous": follows, "files": 3, "bytes": 70, "uploadedFiles": 1, "uploadedBytes": 9, "puts": 2}


def report_body(number: int, lineage: str, previous: int | None = None, **changes: Any) -> Json:
    """The commit with this number, of batch 10 * number; `previous` is the number of the commit before it."""
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
    """A run whose slot 0 is c1, which owns "Partition 0" under generation 1. Returns the id of the run and the lineage of the stage."""
    run_id = str((await caller.deploy())["runId"])
    await caller.registered(run_id, "c1")
    return run_id, str((await caller.acquired(run_id, "c1"))["stages"][0]["lineage"])


def versioning(caller: Caller) -> JobModelParts:
    found: JobModelParts = caller.coordinator.api.state.versioning
    return found


async def check_partitions(caller: Caller) -> Mapping[str, int]:
    """Run the partition monitor once."""
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
    """Slot -> its tasks, in the job model that is served."""
    served = (await caller.http.get("/jobModel", params={"job": job})).json()
    return {slot: sorted(each["tasks"]) for slot, each in served["containers"].items()}


async def partitions_of(caller: Caller, job: str = "flight-delays") -> dict[str, list[int]]:
    """Task -> the partitions that it reads, in the job model that is served."""
    served = (await caller.http.get("/jobModel", params={"job": job})).json()
    tasks = {name: task for each in served["containers"].values() for name, task in each["tasks"].items()}
    return {name: [ssp["partition"] for ssp in task["system-stream-partitions"]] for name, task in sorted(tasks.items())}


def watched(run: Json, name: str = "flights") -> Json:
    """The result of the partition monitor for an input, from the details of its run."""
    return next(each for each in run["watched"] if each["name"] == name)


NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
RUN = "flight-delays-20260301T115500-abc123"
STAGES = ({"name": "route", "reads": ("flights",)}, {"name": "hourly", "reads": ("by-carrier",)})


def ago(**how_long: float) -> datetime:
    return NOON - timedelta(**how_long)


def execution_id(slot: int, suffix: str = "0a1b2c3d") -> str:
    return f"{RUN}-container-{slot}-{suffix}"


def stage_metrics(**changes: Any) -> wire_runs.StageMetricsReply:
    reported = {"rows": 5000, "rows_per_second": 1000.0, "batch_millis": 800, "lag": 100, "at": ago(seconds=2)}
    return wire_runs.StageMetricsReply.model_validate(reported | changes)


def stage(name: str, **changes: Any) -> wire_runs.StageProgress:
    """A stage that committed batch 41 two seconds ago."""
    reported = {"stage": name, "lineage": "l1", "batch_id": 41, "offsets": (), "reported_at": ago(seconds=2), "metrics": stage_metrics()}
    return wire_runs.StageProgress.model_validate(reported | changes)


def task(number: int, holder: str | None, *stages: wire_runs.StageProgress, generation: int | None = 1) -> wire_runs.TaskReply:
    return wire_runs.TaskReply(
        task=f"Partition {number}",
        processor_id=str(number % 2),
        generation=generation,
        holder=holder,
        stages=stages or (stage("route"), stage("hourly")),
    )


def container(slot: int, **changes: Any) -> wire_runs.ContainerReply:
    reported = {
        "execution_container_id": execution_id(slot),
        "processor_id": str(slot),
        "epoch": 1,
        "host": "worker-7.example",
        "state": "LIVE",
        "registered_at": ago(minutes=4),
        "last_seen_at": ago(seconds=1),
        "ended_at": None,
        "exit_code": None,
        "reason": "",
        "lease_seconds_left": 36.2 - slot,
    }
    return wire_runs.ContainerReply.model_validate(reported | changes)


def detail(**changes: Any) -> wire_runs.RunDetail:
    """A healthy run of two containers and four tasks, as reported at noon."""
    reported = {
        "run_id": RUN,
        "job": "flight-delays",
        "state": "RUNNING",
        "first_run": RUN,
        "reason": "",
        "containers": 2,
        "job_model_version": 1,
        "streams": (),
        "stages": STAGES,
        "config": {},
        "systems": {},
        "created_at": ago(minutes=5),
        "started_at": ago(minutes=4, seconds=12),
        "stop_requested_at": None,
        "ended_at": None,
        "server_time": NOON,
        "incarnations": (container(0), container(1)),
        "tasks": tuple(task(n, execution_id(n % 2)) for n in range(4)),
    }
    return wire_runs.RunDetail.model_validate(reported | changes)
