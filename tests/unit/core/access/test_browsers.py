"""Which hosts a request may name, and which requests are those of pages of other sites."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.access.browsers import is_cross_site, is_host_allowed

NAMES = frozenset({"sluice.example.com"})


@pytest.mark.parametrize(
    "authority",
    [
        "127.0.0.1:8180",
        "127.0.0.1",
        "[::1]:8180",
        "10.1.2.3:80",
        "localhost:8180",
        "LOCALHOST",
        "localhost.",
        "sluice.example.com",
        "Sluice.Example.com:443",
    ],
)
def test_addresses_localhost_and_configured_names_are_accepted(authority: str) -> None:
    assert is_host_allowed(authority, NAMES)


@pytest.mark.parametrize(
    "authority",
    [
        "attacker.example",
        "attacker.example:8180",
        "localhost.attacker.example",
        "127.0.0.1.attacker.example",
        "sluice.example.com.attacker.example",
        "127.0.0.1@attacker.example",
        "attacker.example/127.0.0.1",
        "localhost:8180:1",
        "localhost:",
        "127.1",
        "0x7f000001",
        "",
        " localhost",
        "localhost,attacker.example",
    ],
)
def test_any_other_host_is_refused(authority: str) -> None:
    assert not is_host_allowed(authority, NAMES)


@given(name=st.from_regex(r"[a-z][a-z0-9-]{0,20}(\.[a-z][a-z0-9-]{0,20}){0,3}", fullmatch=True))
def test_a_name_is_accepted_only_if_it_is_configured(name: str) -> None:
    assert is_host_allowed(name, NAMES) == (name in {"localhost", *NAMES})
    assert is_host_allowed(name, {name})


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "BREW"])
def test_a_change_by_a_page_of_another_origin_is_refused(method: str) -> None:
    for origin in ("http://attacker.example", "null", "http://localhost:3000", "http://localhost", ""):
        assert is_cross_site(method, "localhost:8180", origin, None, None)
    for site in ("cross-site", "same-site", "unknown", "none,cross-site"):
        assert is_cross_site(method, "localhost:8180", None, site, "cors")
        assert is_cross_site(method, "localhost:8180", "http://localhost:8180", site, "navigate")


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE"])
def test_the_page_s_own_requests_and_those_of_other_clients_are_served(method: str) -> None:
    assert not is_cross_site(method, "localhost:8180", None, None, None)
    assert not is_cross_site(method, "localhost:8180", "http://localhost:8180", "same-origin", "cors")
    assert not is_cross_site(method, "Sluice.example.com", "https://sluice.example.com", None, None)
    assert not is_cross_site(method, "localhost:8180", None, "none", "navigate")


def test_a_link_from_another_site_may_be_followed_but_its_page_may_not_embed_or_fetch() -> None:
    assert not is_cross_site("GET", "localhost:8180", None, "cross-site", "navigate")
    for mode in ("no-cors", "cors", "websocket", None):
        assert is_cross_site("GET", "localhost:8180", None, "cross-site", mode)
