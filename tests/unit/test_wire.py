from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from sluice.core.ids import ProcessorId, Ssp, TaskName
from sluice.core.jobmodels.model import JobModel, job_model
from sluice.wire import body as wire_body
from sluice.wire import runs as wire_runs
from sluice.wire import samza as wire_samza

DOTTED = Ssp("kafka", "ads.clicks", 1)
VIEWS = Ssp("kafka", "page-views", 3)


def two_containers() -> JobModel:
    tasks = {TaskName("Partition 0"): frozenset({Ssp("kafka", "page-views", 0)}), TaskName("Partition 1"): frozenset({VIEWS, DOTTED})}
    return job_model(
        {"job.name": "demo"}, tasks, {TaskName("Partition 0"): ProcessorId("0"), TaskName("Partition 1"): ProcessorId("1")}, {}
    )


def test_a_job_model_is_spelled_exactly_as_samza_spells_it() -> None:
    assert json.loads(wire_samza.job_model_bytes(two_containers())) == {
        "config": {"job.name": "demo"},
        "containers": {
            "0": {
                "processor-id": "0",
                "tasks": {
                    "Partition 0": {
                        "task-name": "Partition 0",
                        "system-stream-partitions": [{"system": "kafka", "partition": 0, "stream": "page-views", "keyBucket": -1}],
                        "changelog-partition": 0,
                        "task-mode": "Active",
                    }
                },
            },
            "1": {
                "processor-id": "1",
                "tasks": {
                    "Partition 1": {
                        "task-name": "Partition 1",
                        "system-stream-partitions": [
                            {"system": "kafka", "partition": 1, "stream": "ads.clicks", "keyBucket": -1},
                            {"system": "kafka", "partition": 3, "stream": "page-views", "keyBucket": -1},
                        ],
                        "changelog-partition": 1,
                        "task-mode": "Active",
                    }
                },
            },
        },
        "max-change-log-stream-partitions": 2,
    }


def test_equal_models_are_equal_bytes() -> None:
    assert wire_samza.job_model_bytes(two_containers()) == wire_samza.job_model_bytes(two_containers())


def test_a_model_survives_being_written_and_read() -> None:
    model = two_containers()
    assert wire_samza.parse_job_model(json.loads(wire_samza.job_model_bytes(model))) == model


@given(
    st.dictionaries(
        st.text(max_size=20).map(TaskName),
        st.frozensets(st.builds(Ssp, st.text(max_size=5), st.text(max_size=5), st.integers(0, 9)), max_size=3),
        max_size=5,
    )
)
def test_any_model_survives_being_written_and_read(tasks: dict[TaskName, frozenset[Ssp]]) -> None:
    model = job_model({}, tasks, {name: ProcessorId(str(i % 2)) for i, name in enumerate(tasks)}, {})
    assert wire_samza.parse_job_model(json.loads(wire_samza.job_model_bytes(model))) == model


def test_unknown_keys_of_samza_are_ignored() -> None:
    document = wire_samza.job_model_document(two_containers())
    document["containers"]["0"]["tasks"]["Partition 0"] |= {"task-mode": "Standby", "new": 1}
    document["new"] = {}
    assert wire_samza.parse_job_model(document) == two_containers()


def test_a_locality_is_spelled_as_samza_spells_it() -> None:
    assert wire_samza.locality_document("0", "host-a") == {"id": "0", "host": "host-a", "jmx-url": "", "jmx-tunneling-url": ""}


def test_offsets_are_sent_as_objects_because_stream_names_may_have_dots() -> None:
    body = wire_body.offsets_body({DOTTED: 7, VIEWS: 9})
    assert [each.model_dump(by_alias=True) for each in body] == [
        {"system": "kafka", "stream": "ads.clicks", "partition": 1, "offset": 7},
        {"system": "kafka", "stream": "page-views", "partition": 3, "offset": 9},
    ]
    assert wire_body.offsets_of(body) == {DOTTED: 7, VIEWS: 9}


RUN = {
    "job": "j",
    "containers": 1,
    "inputs": [{"name": "in", "system": "log"}],
    "outputs": [{"name": "out", "system": "log"}],
    "stages": [{"name": "s", "reads": ["in"], "writes": ["out"]}],
}


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2024-01-01T00:00:00Z", datetime(2024, 1, 1, tzinfo=UTC)),
        ("2024-01-01T00:00:00+02:00", datetime(2023, 12, 31, 22, tzinfo=UTC)),
        ("2024-01-01T00:00:00", datetime(2024, 1, 1, tzinfo=UTC)),
    ],
)
def test_a_start_time_is_read_in_its_own_zone_and_as_utc_without_one(text: str, meant: datetime) -> None:
    start = wire_runs.RunRequest.model_validate({**RUN, "start": text}).start
    assert isinstance(start, datetime)
    assert (start, start.tzinfo) == (meant, UTC)


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "soon", ""])
def test_a_start_time_outside_the_calendar_of_utc_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        wire_runs.RunRequest.model_validate({**RUN, "start": text})


@pytest.mark.parametrize("name", ["../x", "", ".", "..", "a/b", "-a", "a\n", "x" * 250, "\x00"])
def test_names_on_the_wire_keep_the_rule_of_names(name: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(wire_body.Name).validate_python(name)


def test_an_unknown_field_is_refused_in_requests() -> None:
    with pytest.raises(ValidationError, match="maxtasks"):
        wire_runs.RunRequest.model_validate({**RUN, "maxtasks": 3})


@pytest.mark.parametrize("field", ["reason"])
def test_text_with_a_nul_is_refused_because_a_database_may_refuse_it(field: str) -> None:
    with pytest.raises(ValidationError):
        wire_runs.StopRequest.model_validate({field: "a\x00b"})
