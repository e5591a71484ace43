"""Small disks for tests that fill them: file systems in memory."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    def __init__(self, root: Path) -> None:
        self.root = root
        self._filler = root / "filler"

    def fill(self, leave: int = 0) -> None:
        """Use all the room except for this many bytes."""
        with self._filler.open("ab", buffering=0) as filler:
            for size in (1 << 20, 4096):
                try:
                    while os.statvfs(self.root).f_bavail * 4096 >= leave + size:
                        filler.write(bytes(size))
                except OSError:
                    continue

    @property
    def is_filled(self) -> bool:
        return self._filler.exists()

    def make_room(self) -> None:
        self._filler.unlink()


@contextmanager
def small_disk(root: Path, size: int) -> Iterator[SmallDisk]:
    """Mount a disk of that size at the path. Skips the test if mounting is not permitted."""
    root.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(root)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted: {done.stderr.strip()}")
    try:
        yield SmallDisk(root)
    finally:
        subprocess.run(["umount", "-l", str(root)], check=True)
