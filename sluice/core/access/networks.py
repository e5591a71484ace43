"""Addresses and networks of clients."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from sluice.core.errors import BadSettings

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
