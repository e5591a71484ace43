"""The coordinator as a server process (uvicorn): one per home directory, on one address."""

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
from coordinator.connections import FEW_CONTAINERS, Timeouts, file_limit, protocol, supported_containers
from coordinator.settings import Settings
from coordinator.store.claim import lock_file
from sluice.core.errors import CannotListen, HomeInUse, SluiceError

log = logging.getLogger(__name__)

BACKLOG = 2048
"""Length of the queue of connections to be accepted. Beyond it the kernel drops connections, and clients try again after 1, 3, 7, 15… s."""

ACCEPTS = 16
"""Connections accepted in one iteration of the event loop. libuv accepts one per listening socket and iteration. With a single socket, a
burst of slow requests keeps connections waiting until they are dropped, including those of heartbeats."""


class Server(uvicorn.Server):
    """uvicorn, except that stopping ends long polls immediately and a failed start raises an error of Sluice. `failure`: the error because
    of which the server stopped itself."""

    def __init__(self, config: uvicorn.Config, coordinator: Coordinator, settings: Settings) -> None:
        super().__init__(config)
        self._coordinator = coordinator
        self._settings = settings
        self._lock: IO[bytes] | None = None
        self._heap = FrozenHeap()
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
            self._say_how_many()

    def _say_how_many(self) -> None:
        limit = self._coordinator.connections.limit
        containers = supported_containers(limit)
        if containers >= FEW_CONTAINERS or self._settings.max_connections is not None:
            log.info("at most %d connections: enough for about %d containers", limit, containers)
        else:
            log.warning(
                "at most %d connections, because this process may open %d files: enough for about %d containers. Raise the limit of open "
                "files for more (ulimit -n, LimitNOFILE= of systemd, ulimits of the container runtime)",
                limit,
                file_limit(),
                containers,
            )

    def give_up(self, error: SluiceError) -> None:
        """Stop because of this error."""
        log.error("stopping: %s", error)
        self.failure = error
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._coordinator.notices.close()
        self._coordinator.task_waiters.close()
        self._heap.stop()
        await super().shutdown(sockets)


def only_one(home: Path) -> IO[bytes]:
    """Lock the home directory until the process exits. Raises HomeInUse: leases are in memory, so two coordinators would grant them
    independently."""
    lock = lock_file(home / "coordinator.lock")
    if lock is None:
        raise HomeInUse(f"{home.absolute()} is in use by another coordinator: stop it, or choose another --home")
    return lock


def shared(listening: list[socket.socket]) -> list[socket.socket]:
    """Each listening socket ACCEPTS times."""
    return [each for one in listening for each in (one, *(one.dup() for _ in range(ACCEPTS - 1)))]


def listen(host: str, port: int) -> socket.socket:
    """Raises CannotListen with the address."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=BACKLOG)
    except OSError as error:
        raise CannotListen(f"{host}, port {port}: {error.strerror}; choose another with --host and --port") from error


def server(settings: Settings, timeouts: Timeouts | None = None) -> Server:
    timeouts = timeouts or Timeouts()

    def give_up(error: SluiceError) -> None:
        running.give_up(error)

    coordinator = build(settings, usurped=give_up)
    config = uvicorn.Config(
        coordinator.asgi,
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http=protocol(coordinator.connections, timeouts),
        ws="none",
        timeout_keep_alive=round(timeouts.idle.total_seconds()),
        lifespan="on",
        access_log=False,
        log_config=None,
        backlog=BACKLOG,
        timeout_graceful_shutdown=5,
        server_header=False,
    )
    running = Server(config, coordinator, settings)
    return running


FULL_COLLECTION_INTERVAL = timedelta(hours=1)

FULL = 2
"""The number of the oldest generation."""


class FrozenHeap:
    """Keeps the garbage collector from scanning long-lived objects again and again: after each full collection the survivors are frozen.
    Once an hour they are unfrozen and collected. Affects the whole process, between `start` and `stop`."""

    def __init__(self) -> None:
        self._next: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Call on the event loop."""
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
        """Run a full collection now, and again after FULL_COLLECTION_INTERVAL."""
        if self._next is not None:
            self._next.cancel()
        gc.unfreeze()
        gc.collect()
        self._next = asyncio.get_running_loop().call_later(FULL_COLLECTION_INTERVAL.total_seconds(), self.collect_everything)

    def _collected(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "stop" and info["generation"] == FULL:
            gc.freeze()
