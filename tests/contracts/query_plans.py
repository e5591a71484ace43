"""Hot queries keep their indexes: what the store really sends to its database is explained by that database, over a lot of rows.

A test of a database inherits `QueryPlanContract` and provides `store`, a store that `fill` has filled, and `scans`, which explains a
statement and says what it reads without an index.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import islice
from typing import Any

import pytest
from sqlalchemy import Table, event, insert

from coordinator.store import drains, jobmodels, snapshots, sql, tables
from coordinator.store.port import ContainerState, Reading, RunRow, Writing
from coordinator.store.snapshots import SnapshotRow
from coordinator.store.sql import SqlReading, SqlStore, SqlWriting
from sluice.core.drain import DrainId, Phase, Step
from sluice.core.grouping import Previous
from sluice.core.ids import ExecutionContainerId, Generation, JobName, ProcessorId, RunId, Ssp, StageKey, StageName, StreamId, TaskName
from sluice.core.lifecycle import RunState
from sluice.core.snapshot import BlobId
from tests.contracts.rows import (
    LOCAL,
    NOON,
    checkpoint_of,
    cleanup_row,
    condemned_row,
    container_row,
    drain_row,
    drain_stage_row,
    hold_row,
    model_row,
    pin_row,
    run_row,
    snapshot_row,
    store_row,
    watched_row,
)

JOBS = 40
RUNS = 2_000
SLOTS = 10
TASKS = 300
"""Of each job. A run has SLOTS containers; those of the last run of each job are alive, all others are gone."""

JOB, RUN, SLOT, CONTAINER, TASK = (
    JobName("job-07"),
    RunId("run-1967"),
    ProcessorId("3"),
    ExecutionContainerId("run-1967-c3"),
    TaskName("t-123"),
)
STAGE = StageName("route")
STORE = StageKey(JOB, TASK, STAGE)
DRAIN = DrainId("job-07-drain-17")
FIRST_BLOB, LAST_BLOB = (BlobId(f"jobs/j/t/s/data/{n:013}-0000000000000000") for n in (7_000, 7_900))
"""The last run of a job, and something of it."""

Columns = dict[str, Any]


def _job(number: int) -> JobName:
    return JobName(f"job-{number % JOBS:02}")


def _runs() -> Iterator[RunRow]:
    for n in range(RUNS):
        row = run_row(f"run-{n:04}", _job(n), state=RunState.RUNNING, created_at=NOON + timedelta(minutes=n))
        yield row if n >= RUNS - JOBS else replace(row, state=RunState.STOPPED, ended_at=NOON)


def _containers() -> Iterator[Columns]:
    for n in range(RUNS):
        live = n >= RUNS - JOBS
        for slot in range(SLOTS):
            row = container_row(f"run-{n:04}-c{slot}", str(slot), 1, f"run-{n:04}", job=_job(n))
            gone = replace(row, state=ContainerState.EXITED, ended_at=NOON, exit_code=0)
            yield sql.container_columns(row if live else gone)


def _holds() -> Iterator[Columns]:
    for job in range(JOBS):
        run = f"run-{RUNS - JOBS + job:04}"
        for task in range(TASKS):
            yield sql.hold_columns(hold_row(f"t-{task}", 1, f"{run}-c{task % SLOTS}", job=_job(RUNS - JOBS + job)))


def _snapshots() -> Iterator[SnapshotRow]:
    for job in range(JOBS):
        for seq in range(1, 1_501):
            yield snapshot_row(seq, f"t-{seq % TASKS}", "route" if seq % 2 else "hourly", _job(job))


def _drains() -> Iterator[Columns]:
    for job in range(JOBS):
        for seq in range(1, 51):
            over = replace(drain_row(seq, f"run-{seq * JOBS + job:04}", _job(job)), phase=Phase.DRAINED, ended_at=NOON)
            yield drains.drain_columns(over if seq < 50 else drain_row(seq, "run-1999", _job(job)))


def _drain_stages() -> Iterator[Columns]:
    for job in range(JOBS):
        for seq in range(1, 6):
            for task in range(TASKS):
                yield drains.drain_stage_columns(
                    drain_stage_row(f"t-{task}", "route", f"{_job(job)}-drain-{seq * 17 % 50}", step=Step.STOPPED)
                )


def _everything() -> dict[Table, Iterator[Columns]]:
    jobs, runs, tasks = range(JOBS), range(RUNS), range(TASKS)
    return {
        tables.jobs: ({"job": _job(RUNS - JOBS + n), "current_run": f"run-{RUNS - JOBS + n:04}", "grouping": ""} for n in jobs),
        tables.runs: (sql.run_columns(row) for row in _runs()),
        tables.containers: _containers(),
        tables.holds: _holds(),
        tables.stores: (sql.store_columns(store_row(f"t-{t}", s, _job(n))) for n in jobs for t in tasks for s in ("route", "hourly")),
        tables.notices: (
            {"run_id": f"run-{n:04}", "seq": seq, "kind": "STOP", "at": NOON, "detail": {}} for n in runs for seq in range(1, 11)
        ),
        tables.starts: (
            {"run_id": f"run-{n:04}", "system": "log", "stream": "s", "partition": p, "offset": p} for n in runs[::20] for p in range(100)
        ),
        tables.job_models: (jobmodels.model_columns(model_row(version, _job(n))) for n in jobs for version in range(1, 101)),
        tables.watched_streams: (jobmodels.watched_columns(watched_row(f"s{s}", _job(n))) for n in jobs for s in range(50)),
        tables.assignments: (
            {"job": _job(n), "system": "log", "stream": "s", "partition": t, "task": f"t-{t}"} for n in jobs for t in tasks
        ),
        tables.snapshots: (snapshots.snapshot_columns(row) for row in _snapshots()),
        tables.drains: _drains(),
        tables.drain_stages: _drain_stages(),
        tables.pins: (snapshots.pin_columns(pin_row(f"pin-{n}-{t}", f"t-{t}", _job(n))) for n in jobs for t in tasks[::10]),
        tables.cleanups: (snapshots.cleanup_columns(cleanup_row(n, due=NOON + timedelta(hours=n))) for n in range(5_000)),
        tables.condemned: (snapshots.condemned_columns(condemned_row(f"jobs/j/t/s/data/{n:013}-0000000000000000")) for n in range(20_000)),
        tables.baselines: ({"job": _job(n), "system": "log", "stream": f"s{s}", "partitions": 1} for n in jobs for s in range(50)),
    }


async def fill(store: SqlStore) -> None:
    """Tens of thousands of rows, as months of use leave them, and the statistics that the database makes of them."""
    async with store.engine.connect() as connection:
        if store.engine.dialect.name == "sqlite":  # with as much memory as it takes, and no wish to survive a crash
            await connection.exec_driver_sql("PRAGMA cache_size=-200000")
            await connection.exec_driver_sql("PRAGMA synchronous=OFF")
        for table, columns in _everything().items():
            while some := list(islice(columns, 5_000)):
                await connection.execute(insert(table), some)
        await connection.commit()
    async with store.engine.connect() as connection:
        await (await connection.execution_options(isolation_level="AUTOCOMMIT")).exec_driver_sql("ANALYZE")


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement as the driver got it."""

    sql: str
    parameters: Any


