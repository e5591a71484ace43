"""The limit of wrong tokens."""

from __future__ import annotations

from datetime import timedelta

from sluice.core.access.tokens import BAD_LOGINS, BAD_LOGINS_WITHIN, BadLogins
from sluice.core.ids import Instant


def test_ten_thousand_wrong_tokens_of_one_address_are_refused_but_for_the_first() -> None:
    limit = BadLogins()
    waits = [limit.refused({"address": "10.1.2.3"}, Instant(100.0 + number / 1000)) for number in range(10_000)]
    assert waits[:BAD_LOGINS] == [None] * BAD_LOGINS
    assert all(wait is not None and timedelta(0) < wait <= BAD_LOGINS_WITHIN for wait in waits[BAD_LOGINS:])
    assert limit.refused({"address": "10.1.2.4"}, Instant(110.0)) is None, "another address is not affected"


def test_wrong_tokens_for_one_identity_are_limited_from_whichever_address_they_come() -> None:
    limit = BadLogins()
    waits = [limit.refused({"address": f"10.0.{n // 250}.{n % 250}", "token": "0123456789abcdef"}, Instant(100.0)) for n in range(10_000)]
    assert [wait is None for wait in waits] == [True] * BAD_LOGINS + [False] * (10_000 - BAD_LOGINS)


def test_the_memory_is_bounded_whatever_the_number_of_addresses() -> None:
    limit = BadLogins()
    for number in range(3 * BadLogins.MAX_COUNTED):
        limit.refused({"address": str(number)}, Instant(100.0))
    assert len(limit._counts) == BadLogins.MAX_COUNTED
    later = Instant(100.0 + BAD_LOGINS_WITHIN.total_seconds())
    assert [limit.refused({"address": "1"}, later) for _ in range(BAD_LOGINS + 1)][-1] is not None, "the next minute counts again"
