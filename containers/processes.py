"""Processes of this machine that belong together: a driver's session, with its JVM and Python workers."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import psutil


def session_members(session: int) -> list[int]:
    """The processes of a session that are not dead yet."""
    members = []
    for pid in psutil.pids():
        with suppress(OSError, psutil.Error):
            if os.getsid(pid) == session and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                members.append(pid)
    return members


def kill_session(session: int) -> int:
    """SIGKILL every process of a session; how many there were. Call it until it finds none: a process may be just forking."""
    members = session_members(session)
    for pid in members:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(members)
