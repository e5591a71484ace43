"""Which text can be stored and sent, and the form of an address."""

from __future__ import annotations


def is_storable(text: str) -> bool:
    """Whether each database can store the text, and UTF-8 can encode it. PostgreSQL does not store NUL, and UTF-8 has no lone
    surrogates."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


_PORT = r"([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
HOST_AND_PORT = rf"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):{_PORT}$"
"""The port is between 1 and 65535."""