@contextmanager
def listening(store: SqlStore) -> Iterator[list[Statement]]:
    """The statements that the store sends to its driver meanwhile; of one that is sent for many rows, with the first row."""
    heard: list[Statement] = []

    def hear(_connection: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool) -> None:
        heard.append(Statement(statement, parameters[0] if many else parameters))

    event.listen(store.engine.sync_engine, "before_cursor_execute", hear)
    try:
        yield heard
    finally:
        event.remove(store.engine.sync_engine, "before_cursor_execute", hear)


RUN_ROW = run_row(RUN, JOB, created_at=NOON + timedelta(minutes=1967))
ASSIGNMENT = Previous({Ssp("log", "s", 1): TASK}, {StreamId("log", "s"): 1}, "g")

READS: dict[str, Sequence[Callable[[Reading], Awaitable[object]]]] = {
    "run": [lambda tx: tx.run(RUN)],
    "runs": [
        lambda tx: tx.runs(None, None, 50),
        lambda tx: tx.runs(JOB, None, 50),
        lambda tx: tx.runs(None, RUN_ROW, 50),
        lambda tx: tx.runs(JOB, RUN_ROW, 50),
    ],
    "current_run": [lambda tx: tx.current_run(JOB)],
    "active_runs": [lambda tx: tx.active_runs()],
    "model": [lambda tx: tx.model(JOB), lambda tx: tx.model(JOB, 7)],
    "models": [lambda tx: tx.models(JOB, None, 20), lambda tx: tx.models(JOB, 50, 20)],
    "watched": [lambda tx: tx.watched(JOB)],
    "assignment": [lambda tx: tx.assignment(JOB)],
    "starts": [lambda tx: tx.starts(RUN)],
    "container": [lambda tx: tx.container(CONTAINER)],
    "containers": [lambda tx: tx.containers(RUN), lambda tx: tx.containers(RUN, SLOT)],
    "has_standing": [lambda tx: tx.has_standing(RUN)],
    "standing_containers": [lambda tx: tx.standing_containers()],
    "holds": [lambda tx: tx.holds(JOB)],
    "hold": [lambda tx: tx.hold(JOB, TASK)],
    "holds_of": [lambda tx: tx.holds_of(CONTAINER)],
    "tally": [lambda tx: tx.tally(RUN, JOB)],
    "stores": [lambda tx: tx.stores(JOB), lambda tx: tx.stores(JOB, TASK)],
    "newest_snapshot": [lambda tx: tx.newest_snapshot(JOB)],
    "snapshot": [lambda tx: tx.snapshot(STORE, checkpoint_of(123))],
    "snapshots_of": [lambda tx: tx.snapshots_of(STORE)],
    "snapshots": [
        lambda tx: tx.snapshots(JOB, None, None, None, 50),
        lambda tx: tx.snapshots(JOB, TASK, None, 900, 50),
        lambda tx: tx.snapshots(JOB, None, STAGE, 900, 50),
        lambda tx: tx.snapshots(JOB, TASK, STAGE, None, 50),
    ],
    "snapshot_stores": [lambda tx: tx.snapshot_stores(JOB)],
    "pins": [lambda tx: tx.pins(JOB)],
    "pin": [lambda tx: tx.pin("pin-7-120")],
    "cleanups": [lambda tx: tx.cleanups(NOON + timedelta(hours=50), 20)],
    "cleanup": [lambda tx: tx.cleanup(cleanup_row(7))],
    "condemned": [lambda tx: tx.condemned(LOCAL, FIRST_BLOB, LAST_BLOB)],
    "registry": [lambda tx: tx.registry(LOCAL)],
    "drain": [lambda tx: tx.drain(DRAIN)],
    "newest_drain": [lambda tx: tx.newest_drain(RUN)],
    "last_drained": [lambda tx: tx.last_drained(JOB)],
    "drains": [lambda tx: tx.drains(JOB, None, 20), lambda tx: tx.drains(JOB, 30, 20)],
    "active_drains": [lambda tx: tx.active_drains()],
    "failed_flushes": [lambda tx: tx.failed_flushes(JOB)],
    "drain_stages": [lambda tx: tx.drain_stages(DRAIN)],
    "drain_stage": [lambda tx: tx.drain_stage(DRAIN, TASK, STAGE)],
    "drain_tally": [lambda tx: tx.drain_tally(DRAIN)],
    "lowest_step": [lambda tx: tx.lowest_step(DRAIN)],
    "is_behind": [lambda tx: tx.is_behind(DRAIN, STAGE, Step.FLUSHED)],
    "newest_notice": [lambda tx: tx.newest_notice(RUN)],
    "notices": [lambda tx: tx.notices(RUN, 7)],
}
WRITES: dict[str, Sequence[Callable[[Writing], Awaitable[object]]]] = {
    "put_run": [lambda tx: tx.put_run(RUN_ROW), lambda tx: tx.put_run(replace(RUN_ROW, run_id=RunId("new")))],
    "add_model": [lambda tx: tx.add_model(model_row(1_000, JOB))],
    "put_watched": [lambda tx: tx.put_watched(JOB, [watched_row(job=JOB)])],
    "put_assignment": [lambda tx: tx.put_assignment(JOB, ASSIGNMENT)],
    "put_starts": [lambda tx: tx.put_starts(RUN, {Ssp("log", "s", 1): 5})],
    "put_container": [lambda tx: tx.put_container(container_row(CONTAINER, SLOT, 1, RUN))],
    "seen": [lambda tx: tx.seen([(CONTAINER, NOON)])],
    "put_hold": [lambda tx: tx.put_hold(replace(hold_row(TASK, job=JOB), run_id=RUN))],
    "put_store": [lambda tx: tx.put_store(replace(store_row(TASK, job=JOB), generation=Generation(2)))],
    "put_snapshot": [lambda tx: tx.put_snapshot(snapshot_row(1, job=JOB))],
    "drop_snapshot": [lambda tx: tx.drop_snapshot(JOB, 77)],
    "put_pin": [lambda tx: tx.put_pin(pin_row("new", job=JOB))],
    "drop_pin": [lambda tx: tx.drop_pin("pin-7-120")],
    "put_cleanup": [lambda tx: tx.put_cleanup(cleanup_row(7))],
    "drop_cleanup": [lambda tx: tx.drop_cleanup(cleanup_row(7))],
    "condemn": [lambda tx: tx.condemn([condemned_row("jobs/j/t/s/data/x")])],
    "pardon": [lambda tx: tx.pardon(LOCAL, [FIRST_BLOB, LAST_BLOB])],
    "put_registry": [lambda tx: tx.put_registry(LOCAL, "r")],
    "drop_store": [lambda tx: tx.drop_store(store_row(TASK, job=JOB))],
    "drop_stores": [lambda tx: tx.drop_stores(JOB)],
    "put_drain": [lambda tx: tx.put_drain(drain_row(17, RUN, JOB))],
    "put_drain_stages": [lambda tx: tx.put_drain_stages([drain_stage_row(TASK, STAGE, DRAIN)])],
    "add_notice": [lambda tx: tx.add_notice(RUN, "STOP", NOON, {})],
}
WHOLE = {"jobs", "snapshot_jobs", "cleanup_tally", "drain_outcomes"}
"""What lists a whole table because that is what is asked for: by people, at a start, and by chores every few seconds or minutes."""


