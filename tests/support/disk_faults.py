"""The process dies before a chosen change of durable data: of files below a directory, or of anything else that is counted as a step.

Changes of files are detected by audit events of the interpreter, so that the code under test needs no hooks: opening a file to write it,
links, renames, removals, new directories and modes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.faults import Killed

_PATHS = {"os.rename": 2, "os.link": 2, "os.symlink": 2, "os.remove": 1, "os.rmdir": 1, "os.mkdir": 1, "os.chmod": 1, "os.truncate": 1}
"""Audit events of changes, and how many of their arguments are paths."""

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


@dataclass(slots=True)
class Steps:
    """Dies before step `dies_before`, counted from 1; 0 is never. Afterwards every step dies."""

    dies_before: int = 0
    names: list[str] = field(default_factory=list)
    dead: bool = False

    def step(self, name: str) -> None:
        """Raises Killed."""
        if not self.dead:
            self.names.append(name)
            self.dead = len(self.names) == self.dies_before
        if self.dead:
            raise Killed


@dataclass(slots=True)
class _Watch:
    root: str = ""
    steps: Steps = field(default_factory=Steps)
    hooked: bool = False

    def on_event(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self.root:
            return
        if event == "open":
            flags = arguments[2]
            paths = arguments[:1] if isinstance(flags, int) and flags & _WRITES else ()
        else:
            paths = arguments[: _PATHS.get(event, 0)]
        directory = arguments[1] if event in ("os.remove", "os.rmdir") else -1  # `shutil.rmtree` names files relative to their directories
        for path in paths:
            if not isinstance(path, str | os.PathLike):
                continue
            name = str(path) if directory == -1 else f"{Path(f'/proc/self/fd/{directory}').readlink()}/{path}"
            if name.startswith(self.root):
                self.steps.step(f"{event} {name.removeprefix(self.root)}")
                return


_WATCH = _Watch()


@contextmanager
def changes_of_files(root: Path, steps: Steps) -> Iterator[None]:
    """Each change of a file below `root` is a step, in all threads."""
    if not _WATCH.hooked:
        sys.addaudithook(_WATCH.on_event)  # it cannot be removed again
        _WATCH.hooked = True
    _WATCH.root, _WATCH.steps = f"{root}/", steps
    try:
        yield
    finally:
        _WATCH.root = ""
