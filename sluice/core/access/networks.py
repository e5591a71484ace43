"""Addresses and networks of clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from sluice.core.errors import BadSettings
from sluice.core.ids import JobName

Network = IPv4Network | IPv6Network


def parse_networks(given: Iterable[str]) -> tuple[Network, ...]:
    """Networks such as "10.0.0.0/8" or "fd00::/8". An address is a network of one. Raises BadSettings."""
    try:
        return tuple(ip_network(each) for each in given)
    except ValueError as error:
        raise BadSettings(f"{error}: write networks as 10.0.0.0/8, and addresses as 10.1.2.3") from error


def parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """The address; None for other text, such as a name or the path of a Unix socket. An IPv4-mapped IPv6 address such as ::ffff:10.1.2.3
    becomes 10.1.2.3."""
    try:
        found = ip_address(text)
    except ValueError:
        return None
    return found.ipv4_mapped or found if isinstance(found, IPv6Address) else found


def is_in(address: str, networks: Iterable[Network]) -> bool:
    """Whether the address is in one of the networks. False for text that is not an address."""
    found = parse_address(address)
    return found is not None and any(found in each for each in networks)


@dataclass(frozen=True, slots=True)
class OpenNetworks:
    """The networks from which containers of Apache Samza, which cannot send tokens, are admitted without one. `rows`: patterns of job
    names, each with its networks."""

    rows: tuple[tuple[str, tuple[Network, ...]], ...] = ()

    def admit(self, address: str, job: JobName) -> bool:
        return any(fnmatchcase(job, pattern) and is_in(address, networks) for pattern, networks in self.rows)

    def admit_any(self, address: str) -> bool:
        """Whether the address is in a network of any job."""
        return any(is_in(address, networks) for _, networks in self.rows)


def parse_open_networks(given: Mapping[str, Iterable[str]]) -> OpenNetworks:
    """Raises BadSettings."""
    return OpenNetworks(tuple((pattern, parse_networks(networks)) for pattern, networks in given.items()))
