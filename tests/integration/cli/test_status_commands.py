"""`sluice status` and its siblings against a coordinator on a socket."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import typer
from typer.testing import CliRunner

from coordinator.server import listen, server
from coordinator.settings import read_settings
from sluice.cli import jobs, models, status
from sluice.client import Refused
from sluice.core.errors import ClientError, CoordinatorUnreachable, SluiceError, UnknownJob
from sluice.core.watermarks import event_time_missing
from sluice.streams.log import Log
from tests.support.api import Json, run_body
from tests.support.processes import SLUICE, free_port
from tests.support.terminal import SHOW_CURSOR, at_terminal

GENEROUS = 600.0
UP_A_LINE = "\x1b[1A"

app = typer.Typer()
app.add_typer(jobs.app, name="jobs")
for command in (status.status, status.runs, status.containers, status.tasks, models.plan):
    app.command()(command)


class Coordinator:
    """A coordinator, and operations on it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.http = httpx.Client(base_url=url, timeout=GENEROUS, verify=False)

    def post(self, path: str, body: Json) -> Json:
        answer = self.http.post(path, json=body).raise_for_status()
        return answer.json() if answer.content else {}

    def deploy(self, job: str = "flight-delays", **changes: Any) -> str:
        outputs = [{"name": "delays", "system": "log", "stream": f"out-of-{job}"}]
        return str(self.post("/runs", run_body(job=job, outputs=outputs, **changes))["runId"])

    def working(self, job: str = "flight-delays") -> str:
        """A run whose only container owns both tasks and has reported a batch of each."""
        run_id = self.deploy(job)
        epoch = self.post(f"/runs/{run_id}/containers", {"processorId": "0", "executionContainerId": f"{run_id}-c"})["epoch"]
        for task in ("Partition 0", "Partition 1"):
            path = f"/runs/{run_id}/tasks/{quote(task)}"
            held = self.post(f"{path}/acquire", {"executionContainerId": f"{run_id}-c", "epoch": epoch})
            measures = {"rows": 5, "rowsPerSecond": 2.5, "batchMillis": 800, "at": datetime.now(UTC).isoformat()}
            stage = {"stage": "hourly", "lineage": held["stages"][0]["lineage"], "batchId": 6, "offsets": [], "metrics": measures}
            self.post(f"{path}/progress", {"generation": held["generation"], **stage})
        return run_id

    def sluice(self, *words: str, code: int = 0) -> str:
        """The output of a command without a terminal."""
        done = CliRunner().invoke(app, [*words, "--coordinator", self.url], catch_exceptions=True)
        if isinstance(done.exception, SluiceError):
            raise done.exception
        assert done.exit_code == code, done.output
        return done.output

    def as_json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self.sluice(*words, "--json", code=code))


@contextmanager
def coordinating(home: Path, port: int = 0) -> Iterator[Coordinator]:
    Log(home / "log").create("flights", 2)
    listening = listen("127.0.0.1", port)
    running = server(read_settings(home=home))
    thread = threading.Thread(target=running.run, args=([listening],))
    thread.start()
    made = Coordinator(f"http://127.0.0.1:{listening.getsockname()[1]}")
    made.http.get("/readyz").raise_for_status()
    try:
        with closing(made.http):
            yield made
    finally:
        running.should_exit = True
        thread.join()


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    with coordinating(tmp_path / "home") as made:
        yield made


# --- for people ---


def test_a_status_is_one_page(coordinator: Coordinator) -> None:
    run_id = coordinator.working()
    lines = coordinator.sluice("status").splitlines()
    assert lines[0].startswith("flight-delays  RUNNING since 20")
    assert lines[1] == f"  run         {run_id}"
    assert re.match(r"  containers  1/1 live, last heartbeat \d+s ago, lease left ", lines[2])
    assert lines[3] == "  tasks       2/2 owned"
    stage, rate, _, took, lag, _, backup, batches, delivery = lines[-1].split()
    assert (stage, rate, took, lag, backup, batches, delivery) == ("hourly", "5.0", "800ms", "-", "-", "14", "-")


