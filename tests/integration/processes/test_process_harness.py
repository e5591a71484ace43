"""The harness that tests, benchmarks and demos share."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.processes import EndedEarly, TooSlow, await_line, end, start, wait_for

IGNORES = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
print("child", child.pid, flush=True)
signal.pause()
"""
ONLY_FOR_TESTS = ("pytest", "_pytest", "hypothesis", "moto", "flask", "schemathesis", "yaml")
ASKS = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*sorted(sys.modules))
"""


def test_modules_that_demos_and_benchmarks_import_need_no_test_dependencies() -> None:
    modules = ["examples.flights.demo", "examples.weather.demo", "bench.crew", "bench.gateway", "bench.growth"]
    done = subprocess.run([sys.executable, "-c", ASKS, *modules], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & set(ONLY_FOR_TESTS)


def test_an_interrupted_end_kills_the_process_with_its_child_processes(tmp_path: Path) -> None:
    process = start([sys.executable, "-S", "-c", IGNORES], tmp_path / "ignores.log")
    child = psutil.Process(int(await_line(process, tmp_path / "ignores.log", r"^child (\d+)")))
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            end(process, waits=(60,))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert process.returncode == -signal.SIGKILL
    psutil.wait_procs([child], timeout=5)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_wait_for_a_process_that_ended_shows_the_end_of_its_log(tmp_path: Path) -> None:
    process = start([sys.executable, "-c", "print('no such file'); raise SystemExit(3)"], tmp_path / "short.log")
    with pytest.raises(EndedEarly, match=r"(?s)short ended with exit code 3.*no such file"):
        await_line(process, tmp_path / "short.log", "ready")


def test_a_wait_checks_at_least_once_and_its_error_names_what_it_waited_for() -> None:
    assert wait_for("a number", lambda: 7, 0) == 7
    with pytest.raises(TooSlow, match="a number: not within 0 s\nnothing came"):
        wait_for("a number", lambda: 0, 0, details=lambda: "nothing came")
