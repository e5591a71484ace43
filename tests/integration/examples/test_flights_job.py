"""The job file of the demo, and how the demo reads the coordinator's answers."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from examples.flights import data
from examples.flights.demo import JOB_FILE, MARK, READERS
from examples.harness.demo import fresh
from examples.harness.watch import is_assigned, is_started, offsets_read
from sluice.core.lifecycle import RunState
from sluice.job import load_job
from sluice.wire.body import SspOffset
from sluice.wire.runs import RunDetail, StageBody, StageProgress, StreamReply, TaskReply

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_the_job_file_has_the_chain_of_stages_that_the_demo_describes() -> None:
    job = load_job(JOB_FILE)
    assert [(each.stage.name, each.stage.reads, each.stage.writes) for each in job.chain()] == [
        ("route", (data.FLIGHTS,), (data.BY_CARRIER,)),
        ("hourly", (data.BY_CARRIER,), (data.DELAYS,)),
    ]
    assert job.intermediates[0].partitions == data.PARTITIONS
    assert {stream: str(each.stage.name) for each in job.chain() for stream in each.stage.reads} == READERS


def progress(stage: str, stream: str, partition: int, offset: int | None) -> StageProgress:
    offsets = () if offset is None else (SspOffset(system="log", stream=stream, partition=partition, offset=offset),)
    return StageProgress(stage=stage, lineage="l", batch_id=None if offset is None else 0, offsets=offsets, reported_at=NOW)


def detail(*tasks: TaskReply) -> RunDetail:
    """A run whose input `flights` is the system's stream `air`."""
    streams = tuple(
        StreamReply(name=name, role=role, system="log", stream=stream, partitions=4)
        for name, role, stream in [("flights", "input", "air"), ("flights-by-carrier", "intermediate", "flights-by-carrier")]
    )
    stages = (StageBody(name="route", reads=("flights",)), StageBody(name="hourly", reads=("flights-by-carrier",)))
    plain = {
        "run_id": "r",
        "job": "j",
        "first_run": "r",
        "reason": "",
        "containers": 2,
        "job_model_version": 1,
        "config": {},
        "systems": {},
    }
    times = {"created_at": NOW, "started_at": NOW, "stop_requested_at": None, "ended_at": None}
    fields = plain | times | {"state": RunState.RUNNING, "streams": streams, "stages": stages, "incarnations": (), "tasks": tasks}
    return RunDetail.model_validate(fields)


def task(number: int, holder: str | None, *stages: StageProgress) -> TaskReply:
    return TaskReply(task=f"Partition {number}", processor_id="0", generation=1, holder=holder, stages=stages)


def test_offsets_are_those_of_the_stage_under_the_systems_name_of_the_stream() -> None:
    first = task(0, "c", progress("route", "air", 0, 10), progress("hourly", "flights-by-carrier", 0, 4))
    found = detail(first, task(1, "c", progress("route", "air", 1, 7)), task(2, None))
    assert offsets_read(found, "route", "flights") == {0: 10, 1: 7}
    assert offsets_read(found, "hourly", "flights-by-carrier") == {0: 4}


def test_a_run_is_started_when_every_stage_of_every_held_task_has_run_a_batch() -> None:
    both = progress("route", "air", 0, 0), progress("hourly", "flights-by-carrier", 0, 0)
    assert is_started(detail(task(0, "c", *both), task(1, "d", *both)))
    waiting = detail(task(0, "c", *both), task(1, "d", both[0], progress("hourly", "flights-by-carrier", 1, None)))
    assert is_assigned(waiting)
    assert not is_started(waiting)
    assert not is_started(detail(task(0, "c", *both), task(1, "d", both[0])))
    assert not is_assigned(detail(task(0, "c", *both), task(1, None, *both)))
    assert not is_assigned(detail())


def test_only_a_directory_of_the_demo_is_emptied(tmp_path: Path) -> None:
    home = tmp_path / "demo"
    (fresh(home, MARK) / "old").touch()
    assert {file.name for file in fresh(home, MARK).iterdir()} == {".flights-demo"}
    (tmp_path / "precious").mkdir()
    with pytest.raises(ValueError, match="not of this demo"):
        fresh(tmp_path, MARK)
    assert (tmp_path / "precious").exists()
