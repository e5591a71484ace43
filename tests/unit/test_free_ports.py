"""Ports for servers that Sluice starts on this machine."""

from __future__ import annotations

import socket
from pathlib import Path

from containers.local.ports import free_ports

_DEFAULT_OF_LINUX = "32768 60999"


def test_ports_for_servers_are_never_those_that_the_system_gives_to_clients() -> None:
    configured = Path("/proc/sys/net/ipv4/ip_local_port_range")
    first, last = map(int, (configured.read_text() if configured.exists() else _DEFAULT_OF_LINUX).split())
    if first < 30_000:  # configured otherwise: no range is known to be free of clients
        first, last = map(int, _DEFAULT_OF_LINUX.split())
    assert not [each for each in free_ports(200) if first <= each <= last]


def test_ports_chosen_together_differ_and_nothing_listens_on_them() -> None:
    ports = free_ports(50)
    assert len(set(ports)) == 50
    for port in ports:
        with socket.socket() as server:
            server.bind(("127.0.0.1", port))
