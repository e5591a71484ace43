from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import httpx
import pytest

from sluice.client import Alive, CoordinatorClient, NotValid, Refused, actor_headers
from sluice.core.errors import CoordinatorUnavailable, CoordinatorUnreachable, LeaseLost
from sluice.core.ids import Epoch, ExecutionContainerId, RunId, TaskName
from sluice.core.lifecycle import RunState
from sluice.wire.runs import RunRequest
from tests.support.engines import soon

C1 = ExecutionContainerId("c1")
TERMS = {
    "Sluice-Lease-Seconds": "30",
    "Sluice-Next-Heartbeat-Seconds": "2.5",
    "Sluice-Epoch": "3",
    "Sluice-Job-Model-Version": "7",
}


def answering(status: int, **content: Any) -> CoordinatorClient:
    return CoordinatorClient("http://c", httpx.MockTransport(lambda request: httpx.Response(status, **content)))


async def beat(coordinator: CoordinatorClient, seconds: float = 5) -> Alive | NotValid:
    return await soon(coordinator.heartbeat(C1, Epoch(3), timedelta(seconds=seconds)))


async def test_a_heartbeat_that_is_answered_as_alive_brings_the_terms() -> None:
    coordinator = answering(200, json={"alive": True}, headers=TERMS)
    assert await beat(coordinator) == Alive(timedelta(seconds=30), timedelta(seconds=2.5), 7)


@pytest.mark.parametrize(("interval", "closed"), [("5", False), ("5.25", True)])
async def test_a_connection_that_would_be_given_up_before_the_next_heartbeat_is_closed_with_the_answer(interval: str, closed: bool) -> None:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(200, json={"alive": True}, headers=TERMS | {"Sluice-Next-Heartbeat-Seconds": interval})

    coordinator = CoordinatorClient("http://c", httpx.MockTransport(answer))
    for _ in range(2):
        await beat(coordinator)
    assert [each.headers["Connection"] == "close" for each in asked] == [False, closed]


async def test_a_heartbeat_that_is_not_valid_tells_whether_the_run_is_over() -> None:
    assert await beat(answering(200, json={"alive": False})) == NotValid(None)
    over = answering(200, json={"alive": False}, headers={"Sluice-Run-State": "STOPPED"})
    assert await beat(over) == NotValid(RunState.STOPPED)


@pytest.mark.parametrize(
    ("status", "content"),
    [
        pytest.param(200, {"text": "<html>captive portal</html>"}, id="not json"),
        pytest.param(200, {"json": {"alive": "true"}, "headers": TERMS}, id="a string"),
        pytest.param(200, {"json": {"alive": True}}, id="without terms"),
        pytest.param(200, {"json": {"alive": True}, "headers": TERMS | {"Sluice-Lease-Seconds": "long"}}, id="terms unreadable"),
        pytest.param(200, {"json": {"alive": False}, "headers": {"Sluice-Run-State": "ASLEEP"}}, id="a state unknown"),
        pytest.param(204, {}, id="nothing"),
        pytest.param(404, {"text": "no such page"}, id="another server"),
        pytest.param(409, {"json": {"type": "urn:sluice:stale-run", "title": "", "status": 409, "detail": ""}}, id="a refusal"),
        pytest.param(503, {"text": "starting"}, id="503"),
    ],
)
async def test_whatever_does_not_answer_heartbeats_as_a_coordinator_counts_as_not_reached(status: int, content: dict[str, Any]) -> None:
    with pytest.raises(CoordinatorUnreachable):
        await beat(answering(status, **content))


