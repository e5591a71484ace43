"""The table of deprecated names, and the warnings about their use."""

from __future__ import annotations

import logging

import pytest

from sluice.core.deprecations import DEPRECATIONS, Deprecation, Kind, find, first_use, in_request, of_kind, use

ENTRY = Deprecation(Kind.SETTING, "old_seconds", "new_seconds")


def test_no_name_is_deprecated_twice() -> None:
    names = [(each.kind, each.where, each.old) for each in DEPRECATIONS]
    assert len(names) == len(set(names))


def test_the_new_name_is_not_deprecated_itself() -> None:
    old = {(each.kind, each.where, each.old) for each in DEPRECATIONS}
    assert not [each for each in DEPRECATIONS if (each.kind, each.where, each.new) in old]


def test_an_entry_is_found_by_its_old_name_and_place() -> None:
    assert find(Kind.FIELD, "rowsLeft", "DrainDetail").new == "leftoverRows"
    assert find(Kind.FIELD, "rowsLeft", "DrainStepRequest") in of_kind(Kind.FIELD, "DrainStepRequest")
    with pytest.raises(KeyError):
        find(Kind.FIELD, "rowsLeft", "RunDetail")


def test_a_message_names_the_replacement_and_the_release_that_removes_the_old_name() -> None:
    assert ENTRY.message == "setting old_seconds is deprecated and will be removed in 0.3.0: use new_seconds"
    option = Deprecation(Kind.OPTION, "--local", None, "sluice upgrade", advice="run the new job file with sluice run")
    assert option.message == (
        "option sluice upgrade --local is deprecated and will be removed in 0.3.0: run the new job file with sluice run"
    )


def test_only_the_first_use_in_a_process_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    entry = Deprecation(Kind.SETTING, "logged_once", "new")
    with caplog.at_level(logging.WARNING):
        use(entry)
        use(entry)
    assert [record.message for record in caplog.records] == [entry.message]
    assert not first_use(entry)


def test_a_request_knows_every_deprecated_name_that_it_used() -> None:
    names: list[Deprecation] = []
    token = in_request.set(names)
    use(ENTRY)
    use(ENTRY)
    in_request.reset(token)
    use(ENTRY)
    assert names == [ENTRY, ENTRY]
