"""`python -m tests.support.jvm_starts PID java` counts the JVMs that a process and its descendants start, until the input ends. It prints a
line about them, or nothing if there were none.

It looks at /proc each second, so that JVMs need no options: those print a line, or get lost. A JVM that ends sooner is not counted.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Process:
    """`began`: with the process id it names a process for ever."""

    parent: int
    name: str
    cpu_seconds: float
    began: str


def _process(pid: int) -> _Process | None:
    try:
        file = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:  # it has ended
        return None
    try:
        stat = os.read(file, 1024).decode(errors="replace")
    except OSError:
        return None
    finally:
        os.close(file)
    name, _, rest = stat.partition(" (")[2].rpartition(") ")
    fields = rest.split()
    return _Process(int(fields[1]), name, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), fields[19])


def _descends(pid: int, ancestor: int) -> bool:
    while pid != ancestor and (found := _process(pid)) is not None:
        pid = found.parent
    return pid == ancestor


def _running(program: str) -> Iterator[tuple[int, _Process]]:
    for each in os.scandir("/proc"):
        if each.name.isdigit() and (found := _process(int(each.name))) is not None and found.name == program:
            yield int(each.name), found


def main() -> None:
    root, program = int(sys.argv[1]), sys.argv[2]
    ours: dict[tuple[int, str], float] = {}
    others = set()
    ended = False
    while not ended:
        ended = bool(select.select([sys.stdin], [], [], LOOK_SECONDS)[0])
        for pid, found in _running(program):
            key = (pid, found.began)
            if key in ours or (key not in others and _descends(pid, root)):
                ours[key] = found.cpu_seconds
            else:
                others.add(key)
    if ours:
        print(f"{sum(ours.values()):7.0f} s of CPU time of {len(ours)} JVMs", end="")


class JvmStarts:
    """Counts the JVMs that this process and its descendants start."""

    def __init__(self, program: str = "java") -> None:
        command = [sys.executable, "-S", "-E", __file__, str(os.getpid()), program]
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nothing, text=True, start_new_session=True)

    def end(self) -> str:
        """A line about them, or "" if there were none."""
        return self._process.communicate()[0]


if __name__ == "__main__":
    main()
