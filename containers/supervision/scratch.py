"""Temporary directories of containers on this machine: one set for each incarnation, deleted when its last process has ended.

<home>/spark/<id>          Spark's temporary files and its JVM's
<home>/spark/<id>.lock     locked (flock) while the agent or the driver runs; contains the driver's session and the path of the sockets
<TMPDIR>/sluice-<token>    sockets between Spark and its Python workers: their paths must be short

The agent deletes them after an orderly end. If it was killed, the guardian or the next container on this machine deletes them. An
incarnation is dead if no process holds its lock and no process of its session is left: the JVM does not inherit the lock, and may outlive
Python, for example while it is frozen. A frozen process keeps its lock. The lock file is created first and deleted last, so a crash may
leave a lock file without directories, but no directories without a lock file.

A pid and a start time are not sufficient: a container that shares the home and has a pid namespace of its own does not see the process.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from sluice.core.ids import ExecutionContainerId, directory_name
from sluice.randomness import token_hex

log = logging.getLogger(__name__)

_PREFIX = "sluice-"
_SUFFIX = ".lock"
_ATTEMPTS = 20
_PAUSE_SECONDS = 0.05


def session_members(session: int) -> list[int]:
    """The processes of a session that have not ended."""
    members = []
    for pid in psutil.pids():
        with suppress(OSError, psutil.Error):
            if os.getsid(pid) == session and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                members.append(pid)
    return members


@dataclass
class Scratch:
    """The temporary directories of one incarnation, which this process has locked. `lock`: a file descriptor; a child that inherits it also
    holds the lock. `sockets`: None if the directory cannot be created; Spark then works without it."""

    directory: Path
    lock: int
    sockets: Path | None = None
    session: int | None = field(default=None, init=False)

    def started(self, session: int) -> None:
        """Record the driver's session: the directories are in use while one of its processes is running."""
        self.session = session
        try:
            self._record()
        except OSError as error:
            log.warning("the session of %s cannot be recorded: %s", self.directory.name, error)

    def remove(self) -> None:
        """Delete everything. The incarnation's processes must have ended."""
        if _removed(self.directory, self.sockets):
            _lock_file(self.directory).unlink(missing_ok=True)
        os.close(self.lock)

    def create_sockets(self) -> None:
        """Record the directory of the sockets, then create it. Other users cannot access it."""
        sockets = Path(tempfile.gettempdir()) / f"{_PREFIX}{token_hex(4)}"
        try:
            self.sockets = sockets
            self._record()
            sockets.mkdir(mode=0o700)
        except OSError as error:
            self.sockets = None
            log.warning("no directory for Spark's sockets: %s", error)

    def _record(self) -> None:
        text = json.dumps({"session": self.session, "sockets": None if self.sockets is None else str(self.sockets)})
        os.pwrite(self.lock, os.fsencode(text), 0)
        os.ftruncate(self.lock, len(text))


def claim(home: Path, container: ExecutionContainerId, *, sockets: bool = True) -> Scratch | None:
    """Lock the directories of an incarnation, and with `sockets` create the directory of its sockets. None, with a warning, if another
    process has this id, or the home cannot be written. The container then starts without them, and reports an error if it cannot work."""
    directory = scratch_directory(home, container)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        lock = _locked(_lock_file(directory), create=True)
    except OSError as error:
        log.warning("the directory for temporary files cannot be locked: %s", error)
        return None
    if lock is None:
        log.warning("another process on this machine has the id %s: a container needs an id that was never used", container)
        return None
    _removed(directory, _read(lock).sockets)  # of a dead incarnation with the same id
    scratch = Scratch(directory, lock)
    if sockets:
        scratch.create_sockets()
    return scratch


def scratch_directory(home: Path, container: ExecutionContainerId) -> Path:
    """Spark's temporary files of an incarnation."""
    return (home / "spark" / directory_name(container)).absolute()


def clear(home: Path, members: Callable[[int], Sequence[int]] = session_members) -> Sequence[str]:
    """Delete the directories of dead incarnations. Returns their names. Directories without a lock file are of former releases, and are
    kept. `members`: returns the running processes of a session."""
    cleared = []
    for file in sorted((home / "spark").absolute().glob(f"*{_SUFFIX}")):
        try:
            lock = _locked(file, create=False)
            if lock is None:
                continue
            try:
                found = _read(lock)
                if found.session is None or not members(found.session):
                    directory = file.with_name(file.name.removesuffix(_SUFFIX))
                    if _removed(directory, found.sockets):
                        file.unlink()
                        cleared.append(directory.name)
            finally:
                os.close(lock)
        except OSError as error:
            log.warning("the temporary files of a dead container cannot be deleted: %s", error)
    return cleared


@dataclass(frozen=True, slots=True)
class _Record:
    session: int | None = None
    sockets: Path | None = None


def _read(lock: int) -> _Record:
    """The contents of a lock file; an empty record if it was not completed."""
    try:
        read = json.loads(os.pread(lock, 10_000, 0))
        session, sockets = read["session"], read["sockets"]
    except (ValueError, TypeError, KeyError):
        return _Record()
    return _Record(
        session if isinstance(session, int) else None,
        Path(sockets) if isinstance(sockets, str) and Path(sockets).name.startswith(_PREFIX) else None,
    )


def _lock_file(directory: Path) -> Path:
    return directory.with_name(directory.name + _SUFFIX)


def _locked(file: Path, *, create: bool) -> int | None:
    """Open and lock a file; None if another process has locked it, or has deleted it. Raises OSError."""
    for _ in range(_ATTEMPTS if create else 1):
        try:
            lock = os.open(file, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
        except FileNotFoundError:
            if create:
                raise
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock).st_nlink:  # else it was deleted between open and flock
                return lock
        except BlockingIOError:  # perhaps only for as long as another process reads a file that was not locked yet
            if create:
                time.sleep(_PAUSE_SECONDS)
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)
    return None


def _removed(directory: Path, sockets: Path | None) -> bool:
    """Delete the directories; False, with a warning, if something is left."""
    for each in (directory, sockets):
        if each is not None and each.exists():
            shutil.rmtree(each, ignore_errors=True)
            if each.exists():
                log.warning("%s cannot be deleted", each)
                return False
    return True
