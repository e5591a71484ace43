"""Generated requests to every operation of the OpenAPI document: answers conform to the document."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance

from coordinator.api import new_api
from coordinator.server import listen, server
from coordinator.settings import read_settings
from sluice.streams.log import Log
from tests.support.api import run_body
from tests.support.servers import Postgres

pytestmark = pytest.mark.slow

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@contextmanager
def coordinator_of(home: Path, **more: Any) -> Iterator[str]:
    """A coordinator on a socket in a thread of its own, with one run. Yields its address."""
    Log(home / "log").create("flights", 2)
    listening = listen("127.0.0.1", 0)
    coordinator = server(read_settings(home=home, notices_wait_seconds=0.05, **more))
    thread = threading.Thread(target=coordinator.run, args=([listening],))
    thread.start()
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    httpx.post(f"{address}/runs", json=run_body(), timeout=300).raise_for_status()
    yield address
    coordinator.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def on_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with coordinator_of(tmp_path_factory.mktemp("home")) as address:
        yield address


@pytest.fixture(scope="module")
def on_postgresql(tmp_path_factory: pytest.TempPathFactory, postgres_server: Postgres) -> Iterator[str]:
    with coordinator_of(tmp_path_factory.mktemp("home"), database_url=postgres_server.new_database()) as address:
        yield address


document = new_api().openapi()
results = schemathesis.openapi.from_dict(document).get_all_operations()
operations = {found.label: found for each in results if isinstance(each, Ok) and (found := each.ok())}


def must_conform(url: str, label: str, data: st.DataObject) -> None:
    mode = data.draw(st.sampled_from(GenerationMode))
    case = data.draw(operations[label].as_strategy(generation_mode=mode))
    if "runId" in case.path_parameters and data.draw(st.booleans()):
        case.path_parameters["runId"] = httpx.get(f"{url}/jobs", verify=False).json()["jobs"][0]["currentRun"]
    if "task" in case.path_parameters and data.draw(st.booleans()):
        case.path_parameters["task"] = "Partition 0"
    case.call_and_validate(base_url=url, checks=CHECKS)


@pytest.mark.parametrize("label", sorted(operations))
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_answer_is_one_that_the_document_declares(on_sqlite: str, label: str, data: st.DataObject) -> None:
    must_conform(on_sqlite, label, data)


@pytest.mark.long
@pytest.mark.parametrize("label", sorted(operations))
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_answer_on_postgresql_is_one_that_the_document_declares(on_postgresql: str, label: str, data: st.DataObject) -> None:
    must_conform(on_postgresql, label, data)


def test_the_document_declares_every_route() -> None:
    assert document["openapi"].startswith("3.1")
    assert {(method.upper(), path) for path, methods in document["paths"].items() for method in methods} == {
        ("DELETE", "/drain/{uuid}"),
        ("DELETE", "/jobs/{job}"),
        ("DELETE", "/jobs/{job}/pins/{pinId}"),
        ("DELETE", "/sessions/{principal}"),
        ("DELETE", "/tokens/{tokenId}"),
        ("GET", "/"),
        ("GET", "/containerHeartbeat"),
        ("GET", "/drain/{uuid}"),
        ("GET", "/audit-log"),
        ("GET", "/drains"),
        ("GET", "/gc/explain"),
        ("GET", "/identity-providers"),
        ("GET", "/jobModel"),
        ("GET", "/jobs"),
        ("GET", "/jobs/{job}/"),
        ("GET", "/jobs/{job}/containerHeartbeat"),
        ("GET", "/jobs/{job}/events"),
        ("GET", "/jobs/{job}/locality"),
        ("GET", "/jobs/{job}/models"),
        ("GET", "/jobs/{job}/models/{version}"),
        ("GET", "/jobs/{job}/models/{version}/diff/{later}"),
        ("GET", "/jobs/{job}/pins"),
        ("GET", "/jobs/{job}/snapshots"),
        ("GET", "/jobs/{job}/snapshots/{checkpointId}"),
        ("GET", "/livez"),
        ("GET", "/locality"),
        ("GET", "/metrics"),
        ("GET", "/operations/{operation}"),
        ("GET", "/prometheus/targets"),
        ("GET", "/readyz"),
        ("GET", "/runs"),
        ("GET", "/runs/{runId}"),
        ("GET", "/runs/{runId}/blob-stores/{blobStore}/credentials"),
        ("GET", "/runs/{runId}/containers"),
        ("GET", "/runs/{runId}/containers/{executionContainerId}/standby"),
        ("GET", "/runs/{runId}/notices"),
        ("GET", "/runs/{runId}/tasks/{task}/owner"),
        ("GET", "/runs/{runId}/request"),
        ("GET", "/tokens"),
        ("PATCH", "/runs/{runId}"),
        ("POST", "/containers/{executionContainerId}/exit"),
        ("POST", "/containers/{executionContainerId}/invalidate"),
        ("POST", "/drain"),
        ("POST", "/drain/plan"),
        ("POST", "/gc/audit"),
        ("POST", "/gc/plan"),
        ("POST", "/gc/run"),
        ("POST", "/jobModel/plan"),
        ("POST", "/jobs/{job}/models/{version}/rollback"),
        ("POST", "/jobs/{job}/pins"),
        ("POST", "/jobs/{job}/snapshots/{checkpointId}/restore"),
        ("POST", "/jobs/{job}/snapshots/{checkpointId}/verify"),
        ("POST", "/jobs/{job}/snapshots/verify"),
        ("POST", "/runs"),
        ("POST", "/runs/plan"),
        ("POST", "/runs/{runId}/containers"),
        ("POST", "/runs/{runId}/containers/{executionContainerId}/adopted"),
        ("POST", "/runs/{runId}/stop"),
        ("POST", "/runs/{runId}/tasks/{task}/acquire"),
        ("POST", "/runs/{runId}/tasks/{task}/progress"),
        ("POST", "/runs/{runId}/tasks/{task}/release"),
        ("POST", "/runs/{runId}/tasks/{task}/stages/{stage}/drain"),
        ("POST", "/runs/{runId}/tasks/{task}/stages/{stage}/failure"),
        ("POST", "/runs/{runId}/tasks/{task}/stages/{stage}/lineage"),
        ("POST", "/runs/{runId}/tasks/{task}/stages/{stage}/snapshots"),
        ("POST", "/runs/{runId}/watermarks"),
        ("POST", "/tokens"),
        ("PUT", "/runs/{runId}/backup"),
        ("PUT", "/runs/{runId}/tasks/{task}/queries"),
        ("PUT", "/runs/{runId}/tasks/{task}/stages/{stage}/checkpoint"),
        ("PUT", "/runs/{runId}/tasks/{task}/stages/{stage}/snapshots/{checkpointId}/index"),
    }


def test_every_refusal_is_declared_as_a_problem() -> None:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for status, answer in operation["responses"].items():
                if status[0] in "45":
                    kind = "text/plain" if (path, status) == ("/readyz", "503") else "application/problem+json"
                    assert kind in answer["content"], (method, path, status)
