"""A disk that goes wrong where a test says so: at the n-th operation, before, after or in the middle of it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from containers.state.diff import Fingerprint, Identity, LocalDir
from containers.state.files import LocalFiles
from containers.state.restore_plan import Staged
from tests.faultyblobs import Fault, Killed


class FaultyFiles(LocalFiles):
    """`fault` happens at operation `number`, counted from 1; KILL_PART leaves half of what is written. The process is dead afterwards."""

    def __init__(self, number: int = 0, fault: Fault = Fault.KILL) -> None:
        self.number = number
        self.fault = fault
        self.operations: list[str] = []
        self.killed = False

    def _begin(self, name: str) -> bool:
        """Whether the fault is to happen now, after or in the middle."""
        if self.killed:
            raise Killed
        self.operations.append(name)
        if len(self.operations) != self.number:
            return False
        if self.fault is Fault.KILL:
            self.killed = True
            raise Killed
        return True

    def _end(self, now: bool) -> None:
        if now:
            self.killed = True
            raise Killed

    def _run(self, name: str, work: Callable[[], None]) -> None:
        now = self._begin(name)
        work()
        self._end(now)

    def listing(self, directory: Path) -> LocalDir:
        self._begin("listing")
        return super().listing(directory)

    def staged(self, directory: Path) -> Staged:
        self._begin("staged")
        return super().staged(directory)

    def fingerprint(self, path: Path, identity: Identity) -> Fingerprint:
        self._begin("fingerprint")
        return super().fingerprint(path, identity)

    def read(self, path: Path, offset: int, length: int, identity: Identity) -> bytes:
        self._begin("read")
        return super().read(path, offset, length, identity)

    def make_directory(self, path: Path) -> None:
        self._run("make_directory", lambda: super(FaultyFiles, self).make_directory(path))

    def link(self, path: Path, to: Path) -> None:
        self._run("link", lambda: super(FaultyFiles, self).link(path, to))

    def write(self, path: Path, offset: int, parts: Sequence[bytes | memoryview], *, new: bool, mode: int | None) -> None:
        now = self._begin("write")
        if now and self.fault is Fault.KILL_PART:
            body = b"".join(parts)
            super().write(path, offset, [body[: len(body) // 2]], new=new, mode=None)
        else:
            super().write(path, offset, parts, new=new, mode=mode)
        self._end(now)

    def set_mode(self, path: Path, mode: int) -> None:
        self._run("set_mode", lambda: super(FaultyFiles, self).set_mode(path, mode))

    def sync(self, paths: Iterable[Path]) -> None:
        self._run("sync", lambda: super(FaultyFiles, self).sync(paths))

    def rename(self, path: Path, to: Path) -> None:
        self._run("rename", lambda: super(FaultyFiles, self).rename(path, to))

    def remove(self, path: Path) -> None:
        now = self._begin("remove")
        if now and self.fault is Fault.KILL_PART and path.is_dir() and not path.is_symlink():
            for each in sorted(path.iterdir())[::2]:
                super().remove(each)
        else:
            super().remove(path)
        self._end(now)


class FullDisk(LocalFiles):
    """Has room for `room` bytes."""

    def __init__(self, room: int) -> None:
        self.room = room

    def write(self, path: Path, offset: int, parts: Sequence[bytes | memoryview], *, new: bool, mode: int | None) -> None:
        size = sum(map(len, parts))
        if size > self.room:
            super().write(path, offset, [b"".join(parts)[: self.room]], new=new, mode=None)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        self.room -= size
        super().write(path, offset, parts, new=new, mode=mode)
