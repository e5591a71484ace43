"""The socket at which the agent of a command accepts the script, in Linux's abstract namespace.

Its name is in the environment, and is no secret: the agent accepts only its own descendants. A command may have removed the variable, as
`env -i` and `sudo` do. The name has the process of the agent, so a script also finds the agents above it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress

from containers.supervision import processes
from containers.supervision.processes import Table

SOCKET = "SLUICE_EXEC_SOCKET"
"""The environment variable with the name."""


def own_name() -> str:
    """The name for this process, an agent."""
    own = processes.process(os.getpid())
    return f"sluice-{own.id if own is not None else os.getpid()}"


def connect(environment: Mapping[str, str]) -> socket.socket | None:
    """Connect to the agent of the command to which this process belongs; None if there is none. Raises OSError if the one that the
    environment names cannot be reached."""
    if name := environment.get(SOCKET):
        return _connected(name)
    for above in _names_above(processes.processes(), os.getpid()):
        with suppress(OSError):
            return _connected(above)
    return None


def _names_above(table: Table, pid: int) -> Iterator[str]:
    """The names that agents among the ancestors of a process have."""
    each = table.get(pid)
    while each is not None and (each := table.get(each.parent)) is not None:
        yield f"sluice-{each.id}"


def _connected(name: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.connect(f"\0{name}")
    except OSError:
        made.close()
        raise
    return made
