"""Whether the files of a cut are a checkpoint that Spark can go on from: what its last committed batch needs is all there.

    commits/N    v2, then JSON; stateUniqueIds: operator -> partition -> state stores -> the id of the version that batch N wrote
    state/<operator>/<partition>/[<store>/]<version>_<id>.changelog    what changed, and the versions and ids that it builds upon
    state/<operator>/<partition>/[<store>/]<version>_<id>.zip          the whole version; names the files in SSTs/ that it shares

Batch N reads version N and writes version N + 1. To load a version Spark takes the newest .zip among it and those that it builds upon, and
the changelogs after that one; a store's first version builds upon nothing. A changelog begins with Java's writeUTF of "v3" and of the list
as JSON, in blocks of LZ4 (lz4-java's LZ4BlockOutputStream). Tried with Spark 4.2.0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_STATE_FILE = re.compile(r"(\d+)_([0-9A-Za-z-]+)\.(changelog|zip)")


class Version(NamedTuple):
    """A version of a state store and its id; a store may have several of one number when a batch ran twice."""

    number: int
    id: str

    @property
    def changelog(self) -> str:
        return f"{self.number}_{self.id}.changelog"

    @property
    def zip(self) -> str:
        return f"{self.number}_{self.id}.zip"


@dataclass(frozen=True, slots=True)
class Needed:
    """A version that some state store below `directory` ("state/0/1") must be able to load."""

    directory: str
    version: Version


def needed(batch: int, commit: str) -> Sequence[Needed]:
    """What batch `batch` needs, from the text of `commits/<batch>`. Nothing for a query without state, or with another format of state than
    Sluice sets (checkpointFormatVersion 1), for which only the order of the cut speaks. Raises ValueError for what Spark did not write."""
    text = commit.partition("\n")[2]
    try:
        ids: Mapping[str, Sequence[Sequence[str]]] = json.loads(text).get("stateUniqueIds") or {}
        return [
            Needed(f"state/{operator}/{partition}", Version(batch + 1, str(each)))
            for operator, partitions in ids.items()
            for partition, stores in enumerate(partitions)
            for each in stores
        ]
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(f"commits/{batch} is not a commit: {text[:80]!r}") from error


def find(names: Mapping[str, set[str]], need: Needed) -> str | None:
    """The directory below `need.directory` that has the version; `names` are the files by directory."""
    for directory, files in names.items():
        inside = directory == need.directory or directory.startswith(need.directory + "/")
        if inside and not files.isdisjoint((need.version.changelog, need.version.zip)):
            return directory
    return None


def to_load(version: Version, lineage: Sequence[Version], files: set[str]) -> tuple[Version | None, Sequence[Version]]:
    """The newest .zip among the version and its lineage (oldest first), None if it begins with nothing, and the changelogs after it."""
    chain = [*lineage, version]
    for place in range(len(chain) - 1, -1, -1):
        if chain[place].zip in files:
            return chain[place], chain[place + 1 :]
    return None, chain


def lineage_by_number(version: Version, files: set[str]) -> Sequence[Version]:
    """What a version builds upon as far as names tell, for changelogs that cannot be read (another compression than LZ4): one of each
    number back to the newest .zip. Of several of one number the first."""
    by_number: dict[int, Version] = {}
    for name in sorted(files, reverse=True):
        if match := _STATE_FILE.fullmatch(name):
            by_number[int(match[1])] = Version(int(match[1]), match[2])
    chain: list[Version] = []
    for number in range(version.number - 1, 0, -1):
        found = by_number.get(number, Version(number, "?"))
        chain.insert(0, found)
        if found.zip in files:
            break
    return chain


def shared_files(zip_metadata: str) -> Sequence[str]:
    """The names in SSTs/ that a .zip refers to, from its member `metadata`. Raises ValueError."""
    try:
        document = json.loads(zip_metadata.partition("\n")[2])
        return [str(each["dfsSstFileName"]) for each in document["sstFiles"] if each.get("dfsSstFileName")]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{zip_metadata[:80]!r} does not say which files it shares") from error


# --- changelogs ------------------------------------------------------------------------------------------------------

_MAGIC = b"LZ4Block"
_BLOCK_HEADER = len(_MAGIC) + 1 + 3 * 4
_RAW, _LZ4 = 0x10, 0x20


class Unreadable(ValueError):
    """The changelog is in a format that Sluice does not know."""


def lineage_of(changelog: bytes) -> Sequence[Version]:
    """What a version builds upon, oldest first, from the beginning of its changelog (64 KiB and a block are always enough). Raises
    Unreadable."""
    try:
        head = _Head(_blocks(changelog))
        if head.utf() not in ("v2", "v3", "v4"):
            raise Unreadable("its version is not known")
        return [Version(int(each["version"]), str(each["checkpointUniqueId"])) for each in json.loads(head.utf())]
    except Unreadable:
        raise
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise Unreadable(f"it does not begin as changelogs do: {error}") from error


class _Head:
    """Reads strings of Java's writeUTF from blocks, taking no more of them than it needs."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._have = b""

    def utf(self) -> str:
        return self._take(int.from_bytes(self._take(2), "big")).decode()

    def _take(self, count: int) -> bytes:
        while len(self._have) < count:
            block = next(self._blocks, None)
            if block is None:
                raise Unreadable("it ends too early")
            self._have += block
        taken, self._have = self._have[:count], self._have[count:]
        return taken


def _blocks(data: bytes) -> Iterator[bytes]:
    """Header: magic, method and level, then little-endian compressed length, length, checksum."""
    place = 0
    while data[place : place + len(_MAGIC)] == _MAGIC:
        method = data[place + len(_MAGIC)] & 0xF0
        packed, size = (int.from_bytes(data[place + begin : place + begin + 4], "little") for begin in (9, 13))
        body = data[place + _BLOCK_HEADER : place + _BLOCK_HEADER + packed]
        if method not in (_RAW, _LZ4) or len(body) < packed:
            raise Unreadable("it has a block that is cut short or of an unknown kind")
        yield body if method == _RAW else lz4_block(body, size)
        place += _BLOCK_HEADER + packed
    if place < len(data):
        raise Unreadable("it is not compressed with LZ4")


def lz4_block(packed: bytes, size: int) -> bytes:
    """Unpack a block of `size` bytes (the LZ4 block format). Raises IndexError, ValueError."""
    out = bytearray()
    place = 0
    while place < len(packed):
        token = packed[place]
        literals, place = _length(token >> 4, packed, place + 1)
        out += packed[place : place + literals]
        place += literals
        if place >= len(packed):
            break
        distance = packed[place] | packed[place + 1] << 8
        count, place = _length(token & 15, packed, place + 2)
        if not 0 < distance <= len(out):
            raise ValueError("a match begins before the block")
        pattern = bytes(out[len(out) - distance :])
        count += 4
        out += (pattern * (count // distance + 1))[:count]
    if len(out) != size:
        raise ValueError(f"a block has {len(out)} bytes instead of {size}")
    return bytes(out)


def _length(nibble: int, packed: bytes, place: int) -> tuple[int, int]:
    if nibble == 15:
        while True:
            nibble += packed[place]
            place += 1
            if packed[place - 1] != 255:
                break
    return nibble, place
