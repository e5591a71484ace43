"""docs/waits.md and docs/limits.md say what the code does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from containers.agent import metrics_server
from containers.agent.failures import LONGEST_PAUSE, LONGEST_WAIT_FOR_ROOM
from containers.settings import ContainerSettings
from coordinator.api.bodies import MAX_DEPTH, MAX_FIELDS, MAX_VALUES
from coordinator.connections import MAX_HEAD_BYTES, MOST_CONNECTIONS, OTHER_FILES, Timeouts
from coordinator.identity.sessions import MAX_SESSIONS_OF_A_TOKEN, SESSION_LASTS
from coordinator.settings import Settings
from coordinator.snapshots.cleanup import LONGEST_PAUSE as LONGEST_CLEAN_UP_PAUSE
from coordinator.transitions import KEPT_AFTER_FAILURE
from sluice.core.waits import TOLERANCE, Backoff
from sluice.status import LATE_ROWS_FOR, RECENT
from tests.support.api import openapi_document

DOCS = Path(__file__).parents[2] / "docs"
WAITS, LIMITS = (DOCS / "waits.md").read_text(), (DOCS / "limits.md").read_text()

INTERVALS = frozenset(
    {
        "commit_interval_seconds",
        "gc_every_seconds",
        "heartbeat_seconds",
        "report_seconds",
        "standby_seconds",
        "trigger_seconds",
    }
)
"""How often something is done. Nothing waits for it."""


def rows(page: str) -> Iterator[list[str]]:
    for line in page.splitlines():
        if line.startswith("| ") and not line.startswith("| ---"):
            yield [cell.strip() for cell in line.strip("|").split(" | ")]


def durations() -> Iterator[tuple[str, float]]:
    """The settings that are durations, with their defaults in seconds."""
    for name, field in [*Settings.model_fields.items(), *ContainerSettings.model_fields.items()]:
        if name.endswith("_seconds") and name not in INTERVALS and field.default is not None:
            yield name, float(field.default)
        elif name.endswith("_days"):
            yield name, float(field.default) * 86400


def spellings(seconds: float) -> Iterator[str]:
    """How a duration may be written."""
    for unit, size in (("s", 1), ("min", 60), ("h", 3600), ("days?", 86400)):
        number = seconds / size
        if number == int(number) and number > 0:
            yield rf"(?<![\d.]){int(number)}(?=( {unit}\b|, \d| and \d))"


def says(cell: str, seconds: float) -> bool:
    return any(re.search(each, cell) for each in spellings(seconds))


@pytest.mark.parametrize(("name", "seconds"), sorted(set(durations())))
def test_each_wait_that_can_be_set_is_in_the_table_with_its_default(name: str, seconds: float) -> None:
    found = [cells for cells in rows(WAITS) if any(f"`{name}`" in cell for cell in cells)]
    assert found, "the setting is in no row"
    assert any(says(" ".join(cells), seconds) for cells in found), found


@pytest.mark.parametrize(
    ("wait", "bound"),
    [
        ("request line and headers of a request", Timeouts().head),
        ("body of a request", Timeouts().body),
        ("a client that does not read its answer", Timeouts().read),
        ("next request on a connection", Timeouts().idle),
        ("retry of a clean-up task", timedelta(seconds=LONGEST_CLEAN_UP_PAUSE.total_seconds())),
        ("pin", KEPT_AFTER_FAILURE),
        ("session of a browser", SESSION_LASTS),
        ("failures, exits and late rows", RECENT),
        ("failures, exits and late rows", LATE_ROWS_FOR),
        ("requests to a blob store", Backoff().budget),
        ("restart of a failed query", LONGEST_PAUSE),
        ("room on a full disk", LONGEST_WAIT_FOR_ROOM),
    ],
)
def test_each_wait_that_cannot_be_set_is_in_the_table(wait: str, bound: timedelta) -> None:
    found = [cells for cells in rows(WAITS) if cells[0].startswith(wait)]
    assert found
    assert any(says(cells[1], bound.total_seconds()) for cells in found), found


def test_times_further_ahead_than_the_tolerance_are_those_of_the_page() -> None:
    assert timedelta(minutes=5) == TOLERANCE
    assert "up to **five minutes** ahead" in WAITS


def limit(what: str) -> str:
    (found,) = [cells[1] for cells in rows(LIMITS) if cells[0] == what]
    return found


def test_the_limits_of_connections_are_those_of_the_page() -> None:
    assert (
        limit("open files")
        == f"the hard limit of the process, at most {MOST_CONNECTIONS + OTHER_FILES:,}; the soft limit is raised at the start"
    )
    assert f"open files less {OTHER_FILES} " in limit("connections")
    assert Settings.model_fields["max_body_bytes"].default == 4 << 20
    assert limit("body of a request") == "4 MiB"
    assert limit("values in a body of JSON").startswith(f"{MAX_VALUES:,},")
    assert limit("fields of one object in a body") == f"{MAX_FIELDS:,}"
    assert limit("nesting of JSON in a body") == f"{MAX_DEPTH} levels"
    assert MAX_HEAD_BYTES == metrics_server.MAX_HEAD_BYTES == 16 << 10
    assert limit("connections, each with a thread") == str(metrics_server.MAX_CONNECTIONS)
    assert f"can have {MAX_SESSIONS_OF_A_TOKEN} sessions" in LIMITS


def test_the_limits_of_jobs_are_those_of_the_api() -> None:
    document = openapi_document()
    schemas = document["components"]["schemas"]

    def field(schema: str, name: str, key: str) -> Any:
        found = schemas[schema]["properties"][name]
        return next(each[key] for each in (found, *found.get("anyOf", ())) if key in each)

    assert limit("containers of a run") == f"{field('RunRequest', 'containers', 'maximum'):,.0f}"
    assert limit("tasks to which a deployment groups its partitions") == f"{field('RunRequest', 'maxTasks', 'maximum'):,.0f}"
    assert limit("streams in a request for a plan") == f"{field('PlanRequest', 'streams', 'maxProperties'):,}"
    assert limit("blob stores of a run") == str(field("BackupRequest", "stores", "maxItems"))
    assert limit("name of a job, stream, stage or blob store") == f"{field('RunRequest', 'job', 'maxLength')} characters"
    assert limit("execution container id") == f"{field('RegisterRequest', 'executionContainerId', 'maxLength')} characters"
    assert limit("stages in a report of watermarks") == f"{field('WatermarksRequest', 'stages', 'maxItems'):,}"
    assert limit("a reason, such as that of an exit").startswith(f"{field('ExitRequest', 'reason', 'maxLength'):,} ")


def test_each_list_has_pages_of_the_size_of_the_page() -> None:
    paths = openapi_document()["paths"]
    limits = {
        path: next(each["schema"] for each in methods["get"]["parameters"] if each["name"] == "limit")
        for path, methods in paths.items()
        if "get" in methods and any(each["name"] == "limit" for each in methods["get"].get("parameters", ()))
    }
    assert {path for path, schema in limits.items() if (schema.get("maximum"), schema.get("default")) != (200, 50)} == {
        "/jobs",
        "/audit-log",
    }
    assert (limits["/jobs"]["maximum"], limits["/jobs"]["default"]) == (1000, 1000)
    assert (limits["/audit-log"]["maximum"], limits["/audit-log"]["default"]) == (1000, 100)


UNPAGED = {
    "/runs/{runId}/request": "one deployment request; its lists have limits of their own",
    "/prometheus/targets": "Prometheus reads all targets of the active containers in one answer",
    "/jobs/{job}/snapshots/{checkpointId}": "one snapshot of one stage: the partitions that the stage reads",
    "/gc/explain": "one blob: the configured blob stores",
    "/drain/{uuid}": "one drain: the containers and stages of its run",
    "/jobs/{job}/models/{version}/diff/{later}": "two versions of one job model: its tasks and partitions",
    "/runs/{runId}/containers/{executionContainerId}/standby": "one container: the stages of its tasks",
    "/identity-providers": "the configured identity providers",
}
"""Routes whose answers have lists without pages, and what bounds the lists."""


def test_a_route_that_answers_with_a_list_has_pages() -> None:
    document = openapi_document()
    schemas = document["components"]["schemas"]

    def resolved(schema: dict[str, Any]) -> dict[str, Any]:
        return resolved(schemas[schema["$ref"].rpartition("/")[2]]) if "$ref" in schema else schema

    def is_list(schema: dict[str, Any]) -> bool:
        return any(resolved(each).get("type") == "array" for each in (schema, *schema.get("anyOf", ())))

    found = set()
    for path, methods in document["paths"].items():
        get = methods.get("get", {})
        answer = get.get("responses", {}).get("200", {}).get("content", {}).get("application/json", {}).get("schema", {})
        lists = is_list(answer) or any(map(is_list, resolved(answer).get("properties", {}).values()))
        if lists and not {"limit", "after"} & {each["name"] for each in get.get("parameters", ())}:
            found.add(path)
    assert found == UNPAGED.keys()
