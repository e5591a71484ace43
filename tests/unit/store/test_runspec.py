"""The spec of a run as JSON in the database: what the API accepted, and what earlier releases wrote."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from coordinator.api.runs import request_of, spec_of
from coordinator.store import runspec
from sluice.core.ids import StreamId
from sluice.wire.runs import RunRequest

NAMES = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,5}\Z")
COUNTS = st.integers(1, 100_000)
TEXT = st.text(st.characters(codec="utf-8"), max_size=5)


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """Bodies of POST /runs that are valid by its schema. Fields with defaults may be absent."""

    def some(**fields: st.SearchStrategy[Any]) -> dict[str, Any]:
        return {name: draw(values) for name, values in fields.items() if draw(st.booleans())}

    names = draw(st.lists(NAMES, min_size=1, max_size=6, unique=True))
    roles = draw(st.lists(st.sampled_from(["inputs", "intermediates", "outputs"]), min_size=len(names), max_size=len(names)))
    streams: dict[str, list[dict[str, Any]]] = {"inputs": [], "intermediates": [], "outputs": []}
    for name, role in zip(names, roles, strict=True):
        stream = {"name": name, "system": draw(NAMES), **some(stream=st.none() | NAMES)}
        if role == "inputs":
            stream |= some(broadcast=st.booleans() | st.sampled_from(["#0", "#[0-3]", "#1,#[5-7]"]))
        elif role == "intermediates":
            stream |= {"partitions": draw(COUNTS)}
        else:
            stream |= some(partitions=COUNTS)
        streams[role].append(stream)
    stages = [
        {"name": draw(NAMES), "reads": draw(st.lists(NAMES, max_size=3))} | some(writes=st.lists(NAMES, max_size=3), stateful=st.booleans())
        for _ in range(draw(st.integers(0, 3)))
    ]
    starts = st.sampled_from(["checkpoint", "drained", "earliest", "latest"]) | st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat)
    optional = some(
        grouper=TEXT,
        maxTasks=st.none() | st.integers(-5, 100_000),
        stateful=st.booleans(),
        start=starts,
        config=st.dictionaries(TEXT, TEXT, max_size=3),
    )
    return {"job": draw(NAMES), "containers": draw(st.integers(-5, 100_000)), **streams, "stages": stages, **optional}


@given(requests())
def test_the_json_of_a_spec_is_the_body_that_was_accepted_with_its_defaults(body: dict[str, Any]) -> None:
    request = RunRequest.model_validate(body)
    accepted = json.loads(request.model_dump_json(by_alias=True))
    spec = spec_of(request)
    stored = json.loads(json.dumps([runspec.spec_json(spec), runspec.streams_json(spec)]))
    assert stored[0] == accepted
    read = runspec.spec_of(*stored)
    assert (runspec.spec_json(read), runspec.streams_json(read)) == tuple(stored)
    assert read == spec
    assert request_of(read) == request


def test_the_streams_of_a_spec_are_stored_as_they_were_looked_up() -> None:
    spec = spec_of(
        RunRequest.model_validate({**OLD, "inputs": [{"name": "in", "system": "log", "stream": "ads.clicks", "broadcast": True}]})
    )
    spec = spec.with_counts({"in": 4, "out": 2}).with_identities({StreamId("log", "ads.clicks"): "7"})
    assert runspec.streams_json(spec) == [
        {"name": "in", "role": "input", "system": "log", "stream": "ads.clicks", "partitions": 4, "broadcast": True, "identity": "7"},
        {"name": "out", "role": "output", "system": "log", "stream": "out", "partitions": 2, "broadcast": False, "identity": None},
    ]
    assert runspec.spec_of(runspec.spec_json(spec), runspec.streams_json(spec)) == spec


OLD = {
    "job": "j",
    "containers": 2,
    "inputs": [{"name": "in", "system": "log"}],
    "outputs": [{"name": "out", "system": "log"}],
    "stages": [{"name": "only", "reads": ["in"], "writes": ["out"]}],
}


def test_a_key_that_an_old_release_did_not_write_has_the_default_of_the_api() -> None:
    streams = [{"name": "in", "role": "input", "system": "log", "stream": "in", "partitions": 4}]
    assert runspec.spec_of(OLD, streams) == spec_of(RunRequest.model_validate(OLD)).with_counts({"in": 4})
    assert replace(runspec.spec_of(OLD, []), containers=3).containers == 3


def test_what_a_release_with_alignment_sends_and_has_stored_is_read() -> None:
    assert RunRequest.model_validate_json(json.dumps(OLD | {"maxEventSkewSeconds": None})) == RunRequest.model_validate(OLD)
    assert runspec.spec_of(OLD | {"maxEventSkewSeconds": 60.0}, []) == runspec.spec_of(OLD, [])
