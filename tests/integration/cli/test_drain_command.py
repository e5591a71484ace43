"""`sluice drain` against a coordinator process; the test reports in place of containers."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from sluice.cli.drain import drain
from sluice.core.errors import SluiceError
from sluice.streams.log import Log
from tests.support.api import UNSAVED, offsets_json, run_body
from tests.support.coordinators import GENEROUS, Running, running
from tests.support.terminal import at_terminal

SLUICE = [sys.executable, "-m", "sluice"]

app = typer.Typer()
app.command()(drain)


class Job:
    """A run of two tasks, which one container owns."""

    def __init__(self, coordinator: Running) -> None:
        self.http = coordinator.http
        self.url = str(self.http.base_url).rstrip("/")
        self.run_id = str(self.post("/runs", run_body(**UNSAVED))["runId"])
        self.post(f"/runs/{self.run_id}/containers", {"processorId": "0", "executionContainerId": "c1"})
        for task in (0, 1):
            self.post(f"/runs/{self.run_id}/tasks/Partition {task}/acquire", {"executionContainerId": "c1", "epoch": 1})

    def post(self, path: str, body: Any) -> Any:
        answer = self.http.post(path, json=body)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def sluice(self, *words: str, code: int = 0) -> Result:
        """The output of the command without a terminal."""
        done = CliRunner().invoke(app, [*words, "--coordinator", self.url])
        assert done.exit_code == code, done.output
        return done

    def refused(self, *words: str) -> str:
        done = CliRunner().invoke(app, [*words, "--coordinator", self.url])
        assert isinstance(done.exception, SluiceError), done.output
        return str(done.exception)

    @property
    def uuid(self) -> str:
        return str(self.http.get("/drains", params={"job": "flight-delays"}).json()["drains"][0]["uuid"])

    def take(self, step: str, task: int, **changes: Any) -> str:
        offsets = offsets_json({("flights", task): 70})
        body = {"generation": 1, "uuid": self.uuid, "step": step, "batchId": 7, "offsets": offsets, **changes}
        return str(self.post(f"/runs/{self.run_id}/tasks/Partition {task}/stages/hourly/drain", body)["phase"])

    def all_take(self, *steps: str, **changes: Any) -> None:
        for step in steps:
            for task in (0, 1):
                self.take(step, task, **changes)

    def measured(self, task: int, unflushable: list[str], operators: list[dict[str, str]] | None = None) -> None:
        lineage = self.http.get(f"/runs/{self.run_id}").json()["tasks"][task]["stages"][0]["lineage"]
        measures = {
            "rows": 1,
            "rowsPerSecond": 1,
            "batchMillis": 1,
            "stateRows": 40,
            "unflushable": unflushable,
            "operators": operators,
            "at": "2026-03-01T12:00:00Z",
        }
        body = {"generation": 1, "stage": "hourly", "lineage": lineage, "batchId": 1, "offsets": [], "metrics": measures}
        self.post(f"/runs/{self.run_id}/tasks/Partition {task}/progress", body)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    Log(tmp_path / "home" / "log").create("flights", 2)
    with running(tmp_path / "home") as coordinator:
        yield Job(coordinator)


def test_a_drain_is_requested_and_requested_again(job: Job) -> None:
    first = job.sluice("flight-delays").stdout
    assert first == f"the drain of run {job.run_id} of job flight-delays is STOPPING: {job.uuid}\n"
    assert json.loads(job.sluice("--json").stdout)["uuid"] == job.uuid


def test_the_last_line_reports_the_end_of_the_drain(job: Job) -> None:
    job.sluice()
    job.all_take("stopped", "flushed", "committed")
    done = job.sluice("--wait")
    assert done.stdout.startswith(f"drained run {job.run_id} of job flight-delays in ")
    assert done.stdout.endswith(": the next run starts at the recorded offsets of 2 partitions, with empty state\n")
    assert done.stderr == "flight-delays: DRAINED\n"
    assert json.loads(job.sluice("--wait", "--json").stdout)["phase"] == "DRAINED"


def test_rows_that_a_flush_could_not_empty_are_always_reported(job: Job) -> None:
    job.sluice()
    job.all_take("stopped")
    job.all_take("flushed", "committed", leftoverRows=1200, leftoverOperators=["Aggregate"])
    first = job.sluice("--wait").stdout.splitlines()[0]
    assert first == "the flush left 2,400 rows in state (stage hourly: Aggregate)"


def test_a_drain_is_followed_on_a_terminal_with_a_bar_for_each_task(job: Job) -> None:
    with at_terminal([*SLUICE, "drain", "--wait", "--coordinator", job.url]) as terminal:
        terminal.until("STOPPING")
        terminal.until("Partition 1")
        job.all_take("stopped")
        terminal.until("FLUSHING")
        job.take("flushing", 0, note="round 2")
        terminal.until("hourly: flushing, round 2")
        job.all_take("flushed", "committed")
        terminal.until("with empty state")
        assert terminal.process.wait(GENEROUS) == 0
    assert f"drained run {job.run_id} of job flight-delays in " in terminal.text


def test_a_command_that_stops_waiting_does_not_stop_the_drain(job: Job) -> None:
    with at_terminal([*SLUICE, "drain", "--wait", "--coordinator", job.url]) as terminal:
        terminal.until("STOPPING")
        terminal.press_ctrl_c()
        terminal.until("the drain continues in the background")
        assert terminal.process.wait(GENEROUS) != 0
    assert job.http.get(f"/drain/{job.uuid}").json()["phase"] == "STOPPING"


def test_a_cancelled_drain_has_another_exit_code(job: Job) -> None:
    job.sluice()
    assert "was cancelled" in job.sluice("flight-delays", "--cancel").stdout
    assert job.http.get(f"/runs/{job.run_id}").json()["state"] == "RUNNING"
    with at_terminal([*SLUICE, "drain", "--wait", "--coordinator", job.url]) as terminal:
        terminal.until("STOPPING")
        job.sluice("--cancel")
        terminal.until("was cancelled")
        assert terminal.process.wait(GENEROUS) == 2


def test_a_drain_that_missed_its_hard_deadline_is_shown_with_what_was_late(job: Job) -> None:
    done = job.sluice("--wait", "--hard-seconds", "0.2", code=2)
    assert f"the drain of run {job.run_id} of job flight-delays failed in " in done.stdout
    assert "its hard deadline has passed; it waits for Partition 0, stage hourly (slot 0): at work" in done.stdout


def test_a_dry_run_names_stages_and_operators_and_changes_nothing(job: Job) -> None:
    assert "2 tasks have not reported" in job.sluice("--dry-run", code=2).stdout
    job.measured(0, [])
    job.measured(1, ["Aggregate without a watermark"])
    output = job.sluice("--dry-run", code=2).stdout
    assert "hourly" in output
    assert "Aggregate without a watermark" in output
    assert "a drain would leave rows in some state" in output
    assert "Aggregate without a watermark" in job.refused("--require-empty")
    job.measured(1, [])
    assert "a drain would empty all state" in job.sluice("--dry-run").stdout
    assert json.loads(job.sluice("--dry-run", "--json").stdout)["empties"] is True
    assert job.http.get(f"/runs/{job.run_id}").json()["state"] == "RUNNING"
    job.sluice("--require-empty")


def test_a_dry_run_lists_the_losses_even_if_no_row_is_left(job: Job) -> None:
    for task in (0, 1):
        job.measured(task, [], [{"operator": "dropDuplicatesWithinWatermark", "effect": "forgets"}])
    output = " ".join(job.sluice("--dry-run").stdout.split())
    assert "forgets the keys that it has seen" in output
    assert "dropDuplicatesWithinWatermark of stage hourly would forget the records from before the drain: use --keep-state" in output
    refused = " ".join(job.sluice("--dry-run", "--keep-state", code=2).stdout.split())
    assert "a drain that keeps the state would be refused: c1" in refused
    assert "c1: their release empties the state in every drain" in job.refused("--keep-state")
    known = {"processorId": "0", "executionContainerId": "c2", "drainModes": ["DEFAULT", "KEEP_STATE"]}
    job.post(f"/runs/{job.run_id}/containers", known)
    assert "a drain would keep all state" in " ".join(job.sluice("--dry-run", "--keep-state").stdout.split())
    assert "is STOPPING" in job.sluice("--keep-state").stdout
    assert "keeps the state" in job.refused()
    assert "was cancelled" in job.sluice("--cancel").stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["nothing"], "no job 'nothing'"),
        (["--cancel"], "job flight-delays was never drained"),
        (["--cancel", "--wait"], "leave out --wait"),
        (["--dry-run", "--cancel"], "leave out --wait and --cancel"),
        (["--keep-state", "--cancel"], "leave out --wait, --require-empty and --keep-state"),
        (["--keep-state", "--require-empty"], "leave out --require-empty"),
    ],
)
def test_a_refused_drain_is_an_error(job: Job, words: list[str], expected: str) -> None:
    assert expected in job.refused(*words)


def test_a_drain_cannot_be_cancelled_after_its_flush_has_begun(job: Job) -> None:
    job.sluice()
    job.all_take("stopped")
    assert "FLUSHING" in job.refused("--cancel")
