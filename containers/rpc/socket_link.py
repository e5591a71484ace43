"""A socket between the two processes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from queue import SimpleQueue

SENT_WITHIN = timedelta(seconds=5)
"""How long a process that does not read may delay the end of the connection."""


class SocketLink:
    """A `Link`. One thread receives, one sends, and each call is served by one. `send` does not wait for a process that does not read. No
    thread delays the end of the process."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._unsent: SimpleQueue[bytes | None] = SimpleQueue()
        self._closed = False
        self._reader: threading.Thread | None = None
        self._sender = threading.Thread(target=self._send, name="sluice-port-sender", daemon=True)

    def start(self, receive: Callable[[bytes], None], lost: Callable[[Exception | None], None]) -> None:
        self._reader = threading.Thread(target=self._read, args=(receive, lost), name="sluice-port-reader", daemon=True)
        self._sender.start()
        self._reader.start()

    def send(self, line: bytes) -> None:
        if self._closed:
            raise BrokenPipeError("the other process has ended")
        self._unsent.put(line)

    def _send(self) -> None:
        while (line := self._unsent.get()) is not None:
            try:
                self._socket.sendall(line)
            except OSError:  # the reader finds it out
                return

    def serve(self, work: Callable[[], None]) -> None:
        threading.Thread(target=work, name="sluice-port", daemon=True).start()

    def close(self) -> None:
        self._hang_up()
        if self._reader is not None and threading.current_thread() is not self._reader:
            self._reader.join()

    def _read(self, receive: Callable[[bytes], None], lost: Callable[[Exception | None], None]) -> None:
        found: Exception | None = None
        try:
            with self._socket.makefile("rb") as lines:
                for line in lines:
                    receive(line)
        except Exception as error:  # also a message that cannot be read: nobody may wait any more
            found = error
        self._hang_up()
        lost(found)

    def _hang_up(self) -> None:
        """Send what was not sent yet, such as the version that the other end refuses, and close the socket."""
        self._closed = True
        self._unsent.put(None)
        if self._sender.is_alive():
            self._sender.join(SENT_WITHIN.total_seconds())
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
