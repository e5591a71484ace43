"""Registration, heartbeats, and the tasks of containers, through the API."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from sluice.core.access.tokens import SECRET_BYTES, new_incarnation_token
from sluice.core.ids import ExecutionContainerId
from tests.support.api import Caller, calling, problem_slug, run_body
from tests.support.fakes import FakeClock


@pytest.fixture
async def run_id(caller: Caller) -> str:
    return str((await caller.deploy())["runId"])


async def test_a_registration_answers_with_epoch_and_lease_terms_and_sets_the_run_to_running(caller: Caller, run_id: str) -> None:
    reply = await caller.registered(run_id, "c1")
    assert reply.pop("token").startswith("sluice-i.")
    assert reply == {
        "epoch": 1,
        "leaseSeconds": 30.0,
        "heartbeatSeconds": 5.0,
        "marginSeconds": 3.0,
        "jobModelVersion": 1,
        "notices": 0,
    }
    run = await caller.run(run_id)
    assert (run["state"], run["incarnations"][0]["host"]) == ("RUNNING", "host-of-c1")


async def test_metrics_are_published_at_the_address_of_the_container_unless_the_settings_list_its_host(
    caller: Caller, run_id: str, tmp_path: Path, clock: FakeClock
) -> None:
    await caller.registered(run_id, "c1", metricsAddress="169.254.169.254:80")
    (target,) = (await caller.http.get("/prometheus/targets")).json()
    assert target["targets"] == ["127.0.0.1:80"]
    async with calling(tmp_path / "listed", clock, metrics_hosts=["node-*"]) as listed:
        listed.log.create("flights", 4)
        await listed.registered((await listed.deploy())["runId"], "c1", metricsAddress="node-3:9400")
        (target,) = (await listed.http.get("/prometheus/targets")).json()
        assert target["targets"] == ["node-3:9400"]


@pytest.mark.parametrize("port", ["0", "65536", "00080", "-1"])
async def test_a_metrics_address_with_an_invalid_port_is_refused(caller: Caller, run_id: str, port: str) -> None:
    answer = await caller.register(run_id, "c1", metricsAddress=f"127.0.0.1:{port}")
    assert problem_slug(answer)[0] == 422


async def test_a_repeated_registration_gets_the_same_answer(caller: Caller, run_id: str) -> None:
    first, second = [await caller.registered(run_id, "c1") for _ in range(2)]
    assert first.pop("token") != second.pop("token")
    assert first == second
    assert len((await caller.run(run_id))["incarnations"]) == 1


def chosen_token(execution_id: str, secret: bytes = b"1" * SECRET_BYTES) -> str:
    return new_incarnation_token(ExecutionContainerId(execution_id), secret)


async def test_a_repeated_registration_with_a_chosen_token_gets_the_same_answer(caller: Caller, run_id: str) -> None:
    token = chosen_token("c1")
    first, second = [await caller.registered(run_id, "c1", token=token) for _ in range(2)]
    assert first == second
    assert first["token"] == token


async def test_a_registration_with_another_token_does_not_replace_the_token_of_a_container(caller: Caller, run_id: str) -> None:
    await caller.registered(run_id, "c1", token=chosen_token("c1"))
    assert problem_slug(await caller.register(run_id, "c1", token=chosen_token("c1", b"2" * SECRET_BYTES))) == (409, "id-in-use")


@pytest.mark.parametrize(
    "token",
    ["", "x", "sluice-i.c2hvcnQ.YzE", chosen_token("c2"), chosen_token("c1")[:-1], chosen_token("c1").replace("sluice-i", "sluice-t"), 7],
)
async def test_a_chosen_token_is_complete_and_names_the_container(caller: Caller, run_id: str, token: object) -> None:
    assert problem_slug(await caller.register(run_id, "c1", token=token))[0] == 422
    assert (await caller.run(run_id))["incarnations"] == []


async def test_each_incarnation_of_a_slot_gets_the_next_epoch_and_replaces_the_one_before(caller: Caller, run_id: str) -> None:
    epochs = [(await caller.registered(run_id, f"c{n}"))["epoch"] for n in (1, 2, 3)]
    assert epochs == [1, 2, 3]
    assert [await caller.alive(f"c{n}", n) for n in (1, 2, 3)] == [False, False, True]
    assert [each["state"] for each in (await caller.run(run_id))["incarnations"]] == ["REPLACED", "REPLACED", "LIVE"]


async def test_a_replaced_incarnation_cannot_register_again(caller: Caller, run_id: str) -> None:
    await caller.registered(run_id, "c1")
    await caller.registered(run_id, "c2")
    assert problem_slug(await caller.register(run_id, "c1")) == (409, "lease-lost")


async def test_an_id_belongs_to_one_slot(caller: Caller) -> None:
    run = await caller.deploy(run_body(containers=2))
    await caller.registered(run["runId"], "c1", "0")
    assert problem_slug(await caller.register(run["runId"], "c1", "1")) == (409, "id-in-use")
    assert await caller.alive("c1", 1)


async def test_an_id_belongs_to_one_run(caller: Caller, run_id: str) -> None:
    await caller.registered(run_id, "c1")
    other = await caller.deploy(run_body(job="other", outputs=[{"name": "delays", "system": "log", "stream": "other"}]))
    assert problem_slug(await caller.register(other["runId"], "c1")) == (409, "id-in-use")


@pytest.mark.parametrize("slot", ["1", "-1", "00", "x", "٠", "9" * 100])
async def test_a_slot_that_the_run_does_not_have_is_unknown(caller: Caller, run_id: str, slot: str) -> None:
    assert problem_slug(await caller.register(run_id, "c1", slot)) == (404, "unknown-slot")


@pytest.mark.parametrize("execution_id", ["", "a b", "a\x00", "é", "x" * 301, "a\n"])
async def test_an_id_that_cannot_be_sent_in_a_header_is_refused(caller: Caller, run_id: str, execution_id: str) -> None:
    assert problem_slug(await caller.register(run_id, execution_id)) == (422, "invalid-request")


async def test_an_id_may_contain_any_character_that_a_url_must_escape(caller: Caller, run_id: str) -> None:
    execution_id = "yarn/app:1?x=%2F&y#+z"
    await caller.registered(run_id, execution_id)
    assert await caller.alive(execution_id, 1)
    assert (await caller.exited(execution_id))["executionContainerId"] == execution_id
    assert not await caller.alive(execution_id, 1)


async def test_a_heartbeats_body_is_exactly_what_samza_reads(caller: Caller, run_id: str) -> None:
    await caller.registered(run_id, "c1")
    alive, dead = await caller.beat("c1", 1), await caller.beat("stranger")
    assert (alive.content, dead.content) == (b'{"alive": true}', b'{"alive": false}')
    assert {each.headers["cache-control"] for each in (alive, dead)} == {"no-store"}
    assert {each.headers["content-type"] for each in (alive, dead)} == {"application/json"}
    assert alive.headers["sluice-epoch"] == "1"
    assert "sluice-epoch" not in dead.headers


async def test_a_heartbeat_with_an_older_epoch_is_answered_with_false_even_if_the_id_is_valid(caller: Caller, run_id: str) -> None:
    await caller.registered(run_id, "c1")
    await caller.registered(run_id, "c2")
    assert [await caller.alive("c2", epoch) for epoch in (1, 2, 3)] == [False, True, False]


async def test_a_heartbeat_without_its_epoch_does_not_renew_the_lease(caller: Caller, clock: FakeClock, run_id: str) -> None:
    await caller.registered(run_id, "c1")
    clock.advance(20)
    assert await caller.alive("c1")
    clock.advance(15)
    assert not await caller.alive("c1")


async def test_heartbeats_without_epoch_renew_the_lease_of_a_bare_container(caller: Caller, clock: FakeClock, run_id: str) -> None:
    await caller.registered(run_id, "c1", bare=True)
    for _ in range(3):
        clock.advance(20)
        assert await caller.alive("c1")


async def test_a_container_of_an_ended_run_gets_the_reason_of_its_end(caller: Caller, run_id: str) -> None:
    await caller.registered(run_id, "c1")
    await caller.stop(run_id)
    assert await caller.alive("c1", 1)
    await caller.exited("c1")
    answer = await caller.beat("c1", 1)
    assert (answer.json(), answer.headers["sluice-run-state"]) == ({"alive": False}, "STOPPED")
    assert "sluice-run-state" not in (await caller.beat("stranger")).headers


async def test_an_exit_may_be_reported_twice_and_the_first_report_counts(caller: Caller, run_id: str) -> None:
    await caller.registered(run_id, "c1")
    first = await caller.exited("c1", code=3)
    assert first["state"] == "EXITED"
    assert await caller.exited("c1", code=0) == first


async def test_a_heartbeat_of_a_valid_container_does_not_use_the_database(caller: Caller, run_id: str) -> None:
    await caller.registered(run_id, "c1")
    statements: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        await caller.run(run_id)
        assert statements, "the listener hears nothing"
        statements.clear()
        for _ in range(50):
            assert await caller.alive("c1", 1)
        assert not [each for each in statements if not each.startswith("BEGIN")]
    finally:
        event.remove(Engine, "before_cursor_execute", note)


async def test_metrics_count_heartbeats_by_their_answer(caller: Caller, run_id: str) -> None:
    await caller.registered(run_id, "c1")
    for execution_id, epoch in (("c1", 1), ("c1", 1), ("c1", 7), ("stranger", None)):
        await caller.beat(execution_id, epoch)
    output = (await caller.http.get("/metrics")).text.splitlines()
    assert 'sluice_heartbeats_total{answer="alive"} 2.0' in output
    assert 'sluice_heartbeats_total{answer="invalid"} 2.0' in output
    assert "sluice_valid_containers 1.0" in output


# --- restarts of the coordinator ---


async def test_after_a_restart_every_known_container_is_valid_for_a_full_lease(home: Path, clock: FakeClock) -> None:
    async with calling(home, clock) as before:
        before.log.create("flights", 2)
        run_id = (await before.deploy())["runId"]
        await before.registered(run_id, "c1")
    clock.advance(10_000)
    async with calling(home, clock) as after:
        clock.advance(34)
        assert await after.alive("c1", 1)
        assert not await after.alive("c1", 2)


async def test_after_a_restart_a_replaced_container_is_still_waited_for(home: Path, clock: FakeClock) -> None:
    async with calling(home, clock) as before:
        before.log.create("flights", 2)
        run_id = (await before.deploy())["runId"]
        await before.registered(run_id, "c1")
        await before.acquired(run_id, "c1", 1)
        await before.registered(run_id, "c2")
    async with calling(home, clock) as after:
        assert not await after.alive("c1", 1)
        assert (await after.acquire(run_id, "c2", 2)).status_code == 202
        clock.advance(30)
        assert await after.alive("c2", 2)
        clock.advance(5)
        assert (await after.acquired(run_id, "c2", 2))["generation"] == 2


async def test_after_a_restart_generations_models_and_epochs_continue(home: Path, clock: FakeClock) -> None:
    async with calling(home, clock) as before:
        before.log.create("flights", 2)
        run = await before.deploy()
        await before.registered(run["runId"], "c1")
        held = await before.acquired(run["runId"], "c1")
        model = await before.http.get("/jobModel?job=flight-delays")
    async with calling(home, clock) as after:
        assert await after.acquired(run["runId"], "c1") == held
        assert (await after.progress(run["runId"], 1, held["stages"][0]["lineage"], 0)).status_code == 204
        again = await after.http.get("/jobModel?job=flight-delays")
        assert (again.content, again.headers["etag"]) == (model.content, model.headers["etag"])
        await after.exited("c1")
        assert (await after.registered(run["runId"], "c2"))["epoch"] == 2
        assert (await after.acquired(run["runId"], "c2", 2))["generation"] == 2
