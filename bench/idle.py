"""Connections that send nothing. `python -m bench.idle URL COUNT` holds COUNT of them, and opens another one for each that is closed.

Each second it writes a line of JSON: how many are open, and how many the server has closed. It ends when its standard input is closed.
"""

from __future__ import annotations

import json
import select
import socket
import sys
from time import perf_counter, sleep
from urllib.parse import urlsplit

RATE = 1250
"""Connections opened each second, at most. More would fill the kernel's queue of connections to be accepted."""

TURN = 0.01
"""Seconds."""


def main(url: str, count: int) -> None:
    place = urlsplit(url)
    address = (place.hostname or "", place.port or 80)
    poll = select.epoll()
    poll.register(0, select.EPOLLHUP)
    held: dict[int, socket.socket] = {}
    closed, due = 0, perf_counter()
    while True:
        began = perf_counter()
        for _ in range(min(int(RATE * TURN), count - len(held))):
            made = socket.create_connection(address)
            held[made.fileno()] = made
            poll.register(made.fileno(), select.EPOLLIN)
        for fileno, _ in poll.poll(0):
            if fileno == 0:
                return
            poll.unregister(fileno)
            held.pop(fileno).close()
            closed += 1
        if perf_counter() >= due:
            print(json.dumps({"open": len(held), "closed": closed}), flush=True)
            due = perf_counter() + 1
        sleep(max(0.0, began + TURN - perf_counter()))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
