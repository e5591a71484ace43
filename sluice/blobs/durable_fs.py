"""File operations that survive a power failure, and ordered listings of large directories in bounded memory."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sluice.randomness import token_hex

_WINDOW = 50_000
"""Number of names that are kept in memory while a directory is listed."""

_TRIES = 20
"""Maximum number of attempts to add an entry to a directory that another process may concurrently remove because it is empty."""


def sync(directory: Path) -> None:
    """Make additions to the directory, and removals from it, durable."""
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def write_temporary(directory: Path, body: bytes | memoryview) -> Path:
    """Write a new file. Its content is durable, but its name is not. A failure leaves no file. Raises OSError."""
    path = directory / token_hex(12)
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        rest = memoryview(body)
        while rest:
            rest = rest[os.write(opened, rest) :]
        os.fsync(opened)
    except BaseException:
        path.unlink()
        raise
    finally:
        os.close(opened)
    return path


@dataclass(frozen=True, slots=True)
class Move:
    """A rename of a file. Missing directories below `top` are created."""

    source: Path
    target: Path
    top: Path


def rename(*moves: Move) -> None:
    """Rename files in this order. The new names are durable after a `sync` of their directories."""
    for one in moves:
        _with_parents(one.target, one.top, partial(one.source.replace, one.target))


def move(*moves: Move) -> None:
    """Rename files in this order, durably. All syncs are done at the end, which costs little more than one."""
    rename(*moves)
    for one in moves:
        sync(one.target.parent)


def link(one: Move) -> bool:
    """Give the file a second name, durably. Returns false if a file of that name exists; it is not changed. The source is always kept."""
    try:
        _with_parents(one.target, one.top, partial(os.link, one.source, one.target))
        won = True
    except FileExistsError:
        won = False
    sync(one.target.parent)  # also if another process created the file, because it may not have synced yet
    return won


def _with_parents(target: Path, top: Path, step: Callable[[], object]) -> None:
    for attempt in range(_TRIES):
        try:
            step()
        except FileNotFoundError:
            if attempt == _TRIES - 1:
                raise
            _make(target.parent, top)
        else:
            return


def _make(directory: Path, top: Path) -> None:
    """Create the directory and its parents, but not `top`: if it is missing, its disk may not be mounted."""
    missing = []
    while directory != top and not directory.is_dir():
        missing.append(directory)
        directory = directory.parent
    for made in reversed(missing):
        with suppress(FileExistsError):
            made.mkdir()
        with suppress(FileNotFoundError):
            sync(made.parent)


def remove(names: Iterable[str], top: Path) -> None:
    """Durably delete files, given by their paths below `top`, and directories that become empty. Missing files are ignored."""
    parents = set()
    for name in names:
        with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            os.unlink(f"{top}/{name}")  # noqa: PTH108 — there may be a million, and creating a Path takes as long
            parents.add(name.rpartition("/")[0])
    for parent in parents:
        _prune(top / parent, top)


def _prune(directory: Path, top: Path) -> None:
    while directory != top:
        try:
            directory.rmdir()
        except FileNotFoundError:
            pass
        except OSError:
            break
        directory = directory.parent
    with suppress(FileNotFoundError):
        sync(directory)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on this existing file, among all threads and processes."""
    opened = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def walk(top: Path, prefix: str = "", after: str = "") -> Iterator[str]:
    """The files below `top` whose relative path begins with `prefix` and is greater than `after`, in the order of their paths."""
    inside = prefix[: prefix.rfind("/") + 1]
    yield from _walk(top / inside, inside, prefix, after)


def _walk(directory: Path, path: str, prefix: str, after: str) -> Iterator[str]:
    for name in names_in_order(directory):
        below = path + name
        if not name.endswith("/"):
            if below.startswith(prefix) and below > after:
                yield below
        elif (below.startswith(prefix) or prefix.startswith(below)) and (below > after or after.startswith(below)):
            yield from _walk(directory / name, below, prefix, after)


def names_in_order(directory: Path, window: int = _WINDOW) -> Iterator[str]:
    """The entries of a directory in the order of paths; names of directories end with '/'. A directory that was removed is empty."""
    last = ""
    while True:
        kept: list[str] = []
        bound: str | None = None
        with suppress(FileNotFoundError), os.scandir(directory) as entries:
            for entry in entries:
                name = f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name
                if name <= last or (bound is not None and name > bound):
                    continue
                kept.append(name)
                if len(kept) == 2 * window:
                    kept.sort()
                    del kept[window:]
                    bound = kept[-1]
        kept.sort()
        yield from kept[:window]
        if bound is None and len(kept) <= window:
            return
        last = kept[:window][-1]
