from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from sluice.client import Refused, actor_headers
from sluice.client.agents import AgentClient, Alive, NotValid
from sluice.core.errors import BadSettings, CoordinatorUnavailable, CoordinatorUnreachable, LeaseLost
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


def answering(status: int, **content: Any) -> AgentClient:
    return AgentClient("http://c", httpx.MockTransport(lambda request: httpx.Response(status, **content)))


async def beat(coordinator: AgentClient, seconds: float = 5) -> Alive | NotValid:
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

    coordinator = AgentClient("http://c", httpx.MockTransport(answer))
    for _ in range(2):
        await beat(coordinator)
    assert [each.headers["Connection"] == "close" for each in asked] == [False, closed]


@pytest.mark.parametrize("given", ["http://127.0.0.1:9", "socks5://127.0.0.1:9", "nonsense"])
async def test_the_coordinator_is_asked_without_the_proxies_of_the_environment(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, given)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 16\r\nConnection: close\r\n\r\n{"alive": false}'
        )
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        coordinator = AgentClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        assert await beat(coordinator) == NotValid(None)
        await coordinator.close()


async def test_the_coordinator_is_asked_through_the_proxy_that_is_named_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    monkeypatch.setenv("SLUICE_COORDINATOR_PROXY", f"http://user:secret@{address}")
    coordinator = AgentClient("http://coordinator.invalid")
    with pytest.raises(CoordinatorUnreachable, match=rf"through the proxy http://\S*{address} \(SLUICE_COORDINATOR_PROXY\)") as raised:
        await beat(coordinator)
    assert "secret" not in str(raised.value)
    await coordinator.close()


@pytest.mark.parametrize("wrong", ["socks5://127.0.0.1:9", "proxy:3128", "http://"])
def test_a_proxy_that_cannot_be_used_is_refused_by_its_variable(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.setenv("SLUICE_COORDINATOR_PROXY", wrong)
    with pytest.raises(BadSettings, match=r"^SLUICE_COORDINATOR_PROXY: .* must begin with http://"):
        AgentClient("http://c")


async def test_an_invalid_heartbeat_says_whether_the_run_has_ended() -> None:
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
async def test_an_answer_of_another_server_counts_as_unreachable(status: int, content: dict[str, Any]) -> None:
    with pytest.raises(CoordinatorUnreachable):
        await beat(answering(status, **content))


async def test_a_missing_answer_is_waited_for_until_the_time_limit() -> None:
    async def never(_: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(CoordinatorUnreachable, match=r"did not answer within 0\.01 s"):
        await beat(AgentClient("http://c", httpx.MockTransport(never)), 0.01)


@pytest.mark.parametrize("within", [0.0, -1.0])
async def test_a_heartbeat_without_remaining_time_counts_as_unreachable(within: float) -> None:
    async def slow(_: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0)
        return httpx.Response(200, json={"alive": True}, headers=TERMS)

    with pytest.raises(CoordinatorUnreachable):
        await beat(AgentClient("http://c", httpx.MockTransport(slow)), within)


async def test_a_lost_lease_is_its_own_error_and_other_refusals_have_their_text() -> None:
    def problem(slug: str) -> AgentClient:
        return answering(409, json={"type": f"urn:sluice:{slug}", "title": "t", "status": 409, "detail": "a detail"})

    with pytest.raises(LeaseLost, match="a detail"):
        await problem("lease-lost").acquire(RunId("r"), TaskName("t"), C1, Epoch(1))
    with pytest.raises(Refused, match="a detail") as refused:
        await problem("stale-run").acquire(RunId("r"), TaskName("t"), C1, Epoch(1))
    assert refused.value.refused_as == "stale-run"


async def test_an_invalid_url_of_a_coordinator_is_refused() -> None:
    with pytest.raises(BadSettings, match="'not a url' is not the URL of a coordinator"):
        AgentClient("not a url")


async def test_an_answer_of_another_server_is_refused_as_such() -> None:
    with pytest.raises(Refused, match="http://c/runs/r does not answer as a coordinator does"):
        await answering(200, text="<html>").run(RunId("r"))


async def test_a_name_with_any_characters_is_one_part_of_a_path() -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.raw_path.decode())
        return httpx.Response(202, json={"waitSeconds": 1.0, "former": "c0"})

    task = TaskName("SystemStreamPartition [kafka, a/b?c, 0]")
    await AgentClient("http://c", httpx.MockTransport(answer)).acquire(RunId("../r"), task, C1, Epoch(1))
    assert asked == ["/runs/..%2Fr/tasks/SystemStreamPartition%20%5Bkafka%2C%20a%2Fb%3Fc%2C%200%5D/acquire?wait=0.0"]


@pytest.mark.parametrize(
    ("reason", "reported"),
    [("plain", "plain"), ("a\0b", "a\ufffdb"), ("lone \udcff", "lone ?"), ("x" * 20_000, "x" * 10_000)],
)
@pytest.mark.parametrize("say", ["exited", "stop_run"])
async def test_a_reason_may_have_any_text_that_user_code_raises(reason: str, reported: str, say: str) -> None:
    sent: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content)["reason"])
        return httpx.Response(503)

    coordinator = AgentClient("http://c", httpx.MockTransport(answer))
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


