"""Drains with real processes and real Spark: all records in flight are written, and the next run continues exactly there."""

from __future__ import annotations

import json
from collections import Counter

from tests.processes.stage import FIRST, Stage

WINDOWS = (
    FIRST
    + """
from pyspark.sql import functions as F


@job.stage(reads=middle, writes=out)
def by_hour(task):
    rows = task.read(middle).selectExpr("timestamp_seconds(cast(cast(value as string) as int) * 60) at")
    hours = rows.withWatermark("at", "100 days").groupBy(F.window("at", "1 hour")).count()
    return task.write(hours.selectExpr("unix_seconds(window.start) as hour", "count as n"), out, key="hour")
"""
)
"""Number n is minute n; every window stays open until the run is drained."""


def counted(scene: Stage) -> Counter[int]:
    """Rows by hour over the whole output. A window that was open during a drain occurs twice, with a part of its count each time."""
    found: Counter[int] = Counter()
    for rows in scene.log.read("out", 0, 0, 10**9):
        for row in rows:
            value = json.loads(row[3] or b"")
            found[value["hour"]] += value["n"]
    return found


def by_hour(count: int) -> Counter[int]:
    return Counter(number // 60 * 3600 for number in range(count))


def drain(scene: Stage, mode: str = "DEFAULT") -> str:
    answer = scene.http.post("/drain", json={"runId": scene.run_id, "drainMode": mode})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["uuid"])


def can_be_emptied(scene: Stage) -> bool:
    """Whether every task has reported that a flush empties it."""
    return bool(scene.http.post("/drain/plan", json={"runId": scene.run_id}).json().get("empties"))


def phase(scene: Stage, uuid: str) -> str:
    return str(scene.http.get(f"/drain/{uuid}").json()["phase"])


HALVES = WINDOWS.replace('F.window("at", "1 hour")', 'F.window("at", "30 minutes")').replace(
    "unix_seconds(window.start) as hour", "unix_seconds(window.start) div 3600 * 3600 as hour"
)
"""The same sums from windows of another size, whose state the other version could not read."""

ONCE = (
    FIRST
    + """

@job.stage(reads=middle, writes=out)
def once(task):
    rows = task.read(middle).selectExpr("cast(value as string) v", "timestamp_seconds(cast(cast(value as string) as int) * 60 + 60) at")
    return task.write(rows.withWatermark("at", "100 days").dropDuplicatesWithinWatermark(["v"]), out, value="v")
"""
)
"""Each number is written once, however often it is sent."""
