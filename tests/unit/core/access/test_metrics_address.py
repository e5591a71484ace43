from __future__ import annotations

import pytest

from sluice.core.access.metrics_address import parse_scrape_hosts, scrape_address
from sluice.core.errors import BadSettings


@pytest.mark.parametrize(
    ("given", "peer", "published"),
    [
        ("10.0.0.5:9400", "10.0.0.5", "10.0.0.5:9400"),
        ("10.0.0.5:9400", "::ffff:10.0.0.5", "10.0.0.5:9400"),
        ("[fd00::5]:9400", "fd00:0::5", "[fd00::5]:9400"),
        ("127.0.0.1:9400", "127.0.0.1", "127.0.0.1:9400"),
    ],
)
def test_a_container_may_name_its_own_address(given: str, peer: str, published: str) -> None:
    assert scrape_address(given, peer, parse_scrape_hosts([])) == published


@pytest.mark.parametrize("given", ["169.254.169.254:80", "127.0.0.1:80", "metadata.internal:80", "[::1]:80", "0.0.0.0:80"])
def test_another_host_is_replaced_by_the_containers_own_address(given: str) -> None:
    assert scrape_address(given, "10.0.0.5", parse_scrape_hosts([])) == "10.0.0.5:80"
    assert scrape_address(given, "fd00::5", parse_scrape_hosts([])) == "[fd00::5]:80"


@pytest.mark.parametrize("given", ["Node-3.cluster.example:9400", "10.1.2.3:9400", "[fd00:1::3]:9400", "gateway:9400"])
def test_a_host_that_the_settings_list_is_published(given: str) -> None:
    hosts = parse_scrape_hosts(["*.CLUSTER.example", "10.1.0.0/16", "fd00:1::/32", "gateway"])
    assert scrape_address(given, "10.0.0.5", hosts) == given


def test_the_address_of_a_container_behind_a_unix_socket_is_published_only_if_listed() -> None:
    assert scrape_address("10.0.0.5:9400", "", parse_scrape_hosts([])) is None
    assert scrape_address("10.0.0.5:9400", "", parse_scrape_hosts(["10.0.0.5"])) == "10.0.0.5:9400"


def test_a_network_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(BadSettings, match="write networks as"):
        parse_scrape_hosts(["10.0.0.0/99"])
