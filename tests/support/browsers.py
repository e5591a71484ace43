"""A real browser: Chromium of the system, driven by Playwright; and a job with contents on all pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Browser, expect, sync_playwright

from sluice.core.ids import JobName, StageKey, StageName, TaskName
from sluice.core.jobmodels.spec import ATTACHED_TASK
from sluice.core.snapshots.snapshot import Kind, fresh_blob_id
from sluice.streams.log import Log
from tests.support.api import Json, chained_body, checkpoint_id
from tests.support.servers import program

JOB, SCRIPT = "flight-delays", "orders"
PAGES: Mapping[str, str] = {
    "jobs": "",
    "job": f"jobs/{JOB}",
    "containers": f"jobs/{JOB}/containers",
    "events": f"jobs/{JOB}/events",
    "state": f"jobs/{JOB}/state",
    "version": f"jobs/{JOB}/versions/2",
    "drain": "drains/{drain}",
    "fleet": "fleet",
    "garbage": "garbage",
    "audit": "audit",
    "script": f"jobs/{SCRIPT}",
}
"""Name -> URL below /ui/ of each kind of page of the jobs that `Staged` makes."""


PATIENCE = 600_000
"""Milliseconds until a page must show what a test expects, unless the test sets another time: the machine may be loaded."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Raises NotInstalled."""
    path = program("chromium")
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


class Staged:
    """A job of two stages with two containers, of which one has failed, a failing stage, snapshots, and a second version of its model;
    and a script with two queries, of which one has failed."""

    def __init__(
        self, http: httpx.Client, home: Path, host: str = "host-1", error: str = "orders.py, line 12: KeyError: 'carrier'"
    ) -> None:
        self.http = http
        Log(home / "log").create("flights", 4)
        self.run_id = self.post("/runs", chained_body(partitions=4, containers=2))["runId"]
        for slot in range(2):
            body = {"processorId": str(slot), "executionContainerId": f"c{slot}", "host": "host-1", "drainModes": ["DEFAULT"]}
            self.post(f"/runs/{self.run_id}/containers", body)
        for task, owner in self.slots().items():
            self.commit(task, f"c{owner}")
        for commit, stage in enumerate(("route", "hourly"), start=1):
            self.snapshot("Partition 0", stage, commit)
        failing = f"/runs/{self.run_id}/tasks/Partition 0/stages/hourly/failure"
        self.post(failing, {"generation": 1, "error": error, "failures": 2, "retrySeconds": 30, "log": "/var/log/sluice/container-0.log"})
        self.post("/containers/c1/exit", {"exitCode": 1, "reason": error})
        http.patch(f"/runs/{self.run_id}", json={"containers": 3, "why": "more flights in summer"}).raise_for_status()

        self.script(error)

    def script(self, error: str) -> None:
        """Make the job of a script that has called `sluice.attach`."""
        run = self.post("/runs", {"job": SCRIPT, "kind": "attached", "containers": 1, "inputs": [], "stages": []})["runId"]
        self.post(f"/runs/{run}/containers", {"processorId": "0", "executionContainerId": "script-1", "host": "host-2"})
        acquired = self.post(f"/runs/{run}/tasks/{ATTACHED_TASK}/acquire", {"executionContainerId": "script-1", "epoch": 1})
        metrics = {"rows": 1200, "rowsPerSecond": 480.5, "batchMillis": 170, "lag": 3400, "stateRows": 52_000, "stateBytes": 9 << 20}
        offset = {"system": "kafka", "stream": "orders", "partition": 0, "offset": 120_000}
        counts = {"stage": "counts", "checkpoint": "s3a://state/orders/counts", "name": "counts", "queryId": "0d2f", "batchId": 412}
        joined = {"stage": "joined", "checkpoint": "s3a://state/orders/joined", "name": "joined", "queryId": "7c1a", "batchId": 96}
        failed = {"active": False, "error": error, "failures": 3}
        reported = {**metrics, "watermark": self.now().isoformat(), "at": self.now().isoformat()}
        queries = [{**counts, "offsets": [offset], "metrics": reported}, {**joined, "offsets": [offset], **failed}]
        answer = self.http.put(
            f"/runs/{run}/tasks/{ATTACHED_TASK}/queries", json={"generation": acquired["generation"], "queries": queries}
        )
        assert answer.is_success, answer.text

    def drain(self) -> str:
        """Begin a drain. Returns its id."""
        return str(self.post("/drain", {"runId": self.run_id})["uuid"])

    def cancel(self, drain: str) -> None:
        self.http.delete(f"/drain/{drain}").raise_for_status()

    def slots(self) -> Mapping[str, str]:
        tasks = self.http.get(f"/runs/{self.run_id}").raise_for_status().json()["tasks"]
        return {task["task"]: task["processorId"] for task in tasks}

    def commit(self, task: str, container: str, batch: int = 0) -> None:
        """Acquire the task, and report a batch of each stage."""
        path = f"/runs/{self.run_id}/tasks/{task}"
        acquired = self.post(f"{path}/acquire", {"executionContainerId": container, "epoch": 1})
        partition = int(task.removeprefix("Partition "))
        for stage in acquired["stages"]:
            stream = {"route": "flights", "hourly": "by-carrier"}[stage["stage"]]
            offset = {"system": "log", "stream": stream, "partition": partition, "offset": 0}
            parts = {"addBatch": 120, "queryPlanning": 31, "walCommit": 12}
            metrics = {"rows": 1200, "rowsPerSecond": 480.5, "batchMillis": 170, "batchMillisByPart": parts, "at": self.now().isoformat()}
            body = {"generation": acquired["generation"], "stage": stage["stage"], "lineage": stage["lineage"], "batchId": batch}
            self.post(f"{path}/progress", {**body, "offsets": [offset], "metrics": metrics})

    def snapshot(self, task: str, stage: str, number: int) -> None:
        """Report a snapshot of the stage after its first batch."""
        key = StageKey(JobName(JOB), TaskName(task), StageName(stage))
        index = fresh_blob_id(key, Kind.SNAPSHOTS, number, f"{number:016x}")
        run = self.http.get(f"/runs/{self.run_id}").raise_for_status().json()
        [state] = [each for found in run["tasks"] if found["task"] == task for each in found["stages"] if each["stage"] == stage]
        body = {"generation": 1, "lineage": state["lineage"], "batchId": 0, "offsets": state["offsets"]}
        marker = {"index": index, "files": 12, "bytes": 3 << 20, "uploadedFiles": 12, "uploadedBytes": 3 << 20, "puts": 4}
        self.post(
            f"/runs/{self.run_id}/tasks/{task}/stages/{stage}/snapshots",
            {**body, "checkpointId": checkpoint_id(number), "markers": {"local": marker}},
        )

    def now(self) -> datetime:
        return datetime.fromisoformat(self.http.get(f"/runs/{self.run_id}").raise_for_status().json()["serverTime"])

    def post(self, path: str, body: Json) -> Any:
        answer = self.http.post(path, json=body)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None
