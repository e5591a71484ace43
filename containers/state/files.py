"""Disk operations of commits and restores: listing a directory, reading and fingerprinting files, and every change that a restore makes.

All of them block and are called on threads. Hashing lets other threads run. The operations are methods of one object, `LocalFiles`, so that
tests can make any of them fail, or end the process during it. Symbolic links are never followed.
"""

from __future__ import annotations

import gc
import grp
import logging
import os
import pwd
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from errno import EMLINK, ENOSYS, EOPNOTSUPP, EPERM
from functools import cache
from operator import attrgetter
from pathlib import Path

from containers.errors import CheckpointUnreadable
from containers.state.diff import Identity, LocalDir, LocalFile
from containers.state.recovery.restore_plan import Staged
from sluice.core.errors import Unavailable
from sluice.core.snapshots.fingerprint import Fingerprint, Hashes
from sluice.core.snapshots.snapshot import FileMetadata
from sluice.disks import DiskSpace, space

log = logging.getLogger(__name__)

BLOCK = 1 << 20
_PERMISSIONS = 0o777
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_AGAIN = os.O_WRONLY | os.O_NOFOLLOW


_NO_LINKS = frozenset({EPERM, EOPNOTSUPP, ENOSYS, EMLINK})
"""Errors of link(2) on file systems without hard links (vfat, SMB), for files of other users (fs.protected_hardlinks), and for too many."""


