"""`python -m tests.support.load COMMAND…` runs a command beside one busy process for each core, for `make test-under-load`. Its exit code
is that of the command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack

BUSY = "import os; parent = os.getppid()\nwhile os.getppid() == parent: sum(range(1_000_000))"
"""It ends when the process that has started it does, also if that is killed."""


def main() -> int:
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C at a terminal ends the command, which also gets it
    with ExitStack() as stack:
        for _ in os.sched_getaffinity(0):
            busy = subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.DEVNULL, start_new_session=True)
            stack.callback(busy.wait)
            stack.callback(busy.kill)
        return subprocess.run(sys.argv[1:], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
