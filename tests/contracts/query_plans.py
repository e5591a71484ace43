"""Frequent queries use indexes: the statements that the store sends are explained by the database itself, over many rows.

A test of a database inherits `QueryPlanContract` and provides `store`, a store that `fill` has filled, and `scans`, which explains a
statement and returns what it reads without an index.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Any, get_type_hints

import pytest
from sqlalchemy import Table, event, insert

from coordinator.store import cleanup, drains, fleet, jobmodels, snapshots, tables
from coordinator.store.access import EventRow, Outcome, SessionRow, TokenRow
from coordinator.store.cleanup import CleanupKind
from coordinator.store.fleet import ContainerState
from coordinator.store.runs import RunRow, run_columns
from coordinator.store.snapshots import SnapshotRow
from coordinator.store.sql import ReadTransaction, Store, WriteTransaction
from sluice.core.access.roles import Role
from sluice.core.access.tokens import Digest, Grant, TokenId
from sluice.core.drain import DrainId, Phase, Step
from sluice.core.ids import ExecutionContainerId, Generation, JobName, ProcessorId, RunId, Ssp, StageKey, StageName, StreamId, TaskName
from sluice.core.jobmodels.grouping import PreviousAssignment
from sluice.core.leases.issued import Issued
from sluice.core.leases.lease import LeaseBounds
from sluice.core.lifecycle import RunState
from sluice.core.snapshots.snapshot import BlobId
from tests.contracts.rows import (
    LOCAL,
    NOON,
    checkpoint_of,
    cleanup_row,
    container_row,
    drain_row,
    drain_stage_row,
    marked_blob_row,
    model_row,
    monitored_stream_row,
    ownership_row,
    pin_row,
    run_row,
    snapshot_row,
    stage_state_row,
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
HOUR = timedelta(hours=1)
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
            yield fleet.container_columns(row if live else gone)


def _holds() -> Iterator[Columns]:
    for job in range(JOBS):
        run = f"run-{RUNS - JOBS + job:04}"
        for task in range(TASKS):
            yield fleet.ownership_columns(ownership_row(f"t-{task}", 1, f"{run}-c{task % SLOTS}", job=_job(RUNS - JOBS + job)))


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
        tables.runs: (run_columns(row) for row in _runs()),
        tables.containers: _containers(),
        tables.holds: _holds(),
        tables.stores: (
            fleet.stage_state_columns(stage_state_row(f"t-{t}", s, _job(n))) for n in jobs for t in tasks for s in ("route", "hourly")
        ),
        tables.notices: (
            {"run_id": f"run-{n:04}", "seq": seq, "kind": "STOP", "at": NOON, "detail": {}} for n in runs for seq in range(1, 11)
        ),
        tables.starts: (
            {"run_id": f"run-{n:04}", "system": "log", "stream": "s", "partition": p, "offset": p} for n in runs[::20] for p in range(100)
        ),
        tables.job_models: (jobmodels.model_columns(model_row(version, _job(n))) for n in jobs for version in range(1, 101)),
        tables.watched_streams: (
            jobmodels.monitored_stream_columns(monitored_stream_row(f"s{s}", _job(n))) for n in jobs for s in range(50)
        ),
        tables.assignments: (
            {"job": _job(n), "system": "log", "stream": "s", "partition": t, "task": f"t-{t}"} for n in jobs for t in tasks
        ),
        tables.snapshots: (snapshots.snapshot_columns(row) for row in _snapshots()),
        tables.drains: _drains(),
        tables.drain_stages: _drain_stages(),
        tables.pins: (snapshots.pin_columns(pin_row(f"pin-{n}-{t}", f"t-{t}", _job(n))) for n in jobs for t in tasks[::10]),
        tables.cleanups: (cleanup.cleanup_columns(cleanup_row(n, due=NOON + timedelta(hours=n))) for n in range(5_000)),
        tables.condemned: (
            cleanup.marked_blob_columns(marked_blob_row(f"jobs/j/t/s/data/{n:013}-0000000000000000")) for n in range(20_000)
        ),
        tables.audit_events: (asdict(_event(seq)) for seq in range(1, 5_001)),
        tables.browser_sessions: (asdict(_session(number)) for number in range(2_000)),
        tables.localities: ({"job": _job(n), "processor_id": str(s), "host": "h"} for n in jobs for s in range(50)),
        tables.baselines: ({"job": _job(n), "system": "log", "stream": f"s{s}", "partitions": 1} for n in jobs for s in range(50)),
    }


async def fill(store: Store) -> None:
    """Insert tens of thousands of rows, as after months of use, and let the database gather its statistics."""
    async with store.engine.connect() as connection:
        if store.engine.dialect.name == "sqlite":  # with much memory and without durability, to be fast
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
    """A statement as the driver receives it."""

    sql: str
    parameters: Any


@contextmanager
def listening(store: Store) -> Iterator[list[Statement]]:
    """Record the statements that the store sends to its driver in the block. A statement for many rows is recorded with the first row."""
    heard: list[Statement] = []

    def hear(_connection: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool) -> None:
        heard.append(Statement(statement, parameters[0] if many else parameters))

    event.listen(store.engine.sync_engine, "before_cursor_execute", hear)
    try:
        yield heard
    finally:
        event.remove(store.engine.sync_engine, "before_cursor_execute", hear)


RUN_ROW = run_row(RUN, JOB, created_at=NOON + timedelta(minutes=1967))
ASSIGNMENT = PreviousAssignment({Ssp("log", "s", 1): TASK}, {StreamId("log", "s"): 1}, "g")


TOKEN_ROW = TokenRow(TokenId("t"), "n", Digest("d"), Grant(frozenset({Role.VIEWER}), ("*",)), NOON, "admin")


def _event(seq: int) -> EventRow:
    at = NOON + timedelta(minutes=seq)
    return EventRow(at, "somebody", True, "127.0.0.1", "POST /runs", "job-07", f"r-{seq}", None, "", seq, f"job-{seq % JOBS:02}")


def _session(number: int) -> SessionRow:
    return SessionRow(Digest(f"session-{number}"), TokenId("t"), NOON, NOON + HOUR)


async def _until_nothing(drop: Callable[[], Awaitable[int]]) -> None:
    while await drop():
        pass


READS: dict[str, Sequence[Callable[[ReadTransaction], Awaitable[object]]]] = {
    "access.events": [
        lambda tx: tx.access.events(None, 50),
        lambda tx: tx.access.events(4_000, 50),
        lambda tx: tx.access.events(4_000, 50, "job-07"),
    ],
    "runs.get": [lambda tx: tx.runs.get(RUN)],
    "runs.page": [
        lambda tx: tx.runs.page(None, None, 50),
        lambda tx: tx.runs.page(JOB, None, 50),
        lambda tx: tx.runs.page(None, RUN_ROW, 50),
        lambda tx: tx.runs.page(JOB, RUN_ROW, 50),
    ],
    "runs.current": [lambda tx: tx.runs.current(JOB)],
    "runs.active": [lambda tx: tx.runs.active()],
    "runs.history": [lambda tx: tx.runs.history(JOB, RUN)],
    "jobmodels.get": [lambda tx: tx.jobmodels.get(JOB), lambda tx: tx.jobmodels.get(JOB, 7)],
    "jobmodels.page": [lambda tx: tx.jobmodels.page(JOB, None, 20), lambda tx: tx.jobmodels.page(JOB, 50, 20)],
    "jobmodels.monitored": [lambda tx: tx.jobmodels.monitored(JOB)],
    "jobmodels.former_hosts": [lambda tx: tx.jobmodels.former_hosts(JOB)],
    "jobmodels.assignment": [lambda tx: tx.jobmodels.assignment(JOB)],
    "runs.start_offsets": [lambda tx: tx.runs.start_offsets(RUN)],
    "fleet.container": [lambda tx: tx.fleet.container(CONTAINER)],
    "fleet.containers": [
        lambda tx: tx.fleet.containers(RUN),
        lambda tx: tx.fleet.containers(RUN, SLOT),
        lambda tx: tx.fleet.containers(RUN, None, 5),
    ],
    "fleet.slots": [lambda tx: tx.fleet.slots(RUN)],
    "fleet.active_containers": [
        lambda tx: tx.fleet.active_containers(),
        lambda tx: tx.fleet.active_containers(RUN, 1),
        lambda tx: tx.fleet.active_containers(bare_of=JOB),
    ],
    "fleet.owners": [lambda tx: tx.fleet.owners(JOB)],
    "fleet.owner": [lambda tx: tx.fleet.owner(JOB, TASK)],
    "fleet.owned_by": [lambda tx: tx.fleet.owned_by(CONTAINER)],
    "fleet.counts": [lambda tx: tx.fleet.counts(RUN, JOB)],
    "fleet.stage_state": [lambda tx: tx.fleet.stage_state(STORE)],
    "fleet.stage_states": [
        lambda tx: tx.fleet.stage_states(JOB),
        lambda tx: tx.fleet.stage_states(JOB, TASK),
        lambda tx: tx.fleet.stage_states(JOB, only_chosen=True),
    ],
    "snapshots.last_seq": [lambda tx: tx.snapshots.last_seq(JOB)],
    "snapshots.get": [lambda tx: tx.snapshots.get(STORE, checkpoint_of(123))],
    "snapshots.of_stage": [lambda tx: tx.snapshots.of_stage(STORE)],
    "snapshots.page": [
        lambda tx: tx.snapshots.page(JOB, None, None, None, 50),
        lambda tx: tx.snapshots.page(JOB, TASK, None, 900, 50),
        lambda tx: tx.snapshots.page(JOB, None, STAGE, 900, 50),
        lambda tx: tx.snapshots.page(JOB, TASK, STAGE, None, 50),
    ],
    "snapshots.heads": [lambda tx: tx.snapshots.heads(JOB), lambda tx: tx.snapshots.heads(JOB, TASK)],
    "snapshots.stages": [lambda tx: tx.snapshots.stages(JOB)],
    "snapshots.runs": [lambda tx: tx.snapshots.runs(JOB)],
    "snapshots.pins": [lambda tx: tx.snapshots.pins(JOB)],
    "snapshots.pins_of": [lambda tx: tx.snapshots.pins_of(STORE)],
    "snapshots.pin": [lambda tx: tx.snapshots.pin("pin-7-120")],
    "cleanup.due": [
        lambda tx: tx.cleanup.due(NOON + timedelta(hours=50), 20),
        lambda tx: tx.cleanup.due(NOON + timedelta(hours=50), 20, CleanupKind.KEEP),
    ],
    "cleanup.due_after": [
        lambda tx: tx.cleanup.due_after(NOON + timedelta(hours=4_900), 20),
        lambda tx: tx.cleanup.due_after(NOON + timedelta(hours=4_900), 20, CleanupKind.KEEP),
    ],
    "cleanup.queued": [lambda tx: tx.cleanup.queued(cleanup_row(7))],
    "cleanup.marked": [lambda tx: tx.cleanup.marked(LOCAL, FIRST_BLOB, LAST_BLOB)],
    "cleanup.owner_id": [lambda tx: tx.cleanup.owner_id(LOCAL)],
    "drains.get": [lambda tx: tx.drains.get(DRAIN)],
    "drains.newest": [lambda tx: tx.drains.newest(RUN)],
    "drains.last_drained": [lambda tx: tx.drains.last_drained(JOB)],
    "drains.page": [lambda tx: tx.drains.page(JOB, None, 20), lambda tx: tx.drains.page(JOB, 30, 20)],
    "drains.active": [lambda tx: tx.drains.active()],
    "drains.failed_flushes": [lambda tx: tx.drains.failed_flushes(JOB)],
    "drains.stages": [lambda tx: tx.drains.stages(DRAIN)],
    "drains.stage": [lambda tx: tx.drains.stage(DRAIN, TASK, STAGE)],
    "drains.snapshots": [
        lambda tx: tx.drains.snapshots(DRAIN, JOB, "pinned"),
        lambda tx: tx.drains.snapshots(DRAIN, JOB, "committed"),
    ],
    "drains.step_counts": [lambda tx: tx.drains.step_counts(DRAIN)],
    "drains.lowest_step": [lambda tx: tx.drains.lowest_step(DRAIN)],
    "drains.is_behind": [lambda tx: tx.drains.is_behind(DRAIN, STAGE, Step.FLUSHED)],
    "promises.lease_bounds": [lambda tx: tx.promises.lease_bounds()],
    "origin.issued": [lambda tx: tx.origin.issued()],
    "history.runs": [lambda tx: tx.history.runs(JOB)],
    "history.containers": [
        lambda tx: tx.history.containers(RUN, None, 50),
        lambda tx: tx.history.containers(RUN, container_row(CONTAINER, SLOT, 1, RUN), 50),
    ],
    "history.drains": [lambda tx: tx.history.drains(JOB)],
    "history.references": [lambda tx: tx.history.references(JOB, RUN)],
    "history.surplus_containers": [
        lambda tx: tx.history.surplus_containers(RUN, 0, None, 500),
        lambda tx: tx.history.surplus_containers(RUN, 0, (SLOT, 1), 500),
    ],
    "runs.last_notice": [lambda tx: tx.runs.last_notice(RUN)],
    "runs.notices": [lambda tx: tx.runs.notices(RUN, 7)],
    "runs.lineages": [lambda tx: tx.runs.lineages(RUN, 300)],
}


async def _write_issued(tx: WriteTransaction) -> None:
    await tx.origin.put_issued(Issued("o", "t"))
    await tx.origin.next_number(1)
    await tx.origin.write()


WRITES: dict[str, Sequence[Callable[[WriteTransaction], Awaitable[object]]]] = {
    "access.add_event": [lambda tx: tx.access.add_event(_event(0))],
    "access.set_outcome": [lambda tx: tx.access.set_outcome(4_000, Outcome(200, "", "job-07", {}, {}))],
    "access.delete_events": [lambda tx: tx.access.delete_events(NOON + timedelta(minutes=100), 50)],
    "access.put_token": [lambda tx: tx.access.put_token(TOKEN_ROW)],
    "access.drop_tokens": [lambda tx: tx.access.drop_tokens([TokenId("07"), TokenId("08")])],
    "access.put_session": [lambda tx: tx.access.put_session(_session(7))],
    "access.drop_sessions": [lambda tx: tx.access.drop_sessions([Digest("session-7"), Digest("session-8")])],
    "runs.put": [lambda tx: tx.runs.put(RUN_ROW), lambda tx: tx.runs.put(replace(RUN_ROW, run_id=RunId("new")))],
    "jobmodels.add": [lambda tx: tx.jobmodels.add(model_row(1_000, JOB))],
    "jobmodels.put_monitored": [lambda tx: tx.jobmodels.put_monitored(JOB, [monitored_stream_row(job=JOB)])],
    "jobmodels.put_former_hosts": [lambda tx: tx.jobmodels.put_former_hosts(JOB, {SLOT: "h"})],
    "jobmodels.put_assignment": [lambda tx: tx.jobmodels.put_assignment(JOB, ASSIGNMENT)],
    "runs.put_start_offsets": [lambda tx: tx.runs.put_start_offsets(RUN, {Ssp("log", "s", 1): 5})],
    "fleet.put_container": [lambda tx: tx.fleet.put_container(container_row(CONTAINER, SLOT, 1, RUN))],
    "fleet.set_last_seen": [lambda tx: tx.fleet.set_last_seen([(CONTAINER, NOON)])],
    "fleet.put_owners": [lambda tx: tx.fleet.put_owners([replace(ownership_row(TASK, job=JOB), run_id=RUN)])],
    "fleet.put_stage_states": [lambda tx: tx.fleet.put_stage_states([replace(stage_state_row(TASK, job=JOB), generation=Generation(2))])],
    "snapshots.put_all": [lambda tx: tx.snapshots.put_all([snapshot_row(1, job=JOB)])],
    "snapshots.drop": [lambda tx: tx.snapshots.drop(JOB, [77])],
    "snapshots.put_pins": [lambda tx: tx.snapshots.put_pins([pin_row("new", job=JOB)])],
    "snapshots.drop_pin": [lambda tx: tx.snapshots.drop_pin("pin-7-120")],
    "cleanup.put": [lambda tx: tx.cleanup.put(cleanup_row(7))],
    "cleanup.put_all": [lambda tx: tx.cleanup.put_all([cleanup_row(7)])],
    "cleanup.drop": [lambda tx: tx.cleanup.drop(cleanup_row(7))],
    "cleanup.mark": [lambda tx: tx.cleanup.mark([marked_blob_row("jobs/j/t/s/data/x")])],
    "cleanup.unmark": [lambda tx: tx.cleanup.unmark(LOCAL, [FIRST_BLOB, LAST_BLOB])],
    "cleanup.put_owner_id": [lambda tx: tx.cleanup.put_owner_id(LOCAL, "r")],
    "fleet.drop_stage_states": [lambda tx: tx.fleet.drop_stage_states(JOB), lambda tx: tx.fleet.drop_stage_states(JOB, [STORE])],
    "drains.put": [lambda tx: tx.drains.put(drain_row(17, RUN, JOB))],
    "drains.put_stages": [lambda tx: tx.drains.put_stages([drain_stage_row(TASK, STAGE, DRAIN)])],
    "promises.put_lease_bounds": [lambda tx: tx.promises.put_lease_bounds(LeaseBounds(HOUR, HOUR, HOUR, HOUR))],
    "origin.next_number": [lambda tx: tx.origin.next_number(1)],
    "origin.note": [lambda tx: tx.origin.note()],
    "origin.write": [_write_issued],
    "origin.put_issued": [lambda tx: tx.origin.put_issued(Issued("o", "t"))],
    "history.drop_containers": [lambda tx: tx.history.drop_containers([CONTAINER])],
    "history.drop_notices": [lambda tx: tx.history.drop_notices(RUN, NOON + timedelta(days=1), 500)],
    "history.drop_versions": [lambda tx: tx.history.drop_versions(JOB, [7, 8])],
    "history.drop_drains": [lambda tx: tx.history.drop_drains([DRAIN])],
    "history.drop_of_run": [lambda tx: _until_nothing(partial(tx.history.drop_of_run, RunId("run-0007"), 500))],
    "runs.add_notice": [lambda tx: tx.runs.add_notice(RUN, "STOP", NOON, {})],
}
WHOLE = {
    "access.tokens",
    "access.sessions",
    "history.rows_of_job",
    "runs.jobs",
    "snapshots.jobs",
    "cleanup.counts",
    "drains.outcomes",
    "origin.highest_number",
    "origin.generations",
}
"""Statements that read a whole table because the request needs all of it: by people, at a start, and by chores every few seconds or
minutes."""

RARE = {"history.drop_job"}
"""Writes that scan whole tables, because people request them a few times a year."""

HEADER = {"origin.is_marked"}
HEADER_WRITES = {"origin.unmark"}
"""Statements about the header of an SQLite file. They read no table, and PostgreSQL gets none."""

PARTIAL = {
    index.name
    for table in tables.metadata.tables.values()
    for index in table.indexes
    if index.dialect_options["sqlite"]["where"] is not None
}
"""Indexes of the few active rows: a query may read all of one."""


SMALL = {tables.jobs.name, tables.registries.name, tables.lease_bounds.name, tables.tokens.name, tables.issued.name}
"""Tables with one row for each job, blob store or token, or one row: reading all of it is the better plan."""


def methods_of(kind: type) -> list[str]:
    return [name for name in dir(kind) if not name.startswith("_")]


class QueryPlanContract:
    async def scans(self, store: Store, statement: Statement) -> list[str]:
        raise NotImplementedError

    async def indexes(self, store: Store, statement: Statement) -> list[str]:
        """The indexes that the plan of the statement uses."""
        raise NotImplementedError

    def test_every_method_of_the_store_is_checked(self) -> None:
        aggregates = get_type_hints(WriteTransaction)
        assert all(len(methods_of(kind)) <= 15 for kind in aggregates.values())
        assert {f"{name}.{method}" for name, kind in aggregates.items() for method in methods_of(kind)} == {
            *READS,
            *WRITES,
            *WHOLE,
            *RARE,
            *HEADER,
            *HEADER_WRITES,
        }

    def test_a_transaction_that_reads_offers_no_writes(self) -> None:
        reading = vars(ReadTransaction(None))  # type: ignore[arg-type]
        assert {f"{name}.{method}" for name, reads in reading.items() for method in methods_of(type(reads))} == {*READS, *WHOLE, *HEADER}

    @pytest.mark.parametrize("name", READS)
    async def test_a_read_finds_its_rows_by_an_index(self, store: Store, name: str) -> None:
        with listening(store) as heard:
            async with store.engine.connect() as connection:
                for call in READS[name]:
                    await call(ReadTransaction(connection))
        assert len(heard) >= len(READS[name])
        assert {each.sql: found for each in heard if (found := await self.scans(store, each))} == {}

    @pytest.mark.parametrize("name", WRITES)
    async def test_a_write_finds_its_rows_by_an_index(self, store: Store, name: str) -> None:
        with listening(store) as heard:
            async with store.engine.connect() as connection:
                for call in WRITES[name]:
                    await call(WriteTransaction(connection))
                await connection.rollback()
        assert len(heard) >= len(WRITES[name])
        assert {each.sql: found for each in heard if (found := await self.scans(store, each))} == {}

    async def test_the_pins_of_a_stage_are_found_without_those_of_other_stages(self, store: Store) -> None:
        with listening(store) as heard:
            async with store.engine.connect() as connection:
                await ReadTransaction(connection).snapshots.pins_of(STORE)
        assert [await self.indexes(store, each) for each in heard] == [["ix_pins_stage"]]

    async def test_a_read_of_a_whole_table_would_be_found(self, store: Store) -> None:
        with listening(store) as heard:
            async with store.engine.connect() as connection:
                await ReadTransaction(connection).runs.jobs()
        assert [found for each in heard if (found := await self.scans(store, each))] != []
