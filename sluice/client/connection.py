"""Which URL of a coordinator a request is sent to, and when a request is repeated."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import httpx

from sluice.core.access.credentials import without_credentials
from sluice.core.errors import BadSettings

URL = "SLUICE_COORDINATOR_URL"
"""Variable with the coordinator's URL, or with several, separated by commas."""

PROXY = "SLUICE_COORDINATOR_PROXY"
"""Variable with the URL of an HTTP proxy for requests to the coordinator. Those that `HTTP_PROXY` and similar variables name are not used:
the coordinator is usually near, they are for the internet, and a slow proxy would end leases."""

LOCAL = "http://127.0.0.1:8180"
"""The URL of a coordinator on this machine."""

TIMEOUT = timedelta(seconds=10)
"""For one request, unless it waits at the coordinator."""

CONNECT_WITHIN = timedelta(seconds=2)
"""For one connection, if there is another URL to try. A heartbeat has 5 s."""

RETRY_DELAY = timedelta(seconds=1)
"""Pause before a request is repeated."""

NOT_CONNECTED = (httpx.ConnectError, httpx.ConnectTimeout)
"""Errors after which the coordinator cannot have received the request."""


def urls_of(text: str) -> Sequence[str]:
    """The URLs in a list that is separated by commas, without repetitions. A comma within a URL does not separate. Raises BadSettings."""
    found = re.split(r"[\s,]+(?=https?://)", text.strip().rstrip(","))
    return tuple(dict.fromkeys(_checked(each.strip()) for each in found))


def _checked(url: str) -> str:
    """The URL. Raises BadSettings if no coordinator can have it."""
    named = f"{without_credentials(url)!r} is not the URL of a coordinator"
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise BadSettings(f"{named}: {error}") from error
    if parsed.scheme not in ("http", "https"):
        raise BadSettings(f"{named}: it must begin with http:// or https://")
    if not parsed.host or "," in parsed.host or re.search(r"\s", url):
        raise BadSettings(f"{named}: it must name a host, as {LOCAL} does")
    if parsed.port is not None and not 0 < parsed.port < 2**16:
        raise BadSettings(f"{named}: its port must be from 1 to 65535")
    return url


def proxy() -> str | None:
    """The URL of the proxy, None for none. Raises BadSettings."""
    given = os.environ.get(PROXY, "")
    if given and not re.match(r"https?://[^/]", given):
        raise BadSettings(
            f"{PROXY}: {without_credentials(given)!r} is not the URL of an HTTP proxy: it must begin with http:// or https://"
        )
    return given or None


def through(given: str | None) -> str:
    """For messages: " through the proxy URL", "" without one."""
    return f" through the proxy {without_credentials(given)} ({PROXY})" if given else ""


class Addresses:
    """The URLs of one coordinator, by number, and which of them answers."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.current = 0
        """The number of the URL that the next request is sent to first."""

    def in_turn(self) -> Sequence[int]:
        """All, beginning with the current one."""
        return [(self.current + each) % self._count for each in range(self._count)]

    def answered(self, number: int) -> None:
        self.current = number

    def failed(self, number: int) -> None:
        """Continue with the next one, unless another request has already done so."""
        if self.current == number:
            self.current = (number + 1) % self._count


@dataclass(frozen=True, slots=True)
class Retries:
    """A request is repeated if no URL could be connected to. A request that may arrive twice is also repeated if there was no answer, or
    an answer with status 503. `within`: no repetition begins later than this after the first attempt. `pause`: before each repetition."""

    within: timedelta
    pause: timedelta = RETRY_DELAY


NO_RETRIES = Retries(timedelta(0))
"""For callers that repeat requests themselves, as agents and commands do."""
