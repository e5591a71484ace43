"""Signals to a process whose main thread waits for another thread, as that of a driver does."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

from tests.support.processes import ROOT

WAITING = """
import asyncio, os, signal, threading, time
from containers.driver import run_in_thread

async def main():
    loop = asyncio.get_running_loop()
    signals.append(lambda: loop.call_soon_threadsafe(os.write, 1, b"x"))
    signals[0]()
    await asyncio.Event().wait()

def busy():
    while True:
        sum(range(2000))
        time.sleep(0.001)

for _ in range(6):
    threading.Thread(target=busy, daemon=True).start()
signals = []
signal.signal(signal.SIGTERM, lambda number, frame: signals[0]())
run_in_thread("waiting", lambda: asyncio.run(main()))
"""

SIGNALS = 2000
"""Sent one immediately after the other. With `Thread.join` alone, one in 500 had no effect."""


def test_a_signal_that_follows_another_one_immediately_has_an_effect() -> None:
    with subprocess.Popen([sys.executable, "-c", WAITING], stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        answers = process.stdout.fileno()
        assert os.read(answers, 1) == b"x"
        try:
            for number in range(SIGNALS):
                process.send_signal(signal.SIGTERM)
                assert select.select([answers], [], [], 300)[0], f"signal {number} had no effect"
                os.read(answers, 1)
        finally:
            process.kill()
