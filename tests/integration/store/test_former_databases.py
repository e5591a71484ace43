"""Databases of release 0.1, stored in tests/data: they are migrated, read as 0.1 read them, and containers continue."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, MetaData, func, select

from coordinator.store import tables
from coordinator.store.sql import open_store
from sluice.streams.log import Log
from tests.support.api import Caller, Json, calling
from tests.support.fakes import FakeClock
from tests.support.former_release import DATA
from tests.support.processes import SLUICE

OF_THE_MOMENT = {"toldAt", "leaseSecondsLeft", "seconds", "offsetsBehind", "blobStores", "systems"}
"""What an answer computes from the time, from the ends of streams or from settings, and not from the database alone."""

REMOVED = {"maxEventSkewSeconds", "pace"}


class Former(NamedTuple):
    """A database of release 0.1, and the answers of its coordinator by path."""

    home: Path
    url: str
    answers: dict[str, Any]


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.long)])
async def former(request: pytest.FixtureRequest, tmp_path: Path) -> Former:
    script = (DATA / f"{request.param}.sql").read_text()
    home = tmp_path / "home"
    home.mkdir()
    if request.param == "sqlite":
        url = f"sqlite+aiosqlite:///{home / 'coordinator.db'}"
        with closing(sqlite3.connect(home / "coordinator.db")) as database:
            database.executescript(script)
    else:
        url = request.getfixturevalue("postgres_server").new_database()
        connection = await asyncpg.connect(url.replace("+asyncpg", ""))
        try:
            await connection.execute(script)
        finally:
            await connection.close()
    return Former(home, url, json.loads((DATA / f"{request.param}.json").read_text()))


def upgrade(former: Former) -> None:
    """`sluice db upgrade`."""
    command = [*SLUICE, "db", "upgrade", "--home", str(former.home), "--database-url", former.url]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def streams_again(former: Former) -> None:
    """Create the streams of the runs in the embedded log, with the identities that the database has recorded."""
    log = Log(former.home / "log")
    runs = [answer for path, answer in former.answers.items() if path.startswith("/runs/") and "streams" in answer and "runId" in answer]
    for stream, partitions, identity in {(s["stream"], s["partitions"], s["identity"]) for run in runs for s in run["streams"]}:
        if (log.directory / f"{stream}.db").exists():
            log.grow(stream, max(partitions, log.partitions(stream)))
        else:
            log.create(stream, partitions)
        if identity is not None:
            with closing(sqlite3.connect(log.directory / f"{stream}.db")) as file:
                file.execute("UPDATE identity SET id = ?", (identity,))
                file.commit()


@pytest.fixture
async def caller(former: Former) -> AsyncIterator[Caller]:
    """A coordinator of the present release on that database, which it migrates when it starts; by its clock the former one has just
    stopped.
    """
    streams_again(former)
    clock = FakeClock(max(datetime.fromisoformat(answer["toldAt"]) for answer in former.answers.values() if "toldAt" in answer))
    async with calling(former.home, clock, database_url=former.url) as made:
        yield made


async def test_the_stored_database_has_rows_in_every_table(former: Former) -> None:
    def counts(connection: Connection) -> dict[str, int]:
        found = MetaData()
        found.reflect(connection)
        return {name: connection.scalar(select(func.count()).select_from(table)) or 0 for name, table in found.tables.items()}

    store = open_store(former.url)
    async with store.engine.connect() as connection:
        rows = await connection.run_sync(counts)
    await store.close()
    unused = {"claims"} if store.engine.dialect.name == "sqlite" else set()  # with SQLite a lock on a file is the claim
    assert len(rows) == 20
    assert {name for name, count in rows.items() if not count} == unused


async def test_the_command_migrates_the_database_to_the_present_schema_and_may_run_twice(former: Former) -> None:
    def differences(connection: Connection) -> list[object]:
        return list(compare_metadata(MigrationContext.configure(connection, opts={"compare_type": True}), tables.metadata))

    for _ in range(2):
        upgrade(former)
    store = open_store(former.url)
    async with store.engine.connect() as connection:
        assert await connection.run_sync(differences) == []
    await store.close()


def lost(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """What an old answer contains and a new one does not. A new one may contain more."""
    match old, new:
        case dict(), dict():
            for name in old.keys() - OF_THE_MOMENT - REMOVED:
                yield from lost(old[name], new.get(name, "nothing"), f"{where}.{name}")
        case list(), list() if len(old) == len(new) or (len(old) < len(new) and where.endswith(".notices")):
            for number, (one, other) in enumerate(zip(old, new, strict=False)):
                yield from lost(one, other, f"{where}[{number}]")
        case _ if old != new:
            yield f"{where}: {old!r} became {new!r}"


async def test_the_present_coordinator_answers_about_the_database_as_the_former_one_did(former: Former, caller: Caller) -> None:
    assert len(former.answers) > 40
    for path, old in former.answers.items():
        answer = await caller.http.get(path)
        assert answer.status_code == 200, (path, answer.text)
        assert list(lost(old, answer.json(), path)) == []


def run_of(former: Former, job: str) -> Json:
    current = next(each["currentRun"] for each in former.answers["/jobs"]["jobs"] if each["job"] == job)
    found: Json = former.answers[f"/runs/{current}"]
    return found


async def test_a_registered_container_continues(former: Former, caller: Caller) -> None:
    run = run_of(former, "weather")
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


async def test_a_drain_that_was_active_continues_to_its_end(former: Former, caller: Caller) -> None:
    run = run_of(former, "delays")
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