async def test_an_adoption_is_reported_with_the_epoch_and_any_id_of_the_container() -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append((request.url.raw_path.decode(), json.loads(request.content)))
        return httpx.Response(200, json={"version": 3, "current": 4, "allOn": None})

    reply = await AgentClient("http://c", httpx.MockTransport(answer)).adopted(RunId("r"), ExecutionContainerId("pod/0"), Epoch(2), 3)
    assert asked == [("/runs/r/containers/pod%2F0/adopted", {"version": 3, "epoch": 2})]
    assert (reply.version, reply.current, reply.all_on) == (3, 4, None)


async def test_the_client_sends_the_user_that_deploys() -> None:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(503)

    coordinator = AgentClient("http://c", httpx.MockTransport(answer))
    with pytest.raises(CoordinatorUnreachable):
        await coordinator.deploy(RunRequest(job="j", containers=1, inputs=(), stages=()))
    assert dict(asked[0].headers).items() >= {name.lower(): user for name, user in actor_headers().items()}.items()


async def test_jobs_are_read_page_by_page() -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        after = request.url.params.get("after", "")
        asked.append(after)
        names = {"": ["a", "b"], "b": [], "c": ["d"]}[after]  # a page without the jobs that the principal may not see
        jobs = [{"job": each, "currentRun": f"{each}-1", "state": "RUNNING", "runs": 1} for each in names]
        return httpx.Response(200, json={"jobs": jobs, "next": {"": "b", "b": "c"}.get(after)})

    found = await AgentClient("http://c", httpx.MockTransport(answer)).jobs()
    assert ([each.job for each in found.jobs], found.next, asked) == (["a", "b", "d"], None, ["", "b", "c"])


async def test_an_error_of_the_coordinator_does_not_count_as_unreachable() -> None:
    locked = {"type": "urn:sluice:store-unavailable", "title": "", "status": 503, "detail": "the database is locked"}
    with pytest.raises(CoordinatorUnavailable, match="http://c/jobs: 503 the database is locked") as raised:
        await answering(503, json=locked).jobs()
    assert raised.value.title() == "The coordinator answers, but cannot carry out the request now."


async def authorization(client: AgentClient, seen: list[str]) -> str:
    await client.jobs()
    return seen[-1]


async def test_requests_carry_the_token_of_the_environment_and_follow_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("authorization", ""))
        return httpx.Response(200, json={"jobs": []})

    client, file = AgentClient("http://c", httpx.MockTransport(answer)), tmp_path / "token"
    assert await authorization(client, seen) == ""
    monkeypatch.setenv("SLUICE_TOKEN_FILE", str(file))
    with pytest.raises(BadSettings, match="SLUICE_TOKEN_FILE"):
        await client.jobs()
    file.write_text("one\n")
    assert await authorization(client, seen) == "Bearer one"
    (tmp_path / "new").write_text("another\n")
    (tmp_path / "new").replace(file)
    assert await authorization(client, seen) == "Bearer another"
    file.unlink()
    assert await authorization(client, seen) == "Bearer another"
    monkeypatch.setenv("SLUICE_TOKEN", "mine")
    assert await authorization(client, seen) == "Bearer mine"


async def test_a_token_that_no_header_can_carry_is_refused_without_showing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_TOKEN", "canary\nX-Evil: 1")
    with pytest.raises(BadSettings) as raised:
        await AgentClient("http://c", httpx.MockTransport(lambda _: httpx.Response(200))).jobs()
    assert "canary" not in str(raised.value)


# --- terms -----------------------------------------------------------------------------------------------------------


def of_terms(*answers: tuple[int, int | None]) -> tuple[AgentClient, list[str | None]]:
    """A client whose requests are answered with these status codes and terms, and the terms that the requests name."""
    left, named = list(answers), []

    def answer(request: httpx.Request) -> httpx.Response:
        named.append(request.headers.get("Sluice-Term"))
        status, term = left.pop(0)
        return httpx.Response(status, json={"alive": status == 200}, headers=TERMS | ({} if term is None else {"Sluice-Term": str(term)}))

    return AgentClient("http://c", httpx.MockTransport(answer)), named


@pytest.mark.parametrize("lower", [4, 0, None])
async def test_an_answer_of_a_lower_term_is_ignored(lower: int | None) -> None:
    coordinator, named = of_terms((200, 5), (200, lower), (404, lower), (200, 5), (200, 6))
    await beat(coordinator)
    with pytest.raises(CoordinatorUnreachable, match=f"a former coordinator with term {lower or 0}; one with term 5 has replaced it"):
        await beat(coordinator)
    with pytest.raises(CoordinatorUnreachable, match="a former coordinator"):
        await coordinator.run(RunId("r"))
    await beat(coordinator)
    await beat(coordinator)
    assert named == [None, "5", "5", "5", "5"]


async def test_the_highest_term_is_acknowledged_with_every_request() -> None:
    coordinator, named = of_terms((404, 5), (200, 7), (404, 7))
    with pytest.raises(Refused):
        await coordinator.run(RunId("r"))
    await beat(coordinator)
    with pytest.raises(Refused):
        await coordinator.run(RunId("r"))
    assert named == [None, "5", "7"]


async def test_a_proxy_without_a_coordinator_answers_without_a_term_and_is_unavailable() -> None:
    coordinator, _ = of_terms((200, 5), (502, None), (200, 5))
    await beat(coordinator)
    with pytest.raises(CoordinatorUnavailable):
        await beat(coordinator)
    assert isinstance(await beat(coordinator), Alive)


async def test_coordinators_without_terms_are_all_accepted() -> None:
    coordinator, named = of_terms((200, None), (200, None))
    for _ in range(2):
        await beat(coordinator)
    assert named == [None, None]
