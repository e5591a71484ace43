"""Finds files of a local checkpoint that a power failure has damaged.

Hadoop does not sync the files that Spark writes into a checkpoint. After a power failure, or a crash of the kernel, the newest of them may
be empty, or consist of zero bytes only, although they were renamed to their final names (rename(2) orders nothing; see the mount option
`auto_da_alloc` in ext4(5)). Spark would fail on such a file at every start.

Listing a large state takes seconds, so it is done once after each boot of the machine. The entries of the offset log and the commit log are
few, and are always read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from containers.state.checkpoint import commit_log, metadata_file, offset_log_files

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def damaged_file(directory: Path) -> Path | None:
    """A damaged file of the checkpoint; None if there is none, or no checkpoint. A file that cannot be read is not damaged in this sense:
    what needs it reports why. Blocks."""
    if not directory.is_dir():
        return None
    for file in (metadata_file(directory), *offset_log_files(directory), *commit_log(directory)):
        with suppress(OSError):
            if not file.read_bytes().strip(b"\0"):
                return file
    if _checked_in(directory) == _boot():
        return None
    return next(_empty_files(directory / "state"), None)


def checked(directory: Path) -> None:
    """Record that the checkpoint has no damaged file, so that its state is not listed again before the machine's next boot. Blocks."""
    record = _record(directory)
    with suppress(OSError):  # then it is listed again
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(_boot())


def _empty_files(directory: Path) -> Iterator[Path]:
    """Files whose names begin with "." are temporary files and checksums."""
    for place, _, names in os.walk(directory):
        for name in names:
            file = Path(place, name)
            with suppress(OSError):
                if not name.startswith(".") and file.stat().st_size == 0:
                    yield file


def _record(directory: Path) -> Path:
    return directory.parent / ".checked" / directory.name


def _checked_in(directory: Path) -> str:
    """The boot in which the state was listed last; "" if it was not."""
    try:
        return _record(directory).read_text()
    except (OSError, ValueError):
        return ""


def _boot() -> str:
    """An id of the present boot of this machine (random(4))."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return str(int(psutil.boot_time()))
