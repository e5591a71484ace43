"""A COMMIT is executed and its answer is lost, as when PostgreSQL fails over: the coordinator detects this, and its memory then agrees with
the database.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from coordinator.chores import KeepClaim
from coordinator.fleet.expiry import ExpireLeases
from coordinator.store.fleet import ContainerState
from coordinator.store.sql import Store, open_store
from coordinator.store.sqlite import Connection
from sluice.clock import SystemClock
from sluice.core.ids import RunId
from tests.support.api import Caller, calling, calling_on, problem_slug, run_body
from tests.support.databases import another_client
from tests.support.fakes import FakeClock
from tests.support.postgresproxy import PostgresProxy, postgres_proxy
from tests.support.servers import Postgres

pytestmark = pytest.mark.real_time


@pytest.fixture
async def proxy(postgres_server: Postgres) -> AsyncIterator[PostgresProxy]:
    async with postgres_proxy(postgres_server.new_database()) as made:
        yield made


@pytest.fixture
async def cut(proxy: PostgresProxy, home: Path, clock: FakeClock) -> AsyncIterator[Caller]:
    async with calling(home, clock, database_url=proxy.url) as caller:
        caller.log.create("flights", 2)
        yield caller


async def resynchronised(caller: Caller) -> None:
    """Run the chore that runs every second while nothing is written."""
    parts = caller.coordinator.api.state.parts
    await KeepClaim(parts.health.store, lambda _: None, SystemClock(), lambda _: None).run_once()


async def test_a_version_whose_commit_was_not_answered_is_served(cut: Caller, proxy: PostgresProxy) -> None:
    run_id = (await cut.deploy(run_body(containers=2)))["runId"]
    await cut.registered(run_id, "c1")
    proxy.cut_commit_of = "job_models"
    answer = await cut.http.patch(f"/runs/{run_id}", json={"containers": 1})
    assert (problem_slug(answer), proxy.cut) == ((503, "store-unavailable"), 1)
    await resynchronised(cut)
    stored = (await cut.run(run_id))["jobModelVersion"]
    assert (await cut.beat("c1", 1)).headers["Sluice-Job-Model-Version"] == str(stored)
    assert (await cut.http.get("/jobModel?job=flight-delays")).headers["Sluice-Job-Model-Version"] == str(stored)
    assert [each["kind"] for each in await cut.notices(run_id)] == ["MODEL"]


async def test_a_registration_whose_commit_was_not_answered_replaces_its_predecessor(
    cut: Caller, proxy: PostgresProxy, clock: FakeClock
) -> None:
    run_id = (await cut.deploy())["runId"]
    await cut.registered(run_id, "c1")
    await cut.acquired(run_id, "c1")
    proxy.cut_commit_of = "containers"
    assert (problem_slug(await cut.register(run_id, "c2")), proxy.cut) == ((503, "store-unavailable"), 1)
    await resynchronised(cut)
    assert (await cut.alive("c1", 1), await cut.alive("c2", 2)) == (False, True)
    assert (await cut.registered(run_id, "c2"))["epoch"] == 2
    assert (await cut.acquire(run_id, "c2", 2)).json()["waitSeconds"] == 35
    clock.advance(20)
    assert await cut.alive("c2", 2)
    clock.advance(15)
    assert (await cut.acquired(run_id, "c2", 2))["generation"] == 2


async def test_a_repeated_registration_succeeds_without_the_chore(cut: Caller, proxy: PostgresProxy) -> None:
    run_id = (await cut.deploy())["runId"]
    await cut.registered(run_id, "c1")
    proxy.cut_commit_of = "containers"
    assert (await cut.register(run_id, "c2")).status_code == 503
    assert (await cut.registered(run_id, "c2"))["epoch"] == 2
    assert (await cut.alive("c1", 1), await cut.alive("c2", 2)) == (False, True)


async def test_a_container_that_dies_after_an_unanswered_registration_expires(cut: Caller, proxy: PostgresProxy, clock: FakeClock) -> None:
    run_id = (await cut.deploy())["runId"]
    proxy.cut_commit_of = "containers"
    assert (await cut.register(run_id, "c1")).status_code == 503
    await resynchronised(cut)
    clock.advance(36)
    parts = cut.coordinator.api.state.parts
    await ExpireLeases(parts.health.store, parts.leases, parts.notices, clock).run_once()
    async with parts.health.store.read() as tx:
        assert [each.state for each in await tx.fleet.containers(RunId(run_id))] == [ContainerState.LOST]


async def test_an_exit_whose_commit_was_not_answered_ends_the_lease(cut: Caller, proxy: PostgresProxy) -> None:
    run_id = (await cut.deploy())["runId"]
    await cut.registered(run_id, "c1")
    proxy.cut_commit_of = "containers"
    assert (await cut.http.post("/containers/c1/exit", json={"exitCode": 0, "reason": ""})).status_code == 503
    await resynchronised(cut)
    assert not await cut.alive("c1", 1)


async def test_leases_of_other_containers_are_not_extended_by_an_unanswered_commit(
    cut: Caller, proxy: PostgresProxy, clock: FakeClock
) -> None:
    run_id = (await cut.deploy(run_body(containers=2)))["runId"]
    await cut.registered(run_id, "c1", "0")
    clock.advance(20)
    proxy.cut_commit_of = "containers"
    assert (await cut.register(run_id, "c2", "1")).status_code == 503
    await resynchronised(cut)
    leases = cut.coordinator.api.state.parts.leases
    assert (leases.free_at("c1"), leases.free_at("c2")) == (clock.elapsed() + 15, clock.elapsed() + 35)


async def test_the_lease_of_a_registration_that_the_database_has_lost_is_still_waited_for(
    cut: Caller, proxy: PostgresProxy, clock: FakeClock
) -> None:
    """As after a fail-over to a replica that had not received the last commits."""
    run_id = (await cut.deploy())["runId"]
    await cut.registered(run_id, "c1")
    store = cut.coordinator.api.state.parts.health.store
    async with store.engine.begin() as connection:
        await connection.exec_driver_sql("DELETE FROM containers")
    async with another_client(proxy.url) as other:
        await other.end(await other.holder())
    while store.claimed:  # noqa: ASYNC110  the driver notices it without a statement
        await asyncio.sleep(0)
    await resynchronised(cut)
    assert not await cut.alive("c1", 1)
    assert cut.coordinator.api.state.parts.leases.free_at("c1") == clock.elapsed() + 35


async def test_a_job_whose_removal_was_not_answered_is_not_served_any_more(cut: Caller, proxy: PostgresProxy, clock: FakeClock) -> None:
    run_id = (await cut.deploy())["runId"]
    await cut.stop(run_id)
    clock.advance(1)
    assert (await cut.run(run_id))["state"] == "STOPPED"
    assert (await cut.http.get("/jobModel?job=flight-delays")).status_code == 200
    proxy.cut_commit_of = "jobs"
    assert (problem_slug(await cut.http.delete("/jobs/flight-delays")), proxy.cut) == ((503, "store-unavailable"), 1)
    await resynchronised(cut)
    assert problem_slug(await cut.http.get("/jobModel?job=flight-delays")) == (404, "no-job-model")


# --- SQLite ---


class FailsAfterCommit(Connection):
    """Reports an error of the commit that registers the second container, although it was executed."""

    failed = False

    async def commit(self) -> None:
        async with self.execute("SELECT count(*) FROM containers") as found:
            second = await found.fetchone() == (2,)
        await super().commit()
        if second and not self.failed:
            self.failed = True
            raise sqlite3.OperationalError("disk I/O error")


def failing_store(url: str) -> Store:
    def connect(_dialect: object, _record: object, _arguments: object, parameters: dict[str, Any]) -> None:
        parameters["async_creator_fn"] = lambda *arguments, **named: FailsAfterCommit(partial(sqlite3.connect, *arguments, **named), 64)

    store = open_store(url)
    event.listen(store.engine.sync_engine, "do_connect", connect)
    return store


async def test_a_commit_on_sqlite_that_reports_an_error_and_was_executed_is_detected(home: Path, clock: FakeClock) -> None:
    async with calling_on(failing_store, home, clock, {}) as caller:
        caller.log.create("flights", 2)
        run_id = (await caller.deploy())["runId"]
        await caller.registered(run_id, "c1")
        assert problem_slug(await caller.register(run_id, "c2")) == (503, "store-unavailable")
        await resynchronised(caller)
        assert (await caller.alive("c1", 1), await caller.alive("c2", 2)) == (False, True)
