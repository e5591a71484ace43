"""Reads the process table, and ends processes.

A process is identified by its pid and the time of its start: a pid alone may belong to another process later. Fields are those of
/proc/<pid>/stat, see proc_pid_stat(5). Where there is no /proc, as on macOS, psutil reads the table.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
HAS_PROC = PROC.joinpath("self/stat").exists()

STOPPED = frozenset("Tt")
"""Stopped by a signal, or by a debugger."""

_DEAD = frozenset("ZXx")
_PR_SET_CHILD_SUBREAPER = 36
_ROUNDS = 200
_PAUSE_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class ProcessId:
    """`started`: in clock ticks since the machine started."""

    pid: int
    started: int

    @classmethod
    def parse(cls, text: str) -> ProcessId:
        """The reverse of `str`: "4711@123456". Raises ValueError."""
        pid, _, started = text.partition("@")
        return cls(int(pid), int(started))

    def __str__(self) -> str:
        return f"{self.pid}@{self.started}"


@dataclass(frozen=True, slots=True)
class Process:
    """`name`: the first 15 bytes of the file name of the program."""

    id: ProcessId
    parent: int
    state: str
    name: str

    @property
    def ended(self) -> bool:
        return self.state in _DEAD


Table = Mapping[int, Process]


def parse_stat(text: str) -> Process:
    """One line of /proc/<pid>/stat. The name may contain spaces and parentheses. Raises ValueError, IndexError."""
    pid, _, rest = text.partition(" (")
    name, _, after = rest.rpartition(") ")
    fields = after.split()
    return Process(ProcessId(int(pid), int(fields[19])), int(fields[1]), fields[0], name)


def process(pid: int) -> Process | None:
    """None if there is no such process, or this one may not see it. Raises OSError, as for a lack of file descriptors."""
    if not HAS_PROC:
        return portable_processes().get(pid)
    try:
        return parse_stat((PROC / str(pid) / "stat").read_text(errors="replace"))
    except (FileNotFoundError, ProcessLookupError, PermissionError, ValueError, IndexError):
        return None


def runs(found: ProcessId) -> bool:
    """Whether the process has not ended."""
    now = process(found.pid)
    return now is not None and now.id == found and not now.ended


def processes() -> Table:
    """All processes that this one can see, including zombies."""
    if not HAS_PROC:
        return portable_processes()
    found = (process(int(each.name)) for each in PROC.iterdir() if each.name.isdigit())
    return {each.id.pid: each for each in found if each is not None}


def portable_processes() -> Table:
    """Like `processes`, on any system."""
    import psutil

    states = {psutil.STATUS_STOPPED: "T", psutil.STATUS_ZOMBIE: "Z"}
    found = {}
    for each in psutil.process_iter(["ppid", "status", "name", "create_time"]):
        read = each.info
        started = int((read["create_time"] or 0) * 100)
        state = states.get(read["status"], "S")
        found[each.pid] = Process(ProcessId(each.pid, started), read["ppid"] or 0, state, (read["name"] or "")[:15])
    return found


def descendants(table: Table, roots: Collection[int]) -> list[Process]:
    """The descendants of these pids, without the pids themselves; parents first."""
    children: defaultdict[int, list[Process]] = defaultdict(list)
    for each in table.values():
        children[each.parent].append(each)
    found: list[Process] = []
    seen, waiting = set(roots), list(roots)
    while waiting:
        for child in children[waiting.pop(0)]:
            if child.id.pid not in seen:
                seen.add(child.id.pid)
                found.append(child)
                waiting.append(child.id.pid)
    return found


def stopped_driver(table: Table, command: int, arguments: Callable[[int], str]) -> Process | None:
    """The first process among the command and the JVMs and Pythons below it that is stopped. Spark's Python workers are left out: Spark
    restarts them. `arguments`: the command line of a process, as text."""
    candidates = ([table[command]] if command in table else []) + descendants(table, [command])
    for each in candidates:
        if each.state not in STOPPED:
            continue
        if each.id.pid == command or each.name == "java":
            return each
        if each.name.startswith("python") and "pyspark.daemon" not in arguments(each.id.pid):
            return each
    return None


def arguments(pid: int) -> str:
    """The command line of a process; "" if it has ended."""
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def marked(table: Table, variable: str, value: str) -> list[Process]:
    """The processes that inherited this environment variable, as far as this user may read their environment."""
    mark, found = f"{variable}={value}".encode(), []
    for pid, each in table.items():
        with suppress(OSError):
            if mark in (PROC / str(pid) / "environ").read_bytes().split(b"\0"):
                found.append(each)
    return found


def kill(victim: ProcessId) -> None:
    """Send SIGKILL, unless the process has ended and its pid belongs to another one."""
    try:
        fd = os.pidfd_open(victim.pid)
    except ProcessLookupError:
        return
    except (OSError, AttributeError):  # the system has none, or forbids it
        found = process(victim.pid)
        if found is not None and found.id == victim:
            with suppress(OSError):
                os.kill(victim.pid, signal.SIGKILL)
        return
    try:
        now = process(victim.pid)  # read after the descriptor was opened: it refers to this process
        if now is not None and now.id == victim:
            with suppress(OSError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
    finally:
        os.close(fd)


def end_all(find: Callable[[], Iterable[Process]], sleep: Callable[[float], None] = time.sleep) -> tuple[int, bool]:
    """Kill the processes that `find` returns, repeatedly until it finds no living process, because a process may be forking. Returns how
    many were killed, and whether all have ended. A process in an uninterruptible system call does not end immediately."""
    killed: set[ProcessId] = set()
    for _ in range(_ROUNDS):
        try:
            alive = [each.id for each in find() if not each.ended]
        except OSError:  # the table cannot be read now
            sleep(_PAUSE_SECONDS)
            continue
        if not alive:
            return len(killed), True
        for each in alive:
            kill(each)
        killed.update(alive)
        sleep(_PAUSE_SECONDS)
    return len(killed), False


def become_subreaper() -> bool:
    """Make descendants whose parent ends children of this process. False on a system other than Linux."""
    if not HAS_PROC:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def reap(found: Iterable[Process], parent: int, others: Collection[int]) -> None:
    """Reap the children of this process that have ended, except `others`, which other code waits for."""
    for each in found:
        if each.parent == parent and each.ended and each.id.pid not in others:
            with suppress(ChildProcessError):
                os.waitpid(each.id.pid, os.WNOHANG)
