"""Starts the guardian of a container, and sends the lease and the token to it. See `guardian`."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Collection
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from containers.supervision.guardian import MARK
from containers.supervision.processes import ProcessId
from sluice.core.ids import ExecutionContainerId, Instant

log = logging.getLogger("sluice")

RESTART = timedelta(seconds=1)
"""The pause before a guardian that has ended is started again."""


class GuardianProcess:
    """Used on the agent's loop. `home`: see `Ending`."""

    def __init__(self, container: ExecutionContainerId, url: str, home: Path | None = None) -> None:
        self._container = container
        self._url = url
        self._drivers: Collection[ProcessId] = ()
        self._home = "" if home is None else str(home.absolute())
        self._process: asyncio.subprocess.Process | None = None
        self._lease_ends: Instant | None = None
        self.token = ""

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def renewed(self, ends_at: Instant) -> None:
        self._lease_ends = ends_at
        self._write(f"lease {ends_at!r}")

    def has_token(self, token: str) -> None:
        self.token = token
        self._write(f"token {token}")

    async def start(self, drivers: Collection[ProcessId] = ()) -> None:
        """`drivers`: see `Descendants`. Raises OSError."""
        self._drivers = drivers
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "containers.supervision.guardian"),
            *(str(os.getpid()), self._container, *map(str, self._drivers)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if name != MARK},
            start_new_session=True,
        )
        for each in (f"url {self._url}", f"home {self._home}", f"token {self.token}"):
            self._write(each)
        if self._lease_ends is not None:
            self._write(f"lease {self._lease_ends!r}")

    async def keep(self) -> None:
        """Restart the guardian whenever it ends, until cancelled."""
        while True:
            if self._process is not None:
                await self._process.wait()
            await asyncio.sleep(RESTART.total_seconds())
            log.warning("the guardian process has ended and is started again")
            try:
                await self.start(self._drivers)
            except OSError as error:  # there is no memory for it now
                log.error("the guardian process cannot be started: %s", error)
                self._process = None

    def kill(self) -> None:
        """This process ends the driver itself."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)

    async def end(self) -> None:
        self.kill()
        if self._process is not None:
            await self._process.wait()

    def _write(self, line: str) -> None:
        process = self._process
        if process is not None and process.stdin is not None and not process.stdin.is_closing():
            process.stdin.write(f"{line}\n".encode())
