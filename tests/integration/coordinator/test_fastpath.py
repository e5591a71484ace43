"""The fast paths, in the server and before the application, answer like the routes behind them, for any form of a request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from coordinator.api.middleware import App
from tests.support.api import Caller, calling, run_body
from tests.support.fakes import FakeClock

Headers = list[tuple[bytes, bytes]]
Answer = tuple[int, dict[bytes, bytes], bytes]

COMPARED = (b"content-type", b"cache-control", b"etag")
ODD_ID = "yarn/app:1?x=%2F&y#+z"


async def request(app: App, path: str, query: bytes, headers: Headers) -> Answer:
    """Status, relevant headers, and body of the answer to bytes that no client library would send."""
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "root_path": "",
    }
    scope |= {"path": path, "raw_path": path.encode(), "query_string": query, "headers": headers, "server": ("c", 80), "client": ("a", 1)}
    await app(scope, receive, send)
    found = {name.lower(): value for name, value in sent[0]["headers"]}
    kept = {name: value for name, value in found.items() if name.startswith(b"sluice-") or name in COMPARED}
    return sent[0]["status"], kept, b"".join(message.get("body", b"") for message in sent[1:])


class Compared:
    """One coordinator on an event loop of its own, called through the fast path and through the routes."""

    def __init__(self, loop: asyncio.AbstractEventLoop, caller: Caller, etag: bytes) -> None:
        self.loop = loop
        self.caller = caller
        self.etag = etag

    def __call__(self, path: str, query: bytes, headers: Headers | None = None) -> Answer:
        fast = self.loop.run_until_complete(request(self.caller.coordinator.asgi, path, query, headers or []))
        routed = self.loop.run_until_complete(request(self.caller.coordinator.api, path, query, headers or []))
        assert fast == routed
        at_once = self.caller.coordinator.fast_paths.answer(path.encode() + b"?" + query, headers or [])
        if at_once is not None:
            assert parsed(*at_once) == fast
        return fast

    def answered_at_once(self, path: str, query: bytes, headers: Headers) -> bool:
        return self.caller.coordinator.fast_paths.answer(path.encode() + b"?" + query, headers) is not None


def parsed(head: bytes, body: bytes) -> Answer:
    first, *lines = head.decode().splitlines()
    found = {name.encode(): value.encode() for name, value in (line.split(": ", 1) for line in lines)}
    assert int(found.pop(b"content-length", b"0")) == len(body)
    return int(first.split(" ")[1]), found, body


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compared]:
    """A run with three containers: c1, one whose id must be escaped, and a bare one. An ended run with an exited container."""
    home: Path = tmp_path_factory.mktemp("home")
    loop = asyncio.new_event_loop()
    context = calling(home, FakeClock())
    caller = loop.run_until_complete(context.__aenter__())
    etag = loop.run_until_complete(filled(caller))
    yield Compared(loop, caller, etag)
    loop.run_until_complete(context.__aexit__(None, None, None))
    loop.close()


async def filled(caller: Caller) -> bytes:
    caller.log.create("flights", 3)
    ended = await caller.deploy()
    await caller.registered(ended["runId"], "ended")
    run = await caller.deploy(run_body(containers=3))
    await caller.exited("ended")
    await caller.registered(run["runId"], "c1", "0")
    await caller.registered(run["runId"], ODD_ID, "1")
    await caller.registered(run["runId"], "bare", "2", bare=True)
    return (await caller.http.get("/jobModel?job=flight-delays")).headers["etag"].encode()


ID_QUERIES = [
    b"executionContainerId=c1",
    b"executionContainerId=%63%31",
    b"executionContainerId=c%31",
    b"executionContainerId=yarn%2Fapp%3A1%3Fx%3D%252F%26y%23%2Bz",
    b"executionContainerId=yarn/app:1?x=%252F%26y#%2Bz",
    b"executionContainerId=yarn/app:1?x=%2F%26y%23+z",
    b"executionContainerId=bare",
    b"executionContainerId=ended",
    b"executionContainerId=stranger",
    b"executionContainerId=c1+",
    b"executionContainerId=+c1",
    b"executionContainerId=c1%00",
    b"executionContainerId=c1%",
    b"executionContainerId=c1;x=1",
    b"executionContainerId=c1&executionContainerId=bare",
    b"executionContainerId=bare&executionContainerId=c1",
    b"executionContainerId=c1&x=1",
    b"x=1&executionContainerId=c1",
    b"executionContainerId=c1&",
    b"&executionContainerId=c1",
    b"executionContainerId==c1",
    b"executionContainerId=",
    b"executionContainerId",
    b"executioncontainerid=c1",
    b"%65xecutionContainerId=c1",
    b"executionContainerId=\xff",
    b"executionContainerId=%FF%ED%A0%80",
    b"",
]
EPOCHS: list[Headers] = [
    [],
    *([(b"sluice-epoch", value)] for value in (b"1", b"2", b"0", b"01", b"-1", b"+1", b" 1", b"1.0", b"x", b"", b"2147483648", b"9" * 30)),
    [(b"sluice-epoch", b"1"), (b"sluice-epoch", b"1")],
    [(b"sluice-epoch", b"1"), (b"sluice-epoch", b"2")],
    [(b"sluice-epoch", b"\xd9\xa1")],
]


@pytest.mark.parametrize("query", ID_QUERIES)
def test_heartbeats_get_the_same_answer_on_both_paths_in_any_spelling(both: Compared, query: bytes) -> None:
    for headers in EPOCHS:
        both("/containerHeartbeat", query, headers)


def test_the_comparison_has_every_kind_of_answer(both: Compared) -> None:
    kinds = {both("/containerHeartbeat", query, headers)[::2] for query in ID_QUERIES for headers in EPOCHS[:3]}
    assert {body for status, body in kinds if status == 200} == {b'{"alive": true}', b'{"alive": false}'}
    assert 422 in {status for status, _ in kinds}
    assert both("/containerHeartbeat", b"executionContainerId=ended")[1][b"sluice-run-state"] == b"STOPPED"


def test_a_valid_heartbeat_and_an_unchanged_model_are_answered_at_once_and_others_are_not(both: Compared) -> None:
    epoch = [(b"sluice-epoch", b"1")]
    assert both.answered_at_once("/containerHeartbeat", b"executionContainerId=c1", epoch)
    assert both.answered_at_once("/jobModel", b"job=flight-delays", [(b"if-none-match", both.etag)])
    assert not both.answered_at_once("/containerHeartbeat", b"executionContainerId=c1#", epoch)
    assert not both.answered_at_once("/containerHeartbeat", b"executionContainerId=ended", epoch)
    assert not both.answered_at_once("/jobModel", b"job=flight-delays", [(b"if-none-match", b'"x"')])
    assert not both.answered_at_once("/containerHeartbeat", b"executionContainerId=c1", [*epoch, (b"host", b"unknown")])
    assert not both.answered_at_once("/livez", b"", [])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    query=st.one_of(
        st.sampled_from(ID_QUERIES),
        st.binary(max_size=12).map(lambda tail: b"executionContainerId=c1" + tail),
        st.text(alphabet="c1%+&=;#0executionContainerId", max_size=40).map(str.encode),
    ),
    epochs=st.lists(st.one_of(st.sampled_from([b"1", b"2"]), st.text("0123456789 +-._xe", max_size=11).map(str.encode)), max_size=2),
)
@example(query=b"executionContainerId=c1", epochs=[b"1_0"])
def test_any_generated_heartbeat_gets_the_same_answer_on_both_paths(both: Compared, query: bytes, epochs: list[bytes]) -> None:
    both("/containerHeartbeat", query, [(b"sluice-epoch", epoch) for epoch in epochs])


JOB_QUERIES = [
    b"job=flight-delays",
    b"job=flight%2Ddelays",
    b"job=lost",
    b"job=",
    b"job",
    b"",
    b"job=flight-delays&x=1",
    b"job=lost&job=flight-delays",
    b"job=flight-delays&job=lost",
    b"job=flight-delays+",
    b"job=\xff",
    b"Job=flight-delays",
]


def known(etag: bytes) -> list[Headers]:
    values = [etag, b"W/" + etag, b"*", b'"x", ' + etag, b" " + etag + b" ", b'"x"', b"", etag.strip(b'"'), etag.upper()]
    single: list[Headers] = [[(b"if-none-match", value)] for value in values]
    return [
        [],
        *single,
        [(b"if-none-match", etag), (b"if-none-match", b'"x"')],
        [(b"if-none-match", b'"x"'), (b"if-none-match", etag)],
    ]


@pytest.mark.parametrize("query", JOB_QUERIES)
def test_every_request_of_the_job_model_gets_the_same_answer(both: Compared, query: bytes) -> None:
    for headers in known(both.etag):
        both("/jobModel", query, headers)


def test_the_comparison_has_unchanged_changed_and_unknown_models(both: Compared) -> None:
    statuses = {both("/jobModel", query, headers)[0] for query in JOB_QUERIES for headers in known(both.etag)}
    assert statuses == {200, 304, 404, 422}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(query=st.binary(max_size=8), data=st.data())
def test_any_generated_request_of_the_job_model_gets_the_same_answer_on_both_paths(
    both: Compared, query: bytes, data: st.DataObject
) -> None:
    headers = data.draw(st.sampled_from(known(both.etag)))
    both("/jobModel", b"job=flight-delays" + query, headers)