PARTIAL = {
    index.name
    for table in tables.metadata.tables.values()
    for index in table.indexes
    if index.dialect_options["sqlite"]["where"] is not None
}
"""Indexes of the few rows that are still going on: a query may read all of one."""


SMALL = {tables.jobs.name, tables.registries.name}
"""A row a job, or a blob store: reading all of it is the better plan."""


class QueryPlanContract:
    async def scans(self, store: SqlStore, statement: Statement) -> list[str]:
        raise NotImplementedError

    def test_every_method_of_the_store_is_looked_at(self) -> None:
        named = {name for name in dir(SqlWriting) if not name.startswith("_")}
        assert named == {*READS, *WRITES, *WHOLE}

    @pytest.mark.parametrize("name", READS)
    async def test_a_read_finds_its_rows_by_an_index(self, store: SqlStore, name: str) -> None:
        with listening(store) as heard:
            async with store.engine.connect() as connection:
                for call in READS[name]:
                    await call(SqlReading(connection))
        assert len(heard) >= len(READS[name])
        assert {each.sql: found for each in heard if (found := await self.scans(store, each))} == {}

    @pytest.mark.parametrize("name", WRITES)
    async def test_a_write_finds_its_rows_by_an_index(self, store: SqlStore, name: str) -> None:
        with listening(store) as heard:
            async with store.engine.connect() as connection:
                for call in WRITES[name]:
                    await call(SqlWriting(connection))
                await connection.rollback()
        assert len(heard) >= len(WRITES[name])
        assert {each.sql: found for each in heard if (found := await self.scans(store, each))} == {}

    async def test_a_read_of_a_whole_table_would_be_seen(self, store: SqlStore) -> None:
        with listening(store) as heard:
            async with store.engine.connect() as connection:
                await SqlReading(connection).jobs()
        assert [found for each in heard if (found := await self.scans(store, each))] != []
