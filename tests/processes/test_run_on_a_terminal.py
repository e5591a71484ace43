"""`sluice run` with and without a terminal."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from sluice.streams.log import Log
from tests.support.processes import free_port
from tests.support.terminal import SHOW_CURSOR, at_terminal

pytestmark = pytest.mark.slow

GENEROUS = 120.0
JOB = """
from sluice import Job
job = Job("toy")
numbers, out = job.input("numbers"), job.output("out")
@job.stage(reads=numbers, writes=out)
def copy(task):
    return task.write(task.read(numbers).selectExpr("cast(value as string) v"), out, value="v")
"""


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    Log(tmp_path / "home" / "log").create("numbers", 2)
    (tmp_path / "job.py").write_text(JOB)
    run = [sys.executable, "-m", "sluice", "run", str(tmp_path / "job.py"), "--containers", "2"]
    return [*run, "--home", str(tmp_path / "home"), "--port", str(free_port())]


@pytest.mark.parametrize("columns", [80, pytest.param(200, marks=pytest.mark.long)])
def test_on_a_terminal_a_table_is_updated_in_place_until_ctrl_c(command: list[str], columns: int) -> None:
    with at_terminal(command, columns=columns) as terminal:
        terminal.until("container-1")
        terminal.until("2/2")
        terminal.press_ctrl_c()
        assert "STOPPED" in terminal.until(SHOW_CURSOR)
        assert terminal.process.wait(GENEROUS) == 0
    lines = terminal.text.splitlines()
    assert any(re.fullmatch(r"coordinator http://127\.0\.0\.1:\d+", line) for line in lines)
    assert any(re.fullmatch(r"run toy-\S+", line) for line in lines)
    assert any(re.fullmatch(r"pages http://127\.0\.0\.1:\d+/ui/jobs/toy", line) for line in lines)
    assert any(line.split()[:2] == ["PROCESS", "STATE"] for line in lines)
    assert not [line for line in lines if len(line.removesuffix("^C")) > columns]  # the terminal echoes it
    assert "Traceback" not in terminal.text


def test_without_a_terminal_plain_lines_are_printed(command: list[str]) -> None:
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        said = [next(process.stdout) for _ in range(4)]
        process.send_signal(signal.SIGINT)
        said += process.stdout.readlines()
        assert process.wait(GENEROUS) == 0
    assert re.fullmatch(r"coordinator http://127\.0\.0\.1:\d+\n", said[0])
    assert re.fullmatch(r"run toy-\S+\n", said[1])
    assert re.fullmatch(r"pages http://127\.0\.0\.1:\d+/ui/jobs/toy\n", said[2])
    assert re.fullmatch(r"toy-\S+ (CREATED|RUNNING)  containers \d/2  tasks \d/2  batches \d+\n", said[3])
    assert "\x1b" not in "".join(said)


def test_a_failure_is_printed_below_the_table_and_restores_the_terminal(command: list[str]) -> None:
    with at_terminal(command) as terminal:
        terminal.until("container-1")
        url, run_id = (
            found[1] for found in (re.search(rf"^{what} (\S+)", terminal.text, re.M) for what in ("coordinator", "run")) if found
        )
        httpx.post(f"{url}/runs/{run_id}/stop", json={"reason": "boom", "failed": True}, timeout=30).raise_for_status()
        terminal.until("sluice: the run failed: boom")
        assert terminal.process.wait(GENEROUS) == 1
    assert terminal.seen.rindex(SHOW_CURSOR) < terminal.seen.rindex("sluice: the run failed: boom")
