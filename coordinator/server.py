"""The coordinator as a server process (uvicorn): one per home directory, on one address."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import ssl
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import IO

import uvicorn

from coordinator.app import Coordinator, build
from coordinator.connections import FEW_CONTAINERS, Timeouts, file_limit, protocol, supported_containers
from coordinator.settings import Settings
from coordinator.store.claim import lock_file
from sluice.core.errors import BadSettings, CannotListen, HomeInUse, SluiceError
from sluice.renewals.certificates import replace_chain
from sluice.renewals.versions import versions_of

log = logging.getLogger(__name__)

BACKLOG = 2048
"""Maximum number of connections that wait to be accepted. The kernel drops further ones, and clients retry after 1, 3, 7, 15… s."""

ACCEPTS = 16
"""Connections accepted in one iteration of the event loop. libuv accepts one per listening socket and iteration. With a single socket, a
burst of slow requests keeps connections waiting until they are dropped, including those of heartbeats."""


class Server(uvicorn.Server):
    """uvicorn with two differences: stopping ends long polls immediately, and a failed start raises an error of Sluice. `failure`: the
    error that made the server stop itself."""

    def __init__(self, config: uvicorn.Config, coordinator: Coordinator, settings: Settings) -> None:
        super().__init__(config)
        self._coordinator = coordinator
        self._settings = settings
        self._lock: IO[bytes] | None = None
        self._heap = FrozenHeap()
        self._certificate = certificate_of(config, settings)
        self.failure: SluiceError | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Raises BadSettings, StoreUnavailable, UnknownSchema, DatabaseInUse, HomeInUse or CannotListen."""
        await self._coordinator.prepare()
        self._lock = only_one(self._settings.home)
        await self._show_first_token()
        listening = shared(sockets or [listen(self._settings.host, self._settings.port)])
        await super().startup(listening)
        if self.started:
            self._heap.start()
            self._coordinator.loop_lag.start()
            host, port, *_ = listening[0].getsockname()
            where = f"[{host}]" if ":" in host else host
            database, directory = self._settings.database_shown, self._settings.log_directory
            scheme = "http" if self._certificate is None else "https"
            log.info("coordinator on %s://%s:%s, database %s, log %s", scheme, where, port, database, directory)
            self._log_authentication()
            if self._certificate is not None:
                self._certificate.start()
            self._log_connection_limit()

    def _log_authentication(self) -> None:
        if self._coordinator.authentication.required:
            log.info("requests need a token")
        elif self._settings.insecure:
            log.warning("insecure: all requests to %s are allowed without a token", self._settings.host)

    async def _show_first_token(self) -> None:
        """Create an administrator's token if authentication is on and there is none. It is shown once and never logged. This happens before
        the first request, so that a script that waits for the coordinator finds the token. Raises StoreUnavailable, BadSettings."""
        await self._coordinator.authentication.tokens.recover()
        first = await self._coordinator.authentication.first_token()
        if first is None:
            return
        file = self._settings.first_token_file
        if file is None:
            print(f"the first administrator's token, which is not shown again: {first}", flush=True)
        else:
            write_private(file, first)
            log.info("the first administrator's token is in %s", file)

    def _log_connection_limit(self) -> None:
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
        """Stop the server because of this error."""
        log.error("stopping: %s", error)
        self.failure = error
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._coordinator.notices.close()
        self._coordinator.task_waiters.close()
        self._coordinator.pages.close()
        self._heap.stop()
        self._coordinator.loop_lag.stop()
        if self._certificate is not None:
            self._certificate.stop()
        await super().shutdown(sockets)


def write_private(file: Path, text: str) -> None:
    """Write the file so that only this user can read it. Raises BadSettings with the path."""
    try:
        made = file.with_name(f".{file.name}.new")
        made.unlink(missing_ok=True)
        with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(text + "\n")
        made.replace(file)
    except OSError as error:
        raise BadSettings(f"first_token_file: cannot write {file}: {error.strerror}") from error


def only_one(home: Path) -> IO[bytes]:
    """Lock the home directory until the process exits, because leases are in memory, and two coordinators would grant them independently.
    Raises HomeInUse."""
    lock = lock_file(home / "coordinator.lock")
    if lock is None:
        raise HomeInUse(f"{home.absolute()} is in use by another coordinator: stop it, or choose another --home")
    return lock


