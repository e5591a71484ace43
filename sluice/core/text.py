"""Which text can be stored and sent."""

from __future__ import annotations


def is_storable(text: str) -> bool:
    """Whether each database can store the text, and UTF-8 can encode it. PostgreSQL does not store NUL, and UTF-8 has no lone
    surrogates."""
    if "\0" in text:
        return False
    return text.isascii() or not any("\ud800" <= each <= "\udfff" for each in text)
