"""Free disk space: how much there is, when it is too little, and whether an error was caused by a full disk."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from errno import EDQUOT, ENOSPC
from pathlib import Path


class Room(StrEnum):
    ENOUGH = "enough"
    LOW = "low"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """The space of a disk in bytes. `free`: what this user may still write."""

    free: int
    size: int

    def __str__(self) -> str:
        return f"{readable(self.free)} free of {readable(self.size)}"


@dataclass(frozen=True, slots=True)
class Thresholds:
    """In bytes of free space. Below `low`, an operator should free space. Below `full`, writes fail or soon will."""

    low: int
    full: int

    def judge(self, space: DiskSpace) -> Room:
        if space.free < self.full:
            return Room.FULL
        return Room.LOW if space.free < self.low else Room.ENOUGH


_NO_ROOM = re.compile(
    r"No space left on device|Disk quota exceeded|database or disk is full|"
    r"the disk of (?:(?!the disk of ).)+ is full|\bENOSPC\b|\bEDQUOT\b",
    re.IGNORECASE,
)
"""The texts of Python, Java, RocksDB, SQLite, PostgreSQL and `note`."""


def says_no_room(error: str) -> bool:
    """Whether the text of an error says that a disk is full or a quota is used up; perhaps a disk of a system that a batch writes to."""
    return _NO_ROOM.search(error) is not None


def shortages(found: Mapping[str, DiskSpace], thresholds: Thresholds) -> str:
    """The disks with too little room, such as "state: 12.0 KiB free of 1.0 GiB"; "" if there are none."""
    return "; ".join(f"{name}: {space}" for name, space in found.items() if thresholds.judge(space) is not Room.ENOUGH)


def readable(size: float) -> str:
    """A size in bytes as text, such as "1.5 GiB"."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"


NO_ROOM = frozenset({ENOSPC, EDQUOT})
"""Error numbers of system calls on a full disk, or on a disk whose quota is used up."""

NEXT_TO_NOTHING = 1 << 20
"""In bytes. After a failed write, a disk with less free space is considered full."""


def space(path: Path) -> DiskSpace:
    """The space of the disk that has the path; if the path does not exist, of the disk that has its nearest existing parent. Blocks while a
    network file system does not answer. Raises OSError."""
    while True:
        try:
            found = os.statvfs(path)
        except FileNotFoundError:
            if path.parent == path:
                raise
            path = path.parent
        else:
            return DiskSpace(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


def measure(places: Mapping[str, Path]) -> Mapping[str, DiskSpace]:
    """The space of the disk of each path. Disks that cannot be read are left out. Blocks."""
    found = {}
    for name, path in places.items():
        with suppress(OSError):
            found[name] = space(path)
    return found


def checked_path(path: Path) -> Path:
    """The path, if its absolute form is UTF-8. Paths are sent to containers in JSON and passed to Java; neither can represent other bytes.
    Raises ValueError."""
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError:
        raise ValueError(f"the path {str(path.absolute())!r} is not UTF-8: rename the directory, or choose another one") from None
    return path


def note(path: Path) -> str:
    """Text to append to the error of a write: says that the disk is full, or "". SQLite sometimes reports a full disk as an I/O error. File
    systems without a size, such as /proc, are no disks."""
    with suppress(OSError):
        found = space(path)
        if found.size and found.free < NEXT_TO_NOTHING:
            return f"; the disk of {path} is full ({readable(found.free)} free): free some space"
    return ""


@dataclass(frozen=True, slots=True)
class LocalDisks:
    """The disks that a process writes to. `places`: a path on each disk, by the name of the disk. Methods block briefly."""

    places: Mapping[str, Path]
    thresholds: Thresholds

    def shortages(self) -> str:
        """See `shortages`."""
        return shortages(measure(self.places), self.thresholds)

    def explain(self, error: str) -> bool:
        """Whether a full disk explains a failure with this text: the text says so, or a disk is full. Errors that follow from a full disk
        do not always mention it: for example, a library that was unpacked only in part cannot be loaded."""
        return says_no_room(error) or any(self.thresholds.judge(each) is Room.FULL for each in measure(self.places).values())


NO_DISKS = LocalDisks({}, Thresholds(0, 0))
