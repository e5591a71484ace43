"""Plans a restore: the operations that make a checkpoint directory from an index and the files that are already on this disk.

    Remove     files that an earlier restore left in the staging directory and this one cannot use
    MakeDir    directories, parents first
    Link       a file that the local directory has with the same bytes and mode
    MakeEmpty  a file without bytes
    Fetch      a range of a blob that has whole files, or a part of one
    SetMode    set the mode of a file that an earlier restore has staged without it
    Sync       fsync everything that is staged
    Swap       replace the target by the staging directory; then remove the former target

After an interruption, a new plan is made from what is on disk then. Until Swap, nothing outside the staging directory changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import PurePosixPath
from typing import TypeAlias

from containers.state.diff import Identity, LocalDir, LocalFile
from sluice.core.snapshots.fingerprint import Fingerprint
from sluice.core.snapshots.indexjson import lengths
from sluice.core.snapshots.snapshot import BlobId, DirIndex, FileIndex, walk, walk_dirs

NEAR = 64 << 10
"""Ranges of a pack that are at most this many bytes apart are fetched in one request."""


@dataclass(frozen=True, slots=True)
class Remove:
    """A file, a link or a whole directory in the staging directory."""

    path: str


@dataclass(frozen=True, slots=True)
class MakeDir:
    path: str


@dataclass(frozen=True, slots=True)
class Link:
    path: str


@dataclass(frozen=True, slots=True)
class MakeEmpty:
    path: str


@dataclass(frozen=True, slots=True)
class Piece:
    """`length` bytes of a file from `offset`, found `at` bytes into what is fetched. `last`: the last piece of its file."""

    path: str
    offset: int
    length: int
    at: int
    last: bool

    @property
    def whole(self) -> bool:
        return self.offset == 0 and self.last


@dataclass(frozen=True, slots=True)
class Fetch:
    """`length` bytes of a blob from `start`. With pieces of several files, each piece is a whole file."""

    blob: BlobId
    start: int
    length: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class SetMode:
    path: str
    mode: int


@dataclass(frozen=True, slots=True)
class Sync:
    """Flush all files and directories to disk; "" is the staging directory itself."""

    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Swap:
    pass


Operation: TypeAlias = Remove | MakeDir | Link | MakeEmpty | Fetch | SetMode | Sync | Swap


@dataclass(frozen=True, slots=True)
class Staged:
    """The files that an earlier restore left. `strange`: paths of entries that are neither files nor directories."""

    listing: LocalDir
    strange: tuple[str, ...] = ()


def candidates(root: DirIndex, local: LocalDir, *, same_mode: bool) -> Iterator[tuple[str, LocalFile]]:
    """The local files that may equal those of the index: they have the same path and size, and with `same_mode` the same mode."""
    indexed = dict(walk(root))
    for path, file in walk(local):
        wanted = indexed.get(path)
        if (
            wanted is not None
            and wanted.metadata.size == file.identity.size
            and (not same_mode or wanted.metadata.mode == file.metadata.mode)
        ):
            yield path, file


def plan_restore(
    root: DirIndex, staged: Staged, local: LocalDir | None, known: Mapping[Identity, Fingerprint], chunk_bytes: int
) -> list[Operation]:
    """The operations, in order. `known` has the fingerprints of the candidates that were read. No fetch is larger than `chunk_bytes`."""
    files, dirs = dict(walk(root)), list(walk_dirs(root))
    ready = dict(_identical(files, candidates(root, staged.listing, same_mode=False), known))
    modes = [SetMode(path, files[path].metadata.mode) for path, file in ready.items() if file.metadata.mode != files[path].metadata.mode]
    for shared in [each.path for each in modes if ready[each.path].links > 1]:
        del ready[shared]  # the file in the local directory would get the mode, too
    linked = dict(_identical(files, candidates(root, local, same_mode=True), known)) if local is not None else {}
    missing = [(path, file) for path, file in files.items() if path not in ready]
    to_fetch = [(path, file) for path, file in missing if path not in linked and file.metadata.size]
    return [
        *(Remove(path) for path in _in_the_way(staged, set(ready), set(dirs))),
        *(MakeDir(path) for path in dirs),
        *(Link(path) for path, _ in missing if path in linked),
        *(MakeEmpty(path) for path, file in missing if path not in linked and not file.metadata.size),
        *_fetches(to_fetch, chunk_bytes),
        *(each for each in modes if each.path in ready),
        Sync((*files, *dirs, "")),
        Swap(),
    ]


def _identical(
    files: Mapping[str, FileIndex], found: Iterable[tuple[str, LocalFile]], known: Mapping[Identity, Fingerprint]
) -> Iterator[tuple[str, LocalFile]]:
    for path, file in found:
        fingerprint = known.get(file.identity)
        if fingerprint is not None and files[path].matches(fingerprint):
            yield path, file


def _in_the_way(staged: Staged, ready: set[str], dirs: set[str]) -> Iterator[str]:
    """The staged paths to remove. Only topmost paths: a directory is removed with its contents."""
    gone = {*staged.strange, *(set(walk_dirs(staged.listing)) - dirs), *({path for path, _ in walk(staged.listing)} - ready)}
    for path in sorted(gone):
        if gone.isdisjoint(map(str, PurePosixPath(path).parents)):
            yield path


def _fetches(files: Iterable[tuple[str, FileIndex]], chunk_bytes: int) -> Iterator[Fetch]:
    """Whole small files first, combined by blob, then the ranges of each large file in order."""
    whole: list[Fetch] = []
    parted: list[Fetch] = []
    for path, file in files:
        slices = list(_slices(path, file, chunk_bytes))
        (whole if len(slices) == 1 else parted).extend(slices)
    whole.sort(key=lambda fetch: (fetch.blob, fetch.start))
    for _, of_blob in groupby(whole, key=lambda fetch: fetch.blob):
        yield from _joined(of_blob, chunk_bytes)
    yield from parted


def _slices(path: str, file: FileIndex, chunk_bytes: int) -> Iterator[Fetch]:
    size = file.metadata.size
    for part, length in lengths(file.blobs, size, path):
        for begin in range(0, length, chunk_bytes):
            count = min(chunk_bytes, length - begin)
            offset = part.offset + begin
            yield Fetch(part.blob, part.at + begin, count, (Piece(path, offset, count, 0, offset + count == size),))


def _joined(fetches: Iterable[Fetch], chunk_bytes: int) -> Iterator[Fetch]:
    """Combine the fetches of a blob, given in the order of their starts. Two files may share bytes of a blob."""
    start = end = 0
    blob: BlobId | None = None
    pieces: list[Piece] = []
    for fetch in fetches:
        (piece,) = fetch.pieces
        reach = max(end, fetch.start + fetch.length)
        if blob is not None and (fetch.start > end + NEAR or reach - start > chunk_bytes):
            yield Fetch(blob, start, end - start, tuple(pieces))
            pieces = []
        if not pieces:
            blob, start, reach = fetch.blob, fetch.start, fetch.start + fetch.length
        pieces.append(Piece(piece.path, 0, piece.length, fetch.start - start, True))
        end = reach
    if blob is not None:
        yield Fetch(blob, start, end - start, tuple(pieces))
