"""The difference between a local directory and the index of the previous snapshot: files added, retained and removed.

A file is retained if it has the size and the SHA-256 of the file at its path in the index. The SHA-256 of a file that was read before is
found by its identity (inode, size, time of change in nanoseconds). `files_to_read` finds the files that must be read. Owner, mode and times
are not compared: the next index has the local ones, and the bytes are not uploaded again. A changed file is both removed and added, as in
Samza.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from sluice.core.snapshots.fingerprint import Fingerprint
from sluice.core.snapshots.snapshot import DirIndex, FileIndex, FileMetadata


class Identity(NamedTuple):
    """Identifies the contents of a file on one file system: a change in place gives another time, and a new file another inode. A hard link
    has the same identity. Times have the resolution of the kernel's tick: see `is_stable`."""

    inode: int
    size: int
    modified_nanos: int


SETTLING_NANOS = 2_000_000_000


def is_stable(identity: Identity, now_nanos: int) -> bool:
    """Whether a file that was read at `now_nanos` can be recognised by its identity. A file that changes again within the tick in which it
    was read would have the same identity."""
    return identity.modified_nanos + SETTLING_NANOS < now_nanos


class LocalFile(NamedTuple):
    """`links` is the number of hard links to the file. A tuple for speed, like `FileMetadata`."""

    name: str
    identity: Identity
    metadata: FileMetadata
    links: int = 1


@dataclass(frozen=True, slots=True)
class LocalDir:
    """A directory on disk; the root's name is "". Files and directories are sorted by name."""

    name: str
    files: tuple[LocalFile, ...] = ()
    dirs: tuple[LocalDir, ...] = ()


@dataclass(frozen=True, slots=True)
class DirDiff:
    """The difference. `retained` files have the blobs of the previous index and the metadata of the local files."""

    name: str
    added: tuple[LocalFile, ...] = ()
    retained: tuple[FileIndex, ...] = ()
    removed: tuple[FileIndex, ...] = ()
    dirs_added: tuple[DirDiff, ...] = ()
    dirs_retained: tuple[DirDiff, ...] = ()
    dirs_removed: tuple[DirIndex, ...] = ()

    def walk_added(self, prefix: str = "") -> Iterator[tuple[str, LocalFile]]:
        for file in self.added:
            yield prefix + file.name, file
        for directory in (*self.dirs_added, *self.dirs_retained):
            yield from directory.walk_added(f"{prefix}{directory.name}/")

    def walk_retained(self, prefix: str = "") -> Iterator[tuple[str, FileIndex]]:
        for file in self.retained:
            yield prefix + file.name, file
        for directory in self.dirs_retained:
            yield from directory.walk_retained(f"{prefix}{directory.name}/")


def files_to_read(
    local: LocalDir, before: DirIndex | None, known: Mapping[Identity, Fingerprint], prefix: str = ""
) -> Iterator[tuple[str, LocalFile]]:
    """The files, by path, that may be those of the index (they have the same size) and are not in `known`."""
    if before is None:
        return
    sizes = {file.name: file.metadata.size for file in before.files}
    for file in local.files:
        if sizes.get(file.name) == file.identity.size and file.identity not in known:
            yield prefix + file.name, file
    indexed = {each.name: each for each in before.dirs}
    for each in local.dirs:
        yield from files_to_read(each, indexed.get(each.name), known, f"{prefix}{each.name}/")


def diff(local: LocalDir, before: DirIndex | None, known: Mapping[Identity, Fingerprint]) -> DirDiff:
    """Compare a directory with the index of the previous snapshot. A file that is not in `known` counts as changed."""
    if before is None:
        return DirDiff(local.name, added=local.files, dirs_added=tuple(diff(each, None, known) for each in local.dirs))
    added: list[LocalFile] = []
    retained: list[FileIndex] = []
    left = {file.name: file for file in before.files}
    for file in local.files:
        indexed = left.get(file.name)
        if indexed is not None and _same(file, indexed, known):
            del left[file.name]
            retained.append(indexed if indexed.metadata == file.metadata else replace(indexed, metadata=file.metadata))
        else:
            added.append(file)
    dirs_left = {each.name: each for each in before.dirs}
    dirs_retained = tuple(diff(each, dirs_left.pop(each.name), known) for each in local.dirs if each.name in dirs_left)
    kept = {each.name for each in dirs_retained}
    return DirDiff(
        local.name,
        tuple(added),
        tuple(retained),
        tuple(left.values()),
        tuple(diff(each, None, known) for each in local.dirs if each.name not in kept),
        dirs_retained,
        tuple(_present(each) for each in dirs_left.values()),
    )


def _same(file: LocalFile, indexed: FileIndex, known: Mapping[Identity, Fingerprint]) -> bool:
    if file.identity.size != indexed.metadata.size:
        return False
    fingerprint = known.get(file.identity)
    return fingerprint is not None and fingerprint.digest == indexed.digest


def _present(directory: DirIndex) -> DirIndex:
    """The directory without the entries of files that were removed earlier; otherwise indexes would grow without limit."""
    return DirIndex(directory.name, directory.files, dirs=tuple(_present(each) for each in directory.dirs))


def next_index(found: DirDiff, uploaded: Mapping[str, FileIndex], prefix: str = "") -> DirIndex:
    """The directory in the next snapshot. `uploaded` has, by path, every added file, and the retained files that were put into another
    blob: those count as removed from the former one."""
    again = {file.name for file in found.retained if prefix + file.name in uploaded}
    files = [file for file in found.retained if file.name not in again]
    files += [uploaded[prefix + name] for name in (*again, *(file.name for file in found.added))]
    dirs = [next_index(each, uploaded, f"{prefix}{each.name}/") for each in (*found.dirs_added, *found.dirs_retained)]
    removed = (*found.removed, *(file for file in found.retained if file.name in again))
    return DirIndex(
        found.name,
        tuple(sorted(files, key=lambda file: file.name)),
        tuple(sorted(removed, key=lambda file: file.name)),
        tuple(sorted(dirs, key=lambda each: each.name)),
        found.dirs_removed,
    )
