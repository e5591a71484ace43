"""Drains with real processes and real Spark: all records in flight are written. tests/integration/agent/test_drains.py cancels drains."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.processes.drains import WINDOWS, by_hour, counted, drain, phase
from tests.processes.stage import FIRST, Stage, stage
from tests.support.processes import WAIT_SECONDS, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow]


JOINED = """
from sluice import Job
from pyspark.sql import functions as F

job = Job("toy")
numbers = job.input("numbers")
shared = job.intermediate("shared", partitions=2)
other = job.intermediate("other", partitions=2)
out = job.output("out")


def some(task, which):
    return task.read(numbers).selectExpr("cast(value as string) v").where(f"cast(v as int) % 4 {which}")


@job.stage(reads=numbers, writes=shared)
def noughts(task):
    return task.write(some(task, "= 0"), shared, key="v", value="v")


@job.stage(reads=numbers, writes=shared)
def ones(task):
    return task.write(some(task, "= 1"), shared, key="v", value="v")


@job.stage(reads=numbers, writes=other)
def rest(task):
    return task.write(some(task, "> 1"), other, key="v", value="v")


@job.stage(reads=[shared, other], writes=out)
def by_hour(task):
    both = task.read(shared).select("value").union(task.read(other).select("value"))
    hours = both.selectExpr("timestamp_seconds(cast(cast(value as string) as int) * 60) at").withWatermark("at", "100 days")
    counts = hours.groupBy(F.window("at", "1 hour")).count()
    return task.write(counts.selectExpr("unix_seconds(window.start) as hour", "count as n"), out, key="hour")
"""
"""Two stages of each of two tasks feed one intermediate stream; the last stage reads that and another one."""

TIMERS = (
    FIRST
    + """
import pandas as pd
from pyspark.sql.streaming.state import GroupStateTimeout


def count(key, frames, state):
    if state.hasTimedOut:
        (n,) = state.get
        state.remove()
        yield pd.DataFrame({"hour": [key[0]], "n": [n]})
        return
    state.update(((state.get[0] if state.exists else 0) + sum(map(len, frames)),))
    state.setTimeoutDuration(36_000_000)


@job.stage(reads=middle, writes=out)
def by_hour(task):
    rows = task.read(middle).selectExpr("cast(cast(value as string) as bigint) div 60 * 3600 hour").groupBy("hour")
    counts = rows.applyInPandasWithState(count, "hour long, n long", "n long", "append", GroupStateTimeout.ProcessingTimeTimeout)
    return task.write(counts, out, key="hour").outputMode("append")
"""
)
"""Counts wait for timers of processing time, which a paused query cannot fire before their time."""

SETTINGS: dict[str, Any] = {"SLUICE_TRIGGER_SECONDS": "0.2"}


@contextmanager
def played(root: Path, job: str, containers: int = 1) -> Iterator[Stage]:
    with stage(root, job) as made:
        made.log.create("numbers", 2)
        made.start_coordinator()
        made.deploy(containers)
        yield made


def counts_by_drain(scene: Stage) -> set[str]:
    """By the drain of the records in the output; "" for those that were not written by a drain."""
    rows = [row for rows in scene.log.read("out", 0, 0, 10**9) for row in rows]
    headers = scene.log.headers("out")
    return {dict(headers[row[4]]).get("sluice-drain", "") for row in rows}


@pytest.mark.parametrize("job", [pytest.param(WINDOWS, id="held"), pytest.param(TIMERS, id="restarted", marks=pytest.mark.long)])
def test_a_drained_job_has_written_every_window_although_its_container_was_killed_in_the_drain_and_restarted_without_its_disk(
    tmp_path_factory: pytest.TempPathFactory, job: str
) -> None:
    with played(tmp_path_factory.mktemp("drain"), job) as scene:
        _, agent = scene.start_container(**SETTINGS)
        scene.feed(500)
        wait_for("all of them in the middle", lambda: sum(scene.log.latest("middle").values()) == 500)
        assert scene.written() == 0
        uuid = drain(scene)
        wait_for("the flush", lambda: phase(scene, uuid) not in ("REQUESTED", "STOPPING"))
        scene.driver_of(agent).kill()
        agent.wait(WAIT_SECONDS)
        scene.feed(100)
        if phase(scene, uuid) != "DRAINED":
            scene.lose_disk()
            _, again = scene.start_container(**SETTINGS)
            assert again.wait(WAIT_SECONDS) == 0
        assert phase(scene, uuid) == "DRAINED"
        assert counted(scene) == by_hour(500)
        assert counts_by_drain(scene) == {uuid}
        drained = scene.http.get(f"/drain/{uuid}").json()["drained"]
        assert sum(each["offset"] for each in drained if each["stream"] == "numbers") == 500


@pytest.mark.long  # as tests/histories/test_drain_histories.py, and the first test with one stream; test_upgrade.py has a next run
def test_a_drain_is_exact_with_a_stream_that_two_stages_write_and_a_stage_with_two_inputs(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with played(tmp_path_factory.mktemp("drain"), JOINED) as scene:
        _, agent = scene.start_container(**SETTINGS)
        scene.feed(500)
        between = ("shared", "other")
        wait_for("all of them in between", lambda: sum(sum(scene.log.latest(each).values()) for each in between) == 500)
        scene.feed(100)
        uuid = drain(scene)
        assert agent.wait(WAIT_SECONDS) == 0
        assert phase(scene, uuid) == "DRAINED"
        read = sum(each["offset"] for each in scene.http.get(f"/drain/{uuid}").json()["drained"] if each["stream"] == "numbers")
        assert 500 <= read <= 600
        assert sum(counted(scene).values()) == read
        scene.deploy()
        _, agent = scene.start_container(**SETTINGS)
        wait_for("the rest in between", lambda: sum(sum(scene.log.latest(each).values()) for each in between) == 600)
        drain(scene)
        assert agent.wait(WAIT_SECONDS) == 0
        assert counted(scene) == by_hour(600)
