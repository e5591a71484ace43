"""A coordinator whose PostgreSQL stops, starts again, or is taken over by another coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from coordinator.chores import KeepClaim
from sluice.streams.log import Log
from tests.support.api import Caller, calling, problem_slug, run_body
from tests.support.coordinators import GENEROUS, Running, refused, running
from tests.support.databases import another_client
from tests.support.fakes import FakeClock
from tests.support.servers import Postgres, postgres

pytestmark = pytest.mark.real_time


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A PostgreSQL that runs when a test begins; the test may stop it."""
    with postgres() as made:
        yield made


@pytest.fixture
def url(server: Postgres) -> Iterator[str]:
    yield server.new_database()
    if not server.running:
        server.start()


async def refusals(caller: Caller, run_id: str) -> list[tuple[int, str]]:
    """The answers to requests that write, and to one that reads."""
    asked = [
        await caller.register(run_id, "c2", "1"),
        await caller.acquire(run_id, "c1", 1, "Partition 1"),
        await caller.progress(run_id, 1, "l", 1),
        await caller.stop(run_id),
        await caller.http.post("/runs", json=run_body()),
        await caller.http.post("/containers/c1/exit", json={"exitCode": 0}),
        await caller.http.get(f"/runs/{run_id}"),
    ]
    assert {each.headers.get("Retry-After") for each in asked} == {"1"}
    return [problem_slug(each) for each in asked]


async def ready(caller: Caller) -> tuple[int, str]:
    answer = await caller.http.get("/readyz?verbose")
    return answer.status_code, answer.text


async def test_heartbeats_continue_while_the_server_is_down_and_all_requests_do_afterwards(
    url: str, server: Postgres, home: Path, clock: FakeClock
) -> None:
    async with calling(home, clock, database_url=url) as caller:
        caller.log.create("flights", 2)
        run_id = (await caller.deploy(run_body(containers=2)))["runId"]
        await caller.registered(run_id, "c1")
        held = await caller.acquired(run_id, "c1")

        server.stop()
        assert set(await refusals(caller, run_id)) == {(503, "store-unavailable")}
        for _ in range(10):
            clock.advance(10)  # longer than a lease in total
            assert await caller.alive("c1", 1)
        status, reported = await ready(caller)
        assert (status, "[-] database: " in reported) == (503, True)
        assert (await caller.http.get("/livez")).text == "ok"

        server.start()
        assert (await caller.registered(run_id, "c2", "1"))["epoch"] == 1
        assert (await caller.acquired(run_id, "c2", task="Partition 1"))["generation"] == 1
        lineage = held["stages"][0]["lineage"]
        assert (await caller.progress(run_id, held["generation"], lineage, 7)).status_code == 204
        assert await caller.alive("c1", 1)
        assert (await ready(caller))[0] == 200
        assert (await caller.run(run_id))["tasks"][0]["stages"][0]["batchId"] == 7


async def test_without_the_database_leases_are_renewed_for_two_minutes_and_heartbeats_then_get_503(
    url: str, server: Postgres, home: Path, clock: FakeClock
) -> None:
    async with calling(home, clock, database_url=url) as caller:
        caller.log.create("flights", 2)
        run_id = (await caller.deploy())["runId"]
        await caller.registered(run_id, "c1")
        server.stop()
        for _ in range(11):
            clock.advance(10)
            assert await caller.alive("c1", 1)
        clock.advance(10)
        assert problem_slug(await caller.beat("c1", 1)) == (503, "store-unavailable")
        assert problem_slug(await caller.beat("c1", 9)) == (503, "store-unavailable")
        server.start()
        parts = caller.coordinator.api.state.parts
        await KeepClaim(parts.health.store, lambda _: None, clock, parts.leases.claim_confirmed).run_once()
        assert await caller.alive("c1", 1)


async def test_a_coordinator_that_starts_while_the_server_is_down_ends_with_the_reason(url: str, server: Postgres, tmp_path: Path) -> None:
    server.stop()
    output = refused("--home", str(tmp_path), "--port", "0", "--database-url", url)
    assert "The coordinator's database cannot be read or written." in output


async def test_a_coordinator_writes_nothing_while_another_one_has_the_claim(url: str, home: Path, clock: FakeClock) -> None:
    async with calling(home, clock, database_url=url) as caller, another_client(url) as other:
        caller.log.create("flights", 2)
        run_id = (await caller.deploy())["runId"]
        await other.take_over()
        assert problem_slug(await caller.register(run_id, "c1")) == (503, "store-unavailable")
        assert "nothing is written until the claim is renewed" in (await ready(caller))[1]
        assert (await caller.http.get(f"/runs/{run_id}")).status_code == 200
        await other.request("SELECT pg_advisory_unlock(7355609)")
        await caller.registered(run_id, "c1")
        assert (await ready(caller))[0] == 200


# --- processes ---


def deployed(coordinator: Running, home: Path) -> str:
    Log(home / "log").create("flights", 1)
    return str(coordinator.http.post("/runs", json=run_body()).json()["runId"])


def test_a_second_coordinator_is_refused_until_the_first_is_killed(url: str, tmp_path: Path) -> None:
    with running(tmp_path / "one", "--database-url", url) as first:
        run_id = deployed(first, tmp_path / "one")
        output = refused("--home", str(tmp_path / "two"), "--port", "0", "--database-url", url)
        assert "sluice: Another coordinator uses this database." in output
        assert f"pid {first.process.pid}" in output
        first.process.kill()
        first.process.wait(GENEROUS)
        with running(tmp_path / "two", "--database-url", url) as second:
            assert second.http.get(f"/runs/{run_id}").json()["state"] == "CREATED"


async def test_a_coordinator_whose_claim_was_taken_ends_with_the_reason(url: str, tmp_path: Path) -> None:
    with running(tmp_path, "--database-url", url) as coordinator:
        async with another_client(url) as other:
            await other.take_over()
            assert coordinator.process.wait(GENEROUS) == 1
        lines = coordinator.log.read_text().strip().splitlines()
        assert lines[-2].startswith("sluice: Another coordinator uses this database. ")
        with pytest.raises(httpx.TransportError):
            coordinator.http.get("/livez")


def test_a_coordinator_survives_a_restart_of_its_database_server(url: str, server: Postgres, tmp_path: Path) -> None:
    with running(tmp_path, "--database-url", url) as coordinator:
        run_id = deployed(coordinator, tmp_path)
        server.stop()
        body = {"processorId": "0", "executionContainerId": "c1"}
        refusal = coordinator.http.post(f"/runs/{run_id}/containers", json=body)
        assert (refusal.status_code, refusal.json()["type"]) == (503, "urn:sluice:store-unavailable")
        server.start()
        assert coordinator.http.post(f"/runs/{run_id}/containers", json=body).status_code == 201
        assert coordinator.process.poll() is None
