"""Text without the credentials of the URLs in it, for logs and messages."""

from __future__ import annotations

import re

HIDDEN = "***"

_PASSWORD = re.compile(r"(?<=://)([^:/\s]*):\S*@")
"""Up to the last @, because a password may contain `/` and `@`, and the name of a user `@`."""

_PARAMETER = re.compile(r"([?&][^=&\s]*(?:password|passwd|secret|token|credential|key)[^=&\s]*=)[^&\s'\"]+", re.IGNORECASE)


def without_credentials(text: str) -> str:
    """Replaces passwords in the user part of URLs, and the values of query parameters whose name says that they are secret."""
    return _PARAMETER.sub(rf"\1{HIDDEN}", _PASSWORD.sub(rf"\1:{HIDDEN}@", text))
