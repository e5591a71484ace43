"""Watermarks that wait for the slowest task, through a fail-over, growth, an outage of the coordinator, a lost disk and a roll-back: no row
is lost as late."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping

import pytest

from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Record, Writer
from tests.processes.drains import drain, phase
from tests.processes.stage import Stage, stage
from tests.support.coordinators import Container
from tests.support.processes import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow]

HOUR = 3600
OUTAGE_SECONDS = 20
HOURS = 24
KEYS = "abcd"
SLOW = 5
"""The slow partition has this many records for each one of a fast partition. A batch reads equal numbers, so it is behind in event time."""

JOB = """
from pyspark.sql import functions as F

from sluice import Job

job = Job("hours")
events = job.input("numbers", event_time="at")
by_key = job.intermediate("middle", partitions=2)
counts = job.output("out")


def parsed(records):
    event = F.from_json(F.col("value").cast("string"), "at long, key string")
    return records.select("value", event.alias("e")).select("value", F.timestamp_seconds("e.at").alias("at"), "e.key")


@job.stage(reads=events, writes=by_key)
def route(task):
    return task.write(parsed(task.read(events)), by_key, key="key", value="value", event_time="at")


@job.stage(reads=by_key, writes=counts)
def count(task):
    rows = parsed(task.read(by_key)).withWatermark("at", "1 hour")
    hours = rows.groupBy(F.window("at", "1 hour").alias("w"), "key").count()
    return task.write(hours.select(F.unix_timestamp("w.start").alias("hour"), "key", "count"), counts)
"""

FAILING = JOB.replace(
    '"e.key")', '"e.key").withColumn("key", F.concat("key", F.raise_error(F.lit("a bad version")).cast("string")))'
).replace("parsed(task.read(events))", 'task.read(events).selectExpr("value", "get_json_object(string(value), \'$.key\') key", "now() at")')
"""The first stage runs, and every batch of the second fails."""

SETTINGS = {"SLUICE_TRIGGER_SECONDS": "0.1", "SLUICE_MAX_ROWS": "96", "SLUICE_COMMIT_INTERVAL_SECONDS": "1"}


class Hours:
    """Feeds one block of hours after another."""

    def __init__(self, scene: Stage) -> None:
        self._scene = scene
        self._blocks = 0
        self.fed: Counter[tuple[int, str]] = Counter()

    def feed(self, times: Mapping[int, int]) -> int:
        """`times`: the number of records of each hour and key in each partition. Returns the number of records in the intermediate
        stream when all are routed.
        """
        first, routed = self._blocks * HOURS, sum(self._scene.log.latest("middle").values())
        hours = [(hour * HOUR, key) for hour in range(first, first + HOURS) for key in KEYS]
        events = [(at, key, partition) for at, key in hours for partition, count in times.items() for _ in range(count)]
        records = [Record(json.dumps({"at": at, "key": key}).encode(), partition=partition) for at, key, partition in events]
        writer = Writer(Lineage("feeder"), "feeder", Generation(1))
        assert self._scene.log.append("numbers", records, writer=writer, batch=self._blocks, now_micros=1)
        self._blocks += 1
        self.fed.update((at, key) for at, key, _ in events)
        return routed + len(events)

    def feed_and_route(self, times: Mapping[int, int]) -> None:
        all_of_them = self.feed(times)
        wait_for("all rows routed", lambda: sum(self._scene.log.latest("middle").values()) >= all_of_them, 600)

    @property
    def fed_until(self) -> int:
        """The end of the last block."""
        return self._blocks * HOURS * HOUR

    def counted(self) -> Counter[tuple[int, str]]:
        """The counts in the output. A window that was open during a drain occurs twice, each time with a part of its count."""
        found: Counter[tuple[int, str]] = Counter()
        for rows in self._scene.log.read("out", 0, 0, self._scene.log.latest("out")[0]):
            for row in rows:
                window = json.loads(row[3] or b"")
                found[window["hour"], window["key"]] += window["count"]
        return found

    def await_closed(self) -> None:
        """Wait until all windows are closed that records of the newest two hours do not keep open; these windows are complete."""
        closed = {each for each in self.fed if each[0] < (self._blocks * HOURS - 3) * HOUR}
        wait_for("the windows to be closed", lambda: self.counted().keys() >= closed, 600)
        counted = self.counted()
        assert {window: counted[window] for window in closed} == {window: self.fed[window] for window in closed}


@pytest.fixture
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("hours"), JOB) as made:
        made.environment.update({"SLUICE_FAILOVER_AFTER_SECONDS": "1", "SLUICE_LEASE_SECONDS": "120"})
        made.log.create("numbers", 2)
        yield made


def started(scene: Stage, slot: int = 0, disk: str = "disk", **settings: str) -> Container:
    return scene.start_container(slot, SLUICE_STATE_DIR=str(scene.root / f"{disk}{slot}"), **{**SETTINGS, **settings})


def await_drained(scene: Stage, mode: str) -> None:
    uuid = drain(scene, mode)
    wait_for("the end of the drain", lambda: phase(scene, uuid) in ("DRAINED", "FAILED"), 600)
    assert phase(scene, uuid) == "DRAINED"


@pytest.mark.long  # as test_weather.py, and tests/spark/test_watermark_*.py
def test_no_row_is_late_through_a_fail_over_growth_a_lost_disk_and_a_roll_back(scene: Stage) -> None:
    hours = Hours(scene)
    scene.start_coordinator()
    scene.deploy(containers=2, start="earliest")
    container, other = started(scene), started(scene, 1)
    hours.feed_and_route({0: 1, 1: SLOW})

    scene.driver_of(other.process).kill()
    hours.feed_and_route({0: 1, 1: SLOW})  # the second half is read after its task has moved
    assert scene.holds_all(container.execution_id)

    scene.log.grow("numbers", 4)
    assert scene.http.patch(f"/runs/{scene.run_id}", json={"grow": True}).status_code == 200
    hours.feed_and_route({0: 1, 1: SLOW, 2: SLOW, 3: 1})
    hours.await_closed()

    assert scene.coordinator is not None
    scene.coordinator.kill()
    scene.coordinator.wait()
    before = hours.fed_until
    hours.feed({0: 1, 1: SLOW, 2: SLOW, 3: 1})
    time.sleep(OUTAGE_SECONDS)  # the outage itself
    assert all(hour < before for hour, _ in hours.counted()), "the caps are those of the former records"
    scene.start_coordinator()
    hours.await_closed()

    scene.driver_of(container.process).kill()
    container.process.wait(600)
    container = started(scene, disk="empty")
    hours.feed_and_route({0: 1, 1: SLOW, 2: SLOW, 3: 1})
    await_drained(scene, "KEEP_STATE")
    assert container.process.wait(600) == 0

    scene.job_file.write_text(FAILING)
    scene.deploy()
    container = started(scene, SLUICE_MAX_RESTARTS="0", disk="empty")
    hours.feed({0: 1, 1: SLOW, 2: SLOW, 3: 1})
    assert container.process.wait(600) == 1
    assert scene.http.post(f"/runs/{scene.run_id}/stop").status_code == 202
    scene.job_file.write_text(JOB)
    scene.deploy(start="drained")
    container = started(scene, disk="empty")
    hours.await_closed()
    await_drained(scene, "DEFAULT")
    assert container.process.wait(600) == 0
    assert hours.counted() == hours.fed
