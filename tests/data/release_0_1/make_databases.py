"""Make a database with the coordinator of release 0.1, on SQLite and on PostgreSQL, and store it here with what that coordinator answers.

    python -m tests.data.release_0_1.make_databases

Writes `sqlite.sql`, `postgresql.sql`, and `sqlite.json` and `postgresql.json` with the answers by path. Every table has rows. Containers
are requests of this script; there is no Spark.
"""

from __future__ import annotations

import json
import re
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

import httpx

from sluice.streams.log import Log
from tests.support.former_release import DATA, Release, release_0_1
from tests.support.processes import end, free_port, serving, wait_for
from tests.support.servers import Postgres, postgres

Json = dict[str, Any]
FOR_EVER = 1e9


class Coordinator:
    """Requests in the form of release 0.1. Each must succeed."""

    def __init__(self, url: str, log: Log) -> None:
        self._http = httpx.Client(base_url=url, timeout=30, trust_env=False)
        self.log = log

    def get(self, path: str) -> Any:
        return self._http.get(path).raise_for_status().json()

    def send(self, method: str, path: str, body: Json | None = None, **headers: str) -> Any:
        answer = self._http.request(method, path, json=body, headers={name.replace("_", "-"): value for name, value in headers.items()})
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def post(self, path: str, body: Json | None = None, **headers: str) -> Any:
        return self.send("POST", path, body, **headers)

    def deploy(self, job: str, **more: Any) -> str:
        body = {
            "job": job,
            "containers": 1,
            "inputs": [{"name": "flights", "system": "log", "stream": f"{job}-flights"}],
            "intermediates": [{"name": "by-carrier", "system": "log", "stream": f"{job}-by-carrier", "partitions": 2}],
            "outputs": [{"name": "delays", "system": "log", "stream": f"{job}-delays", "partitions": 1}],
            "stages": [
                {"name": "route", "reads": ["flights"], "writes": ["by-carrier"]},
                {"name": "hourly", "reads": ["by-carrier"], "writes": ["delays"]},
            ],
            "config": {"team": "Zürich"},
            **more,
        }
        return str(self.post("/runs", body, Sluice_Who="operator@example.com")["runId"])

    def register(self, run_id: str, container: str, slot: str = "0") -> int:
        body = {"processorId": slot, "executionContainerId": container, "host": f"{container}.example", "metricsAddress": "127.0.0.1:9400"}
        return int(self.post(f"/runs/{run_id}/containers", body)["epoch"])

    def acquire(self, run_id: str, container: str, task: int, epoch: int = 1) -> Json:
        body = {"executionContainerId": container, "epoch": epoch}
        got: Json = self.post(f"/runs/{run_id}/tasks/{quote(f'Partition {task}')}/acquire", body)
        return got

    def exit(self, container: str, code: int = 0) -> None:
        self.post(f"/containers/{container}/exit", {"exitCode": code, "reason": "told to"})

    def run_stages(self, job: str, run_id: str, task: int, held: Json, numbers: tuple[int, ...] = (1, 2)) -> None:
        """Progress and snapshots of both stages of a task."""
        for stage in held["stages"]:
            stream = f"{job}-flights" if stage["stage"] == "route" else f"{job}-by-carrier"
            path, previous = (
                f"/runs/{run_id}/tasks/{quote(held['task'])}",
                (stage["snapshot"] or {"markers": {"local": None}})["markers"]["local"],
            )
            for number in numbers:
                offsets = [{"system": "log", "stream": stream, "partition": task, "offset": 100 * number}]
                reported = {"generation": held["generation"], "lineage": stage["lineage"], "batchId": 10 * number, "offsets": offsets}
                self.post(f"{path}/progress", {**reported, "stage": stage["stage"]})
                index = f"jobs/{job}/{held['task'].replace(' ', '_')}/{stage['stage']}/snapshots/17000000{number:05}-00000000000000aa"
                marker = {"index": index, "previous": previous, "files": 3, "bytes": 70, "uploadedFiles": 1, "uploadedBytes": 9, "puts": 2}
                report = {**reported, "checkpointId": f"17000000{number:05}-123456", "markers": {"local": marker}}
                self.post(f"{path}/stages/{stage['stage']}/snapshots", report)
                previous = index

    def drain(self, run_id: str, hard: float = FOR_EVER) -> str:
        body = {
            "runId": run_id,
            "softDeadlineSeconds": hard / 2,
            "hardDeadlineSeconds": hard,
            "budgetSeconds": {"stopping": FOR_EVER, "flushing": FOR_EVER, "committing": FOR_EVER},
        }
        return str(self.post("/drain", body)["uuid"])

    def step(
        self, job: str, run_id: str, uuid: str, step: str, generation: int = 1, tasks: tuple[int, ...] = (0, 1), number: int = 2
    ) -> None:
        """A step of a drain of both stages of the tasks."""
        for stage, stream in (("route", f"{job}-flights"), ("hourly", f"{job}-by-carrier")):
            for task in tasks:
                body = {
                    "generation": generation,
                    "uuid": uuid,
                    "step": step,
                    "batchId": 10 * number,
                    "offsets": [{"system": "log", "stream": stream, "partition": task, "offset": 100 * number}],
                    "checkpointId": f"17000000{number:05}-123456",
                    "rowsLeft": 3,
                    "operatorsLeft": ["dropDuplicates"],
                    "note": "3 rows of a state without a watermark",
                }
                self.post(f"/runs/{run_id}/tasks/Partition%20{task}/stages/{stage}/drain", body)


