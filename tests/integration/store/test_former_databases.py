"""Databases of commit f0c0f2cc, stored in tests/data: the present coordinator migrates and reads them, and containers continue."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import asyncpg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, func, select, text

from coordinator.store import tables
from coordinator.store.migrate import upgrade
from coordinator.store.sql import open_store
from sluice.streams.log import Log
from tests.support.api import Caller, Json, calling
from tests.support.fakes import FakeClock
from tests.support.processes import ROOT

DATA = ROOT / "tests" / "data" / "f0c0f2cc"


class Former(NamedTuple):
    """A database of the commit."""

    home: Path
    url: str


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.long)])
async def former(request: pytest.FixtureRequest, tmp_path: Path) -> Former:
    script = (DATA / f"{request.param}.sql").read_text()
    if request.param == "sqlite":
        with closing(sqlite3.connect(tmp_path / "coordinator.db")) as database:
            database.executescript(script)
        return Former(tmp_path, f"sqlite+aiosqlite:///{tmp_path / 'coordinator.db'}")
    url: str = request.getfixturevalue("postgres_server").new_database()
    connection = await asyncpg.connect(url.replace("+asyncpg", ""))
    try:
        await connection.execute(script)
    finally:
        await connection.close()
    return Former(tmp_path, url)


def create_again(log: Log, stream: str, partitions: int, identity: str | None) -> None:
    """Create a stream of a run in the embedded log, with the identity that the database has recorded."""
    if not log.file(stream).exists():
        log.create(stream, partitions)
    log.grow(stream, partitions)
    if identity is not None:
        with closing(sqlite3.connect(log.directory / f"{stream}.db")) as file:
            file.execute("UPDATE identity SET id = ?", (identity,))
            file.commit()


@pytest.fixture
async def caller(former: Former) -> AsyncIterator[Caller]:
    """A present coordinator on that database; by its clock the former one has just stopped."""
    store = open_store(former.url)
    async with store.engine.connect() as connection:
        stopped = await connection.scalar(select(func.max(tables.containers.c.last_seen_at)))
        for streams in await connection.scalars(select(tables.runs.c.streams).order_by(tables.runs.c.created_at)):
            for each in streams:
                create_again(Log(former.home / "log"), each["stream"], each["partitions"], each["identity"])
    await store.close()
    assert stopped is not None
    async with calling(former.home, FakeClock(stopped), database_url=former.url) as made:
        yield made


async def test_the_stored_database_has_rows_and_is_migrated_to_the_present_schema(former: Former) -> None:
    def differences(connection: Connection) -> list[object]:
        return list(compare_metadata(MigrationContext.configure(connection, opts={"compare_type": True}), tables.metadata))

    store = open_store(former.url)
    async with store.engine.connect() as connection:
        assert await connection.scalar(text("SELECT version_num FROM alembic_version")) == "0022"
        counts = {each.name: await connection.scalar(select(func.count()).select_from(each)) for each in tables.metadata.sorted_tables}
    unused = {"tokens", "browser_sessions"} | ({"claims"} if store.engine.dialect.name == "sqlite" else set())  # a file is its claim
    assert {name for name, count in counts.items() if not count} == unused
    await upgrade(store)
    async with store.engine.connect() as connection:
        assert await connection.run_sync(differences) == []
    await store.close()


async def test_the_present_coordinator_reads_its_runs_drains_snapshots_and_pins(caller: Caller) -> None:
    async def get(path: str) -> Json:
        answer = await caller.http.get(path)
        assert answer.status_code == 200, (path, answer.text)
        return answer.json()  # type: ignore[no-any-return]

    runs = (await get("/runs"))["runs"]
    assert sorted((each["job"], each["state"]) for each in runs) == [
        ("delays", "DRAINING"),
        ("delays", "STOPPED"),
        ("ferries", "CREATED"),
        ("ferries", "STOPPED"),
        ("rail", "FAILED"),
        ("tolls", "RUNNING"),
        ("weather", "DRAINED"),
        ("weather", "RUNNING"),
    ]
    for run in runs:
        detail = await get(f"/runs/{run['runId']}")
        assert (await get(f"/runs/{run['runId']}/request"))["config"]["team"] == "Zürich"
        assert [each["task"] for each in detail["tasks"]] == ["Partition 0", "Partition 1"]
    phases = {job: [each["phase"] for each in (await get(f"/drains?job={job}"))["drains"]] for job in ("delays", "weather", "tolls")}
    assert phases == {"delays": ["FLUSHING"], "weather": ["DRAINED", "CANCELLED"], "tolls": ["FAILED"]}
    snapshots = (await get("/jobs/weather/snapshots"))["snapshots"]
    assert Counter(each["checkpointId"] for each in snapshots) == {f"170000000000{number}-123456": 4 for number in (1, 2, 3, 4)}
    assert "before-the-audit" in {each["pinId"] for each in (await get("/jobs/delays/pins"))["pins"]}
    assert len((await get("/jobs/delays/models"))["models"]) == 3


async def current_run(caller: Caller, job: str) -> Json:
    jobs = (await caller.http.get("/jobs")).json()["jobs"]
    return await caller.run(next(each["currentRun"] for each in jobs if each["job"] == job))


async def test_a_registered_container_continues(caller: Caller) -> None:
    run = await current_run(caller, "weather")
    container, path = "weather-b", f"/runs/{run['runId']}/tasks/Partition 0"
    answer = await caller.http.get("/containerHeartbeat", params={"executionContainerId": container}, headers={"Sluice-Epoch": "1"})
    assert answer.json() == {"alive": True}
    again = (await caller.http.post(f"{path}/acquire", json={"executionContainerId": container, "epoch": 1})).json()
    (task,) = (each for each in run["tasks"] if each["task"] == "Partition 0")
    assert (again["generation"], [each["batchId"] for each in again["stages"]]) == (task["generation"], [40, 40])
    (stage,) = (each for each in again["stages"] if each["stage"] == "hourly")
    assert stage["snapshot"]["checkpointId"] == "1700000000004-123456"
    offsets = [{"system": "log", "stream": "weather-by-carrier", "partition": 0, "offset": 500}]
    reported = {"generation": again["generation"], "lineage": stage["lineage"], "batchId": 50, "offsets": offsets}
    assert (await caller.http.post(f"{path}/progress", json={**reported, "stage": "hourly"})).status_code == 204
    directory = "jobs/weather/Partition_0/hourly/snapshots"
    marker = {"index": f"{directory}/1700000000005-00000000000000aa", "previous": f"{directory}/1700000000004-00000000000000aa"}
    report = {**reported, "checkpointId": "1700000000005-123456", "markers": {"local": marker}}
    assert (await caller.http.post(f"{path}/stages/hourly/snapshots", json=report)).status_code == 200


async def test_a_drain_that_was_active_continues_to_its_end(caller: Caller) -> None:
    run = await current_run(caller, "delays")
    uuid = run["drain"]["uuid"]
    assert run["drain"]["phase"] == "FLUSHING"
    for step in ("flushed", "committed"):
        for task in (0, 1):
            for stage, stream in (("route", "delays-flights"), ("hourly", "delays-by-carrier")):
                offsets = [{"system": "log", "stream": stream, "partition": task, "offset": 400}]
                body = {"generation": 2, "uuid": uuid, "step": step, "batchId": 40, "offsets": offsets}
                path = f"/runs/{run['runId']}/tasks/Partition {task}/stages/{stage}/drain"
                answer = await caller.http.post(path, json={**body, "checkpointId": "1700000000004-123456"})
                assert answer.status_code == 200, answer.text
    assert answer.json()["phase"] == "DRAINED"
    assert (await caller.run(run["runId"]))["state"] == "DRAINED"
