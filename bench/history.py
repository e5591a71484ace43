"""The coordinator's cost of a year of a job's history, compared with a database without history.

Two coordinators have the same running job of ten slots. The database of one also has the rows of a year: 3,000 containers of each slot that
have ended, a run and a version of the job model for each day, and ten notices for each run. Its chore `prune_history` has run once.
Measured alternately: how long a request for the details of the run, one for a page of the list of runs, and the registration of a container
take. At the end the memory is measured. Each figure may be at most twice the figure without history; the ratio is the largest of the four
quotients.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from statistics import median
from time import perf_counter

import psutil
from sqlalchemy import insert, update

from bench.deployment import JOB, metric, post, write_fleet
from bench.harness import BenchFailed, Result, Server, coordinator, cores, note, pinned, running
from coordinator.settings import read_settings
from coordinator.store import tables
from coordinator.store.columns import Columns
from coordinator.store.fleet import ContainerRow, ContainerState, container_columns
from coordinator.store.jobmodels import ModelRow, model_columns
from coordinator.store.runs import RunRow, run_columns
from coordinator.store.sql import open_store
from sluice.core.ids import Epoch, ExecutionContainerId, JobName, RunId
from sluice.core.lifecycle import RunState
from tests.support.processes import free_port, get

NAME = "history"
SLOTS = 10
INCARNATIONS = 3_000
DAYS = 365
NOTICES = 10
ROUNDS, GETS = 30, 4
MOST = 2.0
PRUNED_WITHIN = 300.0
PRUNED = 'sluice_chore_runs_total{chore="prune_history"}'


def run() -> Result:
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as made:
        old, empty = Path(made, "old"), Path(made, "empty")
        for home in (old, empty):
            home.mkdir()
            write_fleet(home, SLOTS, SLOTS)
        asyncio.run(_write_past(old))
        ports = free_port(), free_port()
        with running(coordinator(old, ports[0]), ports[0]) as aged, running(coordinator(empty, ports[1]), ports[1]) as fresh:
            _await_pruning(aged)
            _await_pruning(fresh)
            with pinned(cores()[1]):
                return _measured(aged, fresh)


def _measured(aged: Server, fresh: Server) -> Result:
    taken: dict[str, dict[str, list[float]]] = {}
    for number in range(ROUNDS):
        for name, server in (("year", aged), ("empty", fresh)):
            for what, seconds in _requests(server, number):
                taken.setdefault(what, {}).setdefault(name, []).append(seconds * 1000)
    figures: dict[str, float] = {}
    ratios = []
    for what, by_server in taken.items():
        year, empty = median(by_server["year"]), median(by_server["empty"])
        figures |= {f"{what}_ms": round(year, 2), f"{what}_of_empty_ms": round(empty, 2)}
        ratios.append(year / empty)
    memory, least = (psutil.Process(server.pid).memory_info().rss / 1e6 for server in (aged, fresh))
    figures |= {"rss_mb": round(memory, 1), "rss_of_empty_mb": round(least, 1)}
    ratio = max(*ratios, memory / least)
    target = f"each at most {MOST:g} times that of a database without a past"
    return Result(NAME, figures, round(ratio, 4), target, ratio <= MOST)


def _requests(server: Server, number: int) -> Iterator[tuple[str, float]]:
    run_id = str(get(f"{server.url}/jobs").json()["jobs"][0]["currentRun"])
    for what, path in (("run", f"/runs/{run_id}"), ("runs", "/runs")) * GETS:
        began = perf_counter()
        with urllib.request.urlopen(f"{server.url}{path}", timeout=60) as answer:
            json.load(answer)
        yield what, perf_counter() - began
    body = {"processorId": str(number % SLOTS), "executionContainerId": f"new-{number}", "host": "h"}
    began = perf_counter()
    post(f"{server.url}/runs/{run_id}/containers", body)
    yield "registration", perf_counter() - began


def _await_pruning(server: Server) -> None:
    until = perf_counter() + PRUNED_WITHIN
    began = perf_counter()
    while f"{PRUNED} " not in get(f"{server.url}/metrics").text or metric(server.url, PRUNED) < 1:
        if perf_counter() > until:
            raise BenchFailed(f"the history was not pruned within {PRUNED_WITHIN:g} s")
        time.sleep(0.2)
    note(f"pruned after {perf_counter() - began:.1f} s")


# --- the past --------------------------------------------------------------------------------------------------------


async def _write_past(home: Path) -> None:
    """Insert the rows of a year. The job's run is the newest, at the newest version."""
    store, newest = open_store(read_settings(home=home).database), DAYS + 1
    try:
        async with store.read() as tx:
            run = await tx.runs.current(JobName(JOB))
            model = await tx.jobmodels.get(JobName(JOB))
            if run is None or model is None:
                raise BenchFailed(f"there is no job {JOB}")
            live = await tx.fleet.containers(run.run_id)
        past = list(_past_runs(run))
        async with store.engine.begin() as connection:
            await connection.execute(update(tables.containers).values(epoch=INCARNATIONS + 1, model_version=newest))
            await connection.execute(update(tables.runs).values(model_version=newest))
            await connection.execute(update(tables.job_models).values(version=newest))
            for rows in (list(_incarnations(each)) for each in live):
                await connection.execute(insert(tables.containers), rows)
            await connection.execute(insert(tables.runs), [run_columns(each) for each in past])
            await connection.execute(insert(tables.job_models), [_version_of(each, model) for each in past])
            await connection.execute(insert(tables.notices), [notice for each in past for notice in _notices(each)])
    finally:
        await store.close()


def _past_runs(current: RunRow) -> Iterator[RunRow]:
    for day in range(1, DAYS + 1):
        at, run_id = current.created_at - timedelta(days=day), RunId(f"{JOB}-{day}-days-ago")
        ended = at + timedelta(hours=23)
        yield replace(
            current,
            run_id=run_id,
            first_run=run_id,
            created_at=at,
            ended_at=ended,
            state=RunState.STOPPED,
            model_version=_version_in_force(day),
        )


def _version_in_force(days_ago: int) -> int:
    """The version that was in force that many days ago."""
    return DAYS + 1 - days_ago


def _version_of(run: RunRow, model: ModelRow) -> Columns:
    return model_columns(replace(model, version=run.model_version, run_id=run.run_id, created_at=run.created_at))


def _notices(run: RunRow) -> Iterator[Columns]:
    for seq in range(1, NOTICES + 1):
        yield {"run_id": run.run_id, "seq": seq, "kind": "MODEL", "at": run.created_at, "detail": {"version": run.model_version}}


def _incarnations(live: ContainerRow) -> Iterator[Columns]:
    for epoch in range(1, INCARNATIONS + 1):
        execution_id = ExecutionContainerId(f"{live.execution_id}-{epoch}")
        ended = replace(live, execution_id=execution_id, epoch=Epoch(epoch), state=ContainerState.EXITED, exit_code=0)
        yield container_columns(replace(ended, ended_at=live.registered_at, reason="stop requested"))
