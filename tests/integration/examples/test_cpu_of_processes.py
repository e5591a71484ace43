"""The CPU time of processes, some of which have ended, in benchmarks."""

from __future__ import annotations

import subprocess
import sys

import psutil

from bench.cpu import CpuMeter, Used, total
from tests.support.processes import wait_for

PARENT = """
import signal, subprocess, sys
if sys.argv[1] == "ignore":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
burn = "import time\\nwhile time.process_time() < 0.4: pass\\ninput()"
child = subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE)
input()
child.stdin.close()
child.wait()
print("ended", flush=True)
input()
"""
"""Its child uses 0.4 s, of which /proc shows at least 0.3 s in whole ticks, and ends after a line on standard input."""


def measured_after_the_end_of_a_child(sigchld: str) -> float:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, sigchld], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as parent:
        assert parent.stdin
        assert parent.stdout
        meter = CpuMeter(psutil.Process(parent.pid))
        before = wait_for("the work of the child", lambda: found if (found := meter.seconds()) >= 0.3 else None)
        parent.stdin.write("\n")
        parent.stdin.flush()
        assert parent.stdout.readline() == "ended\n"
        after = meter.seconds()
        parent.kill()
    assert before <= after < before + 0.3
    return after


def test_the_time_of_a_child_that_was_waited_for_counts_once() -> None:
    assert measured_after_the_end_of_a_child("default") >= 0.3


def test_the_time_of_a_child_remains_although_its_parent_ignores_sigchld() -> None:
    assert measured_after_the_end_of_a_child("ignore") >= 0.3


def test_children_that_ended_between_two_looks_count_in_a_parent_that_has_waited_for_them() -> None:
    processes: dict[str, Used[str]] = {"jvm": Used(None, own=10.0, children=3.0), "seen": Used("jvm", own=1.0, ended=True)}
    assert total(processes) == 13.0


def test_all_generations_of_processes_that_were_lost_count() -> None:
    processes: dict[str, Used[str]] = {
        "jvm": Used(None, own=10.0),
        "daemon": Used("jvm", own=1.0, ended=True),
        "worker": Used("daemon", own=2.0, ended=True),
        "orphan": Used("daemon", own=4.0),
    }
    assert total(processes) == 17.0