async def test_an_answer_that_never_comes_is_not_waited_for_longer_than_told() -> None:
    async def never(_: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(CoordinatorUnreachable, match=r"did not answer within 0\.01 s"):
        await beat(CoordinatorClient("http://c", httpx.MockTransport(never)), 0.01)


@pytest.mark.parametrize("within", [0.0, -1.0])
async def test_a_heartbeat_without_any_time_left_is_unreachable_and_no_crash(within: float) -> None:
    async def slow(_: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0)
        return httpx.Response(200, json={"alive": True}, headers=TERMS)

    with pytest.raises(CoordinatorUnreachable):
        await beat(CoordinatorClient("http://c", httpx.MockTransport(slow)), within)


async def test_a_lost_lease_is_its_own_error_and_other_refusals_say_what_they_are() -> None:
    def problem(slug: str) -> CoordinatorClient:
        return answering(409, json={"type": f"urn:sluice:{slug}", "title": "t", "status": 409, "detail": "a detail"})

    with pytest.raises(LeaseLost, match="a detail"):
        await problem("lease-lost").acquire(RunId("r"), TaskName("t"), C1, Epoch(1))
    with pytest.raises(Refused, match="a detail") as refused:
        await problem("stale-run").acquire(RunId("r"), TaskName("t"), C1, Epoch(1))
    assert refused.value.refused_as == "stale-run"


async def test_a_coordinator_s_url_that_is_none_is_refused() -> None:
    with pytest.raises((Refused, CoordinatorUnreachable), match=r"not a url|not a coordinator's URL"):
        await CoordinatorClient("not a url").live()


async def test_an_answer_of_another_server_is_refused_as_such() -> None:
    with pytest.raises(Refused, match="http://c/runs/r does not answer as a coordinator does"):
        await answering(200, text="<html>").run(RunId("r"))


async def test_names_are_one_part_of_a_path_whatever_they_hold() -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.raw_path.decode())
        return httpx.Response(202, json={"waitSeconds": 1.0, "former": "c0"})

    task = TaskName("SystemStreamPartition [kafka, a/b?c, 0]")
    await CoordinatorClient("http://c", httpx.MockTransport(answer)).acquire(RunId("../r"), task, C1, Epoch(1))
    assert asked == ["/runs/..%2Fr/tasks/SystemStreamPartition%20%5Bkafka%2C%20a%2Fb%3Fc%2C%200%5D/acquire?wait=0.0"]


@pytest.mark.parametrize(
    ("reason", "reported"),
    [("plain", "plain"), ("a\0b", "a\ufffdb"), ("lone \udcff", "lone ?"), ("x" * 20_000, "x" * 10_000)],
)
@pytest.mark.parametrize("say", ["exited", "stop_run"])
async def test_a_reason_may_hold_anything_that_user_code_raises(reason: str, reported: str, say: str) -> None:
    sent: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content)["reason"])
        return httpx.Response(503)

    coordinator = CoordinatorClient("http://c", httpx.MockTransport(answer))
    asks: dict[str, Callable[[], Any]] = {
        "exited": lambda: coordinator.exited(C1, 1, reason),
        "stop_run": lambda: coordinator.stop_run(RunId("r"), reason),
    }
    with pytest.raises(CoordinatorUnreachable):
        await asks[say]()
    assert sent == [reported]


async def test_a_job_model_comes_with_its_version_and_its_run() -> None:
    document = {"config": {}, "containers": {"0": {"processor-id": "0", "tasks": {}}}}
    headers = {"Sluice-Run-Id": "r1", "Sluice-Job-Model-Version": "7"}
    served = await answering(200, json=document, headers=headers).job_model("delays")
    assert (served.run_id, served.version, list(served.model.containers)) == ("r1", 7, ["0"])


@pytest.mark.parametrize(
    "content",
    [
        pytest.param({"text": "<html>"}, id="not json"),
        pytest.param({"json": ["r1"]}, id="a list"),
        pytest.param({"json": {"config": {}, "containers": {}}}, id="without headers"),
        pytest.param({"json": {"config": {}}, "headers": {"Sluice-Run-Id": "r1", "Sluice-Job-Model-Version": "7"}}, id="no containers"),
    ],
)
async def test_a_job_model_of_another_server_is_refused_as_such(content: dict[str, Any]) -> None:
    with pytest.raises(Refused, match="http://c/jobModel does not answer as a coordinator does"):
        await answering(200, **content).job_model("delays")


async def test_an_adoption_is_told_with_the_epoch_and_whatever_the_container_is_called() -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append((request.url.raw_path.decode(), json.loads(request.content)))
        return httpx.Response(200, json={"version": 3, "current": 4, "allOn": None})

    reply = await CoordinatorClient("http://c", httpx.MockTransport(answer)).adopted(RunId("r"), ExecutionContainerId("pod/0"), Epoch(2), 3)
    assert asked == [("/runs/r/containers/pod%2F0/adopted", {"version": 3, "epoch": 2})]
    assert (reply.version, reply.current, reply.all_on) == (3, 4, None)


async def test_who_deploys_is_told() -> None:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(503)

    coordinator = CoordinatorClient("http://c", httpx.MockTransport(answer))
    with pytest.raises(CoordinatorUnreachable):
        await coordinator.deploy(RunRequest(job="j", containers=1, inputs=(), stages=()))
    assert dict(asked[0].headers).items() >= {name.lower(): user for name, user in actor_headers().items()}.items()


async def test_an_error_of_the_coordinator_is_not_taken_for_its_silence() -> None:
    locked = {"type": "urn:sluice:store-unavailable", "title": "", "status": 503, "detail": "the database is locked"}
    with pytest.raises(CoordinatorUnavailable, match="http://c/jobs: 503 the database is locked") as raised:
        await answering(503, json=locked).jobs()
    assert raised.value.title() == "The coordinator answers, but cannot carry out the request now."