def shared(listening: list[socket.socket]) -> list[socket.socket]:
    """Each listening socket, duplicated so that it occurs ACCEPTS times."""
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

    coordinator = build(settings, on_claim_lost=give_up)
    config = uvicorn.Config(
        coordinator.asgi,
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http=protocol(coordinator.connections, timeouts, coordinator.fast_paths.answer),
        ws="none",
        timeout_keep_alive=round(timeouts.idle.total_seconds()),
        lifespan="on",
        access_log=False,
        log_config=None,
        backlog=BACKLOG,
        timeout_graceful_shutdown=5,
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies),
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
        ssl_ca_certs=None if settings.tls_client_authorities is None else str(settings.tls_client_authorities),
        ssl_cert_reqs=ssl.CERT_NONE if settings.tls_client_authorities is None else ssl.CERT_OPTIONAL,
    )
    running = Server(config, coordinator, settings)
    return running


CERTIFICATE_INTERVAL = timedelta(seconds=10)
"""Interval at which the files of the certificate are checked for changes."""


class Certificate:
    """Reloads a server's certificate when its files have changed. Open connections keep the former certificate. If the files do not match,
    because only one of them has been replaced yet, the load is retried. Authorities of clients are added; those that the file no longer has
    are trusted until the next start, because a context cannot forget one."""

    def __init__(self, context: ssl.SSLContext, certificate: Path, key: Path, client_authorities: Path | None = None) -> None:
        self._context = context
        self._chain = (certificate, key)
        self._authorities = client_authorities
        self._files = self._chain if client_authorities is None else (*self._chain, client_authorities)
        self._version = versions_of(self._files)
        self._next: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Call on the event loop."""
        self._next = asyncio.get_running_loop().call_later(CERTIFICATE_INTERVAL.total_seconds(), self._run)

    def stop(self) -> None:
        if self._next is not None:
            self._next.cancel()

    def _run(self) -> None:
        self.refresh()
        self.start()

    def refresh(self) -> bool:
        """Load the files if they have changed. Returns whether they were loaded."""
        found = versions_of(self._files)
        if found is None or found == self._version:
            return False
        try:
            replace_chain(self._context, *self._chain)
            if self._authorities is not None:
                self._context.load_verify_locations(self._authorities)
        except OSError as error:
            log.error("cannot load the new certificate from %s and %s: %s", *self._chain, error)
            return False
        self._version = found
        log.info("reloaded the certificate from %s", self._files[0])
        return True


def certificate_of(config: uvicorn.Config, settings: Settings) -> Certificate | None:
    """Raises BadSettings with the paths."""
    certificate, key = settings.tls_certificate, settings.tls_key
    if certificate is None or key is None:
        return None
    try:
        config.load()
    except OSError as error:
        raise BadSettings(
            f"tls_certificate {certificate}, tls_key {key}, tls_client_authorities {settings.tls_client_authorities}: {error}"
        ) from error
    assert config.ssl is not None
    return Certificate(config.ssl, certificate, key, settings.tls_client_authorities)


FULL_COLLECTION_INTERVAL = timedelta(hours=1)

FULL = 2
"""The number of the oldest generation."""

THRESHOLDS = (700, 5, 50)
"""When the collector runs, as in `gc.set_threshold`. A collection of the middle generation looks at half as many objects as by default, and
takes less than a millisecond. Full ones, which take five to ten in a coordinator that renders pages, are five times rarer."""


class FrozenHeap:
    """Prevents the garbage collector from scanning long-lived objects repeatedly: after each full collection the surviving objects are
    frozen. Once an hour they are unfrozen and collected. Affects the whole process between `start` and `stop`. What was frozen before
    `start` is not collected by it, and stays frozen after `stop`."""

    def __init__(self) -> None:
        self._next: asyncio.TimerHandle | None = None
        self._former_thresholds = gc.get_threshold()
        self._was_frozen = False

    def start(self) -> None:
        """Call on the event loop."""
        self._former_thresholds = gc.get_threshold()
        gc.set_threshold(*THRESHOLDS)
        gc.callbacks.append(self._collected)
        self._was_frozen = gc.get_freeze_count() > 0
        self._collect()

    def stop(self) -> None:
        """Unfreeze all objects, if none were frozen before. Idempotent."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
            gc.callbacks.remove(self._collected)
            gc.set_threshold(*self._former_thresholds)
            if not self._was_frozen:
                gc.unfreeze()

    def collect_everything(self) -> None:
        """Run a full collection now, and again after FULL_COLLECTION_INTERVAL."""
        gc.unfreeze()
        self._collect()

    def _collect(self) -> None:
        if self._next is not None:
            self._next.cancel()
        gc.collect()
        self._next = asyncio.get_running_loop().call_later(FULL_COLLECTION_INTERVAL.total_seconds(), self.collect_everything)

    def _collected(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "stop" and info["generation"] == FULL:
            gc.freeze()
