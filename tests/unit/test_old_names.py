"""Deprecated names of the wire, the settings and the metrics work like the new ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from pydantic import BaseModel

from coordinator.settings import Settings, read_settings
from sluice import status
from sluice.cli.upgrade import decide
from sluice.client import OperatorClient, Refused
from sluice.client.agents import AgentClient
from sluice.core.deprecations import DEPRECATIONS, Deprecation, Kind, in_request, of_kind
from sluice.core.drain import Effect
from sluice.core.ids import RunId, TaskName
from sluice.metrics import with_old_names
from sluice.wire import agents, body, drains, jobmodels, runs, snapshots
from sluice.wire.body import OLD_NAMES, RenamedBody, RenamedReply
from tests.support.api import openapi_document

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
PRINTED = {"RunOverview", "StageOverview", "UpgradeReply"}
"""Printed by commands with --json, and not part of the API."""
BODIES: dict[str, type[BaseModel]] = {
    name: found
    for module in (agents, body, drains, jobmodels, runs, snapshots, status, decide)
    for name, found in vars(module).items()
    if isinstance(found, type) and issubclass(found, BaseModel)
}
METRICS = agents.StageMetricsBody(rows=1, rows_per_second=1, batch_millis=1, lag=7, at=NOON)
PROGRESS = agents.ProgressRequest(generation=1, stage="s", lineage="l", batch_id=0, offsets=(), metrics=METRICS)


@pytest.fixture
def document() -> dict[str, Any]:
    return openapi_document()


@pytest.fixture
def used() -> Iterator[list[Deprecation]]:
    """The deprecated names that the test uses."""
    names: list[Deprecation] = []
    token = in_request.set(names)
    yield names
    in_request.reset(token)


def aliases(model: type[BaseModel]) -> set[str | None]:
    return {field.alias for field in model.model_fields.values()}


# --- the table -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", [each for each in DEPRECATIONS if each.kind is Kind.FIELD], ids=lambda each: f"{each.where}.{each.old}")
def test_a_renamed_field_is_one_of_its_body(entry: Deprecation) -> None:
    model = BODIES[entry.where]
    assert issubclass(model, RenamedBody | RenamedReply)
    assert entry.new in aliases(model)
    assert entry.old not in aliases(model)


def test_the_openapi_document_marks_what_is_deprecated(document: dict[str, Any]) -> None:
    for entry in of_kind(Kind.ROUTE):
        (method, path), (_, new_path) = entry.old.split(), str(entry.new).split()
        assert document["paths"][path][method.lower()]["deprecated"]
        assert "deprecated" not in document["paths"][new_path][method.lower()]
    deploy = {each["name"]: each for each in document["paths"]["/runs"]["post"]["parameters"]}
    assert (deploy["Sluice-Who"].get("deprecated"), deploy["Sluice-Actor"].get("deprecated")) == (True, None)
    for entry in (each for each in DEPRECATIONS if each.kind is Kind.FIELD and each.where not in PRINTED):
        fields = document["components"]["schemas"][entry.where]["properties"]
        assert (fields[entry.old].get("deprecated"), fields[str(entry.new)].get("deprecated")) == (True, None)


def test_a_renamed_setting_is_one() -> None:
    assert {each.new for each in of_kind(Kind.SETTING)} <= Settings.model_fields.keys()


# --- bodies ----------------------------------------------------------------------------------------------------------


def test_a_request_may_use_the_old_names(used: list[Deprecation]) -> None:
    written = json.loads(PROGRESS.model_dump_json(by_alias=True, context=OLD_NAMES))
    assert (written["measures"]["offsetsBehind"], "metrics" in written, "lag" in written["measures"]) == (7, False, False)
    assert agents.ProgressRequest.model_validate(written) == PROGRESS
    assert [each.old for each in used] == ["measures", "offsetsBehind"]


def test_a_request_with_the_new_names_uses_no_old_one(used: list[Deprecation]) -> None:
    written = json.loads(PROGRESS.model_dump_json(by_alias=True))
    assert (written["metrics"]["lag"], "measures" in written) == (7, False)
    assert agents.ProgressRequest.model_validate(written) == PROGRESS
    assert used == []


@pytest.mark.parametrize("model", [each for each in BODIES.values() if issubclass(each, RenamedBody)])
def test_an_added_field_is_one_of_its_body_and_is_not_sent_to_a_coordinator_of_the_release_before(model: type[RenamedBody]) -> None:
    assert model.added_fields <= aliases(model)
    written = model.model_construct().model_dump(by_alias=True, context=OLD_NAMES, warnings=False)
    assert model.added_fields.isdisjoint(written)


def test_metrics_without_what_was_added_are_those_of_the_release_before() -> None:
    named = agents.StatefulOperator(operator="dropDuplicates", effect=Effect.FORGETS)
    written = json.loads(
        PROGRESS.model_copy(update={"metrics": METRICS.model_copy(update={"operators": (named,)})}).model_dump_json(
            by_alias=True, context=OLD_NAMES
        )
    )
    assert "operators" not in written["measures"]
    assert "operators" in json.loads(PROGRESS.model_dump_json(by_alias=True))["metrics"]


def test_of_a_request_with_both_names_the_old_one_is_ignored(used: list[Deprecation]) -> None:
    both = METRICS.model_dump(mode="json", by_alias=True) | {"offsetsBehind": 99}
    assert agents.StageMetricsBody.model_validate(both) == METRICS
    assert used == []


def test_an_answer_carries_both_names_and_is_read_with_either(used: list[Deprecation]) -> None:
    reply = runs.Adoption(version=1, since=NOON, all_on=None, outdated=())
    written = json.loads(reply.model_dump_json(by_alias=True))
    assert written == {"version": 1, "since": "2026-03-01T12:00:00Z", "allOn": None, "outdated": [], "behind": []}
    for dropped in ("outdated", "behind"):
        assert runs.Adoption.model_validate({name: value for name, value in written.items() if name != dropped}) == reply
    assert used == [], "an old coordinator's answer is not a use"


# --- settings --------------------------------------------------------------------------------------------------------


def test_a_variable_with_the_old_name_is_read(monkeypatch: pytest.MonkeyPatch, used: list[Deprecation]) -> None:
    monkeypatch.setenv("SLUICE_HOLD_BACK_SECONDS", "7")
    assert read_settings().crash_loop_backoff_seconds == 7
    assert {each.old for each in used} == {"hold_back_seconds"}


def test_the_new_variable_wins_over_the_old_one_and_both_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "sluice.toml"
    file.write_text("hold_back_seconds = 1\nlog_keep_seconds = 2\n")
    monkeypatch.setenv("SLUICE_CONFIG", str(file))
    found = read_settings()
    assert (found.crash_loop_backoff_seconds, found.log_retention_seconds) == (1, 2)
    monkeypatch.setenv("SLUICE_HOLD_BACK_SECONDS", "3")
    assert read_settings().crash_loop_backoff_seconds == 3
    monkeypatch.setenv("SLUICE_CRASH_LOOP_BACKOFF_SECONDS", "4")
    assert read_settings().crash_loop_backoff_seconds == 4


# --- metrics ---------------------------------------------------------------------------------------------------------


def test_a_renamed_metric_is_exposed_under_both_names() -> None:
    runs_of_chores = CounterMetricFamily("sluice_chore_runs", "Runs.", labels=["chore"])
    runs_of_chores.add_metric(["gc"], 3)
    other = GaugeMetricFamily("sluice_lease_seconds", "Lease.", 40)
    found = list(with_old_names([runs_of_chores, other]))
    assert [each.name for each in found] == ["sluice_chore_runs", "sluice_chore_turns", "sluice_lease_seconds"]
    assert [(each.samples[0].name, each.samples[0].labels, each.samples[0].value) for each in found[:2]] == [
        ("sluice_chore_runs_total", {"chore": "gc"}, 3),
        ("sluice_chore_turns_total", {"chore": "gc"}, 3),
    ]


# --- the client and a coordinator of the release before --------------------------------------------------------------


OPERATION = {
    "errand": "gc",
    "kind": "gc",
    "subject": "",
    "state": "RUNNING",
    "unit": "blobs",
    "done": 0,
    "total": None,
    "beganAt": "2026-03-01T12:00:00Z",
    "endedAt": None,
    "error": None,
    "result": None,
}


class OldCoordinator:
    """Answers like release 0.1, which refuses unknown fields and routes. After `upgrade` it accepts both names."""

    def __init__(self) -> None:
        self.upgraded = False
        self.requests: list[tuple[str, Any]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        sent = json.loads(request.content or "{}")
        name = request.url.path.split("/")[1]
        self.requests.append((name, sent))
        old = name == "errands" or "measures" in sent
        new = name == "operations" or "metrics" in sent
        if new and not self.upgraded:
            status, slug = (404, "http-404") if name == "operations" else (422, "invalid-request")
            problem = {"type": f"urn:sluice:{slug}", "title": slug, "status": status, "detail": slug}
            return httpx.Response(status, json=problem)
        headers = {"Deprecation": "@1"} if old and self.upgraded else {}
        if name in ("errands", "operations"):
            return httpx.Response(200, json=OPERATION, headers=headers)
        return httpx.Response(204, headers=headers)

    @property
    def names(self) -> list[str]:
        return [name if name != "runs" else "measures" if "measures" in sent else "metrics" for name, sent in self.requests]


async def progress(client: AgentClient) -> None:
    await client.progress(RunId("r"), TaskName("Partition 0"), PROGRESS)


async def test_requests_to_a_coordinator_of_the_release_before_use_the_old_names() -> None:
    coordinator = OldCoordinator()
    client = AgentClient("http://c", httpx.MockTransport(coordinator))
    await progress(client)
    await progress(client)
    operators = OperatorClient("http://c", httpx.MockTransport(coordinator))
    assert [(await operators.operation("gc")).operation for _ in range(2)] == ["gc", "gc"]
    assert coordinator.names == ["metrics", "measures", "measures", "operations", "errands", "errands"], "it keeps to the old names"


async def test_the_client_returns_to_the_new_names_once_the_coordinator_knows_them() -> None:
    coordinator = OldCoordinator()
    client = AgentClient("http://c", httpx.MockTransport(coordinator))
    await progress(client)
    coordinator.upgraded = True
    await progress(client)
    await progress(client)
    assert coordinator.names == ["metrics", "measures", "measures", "metrics"]


async def test_a_request_that_is_refused_under_both_names_is_refused() -> None:
    problem = {"type": "urn:sluice:invalid-request", "title": "t", "status": 422, "detail": "no such thing"}
    requests: list[httpx.Request] = []

    def refuse(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(422, json=problem)

    client = AgentClient("http://c", httpx.MockTransport(refuse))
    for _ in range(2):
        with pytest.raises(Refused, match="no such thing"):
            await progress(client)
    assert [b"metrics" in each.content for each in requests] == [True, False, True, False]