def test_ids_are_not_shortened_without_a_terminal(coordinator: Coordinator) -> None:
    run_id = coordinator.working()
    assert f" {run_id}-c " in coordinator.sluice("containers")
    assert coordinator.sluice("tasks").count(f" {run_id}-c ") == 2
    assert run_id in coordinator.sluice("jobs")
    assert coordinator.sluice("runs").splitlines()[1].split()[:2] == [run_id, "RUNNING"]


def test_a_finished_job_is_removed_and_a_running_one_is_not(coordinator: Coordinator) -> None:
    run_id = coordinator.working()
    with pytest.raises(Refused, match="sluice drain flight-delays"):
        coordinator.sluice("jobs", "rm", "flight-delays")
    coordinator.post(f"/containers/{run_id}-c/exit", {"exitCode": 0, "reason": "done"})
    coordinator.post(f"/runs/{run_id}/stop", {})
    planned = coordinator.sluice("jobs", "rm", "flight-delays", "--dry-run")
    assert planned.startswith("job flight-delays would be removed, with 1 runs, 1 containers, 1 versions")
    assert run_id in coordinator.sluice("jobs")
    assert coordinator.as_json("jobs", "rm", "flight-delays")["runs"] == 1
    assert run_id not in coordinator.sluice("jobs")


WITHOUT_EVENT_TIME = """
from sluice import Job

job = Job("untimed")
flights, mid, out = job.input("flights"), job.intermediate("mid", partitions=2), job.output("untimed-out")


@job.stage(reads=flights, writes=mid)
def first(task):
    return task.write(task.read(flights), mid)


@job.stage(reads=mid, writes=out)
def last(task):
    return task.write(task.read(mid).withWatermark("timestamp", "1 minute"), out)
"""


def test_deploy_plan_and_status_name_a_stage_without_event_time_and_what_to_do_about_it(coordinator: Coordinator, tmp_path: Path) -> None:
    sentence = event_time_missing("first", ["mid"])
    assert sentence.endswith('name the column: task.write(…, event_time="…")')
    file = tmp_path / "job.py"
    file.write_text(WITHOUT_EVENT_TIME)
    done = subprocess.run(
        [*SLUICE, "deploy", str(file), "--coordinator", coordinator.url], capture_output=True, text=True, timeout=600, check=True
    )
    assert sentence in done.stderr
    run_id = done.stdout.strip()
    epoch = coordinator.post(f"/runs/{run_id}/containers", {"processorId": "0", "executionContainerId": "c"})["epoch"]
    held = coordinator.post(f"/runs/{run_id}/tasks/Partition 0/acquire", {"executionContainerId": "c", "epoch": epoch})
    assert sentence not in coordinator.sluice("status", "untimed")
    stage = {"task": "Partition 0", "generation": held["generation"], "stage": "first", "source": "none"}
    coordinator.post(f"/runs/{run_id}/watermarks", {"stages": [stage]})
    assert sentence in coordinator.sluice("status", "untimed")
    assert f"! {sentence}" in coordinator.sluice("plan", "untimed").splitlines()


def test_the_status_has_every_job(coordinator: Coordinator) -> None:
    coordinator.working("a")
    coordinator.working("b")
    assert [line.split()[0] for line in coordinator.sluice("status").splitlines() if " RUNNING " in line] == ["a", "b"]
    assert "b  RUNNING" not in coordinator.sluice("status", "a")


def test_the_status_shows_the_other_jobs_if_one_cannot_be_read(coordinator: Coordinator, tmp_path: Path) -> None:
    runs = {job: coordinator.working(job) for job in ("a", "b")}
    with closing(sqlite3.connect(tmp_path / "home" / "coordinator.db")) as database:
        database.execute("UPDATE stores SET offsets = '{' WHERE job = 'a'")
        database.commit()
    page = coordinator.sluice("status")
    assert "b  RUNNING" in page
    assert f"! a: run {runs['a']} cannot be read: " in page
    reported = coordinator.as_json("status")
    assert (reported["healthy"], [each["job"] for each in reported["jobs"]]) == (False, ["b"])
    assert [(each["job"], each["runId"]) for each in reported["errors"]] == [("a", runs["a"])]
    assert f"a: run {runs['a']} cannot be read: " in coordinator.sluice("status", "--check", code=2)
    with pytest.raises(CoordinatorUnreachable):
        coordinator.sluice("status", "a")


