"""`sluice events` against a coordinator on a socket."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from sluice.cli import events
from sluice.core.errors import ClientError, SluiceError, UnknownJob
from tests.integration.cli.test_status_commands import GENEROUS, Coordinator, coordinating
from tests.support.processes import free_port
from tests.support.terminal import at_terminal

app = typer.Typer()
app.command()(events.events)


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    with coordinating(tmp_path / "home") as made:
        yield made


def printed(coordinator: Coordinator, *words: str) -> str:
    done = CliRunner().invoke(app, [*words, "--coordinator", coordinator.url])
    if isinstance(done.exception, SluiceError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def command(url: str, *words: str) -> list[str]:
    return [sys.executable, "-m", "sluice", "events", *words, "--coordinator", url]


def test_events_are_a_table_newest_first(coordinator: Coordinator) -> None:
    run_id = coordinator.working()
    coordinator.post(f"/containers/{run_id}-c/exit", {"exitCode": 1, "reason": "out of memory"})
    heading, *lines = [" ".join(line.split()) for line in printed(coordinator, "flight-delays").splitlines()]
    assert heading.split() == ["AT", "EVENT", "DETAIL", "BY"]
    assert f"container {run_id}-c exited with code 1 out of memory" in lines[0]
    assert f"container {run_id}-c registered for slot 0" in lines[1]
    assert any(f"run {run_id} was deployed 1 containers" in each for each in lines)
    assert printed(coordinator) == printed(coordinator, "flight-delays"), "the only job need not be named"


def test_older_events_are_on_the_next_page(coordinator: Coordinator) -> None:
    coordinator.working()
    *_, hint = printed(coordinator, "--limit", "1").splitlines()
    assert hint.startswith("for older entries: --before ")
    newest, older = [
        json.loads(printed(coordinator, "--json", *words))["events"] for words in (["--limit", "1"], ["--before", hint.split()[-1]])
    ]
    assert [*newest, *older] == json.loads(printed(coordinator, "--json"))["events"]


def test_the_json_is_the_body_of_the_api(coordinator: Coordinator) -> None:
    coordinator.working()
    assert json.loads(printed(coordinator, "--json")) == coordinator.http.get("/jobs/flight-delays/events").json()


def test_an_unknown_job_is_an_error_with_the_jobs_that_there_are(coordinator: Coordinator) -> None:
    coordinator.deploy()
    for words in (["weather"], ["weather", "--follow"]):
        with pytest.raises(UnknownJob, match="the jobs are: flight-delays"):
            printed(coordinator, *words)


def test_a_followed_list_does_not_begin_with_older_events(coordinator: Coordinator) -> None:
    with pytest.raises(ClientError, match="leave out --before"):
        printed(coordinator, "--follow", "--before", "x")


def test_new_events_are_printed_as_they_appear_until_ctrl_c(coordinator: Coordinator) -> None:
    run_id = coordinator.working()
    with at_terminal(command(coordinator.url, "--follow"), columns=200) as terminal:
        terminal.until(f"container {run_id}-c registered")
        coordinator.post(f"/runs/{run_id}/stop", {"reason": "enough"})
        terminal.until("requested a stop")
        coordinator.post(f"/containers/{run_id}-c/exit", {"exitCode": 0})
        terminal.until("ended as STOPPED: enough")
        terminal.press_ctrl_c()
        assert terminal.process.wait(GENEROUS) == 0
    assert terminal.text.count(f"container {run_id}-c registered") == 1
    assert "Traceback" not in terminal.text


def test_followed_events_as_json_are_one_object_on_each_line(coordinator: Coordinator) -> None:
    run_id = coordinator.working()
    following = subprocess.Popen(command(coordinator.url, "--follow", "--json"), stdout=subprocess.PIPE, text=True)
    try:
        assert following.stdout is not None
        kinds = [json.loads(following.stdout.readline())["kind"] for _ in range(4)]
        assert sorted(kinds) == ["container", "request", "run", "version"]
        coordinator.post(f"/containers/{run_id}-c/exit", {"exitCode": 3, "reason": "replaced"})
        assert json.loads(following.stdout.readline())["detail"] == "replaced"
        following.terminate()
        assert following.wait(GENEROUS) == 0
    finally:
        following.kill()
        following.wait()


def test_following_continues_while_the_coordinator_cannot_be_reached(tmp_path: Path) -> None:
    port = free_port()
    with ExitStack() as until_the_end:
        with coordinating(tmp_path / "former", port) as coordinator:
            run_id = coordinator.working()
            terminal = until_the_end.enter_context(at_terminal(command(coordinator.url, "--follow"), columns=200))
            terminal.until(f"container {run_id}-c registered")
        terminal.until("retrying")
        shutil.copytree(tmp_path / "former", tmp_path / "later")  # the former home is locked until this process ends
        with coordinating(tmp_path / "later", port) as coordinator:
            coordinator.post(f"/runs/{run_id}/stop", {})
            terminal.until("requested a stop")
            terminal.press_ctrl_c()
            assert terminal.process.wait(GENEROUS) == 0


def test_following_ends_without_an_error_when_its_reader_closes_the_pipe(coordinator: Coordinator) -> None:
    coordinator.working()
    reader, writer = os.pipe()
    os.close(reader)
    try:
        words = command(coordinator.url, "--follow")
        done = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=GENEROUS, check=False)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
