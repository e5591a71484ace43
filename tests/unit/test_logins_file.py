"""The file of logins, for users whose home is unusual."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sluice import logins
from sluice.core.errors import BadSettings

COORDINATOR = "https://sluice.example"
LOGIN = logins.Login("token", 2e9, "https://provider.example/token", "sluice")


@pytest.fixture
def no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 3_000_123)  # no entry in the user database


@pytest.mark.usefixtures("no_home")
def test_a_user_without_a_home_has_no_login_and_cannot_log_in() -> None:
    assert logins.kept(COORDINATOR) is None
    with pytest.raises(BadSettings, match="user 3000123 has no home: set HOME or XDG_CONFIG_HOME"):
        logins.keep(COORDINATOR, LOGIN)


@pytest.mark.parametrize("config", ["a-file", "a-file/below"])
def test_a_home_that_is_no_directory_has_no_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str) -> None:
    (tmp_path / "a-file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / config))
    assert logins.kept(COORDINATOR) is None
    with pytest.raises(BadSettings, match="cannot be written"):
        logins.keep(COORDINATOR, LOGIN)


def test_a_file_of_logins_that_cannot_be_read_is_not_taken_for_an_empty_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    logins.keep(COORDINATOR, LOGIN)
    assert logins.kept(COORDINATOR) == LOGIN
    (tmp_path / "sluice" / "logins.json").write_text("{")
    with pytest.raises(BadSettings, match="cannot be read"):
        logins.kept(COORDINATOR)
