"""A process in a pseudo-terminal, and its output."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

SHOW_CURSOR = "\x1b[?25h"
SILENCE_SECONDS = 600
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """The terminal, as its user sees it."""

    def __init__(self, process: subprocess.Popen[bytes], screen: int) -> None:
        self.process = process
        self._screen = screen
        self.seen = ""

    @property
    def text(self) -> str:
        """All output, without colours and cursor movements."""
        return _CONTROL.sub("", self.seen)

    def until(self, text: str) -> str:
        """Read until this text arrives. Returns the output since the last call. Fails if the process ends first, or writes nothing."""
        start = len(self.seen)
        while text not in self.seen[start:]:
            if not select.select([self._screen], [], [], SILENCE_SECONDS)[0]:
                raise AssertionError(f"no {text!r} in {self.seen[start:]!r}, and no output for {SILENCE_SECONDS} s")
            try:
                self.seen += os.read(self._screen, 65536).decode(errors="replace")
            except OSError as error:  # the last writer has closed it
                raise AssertionError(f"no {text!r} in {self.seen[start:]!r}") from error
        return self.seen[start:]

    def read(self) -> None:
        """Read what has arrived. A process whose output is not read waits at some time."""
        with suppress(OSError):
            while select.select([self._screen], [], [], 0)[0]:
                self.seen += os.read(self._screen, 65536).decode(errors="replace")

    def press_ctrl_c(self) -> None:
        os.write(self._screen, b"\x03")


@contextmanager
def at_terminal(command: Sequence[str], *, columns: int = 100, lines: int = 40, **environment: str) -> Iterator[Terminal]:
    """Run a command in a new pseudo-terminal and session, so that Ctrl-C sends it a signal. Kills it at the end."""
    screen, ends = pty.openpty()
    fcntl.ioctl(ends, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    ours = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    takes_terminal = (
        "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
        "signal.signal(signal.SIGINT, signal.SIG_DFL); "  # a shell that started the tests in the background ignores it
        "os.execvp(sys.argv[1], sys.argv[1:])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", takes_terminal, *command],
        stdin=ends,
        stdout=ends,
        stderr=ends,
        env={**ours, "TERM": "xterm-256color", **environment},
        start_new_session=True,
    )
    os.close(ends)
    try:
        yield Terminal(process, screen)
    finally:
        process.kill()
        process.wait()
        os.close(screen)
