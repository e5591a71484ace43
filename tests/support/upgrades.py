"""`sluice upgrade` as a process. The test acts as the containers of the job: it sends their reports to the coordinator."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sluice.deploy import deploy_request
from sluice.job import load_job
from sluice.streams.log import Log
from tests.support.api import offsets_json
from tests.support.coordinators import GENEROUS, Running
from tests.support.processes import SLUICE, kill_whole, start, tail, wait_for

JOB = """
from sluice import Job

job = Job("copy")
numbers, out = job.input("numbers"), job.output("out")


@job.stage(reads=numbers, writes=out)
def copy(task): ...
"""

NEW = JOB.replace("def copy(task): ...", "def copy(task):\n    return None")
"""Another version with the same graph."""


class Command:
    """A started `sluice upgrade` and its output."""

    def __init__(self, words: list[str], log: Path) -> None:
        self._log = log
        self._process = start([*SLUICE, "upgrade", *words], log, environment={"PYTHONUNBUFFERED": "1"})
        self._read = 0

    @property
    def said(self) -> list[str]:
        """The lines of its output so far."""
        return self._log.read_text().rpartition("\n")[0].splitlines()

    def until(self, text: str, within: float = 2 * GENEROUS) -> str:
        """Wait for a line with this text, and return it."""

        def found() -> str | None:
            ended = self._process.poll() is not None
            for line in self.said[self._read :]:
                self._read += 1
                if text in line:
                    return line
            assert not ended, f"it ended without {text!r}\n{tail(self._log)}"
            return None

        return wait_for(text, found, within, details=lambda: tail(self._log))

    def ends(self, within: float = 2 * GENEROUS) -> tuple[int, str]:
        """Wait for its end. Returns its exit code and its last line of output: of an error, the message above the remedy."""
        code = self._process.wait(within)
        said = [line for line in self.said if not line.startswith("remedy: ")]
        return code, said[-1] if said else ""

    def press_ctrl_c(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def close(self) -> None:
        kill_whole(self._process)


class World:
    """A job of two tasks in one container that runs its old version, and job files of new versions."""

    def __init__(self, coordinator: Running, root: Path) -> None:
        self.coordinator = coordinator
        self.http = coordinator.http
        self.url = str(self.http.base_url).rstrip("/")
        self.root = root
        self.log = Log(root / "home" / "log")
        self.generations: dict[int, int] = {}
        self.starts: dict[int, int] = {}
        self._commands: list[Command] = []
        self.old = self.file("old.py", JOB)
        request = deploy_request(load_job(self.old), 1, "log", "checkpoint", {"backup.stores": "", "kept": "1"})
        self.run_id = str(self.post("/runs", request.model_dump(mode="json", by_alias=True))["runId"])

    def file(self, name: str, text: str) -> Path:
        (self.root / name).write_text(text)
        return self.root / name

    def upgrade(self, file: Path, *words: str) -> Command:
        made = Command([str(file), "--coordinator", self.url, *words], self.root / f"upgrade-{len(self._commands)}.log")
        self._commands.append(made)
        return made

    def close(self) -> None:
        for each in self._commands:
            each.close()

    # --- the coordinator -------------------------------------------------------------------------------------------

    def post(self, path: str, body: Any) -> Any:
        answer = self.http.post(path, json=body)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def get(self, path: str, **query: str) -> Any:
        answer = self.http.get(path, params=query)
        assert answer.is_success, answer.text
        return answer.json()

    def run(self, run_id: str | None = None) -> Any:
        return self.get(f"/runs/{run_id or self.run_id}")

    @property
    def current(self) -> str:
        return str(self.get("/jobs")["jobs"][0]["currentRun"])

    @property
    def runs(self) -> list[str]:
        return [each["runId"] for each in self.get("/runs")["runs"]]

    @property
    def uuid(self) -> str:
        return str(self.get("/drains", job="copy")["drains"][0]["uuid"])

    # --- containers ------------------------------------------------------------------------------------------------

    def come(self, run_id: str, container: str, modes: Sequence[str] = ("DEFAULT",)) -> None:
        """A container that supports drains of these modes takes slot 0 and both tasks."""
        body = {"processorId": "0", "executionContainerId": container, "drainModes": modes}
        epoch = self.post(f"/runs/{run_id}/containers", body)["epoch"]
        for task in (0, 1):
            found = self.post(f"/runs/{run_id}/tasks/Partition {task}/acquire", {"executionContainerId": container, "epoch": epoch})
            self.generations[task] = found["generation"]
            self.starts[task] = found["stages"][0]["starts"][0]["offset"]

    def commit(self, run_id: str, batch: int, task: int, *, unflushable: list[str] | None = None) -> None:
        lineage = self.run(run_id)["tasks"][task]["stages"][0]["lineage"]
        measures = {"rows": 1, "rowsPerSecond": 1, "batchMillis": 1, "lag": 9, "at": "2026-03-01T12:00:00Z"}
        if unflushable is not None:
            measures["unflushable"] = unflushable
        body = {"generation": self.generations[task], "stage": "copy", "lineage": lineage, "batchId": batch, "offsets": []}
        self.post(f"/runs/{run_id}/tasks/Partition {task}/progress", {**body, "metrics": measures})

    def works(self, run_id: str, container: str, batches: int = 2) -> None:
        """A container registers, and commits batches that leave no unflushable state."""
        self.come(run_id, container)
        for batch in range(batches):
            for task in (0, 1):
                self.commit(run_id, batch, task, unflushable=[])

    def exits(self, container: str, code: int = 0, reason: str = "") -> None:
        self.post(f"/containers/{container}/exit", {"exitCode": code, "reason": reason})

    def step(self, step: str, run_id: str, **changes: Any) -> None:
        for task in (0, 1):
            offsets = offsets_json({("numbers", task): 70 + task})
            body = {"generation": self.generations[task], "uuid": self.uuid, "step": step, "batchId": 7, "offsets": offsets, **changes}
            self.post(f"/runs/{run_id}/tasks/Partition {task}/stages/copy/drain", body)

    def drains(self, run_id: str, container: str, **left: Any) -> None:
        """The container takes part in the drain, and exits."""
        self.step("stopped", run_id)
        self.step("flushed", run_id, **left)
        self.step("committed", run_id, **left)
        self.exits(container)


@contextmanager
def world(coordinator: Running, root: Path) -> Iterator[World]:
    made = World(coordinator, root)
    try:
        yield made
    finally:
        made.close()