def fill(coordinator: Coordinator, blobs: Path) -> None:
    """Jobs in every state that a run can have."""
    for job in ("delays", "weather", "tolls", "ferries", "rail"):
        coordinator.log.create(f"{job}-flights", 2)
    _grown_and_draining(coordinator)
    _drained_and_going_on(coordinator)
    _failed_drain(coordinator)
    _ended(coordinator)
    _marked_blob(coordinator, blobs)


def _grown_and_draining(c: Coordinator) -> None:
    """A run that has replaced another one, has grown, has two slots and a superseded container, and is FLUSHING."""
    first = c.deploy("delays")
    c.register(first, "delays-a")
    for task in (0, 1):
        c.run_stages("delays", first, task, c.acquire(first, "delays-a", task))
    second = c.deploy("delays", containers=2, config={"team": "Zürich", "standby.replicas": "1"})
    c.exit("delays-a")
    c.register(second, "delays-b")
    assert c.register(second, "delays-c") == 2
    c.register(second, "delays-d", "1")
    c.log.grow("delays-flights", 4)
    wait_for("the partition monitor", lambda: c.get(f"/runs/{second}")["jobModelVersion"] == 3 and c.get(f"/runs/{second}")["watched"])
    c.post(f"/runs/{second}/containers/delays-c/adopted", {"version": 3, "epoch": 2})
    c.run_stages("delays", second, 0, c.acquire(second, "delays-c", 0, 2), (3, 4))
    c.run_stages("delays", second, 1, c.acquire(second, "delays-d", 1), (3, 4))
    pin = {"pinId": "before-the-audit", "task": "Partition 0", "stage": "hourly", "reason": "the auditors"}
    c.post("/jobs/delays/pins", {**pin, "expiresSeconds": FOR_EVER})
    uuid = c.drain(second)
    c.step("delays", second, uuid, "stopped", 2, number=4)
    assert c.get(f"/drain/{uuid}")["phase"] == "FLUSHING"
    c.step("delays", second, uuid, "flushed", 2, (0,), 4)


def _drained_and_going_on(c: Coordinator) -> None:
    """A run that was drained after a cancelled drain, and a run that began at the drained offsets and works."""
    first = c.deploy("weather")
    c.register(first, "weather-a")
    for task in (0, 1):
        c.run_stages("weather", first, task, c.acquire(first, "weather-a", task))
    c.send("DELETE", f"/drain/{c.drain(first)}")
    uuid = c.drain(first)
    for step in ("stopped", "flushed", "committed"):
        c.step("weather", first, uuid, step)
    assert c.get(f"/drain/{uuid}")["phase"] == "DRAINED"
    c.exit("weather-a")
    second = c.deploy("weather", start="drained")
    c.register(second, "weather-b")
    for task in (0, 1):
        c.run_stages("weather", second, task, c.acquire(second, "weather-b", task), (3, 4))


def _failed_drain(c: Coordinator) -> None:
    """A drain that flushed something and reached its hard deadline."""
    run = c.deploy("tolls")
    c.register(run, "tolls-a")
    for task in (0, 1):
        c.run_stages("tolls", run, task, c.acquire(run, "tolls-a", task))
    uuid = c.drain(run, hard=3)
    c.step("tolls", run, uuid, "stopped")
    c.step("tolls", run, uuid, "flushed", tasks=(0,))
    wait_for("the deadline", lambda: c.get(f"/drain/{uuid}")["phase"] == "FAILED")


