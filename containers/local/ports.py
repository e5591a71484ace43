"""Free ports for servers that take seconds to start."""

from __future__ import annotations

import errno
import socket
from contextlib import ExitStack, suppress

from sluice.randomness import below

LOOPBACK = "127.0.0.1"

_FIRST, _LAST = 15_000, 29_999
_ATTEMPTS = 1_000


def check_free(port: int) -> None:
    """Raises OSError when something listens on the loopback port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((LOOPBACK, port))


def free_ports(count: int) -> list[int]:
    """That many different loopback ports on which nothing listens now.

    Operating systems give clients their ports from a range above these (Linux 32768 to 60999, macOS 49152 to 65535, unless configured
    otherwise). A port from that range, which bind() chooses for port 0, can go to a client before the server listens. Raises OSError if no
    port is free."""
    with ExitStack() as held:
        found: list[int] = []
        for _ in range(_ATTEMPTS):
            if len(found) == count:
                return found
            probe = held.enter_context(socket.socket())
            with suppress(OSError):
                probe.bind((LOOPBACK, _FIRST + below(_LAST - _FIRST + 1)))  # held until all are found, so that they differ
                found.append(int(probe.getsockname()[1]))
        raise OSError(errno.EADDRINUSE, f"no free port was found on {LOOPBACK}")
