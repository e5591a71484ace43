"""Regular expressions that run on text from outside are linear. Each text is so long that a quadratic search of it would take hours."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sluice.core.access.credentials import without_credentials
from sluice.core.access.secrets import check_secrets, looks_secret, parse_reference
from sluice.core.access.tokens import has_token
from sluice.core.errors import BadConfig
from sluice.core.text import is_storable
from sluice.disks import says_no_room

LENGTH = 2**20
"""A quarter of the largest body of a request."""


def long(part: str) -> str:
    return part * (LENGTH // len(part))


@pytest.mark.parametrize(
    "text",
    [
        long("://a:"),
        long("://"),
        long("://a:b "),
        "://" + long(":"),
        long("-----BEGIN "),
        "-----BEGIN " + long("A"),
        long("sluice-t.a "),
        long("password ="),
        "password" + long(" "),
    ],
    ids=lambda text: text[:12],
)
def test_a_value_of_a_config_is_searched_for_secrets_in_linear_time(text: str) -> None:
    assert not looks_secret("a", text)
    check_secrets({text: "a"})


@pytest.mark.parametrize("name", [long("a"), long("a."), long("a/"), long("a-")], ids=lambda text: text[:2])
def test_a_reference_to_a_secret_is_checked_in_linear_time(name: str) -> None:
    with pytest.raises(BadConfig):
        parse_reference("a", f"secret:k8s:{name}%")


def test_the_end_of_a_long_value_is_searched_for_secrets() -> None:
    assert looks_secret("a", long("://a:") + "://u:p@host")
    assert looks_secret("a", long("://a:") + "@")
    assert not looks_secret("a", long("://a:") + " @")


@pytest.mark.parametrize(
    "text", [b"eyJ", b"eyJabcdefgh", b"eyJabcdefgh.", b"sluice-i.", b"sluice-t.aaaa", b"%"], ids=lambda text: text.decode()
)
def test_an_address_is_searched_for_tokens_in_linear_time(text: bytes) -> None:
    assert has_token(text * (LENGTH // len(text))) is (text == b"eyJabcdefgh.")


@pytest.mark.parametrize("part", ["://a:", "?a", "&token", "?token", "@", "://a:b@ ", "?key=a&"])
def test_credentials_are_removed_from_text_in_linear_time(part: str) -> None:
    assert without_credentials(long(part)).startswith(("://", "?", "&", "@"))


@pytest.mark.parametrize("check", [says_no_room, lambda text: not is_storable(text + "\ud800") and is_storable(text)])
def test_the_text_of_an_error_is_read_in_linear_time(check: Callable[[str], bool]) -> None:
    assert check(long("the disk of é")) is (check is not says_no_room)
