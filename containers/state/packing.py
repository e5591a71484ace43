"""Which bytes go into which blob: large files in chunks, small ones together in packs.

    large file   chunk  chunk  chunk            a blob each, put and fetched in parallel
    small files  |a|b|c|d| … up to `pack_bytes`   one blob

A pack lives as long as one of its files does. So that dead bytes do not pile up, a commit puts the living files of a pack again when less
than half of it lives; and so that a restore does not need a request for each commit there ever was, it puts those of the small packs
together when they have become many.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import TypeAlias

from sluice.core.errors import BadSettings
from sluice.core.snapshot import BlobId, FileBlob, FileIndex

MANY_PACKS = 64
"""So many packs of less than an eighth of `pack_bytes` are put together."""

_SMALL_PACK = 8


@dataclass(frozen=True, slots=True)
class Packing:
    """All in bytes. Files of fewer than `small_bytes` are packed. `packs` off: a blob for each file, or chunk of one, which Samza's own
    code can restore. Raises BadSettings."""

    chunk_bytes: int = 16 << 20
    pack_bytes: int = 8 << 20
    small_bytes: int = 1 << 20
    packs: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.small_bytes <= self.pack_bytes or self.chunk_bytes <= 0:
            raise BadSettings(
                f"files of under {self.small_bytes} bytes cannot be packed into packs of {self.pack_bytes} bytes, with chunks of "
                f"{self.chunk_bytes} bytes: all must be positive, and packs at least as large as small files"
            )


@dataclass(frozen=True, slots=True)
class Packed:
    """A whole file in a pack, from byte `at` of it."""

    path: str
    length: int
    at: int


@dataclass(frozen=True, slots=True)
class PutPack:
    """Put small files as one blob."""

    files: tuple[Packed, ...]

    @property
    def size(self) -> int:
        return sum(each.length for each in self.files)


@dataclass(frozen=True, slots=True)
class PutChunk:
    """Put `length` bytes of a file, from `offset`, as one blob; with `whole` that is the file."""

    path: str
    offset: int
    length: int
    whole: bool

    @property
    def size(self) -> int:
        return self.length


Put: TypeAlias = PutPack | PutChunk


def plan_puts(files: Iterable[tuple[str, int]], packing: Packing) -> list[Put]:
    """What to put for files, given as path and size: packs first, then the chunks of each large file in their order. An empty file needs no
    blob, unless Samza is to find one."""
    small: list[tuple[str, int]] = []
    chunks: list[Put] = []
    for path, size in files:
        if packing.packs and size < packing.small_bytes:
            small.append((path, size))
        else:
            chunks += _chunks(path, size, packing.chunk_bytes)
    return [*_packs(small, packing.pack_bytes), *chunks]


def _chunks(path: str, size: int, chunk_bytes: int) -> list[PutChunk]:
    """As few as there can be and of one length, since they are put at once: the longest decides."""
    length = ceil(size / ceil(size / chunk_bytes)) if size else chunk_bytes
    offsets = range(0, max(1, size), length)
    return [PutChunk(path, offset, min(length, size - offset), len(offsets) == 1) for offset in offsets]


def _packs(files: Iterable[tuple[str, int]], pack_bytes: int) -> list[PutPack]:
    packs: list[list[Packed]] = []
    end = pack_bytes
    for path, size in files:
        if size == 0:
            continue
        if end + size > pack_bytes:
            packs.append([])
            end = 0
        packs[-1].append(Packed(path, size, end))
        end += size
    return [PutPack(tuple(pack)) for pack in packs]


def files_to_repack(retained: Iterable[tuple[str, FileIndex]], packing: Packing) -> frozenset[str]:
    """The paths of retained files whose packs are to be replaced."""
    files: dict[BlobId, list[str]] = defaultdict(list)
    alive: dict[BlobId, int] = defaultdict(int)
    sizes: dict[BlobId, int] = defaultdict(int)
    for path, file in retained:
        for part in file.blobs:
            if part.length is not None:
                files[part.blob].append(path)
                alive[part.blob] += part.length
                sizes[part.blob] = max(sizes[part.blob], _blob_size(part, part.length))
    dying = {blob for blob, size in sizes.items() if 2 * alive[blob] < size or not packing.packs}
    small = {blob for blob, size in sizes.items() if blob not in dying and _SMALL_PACK * size < packing.pack_bytes}
    if len(small) >= MANY_PACKS:
        dying |= small
    return frozenset(path for blob in dying for path in files[blob])


def _blob_size(part: FileBlob, length: int) -> int:
    return part.blob_size if part.blob_size is not None else part.at + length
