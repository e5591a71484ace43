"""Calls of a script that keep the interpreter for longer than a lease, which the agent renews all the time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.processes.test_app_processes import run

SCRIPT = """
import ctypes
import subprocess

clock = SystemClock()
renewer = '''
import json, socket, sys, time
from sluice.clock import SystemClock
ours, clock = socket.socket(fileno=int(sys.argv[1])), SystemClock()
while True:  # the agent: it renews a lease of one second ten times a second
    ours.sendall(json.dumps({"tell": "renewed", "with": [clock.elapsed() + 1]}).encode() + b"\\n")
    time.sleep(0.1)
'''
attach(ends_script=True)
os.set_inheritable(ours.fileno(), True)
renewing = subprocess.Popen([sys.executable, "-c", renewer, str(ours.fileno())], pass_fds=[ours.fileno()])
time.sleep(1)
for _ in range(5):  # whether the thread that reads the lease or the one that compares it goes on first is chance
    ctypes.PyDLL(None).sleep(2)  # as `sorted`, `json.loads` or `re` on much data: the call does not release the interpreter
    time.sleep(1.1)
renewing.kill()
print("it goes on", flush=True)
os._exit(0)
"""


@pytest.mark.long
def test_a_script_that_keeps_its_interpreter_busy_for_longer_than_a_lease_that_is_renewed_is_not_killed(tmp_path: Path) -> None:
    done, _ = run(SCRIPT, tmp_path)
    assert (done.returncode, done.stdout) == (0, "it goes on\n"), done.stderr