def _ended(c: Coordinator) -> None:
    """Runs that are STOPPED, FAILED and CREATED."""
    for job, stop in (("ferries", {"reason": "the season is over"}), ("rail", {"reason": "derailed", "failed": True})):
        run = c.deploy(job)
        c.register(run, f"{job}-a")
        c.run_stages(job, run, 0, c.acquire(run, f"{job}-a", 0))
        c.post(f"/runs/{run}/stop", stop)
        c.exit(f"{job}-a", 0 if job == "ferries" else 1)
    c.post("/jobs/rail/snapshots/1700000000001-123456/restore", {"task": "Partition 0", "stage": "hourly"})
    new = c.deploy("ferries", start="earliest")
    wait_for("the partition monitor", lambda: c.get(f"/runs/{new}")["watched"])


def _marked_blob(c: Coordinator, blobs: Path) -> None:
    """A blob that no snapshot refers to, which a collection marks."""
    orphan = blobs / "blobs" / "jobs" / "weather" / "Partition_9" / "hourly" / "data" / "1700000000001-00000000000000ff"
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(b"orphan")
    errand = c.post("/gc/run")["errand"]
    assert c.get(f"/errands/{errand}?wait=30")["state"] == "DONE"


def answers(coordinator: Coordinator) -> Json:
    """The answers of the coordinator, by path."""
    found: Json = {}

    def get(path: str) -> Any:
        found[path] = coordinator.get(path)
        return found[path]

    get("/runs")
    for job in [each["job"] for each in get("/jobs")["jobs"]]:
        for path in ("/jobModel?job={}", "/locality?job={}", "/jobs/{}/snapshots", "/jobs/{}/pins"):
            get(path.format(job))
        for run in get(f"/runs?job={job}")["runs"]:
            for path in ("", "/request", "/notices?wait=0"):
                get(f"/runs/{run['runId']}{path}")
        for drain in get(f"/drains?job={job}")["drains"]:
            get(f"/drain/{drain['uuid']}")
        for model in get(f"/jobs/{job}/models")["models"]:
            get(f"/jobs/{job}/models/{model['version']}")
    return found


@contextmanager
def coordinator_of(release: Release, home: Path, *flags: str) -> Iterator[Coordinator]:
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [*release.command, "coordinator", "--home", str(home), "--port", str(port), *flags]
    environment = {**release.environment, "SLUICE_GC_EVERY_SECONDS": "1000000", "SLUICE_PARTITION_MONITOR_SECONDS": "1"}
    with serving(command, f"{url}/readyz", home.parent / "coordinator.log", cwd=release.directory, environment=environment) as process:
        yield Coordinator(url, Log(home / "log"))
        end(process)


def of_sqlite(release: Release, root: Path) -> None:
    home = root / "home"
    with coordinator_of(release, home) as coordinator:
        fill(coordinator, home / "blobs")
    with closing(sqlite3.connect(home / "coordinator.db")) as database:
        (DATA / "sqlite.sql").write_text(without_traces("\n".join(database.iterdump()) + "\n", home))
    with coordinator_of(release, home) as coordinator:
        store_answers("sqlite", coordinator, home)


def of_postgresql(release: Release, root: Path, server: Postgres) -> None:
    home, url = root / "home", server.new_database()
    with coordinator_of(release, home, "--database-url", url) as coordinator:
        fill(coordinator, home / "blobs")
    plain = url.replace("+asyncpg", "")
    dump = [str(server.programs / "pg_dump"), "--no-owner", "--no-comments", "--inserts", "--rows-per-insert=100", plain]
    output = subprocess.run(dump, check=True, capture_output=True, text=True, timeout=60).stdout
    kept = [line for line in output.splitlines() if line and not re.match(r"--|SET |\\", line)]
    (DATA / "postgresql.sql").write_text(without_traces("\n".join(kept) + "\n", home))
    with coordinator_of(release, home, "--database-url", url) as coordinator:
        store_answers("postgresql", coordinator, home)


def store_answers(name: str, coordinator: Coordinator, home: Path) -> None:
    text = json.dumps(answers(coordinator), ensure_ascii=False, indent=0, sort_keys=True)
    (DATA / f"{name}.json").write_text(without_traces(text, home) + "\n")


def without_traces(text: str, home: Path) -> str:
    """Removes the names of the directory and the machine."""
    return text.replace(str(home), "/var/lib/sluice").replace(socket.gethostname(), "coordinator.example")


def main() -> None:
    with TemporaryDirectory(prefix="sluice-release-0.1-") as made:
        root = Path(made)
        for name in ("release", "sqlite", "postgresql"):
            (root / name).mkdir()
        release = release_0_1(root / "release")
        of_sqlite(release, root / "sqlite")
        with postgres() as server:
            of_postgresql(release, root / "postgresql", server)


if __name__ == "__main__":
    main()
