"""Makes a pathing jar: a jar with only a manifest, which names other jars (`Class-Path`). It replaces a class path of many jars by one
file."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

MANIFEST = "META-INF/MANIFEST.MF"

LONGEST_LINE = 72
"""The largest number of bytes in a line of a manifest, without the line end (JAR File Specification)."""

_LINE_END = b"\r\n"
_PLAIN = re.compile(r"[A-Za-z0-9._~+@,/-]+")
"""Names that need no escape in a URL and have no separator of a manifest."""


def pathing_jar(directory: Path, jars: Sequence[Path]) -> bytes | None:
    """The contents of a jar in `directory` that names these jars: the same bytes for the same names. None if a name would have to be
    escaped.

    The names are relative, with links resolved as Java does. So a jar that the class path also names is not on it twice. Names are not
    escaped: a JVM that makes an archive of classes appends each name unchanged to the directory."""
    here = os.path.realpath(directory)
    names = [os.path.relpath(os.path.realpath(jar), here) for jar in jars]
    if not all(_PLAIN.fullmatch(name) for name in names):
        return None
    made = BytesIO()
    entry = zipfile.ZipInfo(MANIFEST)  # dated 1980, and not compressed, because versions of zlib differ
    entry.create_system = 3
    entry.external_attr = 0o644 << 16
    with zipfile.ZipFile(made, "w") as file:
        file.writestr(entry, manifest(names))
    return made.getvalue()


def manifest(names: Sequence[str]) -> bytes:
    return b"".join(_folded(line) for line in ("Manifest-Version: 1.0", f"Class-Path: {' '.join(names)}", ""))


def _folded(line: str) -> bytes:
    """The text in lines. Each line after the first begins with a space, which marks a continuation."""
    rest = line.encode()
    lines = [rest[:LONGEST_LINE]]
    for start in range(LONGEST_LINE, len(rest), LONGEST_LINE - 1):
        lines.append(b" " + rest[start : start + LONGEST_LINE - 1])
    return b"".join(each + _LINE_END for each in lines)
