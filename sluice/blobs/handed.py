"""Short-lived credentials of a store, and their renewal."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sluice.clock import Clock
from sluice.core.errors import BlobUnavailable, SluiceError
from sluice.core.ids import Instant

log = logging.getLogger(__name__)

PAUSE = timedelta(seconds=10)
"""Time between two attempts to renew credentials that are still valid."""


@dataclass(frozen=True, slots=True)
class HandedCredentials:
    """Credentials that expire. `left`: how long they are valid from the request on which they were issued. It is a duration, because the
    clocks of machines differ. `expires_at`: the same as a time of day, for people."""

    key: str
    secret: str = field(repr=False)
    token: str = field(repr=False)
    left: timedelta
    expires_at: datetime


Fetch = Callable[[], Awaitable[HandedCredentials]]


@dataclass(frozen=True, slots=True)
class _Held:
    credentials: HandedCredentials
    renew_at: Instant
    ends_at: Instant


class RenewedCredentials:
    """Credentials that `fetch` issues. They are renewed after half of their life. Callers share one call of `fetch`. If it fails, the
    former credentials are used until they expire. `fetch` limits its own time, and raises a SluiceError. Used on one event loop."""

    def __init__(self, fetch: Fetch, clock: Clock, of: str) -> None:
        """`of`: what the credentials are for, in log records."""
        self._fetch = fetch
        self._clock = clock
        self._of = of
        self._held: _Held | None = None
        self._fetching: asyncio.Task[HandedCredentials] | None = None
        self._not_before = Instant(0)
        """No attempt before this time, while the credentials are valid."""

    @property
    def left(self) -> timedelta:
        """How long the credentials are valid. Zero if there are none."""
        if self._held is None:
            return timedelta(0)
        return max(timedelta(0), timedelta(seconds=self._held.ends_at - self._clock.elapsed()))

    @property
    def busy(self) -> bool:
        """Whether a call of `fetch` is in progress."""
        return self._fetching is not None

    async def current(self) -> HandedCredentials:
        """Valid credentials. Those that are due are renewed in the background. Raises the error of `fetch` if there are none."""
        held = self._valid()
        if held is None:
            return await self._fetched()
        if self._is_due(held):
            self._start()
        return held.credentials

    async def renewed(self) -> HandedCredentials:
        """As `current`, but waits for the renewal of those that are due. If it fails, returns the former ones while they are valid."""
        held = self._valid()
        if held is None:
            return await self._fetched()
        if self._is_due(held):
            with suppress(SluiceError):
                return await self._fetched()
        return held.credentials

    def reject(self) -> None:
        """The store has refused the credentials as expired. The next call fetches new ones."""
        self._held = None

    async def close(self) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.gather(self._fetching, return_exceptions=True)

    def _valid(self) -> _Held | None:
        return self._held if self._held is not None and self._clock.elapsed() < self._held.ends_at else None

    def _is_due(self, held: _Held) -> bool:
        return self._clock.elapsed() >= max(held.renew_at, self._not_before)

    async def _fetched(self) -> HandedCredentials:
        """The result of the call in progress. A caller that is cancelled does not cancel it for the others."""
        return await asyncio.shield(self._start())

    def _start(self) -> asyncio.Task[HandedCredentials]:
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._renew())
            self._fetching.add_done_callback(self._done)
        return self._fetching

    def _done(self, task: asyncio.Task[HandedCredentials]) -> None:
        self._fetching = None
        if task.cancelled() or (error := task.exception()) is None:
            return
        self._not_before = Instant(self._clock.elapsed() + PAUSE.total_seconds())
        log.warning("cannot renew the credentials of %s, of which %.0f s are left: %s", self._of, self.left.total_seconds(), error)

    async def _renew(self) -> HandedCredentials:
        asked = self._clock.elapsed()
        found = await self._fetch()
        ends_at = Instant(asked + found.left.total_seconds())
        if ends_at <= self._clock.elapsed():
            raise BlobUnavailable(f"credentials of {self._of} expired before they arrived")
        self._held = _Held(found, renewal_time(asked, ends_at), ends_at)
        return found


def renewal_time(issued: Instant, ends: Instant) -> Instant:
    """Half way between the two."""
    return Instant(issued + (ends - issued) / 2)
