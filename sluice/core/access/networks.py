"""Addresses and networks of clients."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from sluice.core.errors import BadSettings

Network = IPv4Network | IPv6Network


def parse_networks(given: Iterable[str]) -> tuple[Network, ...]:
    """Networks such as "10.0.0.0/8" or "fd00::/8". An address is a network of one. Raises BadSettings."""
    try:
        return tuple(ip_network(each) for each in given)
    except ValueError as error:
        raise BadSettings(f"{error}: write networks as 10.0.0.0/8, and addresses as 10.1.2.3") from error


def is_in(address: str, networks: Iterable[Network]) -> bool:
    """Whether the address is in one of the networks. An IPv4-mapped IPv6 address such as ::ffff:10.1.2.3 counts as 10.1.2.3. False
    for other text, such as the path of a Unix socket."""
    try:
        found = ip_address(address)
    except ValueError:
        return False
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return any(found in each for each in networks)
