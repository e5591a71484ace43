"""One PostgreSQL, one Kafka broker and one S3 server for a whole run of pytest. The first test that needs one starts it, in the process
that pytest was started as, which ends them all. So they outlive a worker of pytest-xdist that ends or crashes.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from multiprocessing.connection import Client, Listener
from pathlib import Path
from threading import Thread
from typing import Any

from tests.support.processes import ProcessFailed
from tests.support.s3servers import versitygw
from tests.support.servers import NotInstalled, kafka_with_users, postgres

Starts = Mapping[str, Callable[[Path], AbstractContextManager[Any]]]
"""What starts a server in a directory, by its name."""

STARTS: Starts = {
    "postgres": lambda _: postgres(),
    "kafka": kafka_with_users,
    "s3": lambda directory: versitygw(directory, new_session=True),
}


class SharedServers:
    """The servers. After `listen`, only workers may ask for them."""

    def __init__(self, starts: Starts = STARTS) -> None:
        self._starts = starts
        self._started: dict[str, Any] = {}
        self._ending = ExitStack()
        self._listener: Listener | None = None

    def get(self, name: str, directory: Path) -> Any:
        """The server, which is started in a new directory in `directory` if it does not run."""
        if name not in self._started:
            own = directory / name
            own.mkdir(exist_ok=True)
            self._started[name] = self._ending.enter_context(self._starts[name](own))
        return self._started[name]

    def listen(self) -> str:
        """Answer to workers. Returns the address for `ServersOfController`."""
        if self._listener is None:
            self._listener = Listener(family="AF_UNIX")
            Thread(target=self._answer, args=[self._listener], daemon=True).start()
        return str(self._listener.address)

    def _answer(self, listener: Listener) -> None:
        while True:
            with listener.accept() as connection, suppress(EOFError, OSError):  # the worker has ended
                connection.send(self._answer_of(*connection.recv()))

    def _answer_of(self, name: str, directory: Path) -> Any:
        try:
            return self.get(name, directory)
        except NotInstalled as error:
            return error
        except Exception:
            return ProcessFailed(f"the shared {name}:\n{traceback.format_exc()}")

    def end(self) -> None:
        self._ending.close()


class ServersOfController:
    """The same servers for a worker."""

    def __init__(self, address: str) -> None:
        self._address = address

    def get(self, name: str, directory: Path) -> Any:
        with Client(self._address) as connection:
            connection.send((name, directory))
            found = connection.recv()
        if isinstance(found, Exception):
            raise found
        return found
