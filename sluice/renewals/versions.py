"""Which version of a file was read, so that it is read again when it has changed. Platforms renew tokens and certificates by replacing
their files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple


class FileVersion(NamedTuple):
    """`modified`: in nanoseconds since 1970."""

    modified: int
    inode: int


def version_of(file: Path) -> FileVersion:
    """Raises OSError."""
    found = file.stat()
    return FileVersion(found.st_mtime_ns, found.st_ino)


def versions_of(files: Iterable[Path]) -> Sequence[FileVersion] | None:
    """None if one of the files cannot be found, as while it is being replaced."""
    try:
        return [version_of(file) for file in files]
    except OSError:
        return None
