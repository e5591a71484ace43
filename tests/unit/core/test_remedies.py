"""What to do about an error: found by its class, by the slug of a coordinator's answer, and shown on a terminal."""

from __future__ import annotations

from sluice.client import Refused
from sluice.core.errors import ClientError, UnknownJob
from sluice.core.remedies import KIND_OF, OF_USER_CODE, REMEDIES, plain, remedy_of, remedy_of_error, remedy_of_reason


class OfALaterVersion(UnknownJob):
    """An error without an entry."""


def test_an_error_without_an_entry_has_the_remedy_of_its_base() -> None:
    assert remedy_of(OfALaterVersion) == REMEDIES["UnknownJob"]


def test_a_refusal_has_the_remedy_of_its_slug() -> None:
    assert remedy_of_error(Refused("unknown-job", "no job x")) == REMEDIES["UnknownJob"]
    assert remedy_of_error(Refused("of-a-later-version", "no")) == REMEDIES["Refused"]
    assert remedy_of_error(ClientError("no")) == REMEDIES["ClientError"]


def test_every_slug_of_a_coordinator_has_a_remedy() -> None:
    assert all(REMEDIES[each.__name__] for each in KIND_OF.values())


def test_the_reason_of_an_exit_has_the_remedy_of_its_title_or_of_user_code() -> None:
    assert remedy_of_reason(f"{UnknownJob.title()} no job x\nlog: a.log") == REMEDIES["UnknownJob"]
    assert remedy_of_reason("/app/my job.py:12 in counts: ValueError: no") == OF_USER_CODE
    assert remedy_of_reason("killed: its lease expired and it did not stop") == ""
    assert remedy_of_reason("") == ""


def test_links_become_names_of_files() -> None:
    assert plain("See [roles](../roles.md).") == "See roles (docs/roles.md)."
    assert all("](" not in plain(each) for each in REMEDIES.values())
