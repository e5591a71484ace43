"""Which requests of web browsers are accepted.

A page of any site can make a browser send requests to addresses that only the browser's machine reaches. Two rules protect the
coordinator:

* The `Host` header must be an address, `localhost` or a configured name. Without this rule, a site that changes the address of its own name
  to the coordinator's (DNS rebinding) has the same origin as the coordinator, and can read its answers.
* A request from a page of another origin is refused, except a navigation, which changes nothing and shows its answer only to the user.
  Browsers indicate the origin with `Sec-Fetch-Site` (https://www.w3.org/TR/fetch-metadata/), and older ones with `Origin` for all methods
  except GET and HEAD.

Clients that are not browsers send neither `Origin` nor `Sec-Fetch-Site`.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from sluice.core.access.networks import parse_address

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

LOCALHOST = "localhost"

_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{1,5})?")


def is_host_allowed(authority: str, names: Collection[str]) -> bool:
    """Whether this value of a `Host` header is an address, `localhost` or one of `names`, which are in lower case; any port may follow."""
    found = _AUTHORITY.fullmatch(authority.lower())
    if found is None:
        return False
    host = found[1].removesuffix(".")
    return host == LOCALHOST or host in names or parse_address(host.strip("[]")) is not None


def is_cross_site(method: str, authority: str, origin: str | None, fetch_site: str | None, fetch_mode: str | None) -> bool:
    """Whether the request must be refused because a page of another origin than `http(s)://AUTHORITY` sent it. The other arguments are the
    headers `Origin`, `Sec-Fetch-Site` and `Sec-Fetch-Mode`."""
    safe = method in SAFE_METHODS
    if fetch_site is not None and fetch_site not in ("same-origin", "none"):
        return not (safe and fetch_mode == "navigate")
    return not safe and origin is not None and origin.lower() not in (f"http://{authority.lower()}", f"https://{authority.lower()}")
