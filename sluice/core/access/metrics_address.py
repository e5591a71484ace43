"""The address at which Prometheus scrapes a container.

The container sends the host and port. Prometheus connects to them, so a container could make it send requests to any host of its network
(server-side request forgery, CWE-918). Therefore the host is the address from which the container registered, unless the
coordinator's settings list the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from sluice.core.access.networks import Network, is_in, parse_address, parse_networks


@dataclass(frozen=True, slots=True)
class ScrapeHosts:
    """The hosts that containers may name. `names`: patterns such as "*.example.org", in lower case."""

    networks: tuple[Network, ...] = ()
    names: tuple[str, ...] = ()

    def allow(self, host: str) -> bool:
        return is_in(host, self.networks) or any(fnmatchcase(host.lower(), each) for each in self.names)


def parse_scrape_hosts(given: Sequence[str]) -> ScrapeHosts:
    """Addresses, networks such as "10.0.0.0/8", and patterns of names. Raises BadSettings."""
    numeric = [each for each in given if "/" in each or parse_address(each) is not None]
    return ScrapeHosts(parse_networks(numeric), tuple(each.lower() for each in given if each not in numeric))


def scrape_address(given: str, peer: str, hosts: ScrapeHosts) -> str | None:
    """The "host:port" to publish for a container that names the address `given`. `peer`: the address from which it registered. None if that
    is not an address, as with a Unix socket, and the host is not listed. IPv6 addresses are in brackets."""
    name, _, port = given.rpartition(":")
    host = name.strip("[]")
    own = parse_address(peer)
    if hosts.allow(host) or (own is not None and own == parse_address(host)):
        return given
    if own is None:
        return None
    return f"[{own}]:{port}" if own.version == 6 else f"{own}:{port}"
