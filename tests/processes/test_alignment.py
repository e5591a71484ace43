"""Watermark alignment with real processes: one container starts late, and is killed once; no row is lost as late."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pytest

from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Record, Writer
from sluice.wire import runs as wire_runs
from tests.processes.stage import Stage, stage
from tests.support.processes import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow]

HOUR = 3600
HOURS = 24 * 16
KEPT_BACK_HOURS = 3 * 24

JOB = """
from datetime import timedelta

from pyspark.sql import functions as F

from sluice import Job

job = Job("aligned", max_event_skew=timedelta(days=1))
events = job.input("numbers")
by_key = job.intermediate("middle", partitions=2)
counts = job.output("out")


def parsed(records):
    event = F.from_json(F.col("value").cast("string"), "at long, key string")
    return records.select(event.alias("e")).select(F.timestamp_seconds("e.at").alias("at"), "e.key")


@job.stage(reads=events, writes=by_key)
def route(task):
    rows = parsed(task.read(events)).withWatermark("at", "1 hour")
    value = F.to_json(F.struct(F.unix_timestamp("at").alias("at"), "key"))
    return task.write(rows, by_key, key="key", value=value)


@job.stage(reads=by_key, writes=counts)
def count(task):
    rows = parsed(task.read(by_key)).withWatermark("at", "3 days")
    hours = rows.groupBy(F.window("at", "1 hour").alias("w"), "key").count()
    return task.write(hours.select(F.unix_timestamp("w.start").alias("hour"), "key", "count"), counts)
"""


@pytest.fixture
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("aligned"), JOB) as made:
        made.log.create("numbers", 2)
        yield made


def feed_events(scene: Stage) -> Counter[tuple[int, str]]:
    """16 days of one event per hour, key and partition. Returns the expected counts by hour and key for the hours that will be closed."""
    events = [(hour * HOUR, key, partition) for hour in range(HOURS) for key in "abcd" for partition in (0, 1)]
    records = [Record(json.dumps({"at": at, "key": key}).encode(), partition=partition) for at, key, partition in events]
    assert scene.log.append("numbers", records, writer=Writer(Lineage("feeder"), "feeder", Generation(1)), batch=0, now_micros=1)
    closed = (HOURS - 1 - KEPT_BACK_HOURS) * HOUR
    return Counter((at, key) for at, key, _ in events if at + HOUR <= closed)


def counted(scene: Stage) -> Counter[tuple[int, str]]:
    found: Counter[tuple[int, str]] = Counter()
    for rows in scene.log.read("out", 0, 0, scene.log.latest("out")[0]):
        for row in rows:
            reply = json.loads(row[3] or b"")
            found[reply["hour"], reply["key"]] += reply["count"]
    return found


def routed(scene: Stage) -> int:
    return sum(scene.log.latest("middle").values())


def held(scene: Stage) -> wire_runs.StageAlignment | None:
    return next(
        (
            s.alignment
            for t in scene.detail().tasks
            for s in t.stages
            if s.stage == "route" and s.alignment is not None and s.alignment.waiting
        ),
        None,
    )


@pytest.mark.long  # as tests/processes/test_weather.py and test_watermark_faults.py
def test_no_row_is_late_when_one_container_starts_late_and_is_killed_once(scene: Stage) -> None:
    scene.start_coordinator()
    scene.deploy(containers=2, start="earliest")
    expected = feed_events(scene)
    few = {"SLUICE_MAX_ROWS": "96", "SLUICE_TRIGGER_SECONDS": "0.1"}
    scene.start_container(0, **few)
    pace = wait_for("a task that is held", lambda: held(scene))
    assert pace.waits_for == ("Partition 1",)
    assert routed(scene) == 0

    _, agent = scene.start_container(1, **few)
    wait_for("a tenth of the way", lambda: routed(scene) > 8 * HOURS // 10)
    scene.driver_of(agent).kill()
    assert agent.wait(600) == 1
    scene.start_container(1, **few)
    wait_for("all rows routed", lambda: routed(scene) == 8 * HOURS, 600)
    wait_for("the last hour to be closed", lambda: counted(scene).keys() >= expected.keys(), 600)
    assert counted(scene) == expected
