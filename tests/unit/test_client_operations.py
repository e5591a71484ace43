"""The client has a method for each operation of the API that programs of operators may need."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from sluice.client import NO_RETRIES, AsyncClient, Client
from sluice.core.errors import SluiceError
from sluice.wire import access, drains, jobmodels, runs, snapshots
from tests.support.api import openapi_document

STORE = snapshots.StoreBody(task="t", stage="s")
RUN = runs.RunRequest(job="j", containers=1, inputs=(), stages=())
RUNNING: Any = SimpleNamespace(operation="o", state="RUNNING")
DETAIL: Any = SimpleNamespace(run_id="r", incarnations=())

CALLS: Mapping[str, tuple[str, Callable[[Client], object]]] = {
    "live": ("GET /livez", lambda c: c.live()),
    "jobs": ("GET /jobs", lambda c: c.jobs()),
    "remove_job": ("DELETE /jobs/{job}", lambda c: c.remove_job("j", dry_run=True)),
    "runs": ("GET /runs", lambda c: c.runs("j", before="r")),
    "run": ("GET /runs/{runId}", lambda c: c.run("r")),
    "request_of": ("GET /runs/{runId}/request", lambda c: c.request_of("r")),
    "containers": ("GET /runs/{runId}/containers", lambda c: c.containers(DETAIL)),
    "notices": ("GET /runs/{runId}/notices", lambda c: c.notices("r")),
    "plan_run": ("POST /runs/plan", lambda c: c.plan_run(RUN)),
    "deploy": ("POST /runs", lambda c: c.deploy(RUN, replaces="r")),
    "stop_run": ("POST /runs/{runId}/stop", lambda c: c.stop_run("r", "why")),
    "set_backup": ("PUT /runs/{runId}/backup", lambda c: c.set_backup("r", snapshots.BackupRequest(stores=(), restore_from=()))),
    "plan_drain": ("POST /drain/plan", lambda c: c.plan_drain("r")),
    "request_drain": ("POST /drain", lambda c: c.request_drain(drains.DrainRequest(run_id="r"))),
    "drain": ("GET /drain/{uuid}", lambda c: c.drain("u")),
    "drains": ("GET /drains", lambda c: c.drains("j")),
    "cancel_drain": ("DELETE /drain/{uuid}", lambda c: c.cancel_drain("u")),
    "job_model": ("GET /jobModel", lambda c: c.job_model("j", "0")),
    "plan": ("POST /jobModel/plan", lambda c: c.plan(jobmodels.PlanRequest(job="j"))),
    "change": ("PATCH /runs/{runId}", lambda c: c.change("r", jobmodels.ChangeRequest(containers=2), 1)),
    "versions": ("GET /jobs/{job}/models", lambda c: c.versions("j", 3, 10)),
    "version": ("GET /jobs/{job}/models/{version}", lambda c: c.version("j", 1)),
    "difference": ("GET /jobs/{job}/models/{version}/diff/{later}", lambda c: c.difference("j", 1, 2)),
    "roll_back": ("POST /jobs/{job}/models/{version}/rollback", lambda c: c.roll_back("j", 1, jobmodels.RollbackRequest(), 2)),
    "snapshots": ("GET /jobs/{job}/snapshots", lambda c: c.snapshots("j", "t", "s", 3, 10)),
    "snapshot": ("GET /jobs/{job}/snapshots/{checkpointId}", lambda c: c.snapshot("j", "t", "s", "x")),
    "pins": ("GET /jobs/{job}/pins", lambda c: c.pins("j")),
    "pin": ("POST /jobs/{job}/pins", lambda c: c.pin("j", snapshots.PinRequest())),
    "unpin": ("DELETE /jobs/{job}/pins/{pinId}", lambda c: c.unpin("j", "p")),
    "choose": ("POST /jobs/{job}/snapshots/{checkpointId}/restore", lambda c: c.choose("j", "x", STORE)),
    "verify": ("POST /jobs/{job}/snapshots/{checkpointId}/verify", lambda c: c.verify("j", "x", STORE)),
    "verify_job": ("POST /jobs/{job}/snapshots/verify", lambda c: c.verify_job("j", snapshots.VerifyRequest())),
    "collection": ("POST /gc/plan", lambda c: c.collection("plan")),
    "collection audit": ("POST /gc/audit", lambda c: c.collection("audit")),
    "collection run": ("POST /gc/run", lambda c: c.collection("run")),
    "explain": ("GET /gc/explain", lambda c: c.explain("b")),
    "operation": ("GET /operations/{operation}", lambda c: c.operation("o", timedelta(seconds=1))),
    "completed": ("GET /operations/{operation}", lambda c: c.completed(RUNNING, lambda _: None)),
    "tokens": ("GET /tokens", lambda c: c.tokens()),
    "create_token": ("POST /tokens", lambda c: c.create_token(access.TokenRequest(name="n", roles=("viewer",)))),
    "revoke_token": ("DELETE /tokens/{tokenId}", lambda c: c.revoke_token("i")),
    "end_sessions": ("DELETE /sessions/{principal}", lambda c: c.end_sessions("p")),
    "identity_providers": ("GET /identity-providers", lambda c: c.identity_providers()),
    "job_events": ("GET /jobs/{job}/events", lambda c: c.job_events("j", 10, before="b", after="a")),
    "audit_log": ("GET /audit-log", lambda c: c.audit_log(3, 10, "j")),
}
"""Name of a method, which a second word distinguishes, -> its operation and a call."""

WITHOUT_METHOD = {
    "GET /metrics": "for Prometheus",
    "GET /prometheus/targets": "for Prometheus",
    "GET /readyz": "for probes of platforms",
    "GET /": "for clients of Apache Samza",
    "GET /locality": "for clients of Apache Samza",
    "GET /jobs/{job}/": "for clients of Apache Samza",
    "GET /jobs/{job}/containerHeartbeat": "for clients of Apache Samza",
    "GET /jobs/{job}/locality": "for clients of Apache Samza",
    "GET /containerHeartbeat": "for agents",
    "POST /containers/{executionContainerId}/exit": "for agents and launchers",
    "POST /containers/{executionContainerId}/invalidate": "for platforms that start containers",
    "POST /runs/{runId}/watermarks": "for agents",
    "GET /runs/{runId}/blob-stores/{blobStore}/credentials": "for agents",
}

OF_AGENTS = re.compile(r"\w+ /runs/\{runId\}/tasks/.*|POST /runs/\{runId\}/containers|\w+ /runs/\{runId\}/containers/.*")

DOCUMENT = openapi_document()
OPERATIONS: Mapping[str, Mapping[str, Any]] = {
    f"{method.upper()} {path}": operation
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
    if not operation.get("deprecated")
}


def test_each_operation_has_a_method_or_a_reason_why_not() -> None:
    called = {operation for operation, _ in CALLS.values()}
    assert {each for each in OPERATIONS if not OF_AGENTS.fullmatch(each)} == called | WITHOUT_METHOD.keys()
    assert not called & WITHOUT_METHOD.keys()


def public(of: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(of, inspect.isfunction) if not name.startswith("_")}


def test_each_method_is_in_the_list_and_has_a_docstring() -> None:
    assert {each.split()[0] for each in CALLS} == public(Client) - {"close"}
    assert [name for name in public(Client) if not inspect.getdoc(getattr(Client, name))] == []
    assert public(Client) <= public(AsyncClient)


@pytest.mark.parametrize("call", CALLS)
def test_a_method_sends_the_verb_path_and_parameters_that_the_document_has(call: str) -> None:
    sent: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(500)

    operation, method = CALLS[call]
    transport = httpx.MockTransport(answer)
    with Client("http://c", token="", retries=NO_RETRIES, transport=transport) as client, pytest.raises(SluiceError):
        method(client)
    verb, template = operation.split(" ", 1)
    pattern = re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(template))
    assert (sent[0].method, bool(re.fullmatch(pattern, sent[0].url.path))) == (verb, True)
    documented = {each["name"] for each in OPERATIONS[operation].get("parameters", ()) if each["in"] == "query"}
    assert set(sent[0].url.params) <= documented
    assert bool(sent[0].content) <= ("requestBody" in OPERATIONS[operation])
