"""The work of a commit before its upload, for a store of 100,000 files: it lists the directory and compares it with the previous snapshot.

Measured: listing, `files_to_read` and `diff`, as `Uploader.upload` calls them, when 1 % of the files are new, 1 % changed in place and 1 %
deleted. The peer is the minimum of work on the disk: `os.scandir` of every directory and `stat` of every file, without keeping the result.
The directory is in the page cache for both, and the diff must be correct.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.harness import BenchFailed, Result, note
from containers.state.diff import DirDiff, Identity, LocalDir, diff, files_to_read
from containers.state.files import LocalFiles
from sluice.core.snapshots.fingerprint import Fingerprint
from sluice.core.snapshots.snapshot import BlobId, DirIndex, FileBlob, FileIndex

NAME = "diff"
FILES = int(os.environ.get("BENCH_FILES", "100000"))
DIRECTORIES = 100
CHANGED_PERCENT = 1
ROUNDS = 7
MOST_RATIO = 4.0


@dataclass(frozen=True, slots=True)
class Before:
    """The previous snapshot, and the files with known contents."""

    index: DirIndex
    known: dict[Identity, Fingerprint]


def run() -> Result:
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as made:
        top = Path(made)
        note(f"writing {FILES} files")
        write(top, range(FILES))
        before = snapshot(LocalFiles().listing(top))
        change(top)
        return _measure(top, before)


def _measure(top: Path, before: Before) -> Result:
    bare, mine, listings = [], [], []
    for _ in range(ROUNDS):
        bare.append(_seconds(lambda: scan(top)))
        mine.append(_seconds(lambda: compared(top, before)))
        listings.append(_seconds(lambda: LocalFiles().listing(top)))
    check(compared(top, before))
    ratio = median(m / b for m, b in zip(mine, bare, strict=True))
    return Result(
        name=NAME,
        figures={
            "files": FILES,
            "diff_ms": round(median(mine) * 1000, 1),
            "of_that_listing_ms": round(median(listings) * 1000, 1),
            "bare_scan_ms": round(median(bare) * 1000, 1),
        },
        ratio=round(ratio, 3),
        target=f"at most {MOST_RATIO:g} times a bare scan of the directory",
        met=ratio <= MOST_RATIO,
    )


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def path_of(top: Path, number: int) -> Path:
    return top / f"{number % DIRECTORIES:03}" / f"{number:08}.sst"


def write(top: Path, numbers: range) -> None:
    """Small files of several sizes. They are never read here."""
    for number in numbers:
        path = path_of(top, number)
        if not path.parent.is_dir():
            path.parent.mkdir()
        path.write_bytes(b"x" * (number % 97))


def snapshot(local: LocalDir) -> Before:
    """The snapshot that a commit of this directory would make."""
    known: dict[Identity, Fingerprint] = {}

    def index(directory: LocalDir) -> DirIndex:
        files = []
        for file in directory.files:
            digest = hashlib.sha256(str(file.identity.inode).encode()).hexdigest()
            found = known[file.identity] = Fingerprint(0, digest)
            files.append(FileIndex(file.name, (FileBlob(BlobId(digest), 0),), file.metadata, found.checksum, found.digest))
        return DirIndex(directory.name, tuple(files), dirs=tuple(index(each) for each in directory.dirs))

    return Before(index(local), known)


def changed() -> int:
    """The numbers of new, changed and deleted files, one each."""
    return FILES * CHANGED_PERCENT // 100


def change(top: Path) -> None:
    count = changed()
    for number in range(count):
        path_of(top, number).unlink()
        path = path_of(top, count + number)
        path.write_bytes(path.read_bytes() + b"y")
    write(top, range(FILES, FILES + count))


def scan(top: Path) -> int:
    """The total size of all files, with one stat call each."""
    size, left = 0, [str(top)]
    while left:
        with os.scandir(left.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    left.append(entry.path)
                else:
                    size += entry.stat(follow_symlinks=False).st_size
    return size


def compared(top: Path, before: Before) -> DirDiff:
    local = LocalFiles().listing(top)
    if unknown := next(files_to_read(local, before.index, before.known), None):
        raise BenchFailed(f"{unknown[0]} would be read, although a file of its size and time is known")
    return diff(local, before.index, before.known)


def check(found: DirDiff) -> None:
    """Raises BenchFailed."""
    added, retained = sum(1 for _ in found.walk_added()), sum(1 for _ in found.walk_retained())
    removed = sum(len(each.removed) for each in found.dirs_retained)
    if (added, retained, removed) != (2 * changed(), FILES - 2 * changed(), 2 * changed()):
        raise BenchFailed(f"the diff has {added} files added, {retained} retained and {removed} removed, which is not what was changed")
