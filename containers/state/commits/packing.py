"""Plans which bytes go into which blob: large files are split into chunks, small ones are combined into packs.

    large file   chunk  chunk  chunk            a blob each, put and fetched in parallel
    small files  |a|b|c|d| … up to `pack_bytes`   one blob

A pack is needed as long as one of its files is. To limit the unneeded bytes, a commit uploads the needed files of a pack again when they
are less than half of it. To limit the requests of a restore, it combines the files of small packs when there are many of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import TypeAlias

from sluice.core.errors import BadSettings
from sluice.core.snapshots.snapshot import BlobId, FileBlob, FileIndex

MANY_PACKS = 64
"""The number of packs of less than an eighth of `pack_bytes` at which they are combined."""

_SMALL_PACK = 8


@dataclass(frozen=True, slots=True)
class Packing:
    """Sizes in bytes. Files smaller than `small_bytes` are packed. Without `packs`, each file or chunk is a blob, which Samza's own code
    can restore. Raises BadSettings."""

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
    """The puts for files, given as path and size: packs first, then the chunks of each large file in order. An empty file needs no blob,
    except without `packs`, because Samza expects one."""
    small: list[tuple[str, int]] = []
    chunks: list[Put] = []
    for path, size in files:
        if packing.packs and size < packing.small_bytes:
            small.append((path, size))
        else:
            chunks += _chunks(path, size, packing.chunk_bytes)
    return [*_packs(small, packing.pack_bytes), *chunks]


def _chunks(path: str, size: int, chunk_bytes: int) -> list[PutChunk]:
    """The chunks of a file: as few as possible, and of equal length, because they are put concurrently and the longest one determines the
    time."""
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
    """The paths of retained files that must be uploaded again, because their packs are replaced."""
    files: dict[BlobId, list[str]] = defaultdict(list)
    needed: dict[BlobId, int] = defaultdict(int)
    sizes: dict[BlobId, int] = defaultdict(int)
    for path, file in retained:
        for part in file.blobs:
            if part.length is not None:
                files[part.blob].append(path)
                needed[part.blob] += part.length
                sizes[part.blob] = max(sizes[part.blob], _blob_size(part, part.length))
    replaced = {blob for blob, size in sizes.items() if 2 * needed[blob] < size or not packing.packs}
    small = {blob for blob, size in sizes.items() if blob not in replaced and _SMALL_PACK * size < packing.pack_bytes}
    if len(small) >= MANY_PACKS:
        replaced |= small
    return frozenset(path for blob in replaced for path in files[blob])


def _blob_size(part: FileBlob, length: int) -> int:
    return part.blob_size if part.blob_size is not None else part.at + length