def link_or_copy(path: str, to: str) -> None:
    """Make a hard link of a file that is never changed in place, or a copy with the same time where there can be no link. A copy takes its
    size on the disk, and is read again by each commit, because it has another inode."""
    try:
        os.link(path, to, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _say_once(f"{error.strerror}")
        shutil.copy2(path, to, follow_symlinks=False)


@cache
def _say_once(why: str) -> None:
    log.warning("files of the state are copied, not linked, so backups take longer and more of the disk: %s", why)


class FileChanged(Unavailable):
    """A file changed or vanished while it was read."""


class FileUnreadable(Unavailable):
    """A file of this machine cannot be read."""


@dataclass(slots=True)
class _Listing:
    """A listing in progress. The name of each owner is looked up once, because a lookup may be a request to a server."""

    owners: dict[int, str] = field(default_factory=dict)
    groups: dict[int, str] = field(default_factory=dict)
    strange: list[str] = field(default_factory=list)

    def directory(self, path: str, name: str, inside: str) -> LocalDir:
        files: list[LocalFile] = []
        dirs: list[LocalDir] = []
        with os.scandir(path) as entries:
            for entry in sorted(entries, key=attrgetter("name")):
                if entry.is_file(follow_symlinks=False):
                    files.append(self.file(entry))
                elif entry.is_dir(follow_symlinks=False):
                    dirs.append(self.directory(entry.path, entry.name, f"{inside}{entry.name}/"))
                else:
                    self.strange.append(inside + entry.name)
        return LocalDir(name, tuple(files), tuple(dirs))

    def file(self, entry: os.DirEntry[str]) -> LocalFile:
        found = entry.stat(follow_symlinks=False)
        size, modified_nanos = found.st_size, found.st_mtime_ns
        modified = max(0, modified_nanos // 1_000_000)
        owner = self.owners.get(found.st_uid) or self.owners.setdefault(found.st_uid, _owner(found.st_uid))
        group = self.groups.get(found.st_gid) or self.groups.setdefault(found.st_gid, _group(found.st_gid))
        created = min(modified, max(0, found.st_ctime_ns // 1_000_000))  # Linux has no creation time here; it is not later than either
        metadata = FileMetadata(created, modified, size, owner, group, found.st_mode & _PERMISSIONS)
        return LocalFile(entry.name, Identity(found.st_ino, size, modified_nanos), metadata, found.st_nlink)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """For code that makes many objects without reference cycles: each full collection looks at all of them again, which is a third of the
    time of a listing of 100,000 files. Other threads' cycles are collected afterwards."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _owner(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


class LocalFiles:
    """Operations on the disk. They raise OSError unless noted otherwise."""

    # --- reading -----------------------------------------------------------------------------------------------

    def listing(self, directory: Path) -> LocalDir:
        """The files and directories. Raises CheckpointUnreadable if there is anything else: the target of a link is not part of the
        checkpoint."""
        found = self.staged(directory)
        if found.strange:
            raise CheckpointUnreadable(
                f"{directory}/{found.strange[0]} is a link or a special file; a checkpoint has files and directories only: remove it"
            )
        return found.listing

    def staged(self, directory: Path) -> Staged:
        listing = _Listing()
        with _without_garbage_collection():
            return Staged(listing.directory(str(directory), "", ""), tuple(listing.strange))

    def is_directory(self, path: Path) -> bool:
        """Whether the directory exists. Raises CheckpointUnreadable if it is not a directory; a link to a directory is not one."""
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            return False
        if not stat.S_ISDIR(mode):
            raise CheckpointUnreadable(f"{path} is not a directory (a link to one is not sufficient): move the directory there")
        return True

    def space(self, path: Path) -> DiskSpace:
        """The space of the disk that has the path."""
        return space(path)

    def fingerprint(self, path: Path, identity: Identity) -> Fingerprint:
        """Raises FileChanged, FileUnreadable."""
        hashes = Hashes()
        for begin in range(0, identity.size, BLOCK):
            hashes.write(self.read(path, begin, min(BLOCK, identity.size - begin), identity))
        return hashes.fingerprint

    def read(self, path: Path, offset: int, length: int, identity: Identity) -> bytes:
        """Bytes of the file, if it still has that identity. Raises FileChanged, FileUnreadable."""
        try:
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                part = _pread(file, length, offset)
                found = os.fstat(file)
            finally:
                os.close(file)
        except FileNotFoundError as error:
            raise FileChanged(f"{path} was deleted before it was read; the next commit reads the directory again") from error
        except OSError as error:
            raise FileUnreadable(f"{path}: {error.strerror}") from error
        if Identity(found.st_ino, found.st_size, found.st_mtime_ns) != identity or len(part) != length:
            raise FileChanged(f"{path} changed while it was read; the next commit reads the directory again")
        return part

    # --- changing ------------------------------------------------------------------------------------------------

    def make_directory(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def link(self, path: Path, to: Path) -> None:
        link_or_copy(str(path), str(to))

    def write(self, path: Path, offset: int, parts: Sequence[bytes | memoryview], *, new: bool, mode: int | None) -> None:
        """Write into a file of this restore. With `mode`, the file is complete: its mode is set, and the kernel starts to write it to disk,
        so that a later `sync` takes less time."""
        file = os.open(path, _NEW if new else _AGAIN, 0o600)
        try:
            for part in parts:
                offset += _pwrite(file, part, offset)
            if mode is not None:
                os.fchmod(file, mode)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)

    def set_mode(self, path: Path, mode: int) -> None:
        path.chmod(mode)

    def sync(self, paths: Iterable[Path]) -> None:
        """fsync files and directories."""
        for path in paths:
            entry = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                os.fsync(entry)
            finally:
                os.close(entry)

    def rename(self, path: Path, to: Path) -> None:
        path.rename(to)

    def remove(self, path: Path) -> None:
        """Remove a file, a link or a directory recursively, if it exists."""
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _pread(file: int, length: int, offset: int) -> bytes:
    """One read returns at most 2 GiB, and may return less than requested."""
    part = os.pread(file, length, offset)
    if len(part) == length:
        return part
    parts = [part]
    while part and (left := length - sum(map(len, parts))):
        part = os.pread(file, left, offset + length - left)
        parts.append(part)
    return b"".join(parts)


def _pwrite(file: int, part: bytes | memoryview, offset: int) -> int:
    rest = memoryview(part)
    while rest:
        written = os.pwrite(file, rest, offset)
        rest, offset = rest[written:], offset + written
    return len(part)
