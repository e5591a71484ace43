"""The coordinator as a server process: one per home, on one address."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import IO

import uvicorn

from coordinator.app import Coordinator, build
from coordinator.settings import Settings
from coordinator.store.claim import lock_file
from sluice.core.errors import CannotListen, HomeInUse, SluiceError

log = logging.getLogger(__name__)

BACKLOG = 2048
"""Connections that wait to be accepted; the kernel drops what comes beyond, and the asker tries again after 1, 3, 7, 15… seconds."""

ACCEPTS = 16
"""Connections that are accepted in one turn of the event loop. libuv accepts one for each socket that it listens on, whatever else a
turn has to do: with a single one, a burst of slow requests lets connections wait until they are dropped, heartbeats among them."""


class Server(uvicorn.Server):
    """uvicorn, which ends the long polls as soon as it is told to stop, and whose start fails with an error of ours. `failure` is the
    error for which it ended by itself."""

    def __init__(self, config: uvicorn.Config, coordinator: Coordinator, settings: Settings) -> None:
        super().__init__(config)
        self._coordinator = coordinator
        self._settings = settings
        self._lock: IO[bytes] | None = None
        self._heap = StillHeap()
        self.failure: SluiceError | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Raises StoreUnavailable, StreamUnavailable, DatabaseInUse, HomeInUse or CannotListen."""
        await self._coordinator.prepare()
        self._lock = only_one(self._settings.home)
        listening = shared(sockets or [listen(self._settings.host, self._settings.port)])
        await super().startup(listening)
        if self.started:
            self._heap.start()
            host, port, *_ = listening[0].getsockname()
            where = f"[{host}]" if ":" in host else host
            database, directory = self._settings.database_shown, self._settings.log_directory
            log.info("coordinator on http://%s:%s, database %s, log %s", where, port, database, directory)

    def give_up(self, error: SluiceError) -> None:
        """End, for this error."""
        log.error("the coordinator ends: %s", error)
        self.failure = error
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._coordinator.notices.close()
        self._coordinator.task_waiters.close()
        self._heap.stop()
        await super().shutdown(sockets)


def only_one(home: Path) -> IO[bytes]:
    """Hold the home for this process, for as long as it lives. Raises HomeInUse: leases are in memory, and two coordinators would each
    have their own."""
    lock = lock_file(home / "coordinator.lock")
    if lock is None:
        raise HomeInUse(f"{home.absolute()} is another coordinator's: stop that one, or name another --home")
    return lock


def shared(listening: list[socket.socket]) -> list[socket.socket]:
    """The listening sockets, each ACCEPTS times."""
    return [each for one in listening for each in (one, *(one.dup() for _ in range(ACCEPTS - 1)))]


def listen(host: str, port: int) -> socket.socket:
    """Raises CannotListen, naming the address."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=BACKLOG)
    except OSError as error:
        raise CannotListen(f"{host}, port {port}: {error.strerror}; choose another with --host and --port") from error


def server(settings: Settings) -> Server:
    def give_up(error: SluiceError) -> None:
        running.give_up(error)

    coordinator = build(settings, usurped=give_up)
    config = uvicorn.Config(
        coordinator.asgi,
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http="httptools",
        lifespan="on",
        access_log=False,
        log_config=None,
        backlog=BACKLOG,
        timeout_graceful_shutdown=5,
        server_header=False,
    )
    running = Server(config, coordinator, settings)
    return running


EVERYTHING = timedelta(hours=1)
"""Between two collections of everything."""

FULL = 2
"""The oldest generation's number."""


class StillHeap:
    """From `start` until `stop`. It is the process's: only one at a time makes sense."""

    def __init__(self) -> None:
        self._next: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """To be called on the event loop."""
        gc.callbacks.append(self._collected)
        self.collect_everything()

    def stop(self) -> None:
        """May run twice."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
            gc.callbacks.remove(self._collected)
            gc.unfreeze()

    def collect_everything(self) -> None:
        """Also when its time has come."""
        if self._next is not None:
            self._next.cancel()
        gc.unfreeze()
        gc.collect()
        self._next = asyncio.get_running_loop().call_later(EVERYTHING.total_seconds(), self.collect_everything)

    def _collected(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "stop" and info["generation"] == FULL:
            gc.freeze()
