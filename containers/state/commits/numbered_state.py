"""State whose versions have only numbers (Spark's `stateStore.checkpointFormatVersion` 1, its default): which files a version needs.

    state/<operator>/<partition>[/<store>]/8.delta, 10.snapshot      the HDFS-backed provider: changes, and the whole state
    state/<operator>/<partition>[/<store>]/8.changelog, 8.zip        RocksDB: changes, and a list of files in SSTs/

Version N + 1 is the state after batch N. It is loaded from the newest whole state up to it and all changes after that. A version above it
is of a batch that is not committed. It must not be in a copy: the batch may be planned again with other rows, and Spark, which writes whole
states in the background, would then load one that has the former rows. Versions below the whole state are not needed either.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import NamedTuple

_FILE = re.compile(r"(\d+)\.(?:delta|snapshot|changelog|zip)(\.crc)?")

WHOLE = ("snapshot", "zip")


class NumberedFile(NamedTuple):
    """`checksum`: it is Spark's checksum of such a file."""

    version: int
    checksum: bool


def numbered_file(name: str) -> NumberedFile | None:
    """None for another file."""
    match = _FILE.fullmatch(name)
    return None if match is None else NumberedFile(int(match[1]), match[2] is not None)


def files_to_load(names: Collection[str], version: int) -> Sequence[str] | None:
    """The files that version `version` is loaded from, of those in a directory, with their checksums. None if one is missing, or if the
    directory has no such files."""
    by_version: defaultdict[int, list[str]] = defaultdict(list)
    for name in names:
        found = numbered_file(name)
        if found is not None and found.version <= version and not found.checksum:
            by_version[found.version].append(name)
    needed: list[str] = []
    for number in range(version, 0, -1):
        files = sorted(by_version[number])
        if not files:
            return None
        needed += files
        if any(name.rpartition(".")[2] in WHOLE for name in files):
            break
    return [each for name in needed for each in (name, f"{name}.crc") if each == name or each in names]
