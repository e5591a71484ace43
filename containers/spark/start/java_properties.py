"""Values in files of Java properties."""

from __future__ import annotations


def property_text(text: str) -> str:
    """A name or value in a file of Java properties (java.util.Properties.load). All characters except letters and digits are escaped.
    Spark removes blanks at both ends of a value."""
    units = text.encode("utf-16-be")
    codes = (int.from_bytes(units[at : at + 2]) for at in range(0, len(units), 2))
    return "".join(chr(code) if code < 128 and chr(code).isalnum() else f"\\u{code:04x}" for code in codes)
