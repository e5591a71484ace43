"""A run and its containers for measurements: written into a database directly, or created over HTTP.

Ten thousand registrations over HTTP take too long for a benchmark, because each reads the containers of the run again. A large fleet is
therefore written through the store before the coordinator starts. Its recovery then grants every container a lease, as after any restart.
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import insert

from bench.harness import BenchFailed
from coordinator.api.runs import spec_of
from coordinator.app import new_run_id, prepare, stores_of_blobs
from coordinator.fleet.notices import Notices
from coordinator.jobmodels.cache import JobModels
from coordinator.jobmodels.groupers import Groupers
from coordinator.runs.deploy import Deployments
from coordinator.settings import read_settings
from coordinator.snapshots.inventory import owns_blob_store
from coordinator.store import tables
from coordinator.store.fleet import ContainerRow, ContainerState, StageStateRow, container_columns
from coordinator.store.runs import RunRow
from coordinator.store.snapshots import MarkerRow, SnapshotRow
from coordinator.store.sql import Store, open_store
from sluice.clock import SystemClock
from sluice.core.access.tokens import SECRET_BYTES, digest, new_incarnation_token
from sluice.core.ids import Epoch, ExecutionContainerId, Generation, Lineage, ProcessorId, Ssp, StageName, TaskName
from sluice.core.lifecycle import RunState
from sluice.core.snapshots.snapshot import BlobId, BlobStoreName, CommitId
from sluice.streams.log import Log, LogSystem
from sluice.wire import runs as wire_runs
from tests.support.processes import get

JOB = "bench"
STREAM = "events"
CONTAINER = "bench-container-%05d"
EPOCH = Epoch(1)


def run_request(containers: int) -> wire_runs.RunRequest:
    """A job of one stage that reads the stream."""
    return wire_runs.RunRequest(
        job=JOB,
        containers=containers,
        inputs=(wire_runs.InputBody(name=STREAM, system="log"),),
        stages=(wire_runs.StageBody(name="only", reads=(STREAM,)),),
    )


def make_stream(home: Path, partitions: int) -> None:
    """The stream under `home` that a run of the job reads. It is grown to its size, because growing is one transaction."""
    log = Log(read_settings(home=home).log_directory)
    log.create(STREAM, 1)
    log.grow(STREAM, partitions)


def token_of(slot: int) -> str:
    """The token of a container of the fleet. Those of real containers are random."""
    return new_incarnation_token(ExecutionContainerId(CONTAINER % slot), slot.to_bytes(SECRET_BYTES, "big"))


def write_fleet(home: Path, partitions: int, containers: int, *, config: Mapping[str, str] | None = None, snapshots: bool = False) -> None:
    """Create a database and a log under `home` with a running run, all of whose containers are registered, each on a host of its own and
    with its `token_of`. `snapshots`: every task has one."""
    asyncio.run(_write_fleet(home, partitions, containers, config or {}, snapshots))


async def _write_fleet(home: Path, partitions: int, containers: int, config: Mapping[str, str], snapshots: bool) -> None:
    settings = read_settings(home=home)
    store = open_store(settings.database)
    try:
        await prepare(settings, store)
        make_stream(home, partitions)
        systems = {"log": LogSystem(settings.log_directory)}
        clock = SystemClock()
        blob_stores = stores_of_blobs(settings, clock, {}, partial(owns_blob_store, store))
        deployments = Deployments(store, systems, JobModels(store), Notices(store), clock, new_run_id, Groupers(), blob_stores)
        request = run_request(containers).model_copy(update={"config": dict(config)})
        run = await deployments.deploy(spec_of(request))
        await _register_all(store, run, containers)
        if snapshots:
            await _write_snapshots(store, run, partitions)
    finally:
        await store.close()


async def _register_all(store: Store, run: RunRow, containers: int) -> None:
    """Write the rows of all registrations in one statement."""
    now = SystemClock().now()
    async with store.begin() as tx:
        await tx.runs.put(replace(run, state=RunState.RUNNING, started_at=now))
    registered = [container_columns(_container(run, slot, now)) for slot in range(containers)]
    async with store.engine.begin() as connection:
        await connection.execute(insert(tables.containers), registered)


async def _write_snapshots(store: Store, run: RunRow, tasks: int) -> None:
    """A snapshot for the one stage of each task."""
    now, stage, lineage = SystemClock().now(), StageName("only"), Lineage("00000000-0000-0000-0000-000000000000")
    async with store.begin() as tx:
        for number in range(tasks):
            task, checkpoint = TaskName(f"Partition {number}"), CommitId(f"{number:016x}-1")
            state = StageStateRow(run.job, task, stage, lineage, 1, {Ssp("log", STREAM, number): 1}, Generation(1), now, head=checkpoint)
            marker = MarkerRow(BlobId(f"jobs/{run.job}/Partition_{number}/only/snapshots/1700000000000-0000000000000000"), kept=True)
            await tx.fleet.put_stage_states([state])
            await tx.snapshots.put_all(
                [
                    SnapshotRow(
                        *(run.job, number + 1, task, stage, checkpoint, lineage, 1, Generation(1), run.run_id, now, state.offsets),
                        markers={BlobStoreName("local"): marker},
                    )
                ]
            )


def _container(run: RunRow, slot: int, now: datetime) -> ContainerRow:
    return ContainerRow(
        execution_id=ExecutionContainerId(CONTAINER % slot),
        run_id=run.run_id,
        job=run.job,
        processor_id=ProcessorId(str(slot)),
        epoch=EPOCH,
        host=f"host-{slot}",
        bare=False,
        state=ContainerState.LIVE,
        registered_at=now,
        last_seen_at=now,
        model_version=run.model_version,
        adopted_at=now,
        token=digest(token_of(slot)),
    )


def deploy(url: str, containers: int) -> tuple[str, float]:
    """`POST /runs`. Returns the id of the run, and the duration of the request in seconds."""
    body = run_request(containers).model_dump(mode="json", by_alias=True)
    began = time.perf_counter()
    reply = post(f"{url}/runs", body)
    return str(reply["runId"]), time.perf_counter() - began


def register(url: str, run_id: str, containers: int) -> float:
    """Register all containers of a small run over HTTP, one after the other. Returns the mean duration in seconds."""
    began = time.perf_counter()
    for slot in range(containers):
        reply = post(f"{url}/runs/{run_id}/containers", {"processorId": str(slot), "executionContainerId": CONTAINER % slot})
        if reply["epoch"] != EPOCH:
            raise BenchFailed(f"slot {slot} of a new run got epoch {reply['epoch']}")
    return (time.perf_counter() - began) / containers


def post(url: str, body: object, method: str = "POST") -> dict[str, Any]:
    """Send a JSON body with POST or PATCH. Raises BenchFailed with the text of the problem if it is refused."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            reply: dict[str, Any] = json.load(answer)
            return reply
    except urllib.error.HTTPError as error:
        raise BenchFailed(f"{method} {url} answered {error.code}: {error.read().decode(errors='replace')}") from error


def metric(url: str, name: str, token: str = "", authority: Path | None = None) -> int:
    """One sample of /metrics, by its name with labels as they are shown there. `token`: of the request, "" for none."""
    for line in get(f"{url}/metrics", authority, token).text.splitlines():
        if line.startswith(f"{name} "):
            return int(float(line.rpartition(" ")[2]))
    raise BenchFailed(f"/metrics has no {name}")
