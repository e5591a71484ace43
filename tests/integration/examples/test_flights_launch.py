"""`sluice run` as a child process of the demo."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from examples.harness.launch import SluiceRun
from tests.support.processes import WAIT_SECONDS, EndedEarly, wait_for
from tests.support.processes import start as start_process

SAYS = "print('coordinator http://127.0.0.1:1', flush=True); print('run r-1', flush=True)"
WAITS = "import os, signal; signal.signal(signal.SIGINT, lambda *_: os._exit(0)); {says}; signal.pause()"
STUBBORN = """
import signal, subprocess, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
print("child", child.pid, flush=True)
{says}
signal.pause()
"""

Start = Callable[[str], SluiceRun]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[SluiceRun] = []

    def of(program: str) -> SluiceRun:
        command = [sys.executable, "-S", "-c", program.replace("{says}", SAYS)]
        log = tmp_path / "run.log"
        started.append(SluiceRun(start_process(command, log), log))
        return started[-1]

    yield of
    for each in started:
        each.stop(0)


def test_sluice_run_prints_its_address_and_stops_normally(start: Start) -> None:
    run = start(WAITS)
    assert run.where(WAIT_SECONDS) == ("http://127.0.0.1:1", "r-1")
    run.must_run()
    assert run.stop(WAIT_SECONDS) == 0
    assert "run r-1" in run.log_file.read_text()


def test_a_command_that_ends_before_it_prints_its_address_shows_its_last_lines(start: Start) -> None:
    with pytest.raises(EndedEarly, match="port 1 is taken"):
        start("print('port 1 is taken'); raise SystemExit(1)").where(WAIT_SECONDS)


def test_the_error_about_a_command_that_ends_early_shows_its_exit_code(start: Start) -> None:
    run = start("import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); {says}; raise SystemExit(7)")
    run.where(WAIT_SECONDS)
    assert run.stop(WAIT_SECONDS) == 7
    with pytest.raises(EndedEarly, match="exit code 7"):
        run.must_run()


def test_a_command_that_does_not_stop_is_killed_with_its_child_processes(start: Start) -> None:
    run = start(STUBBORN)
    run.where(WAIT_SECONDS)
    child = psutil.Process(int(run.log_file.read_text().split()[1]))
    assert run.stop(0.2) == -signal.SIGKILL
    wait_for("the end of the child", lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
