"""Which run `sluice upgrade JOB -- COMMAND` drains, and which one it makes, also when it is repeated after an interruption."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from functools import partial
from typing import Any

import httpx
import pytest

from containers.attached.claim import COMMAND, REFUSED, command_digest
from containers.attached.upgrade import ROLLBACK_WITHIN, Insistence, ScriptUpgrade, drained_run, roll_back, rollback_config, run_for
from sluice.client import OperatorClient, Refused
from sluice.core.errors import AttachedJob, CoordinatorUnreachable
from sluice.core.ids import JobName, RunId
from sluice.wire import runs as wire_runs
from tests.integration.api.test_attached_jobs import query, report, started, step
from tests.support.api import Caller
from tests.support.fakes import FakeClock

NEW, OTHER = ["spark-submit", "orders_v2.py"], ["spark-submit", "orders_v3.py"]


@pytest.fixture
async def client(caller: Caller) -> AsyncIterator[OperatorClient]:
    made = OperatorClient("http://c", caller.http._transport)
    yield made
    await made.close()


def upgrade(command: list[str] = NEW, **changes: Any) -> ScriptUpgrade:
    given: dict[str, Any] = {"timeout": None, "watch": timedelta(seconds=60), "batches": 1, "rollback": True, "dry_run": False}
    return ScriptUpgrade(JobName("orders"), command, **given | {"allow_leftover_state": False} | changes)


async def drained(caller: Caller) -> str:
    """A run of the job, which has started and is drained."""
    run, generation = await started(caller, "orders")
    await report(caller, run, generation, query("counts"))
    drain = (await caller.http.post("/drain", json={"runId": run})).json()["uuid"]
    for taken in ("stopped", "flushed", "committed"):
        await step(caller, run, generation, drain, "counts", taken)
    assert (await caller.run(run))["state"] == "DRAINED"
    return run


async def made_for(caller: Caller, client: OperatorClient, command: list[str]) -> str:
    """The run that an upgrade makes."""
    found = await drained_run(client, upgrade(command))
    assert found is not None
    return await run_for(client, found, command)


async def test_an_upgrade_makes_a_run_that_only_its_command_may_start(caller: Caller, client: OperatorClient) -> None:
    former = await drained(caller)
    run = await made_for(caller, client, NEW)
    assert run != former
    assert (await caller.run(run))["config"] == {COMMAND: command_digest(NEW)}


async def test_an_interrupted_upgrade_continues_with_the_run_that_it_has_made(caller: Caller, client: OperatorClient) -> None:
    await drained(caller)
    run = await made_for(caller, client, NEW)
    assert await made_for(caller, client, NEW) == run


async def test_an_interrupted_upgrade_can_be_replaced_by_one_to_another_command(caller: Caller, client: OperatorClient) -> None:
    await drained(caller)
    first = await made_for(caller, client, NEW)
    second = await made_for(caller, client, OTHER)
    third = await made_for(caller, client, NEW)
    assert len({first, second, third}) == 3
    assert (await caller.run(first))["state"] == (await caller.run(second))["state"] == "STOPPED"
    assert (await caller.run(third))["config"] == {COMMAND: command_digest(NEW)}


async def test_an_upgrade_to_another_command_that_was_interrupted_after_it_stopped_the_run_can_be_repeated(
    caller: Caller, client: OperatorClient
) -> None:
    await drained(caller)
    first = await made_for(caller, client, NEW)
    await caller.stop(first)
    second = await made_for(caller, client, OTHER)
    assert (await caller.run(second))["config"] == {COMMAND: command_digest(OTHER)}


async def test_an_upgrade_after_one_that_was_rolled_back_begins_where_that_drain_has_ended(caller: Caller, client: OperatorClient) -> None:
    await drained(caller)
    failed = await made_for(caller, client, NEW)
    await caller.stop(failed)
    request = await client.request_of(RunId(failed))
    config = rollback_config({}, NEW, RunId(failed))
    await client.deploy(request.model_copy(update={"config": config}))
    again = await made_for(caller, client, NEW)
    kept = {name: value for name, value in config.items() if name != REFUSED}
    assert (await caller.run(again))["config"] == {**kept, COMMAND: command_digest(NEW)}


async def test_a_run_that_has_started_since_the_drain_is_drained_first(caller: Caller, client: OperatorClient) -> None:
    await drained(caller)
    run = await made_for(caller, client, NEW)
    await caller.registered(run, "c2")
    with pytest.raises(Refused) as refused:  # no query of it is known
        await drained_run(client, upgrade())
    assert refused.value.refused_as == AttachedJob.slug


async def test_a_run_that_was_made_after_a_stop_is_not_taken_for_drained(caller: Caller, client: OperatorClient) -> None:
    run, generation = await started(caller, "orders")
    await report(caller, run, generation, query("counts"))
    await caller.stop(run)
    await caller.exited("container-of-orders")
    request = await client.request_of(RunId(run))
    await client.deploy(request)
    with pytest.raises(Refused):
        await drained_run(client, upgrade())


async def test_after_a_drain_that_fails_in_its_flush_the_upgrade_says_how_the_former_command_starts(
    caller: Caller, client: OperatorClient, capsys: pytest.CaptureFixture[str]
) -> None:
    run, generation = await started(caller, "orders")
    await report(caller, run, generation, query("counts"))
    drain = (await caller.http.post("/drain", json={"runId": run})).json()["uuid"]
    await step(caller, run, generation, drain, "counts", "stopped")
    upgrading = asyncio.create_task(drained_run(client, upgrade(allow_leftover_state=True)))
    await caller.stop(run)
    assert await asyncio.wait_for(upgrading, 60) is None
    assert "the run is stopped: `sluice start orders` lets the former command start again" in capsys.readouterr().err


async def test_a_dry_run_changes_nothing(caller: Caller, client: OperatorClient, capsys: pytest.CaptureFixture[str]) -> None:
    former = await drained(caller)
    assert await drained_run(client, upgrade(dry_run=True)) is None
    assert capsys.readouterr().out.splitlines() == [
        "1. nothing: job orders is drained already",
        '2. start ["spark-submit", "orders_v2.py"]',
        "3. watch its first batches, and go back if they fail",
    ]
    assert [each["runId"] for each in (await caller.http.get("/runs", params={"job": "orders"})).json()["runs"]] == [former]


class Outages(httpx.AsyncBaseTransport):
    """To the coordinator. Each request fails as often as `fails` says, and is answered then; with `arrive` only its answer is lost."""

    def __init__(self, caller: Caller, fails: Callable[[str], int], *, arrive: bool = False) -> None:
        self._caller = caller
        self._fails = fails
        self._arrive = arrive
        self._failed: dict[str, int] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        named = f"{request.method} {request.url.path}"
        answer = await self._caller.http._transport.handle_async_request(request) if self._arrive else None
        if self._failed.setdefault(named, 0) < self._fails(named):
            self._failed[named] += 1
            raise httpx.ConnectError("connection refused")
        return answer or await self._caller.http._transport.handle_async_request(request)


async def rolled_back(caller: Caller, transport: httpx.AsyncBaseTransport) -> tuple[str, str]:
    """The run of the new command and that of the former one, after a rollback."""
    operator = OperatorClient("http://c", transport)
    clock = FakeClock()

    async def sleep(seconds: float) -> None:
        clock.advance(seconds)

    former = await caller.http.get(f"/runs/{await drained(caller)}")
    before = wire_runs.RunDetail.model_validate(former.json())
    reaching = OperatorClient("http://c", caller.http._transport)
    try:
        run = await run_for(reaching, before, NEW)
        back = await roll_back(operator, upgrade(), before, run, "it failed", partial(asyncio.sleep, 0), Insistence(clock, sleep))
    finally:
        await operator.close()
        await reaching.close()
    return run, back


@pytest.mark.parametrize("arrive", [False, True])
async def test_a_rollback_continues_when_the_coordinator_can_be_reached_again(
    caller: Caller, capsys: pytest.CaptureFixture[str], arrive: bool
) -> None:
    """Each request fails three times; with `arrive` the coordinator has received it."""
    run, back = await rolled_back(caller, Outages(caller, lambda request: 3, arrive=arrive))
    assert (await caller.run(run))["state"] == "STOPPED"
    assert (await caller.run(back))["config"] == rollback_config({}, NEW, RunId(run))
    runs = (await caller.http.get("/runs", params={"job": "orders"})).json()["runs"]
    assert len(runs) == 3
    assert {run, back} < {each["runId"] for each in runs}
    assert "the coordinator cannot be reached: " in capsys.readouterr().err


async def test_a_rollback_that_cannot_reach_the_coordinator_says_what_to_do(caller: Caller, capsys: pytest.CaptureFixture[str]) -> None:
    attempts = ROLLBACK_WITHIN.total_seconds()
    with pytest.raises(CoordinatorUnreachable):
        await rolled_back(caller, Outages(caller, lambda request: int(attempts) if request == "POST /runs" else 0))
    assert "`sluice stop orders` and then `sluice start orders`" in capsys.readouterr().err
