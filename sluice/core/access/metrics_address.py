"""The address at which Prometheus scrapes a container.

The container sends the host and port. Prometheus connects to them, so a container could make it send requests to any host of its network
(server-side request forgery, CWE-918). Therefore the host is the address from which the container registered, unless the
coordinator's settings list the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from ipaddress import IPv4Address, IPv6Address, ip_address

from sluice.core.access.networks import Network, is_in, parse_networks


@dataclass(frozen=True, slots=True)
class ScrapeHosts:
    """The hosts that containers may name. `names`: patterns such as "*.example.org", in lower case."""

    networks: tuple[Network, ...] = ()
    names: tuple[str, ...] = ()

    def allow(self, host: str) -> bool:
        return is_in(host, self.networks) or any(fnmatchcase(host.lower(), each) for each in self.names)


def parse_scrape_hosts(given: Sequence[str]) -> ScrapeHosts:
    """Addresses, networks such as "10.0.0.0/8", and patterns of names. Raises BadSettings."""
    numeric = [each for each in given if "/" in each or _is_address(each)]
    return ScrapeHosts(parse_networks(numeric), tuple(each.lower() for each in given if each not in numeric))


def scrape_address(given: str, peer: str, hosts: ScrapeHosts) -> str | None:
    """The "host:port" to publish for a container that names the address `given`. `peer`: the address from which it registered. None if that
    is not an address, as with a Unix socket, and the host is not listed. IPv6 addresses are in brackets."""
    name, _, port = given.rpartition(":")
    host = name.strip("[]")
    if hosts.allow(host) or (_is_address(host) and _is_address(peer) and ip_address(host) == _plain(peer)):
        return given
    if not _is_address(peer):
        return None
    own = _plain(peer)
    return f"[{own}]:{port}" if own.version == 6 else f"{own}:{port}"


def _plain(address: str) -> IPv6Address | IPv4Address:
    """The address; an IPv4-mapped IPv6 address such as ::ffff:10.1.2.3 becomes 10.1.2.3."""
    found = ip_address(address)
    return found.ipv4_mapped or found if isinstance(found, IPv6Address) else found


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