def test_older_runs_are_on_the_next_page(coordinator: Coordinator) -> None:
    first, second = coordinator.deploy(), coordinator.deploy()
    shown = coordinator.sluice("runs", "--limit", "1")
    assert shown.splitlines()[-1] == f"for older entries: --before {second}"
    assert first not in shown
    assert first in coordinator.sluice("runs", "--limit", "1", "--before", second)


# --- which one ---


def test_a_job_stands_for_its_current_run(coordinator: Coordinator) -> None:
    old, new = coordinator.deploy("a"), coordinator.deploy("a")
    coordinator.deploy("b")
    assert coordinator.as_json("tasks", "a")["runId"] == new
    assert coordinator.as_json("tasks", old)["runId"] == old


@pytest.mark.parametrize("command", ["containers", "tasks", "runs"])
def test_a_command_without_a_job_lists_the_choices_if_there_are_several(coordinator: Coordinator, command: str) -> None:
    runs = {job: coordinator.deploy(job) for job in ("a", "b")}
    with pytest.raises(ClientError, match="there are 2 jobs") as refused:
        coordinator.sluice(command)
    for job, run_id in runs.items():
        assert (job if command == "runs" else run_id) in str(refused.value)


@pytest.mark.parametrize("command", ["containers", "tasks", "runs"])
def test_a_command_without_any_job_or_run_is_refused(coordinator: Coordinator, command: str) -> None:
    with pytest.raises(ClientError, match=r"there are no (jobs|runs) yet"):
        coordinator.sluice(command)


def test_unknown_names_are_refused(coordinator: Coordinator) -> None:
    coordinator.deploy("a")
    with pytest.raises(ClientError, match="no job or run 'nothing'; the jobs are: a"):
        coordinator.sluice("tasks", "nothing")
    with pytest.raises(UnknownJob, match="no job 'b'; the jobs are: a"):
        coordinator.sluice("status", "b")


# --- for scripts ---


def test_json_has_the_field_names_of_the_api(coordinator: Coordinator) -> None:
    run_id = coordinator.working()
    detail = coordinator.http.get(f"/runs/{run_id}").json()
    containers = coordinator.as_json("containers")
    assert containers.keys() == {"job", "runId", "containers"}
    assert containers["containers"][0].keys() == detail["incarnations"][0].keys()
    assert coordinator.as_json("tasks") == {"job": "flight-delays", "runId": run_id, "tasks": detail["tasks"]}
    assert coordinator.as_json("jobs") == coordinator.http.get("/jobs").json()
    assert coordinator.as_json("runs") == coordinator.http.get("/runs").json()


def test_a_status_as_json_is_complete(coordinator: Coordinator) -> None:
    run_id = coordinator.working()
    reported = coordinator.as_json("status")
    assert reported.keys() == {"healthy", "jobs", "errors"}
    assert (reported["healthy"], reported["errors"]) == (True, [])
    (job,) = reported["jobs"]
    assert (job["job"], job["runId"], job["state"], job["containersLive"], job["tasksOwned"], job["problems"]) == (
        *("flight-delays", run_id, "RUNNING", 1, 2),
        [],
    )
    assert job["stages"][0].keys() == {
        *("stage", "batches", "rowsPerSecond", "lag", "batchMillis", "watermarkLagSeconds", "reportAgeSeconds"),
        *("snapshotAgeSeconds", "batchesSinceSnapshot", "lateRows", "delivery"),
    }


def test_a_successful_check_prints_that_and_exits_with_0(coordinator: Coordinator) -> None:
    assert coordinator.sluice("status", "--check") == "healthy\n"
    coordinator.working()
    assert coordinator.sluice("status", "--check") == "healthy\n"
    assert coordinator.as_json("status", "--check")["healthy"] is True


