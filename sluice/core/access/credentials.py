"""Text without the credentials of the URLs in it, for logs and messages."""

from __future__ import annotations

import re

HIDDEN = "***"

_WORD = re.compile(r"\S+")
_USER = re.compile(r"(?<=://)([^:/]*):.*")
_PARAMETER = re.compile(r"([?&]([^=?&\s]*)=)[^&\s'\"]+")
_SECRET_NAME = re.compile(r"password|passwd|secret|token|credential|key", re.IGNORECASE)


def without_credentials(text: str) -> str:
    """Replaces passwords in the user part of URLs, and the values of query parameters whose name says that they are secret. Linear in the
    size of any text."""
    return _PARAMETER.sub(_without_secret, _WORD.sub(_without_password, text))


def _without_password(word: re.Match[str]) -> str:
    """Up to the last @, because a password may contain `/` and `@`, and the name of a user `@`."""
    before, at, after = word[0].rpartition("@")
    return _USER.sub(rf"\1:{HIDDEN}", before) + at + after


def _without_secret(parameter: re.Match[str]) -> str:
    return f"{parameter[1]}{HIDDEN}" if _SECRET_NAME.search(parameter[2]) else parameter[0]