def test_a_failed_check_prints_each_reason_and_exits_with_2(coordinator: Coordinator) -> None:
    coordinator.working("well")
    coordinator.deploy("ill")
    assert coordinator.sluice("status", "--check", code=2).splitlines() == [
        "ill: 0 of 1 containers are live",
        "ill: 2 tasks without an owner: Partition 0, Partition 1",
    ]
    assert coordinator.as_json("status", "--check", code=2)["healthy"] is False
    assert coordinator.sluice("status", "well", "--check") == "healthy\n"


def test_a_check_finds_a_run_that_failed(coordinator: Coordinator) -> None:
    run_id = coordinator.deploy()
    coordinator.post(f"/runs/{run_id}/stop", {"reason": "boom", "failed": True})
    assert coordinator.sluice("status", "--check", code=2) == f"flight-delays: run {run_id} has failed: boom\n"


def test_an_unreachable_coordinator_is_an_error() -> None:
    with pytest.raises(CoordinatorUnreachable):
        Coordinator(f"http://127.0.0.1:{free_port()}").sluice("status", "--check")


# --- as processes ---


def sluice(*words: str) -> list[str]:
    return [sys.executable, "-m", "sluice", *words]


def test_errors_are_one_line_and_a_remedy_with_exit_code_1() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    environment = {**os.environ, "SLUICE_COORDINATOR_URL": url}
    done = subprocess.run(sluice("status"), capture_output=True, text=True, timeout=GENEROUS, check=False, env=environment)
    assert (done.returncode, done.stdout) == (1, "")
    line, remedy = done.stderr.splitlines()
    assert line.startswith(f"sluice: The coordinator does not answer. {url}")
    assert remedy.startswith("remedy: Check `SLUICE_COORDINATOR_URL`")


@pytest.mark.parametrize(
    "words", [["jobs"], ["status", "--watch"], *(pytest.param(each, marks=pytest.mark.long) for each in (["status"], ["status", "--json"]))]
)
def test_a_command_ends_without_an_error_when_its_reader_closes_the_pipe(coordinator: Coordinator, words: list[str]) -> None:
    coordinator.working()
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = sluice(*words, "--coordinator", coordinator.url)
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=GENEROUS, check=False)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def watch(url: str) -> list[str]:
    return sluice("status", "--watch", "--coordinator", url)


def test_a_watch_refreshes_in_place_until_ctrl_c_and_leaves_the_terminal_as_it_was(coordinator: Coordinator) -> None:
    run_id = coordinator.working()
    with at_terminal(watch(coordinator.url)) as terminal:
        terminal.until(run_id)
        coordinator.post(f"/runs/{run_id}/stop", {"reason": "enough"})
        coordinator.post(f"/containers/{run_id}-c/exit", {"exitCode": 0})
        assert UP_A_LINE in terminal.until("STOPPED")
        terminal.press_ctrl_c()
        terminal.until(SHOW_CURSOR)
        assert terminal.process.wait(GENEROUS) == 0
    assert "Traceback" not in terminal.text


def test_a_watch_continues_while_its_coordinator_cannot_be_reached(tmp_path: Path) -> None:
    port = free_port()
    with at_terminal(watch(f"http://127.0.0.1:{port}")) as terminal:
        terminal.until("retrying")
        with coordinating(tmp_path / "home", port):
            terminal.until("there are no jobs yet")
        terminal.until("the status shown is")
        terminal.process.send_signal(signal.SIGTERM)
        terminal.until(SHOW_CURSOR)
        assert terminal.process.wait(GENEROUS) == 0


@pytest.mark.parametrize("other", ["--json", "--check"])
def test_a_watch_cannot_be_combined_with_output_for_scripts(coordinator: Coordinator, other: str) -> None:
    with pytest.raises(ClientError, match="leave out --json and --check"):
        coordinator.sluice("status", "--watch", other)


def test_a_stop_that_takes_long_says_which_tasks_it_waits_for(coordinator: Coordinator) -> None:
    run_id = coordinator.working()
    command = [*SLUICE, "stop", run_id, "--coordinator", coordinator.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as stopping:
        assert stopping.stderr is not None
        try:
            assert stopping.stderr.readline() == "waiting for running batches: Partition 0, Partition 1\n"
        finally:
            stopping.kill()
