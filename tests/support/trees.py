"""Directory trees for tests: created from a description, and read back into one."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from hypothesis import strategies as st

from containers.state.commits.freeze import FrozenCheckpoint
from containers.state.commits.packing import Packing
from containers.state.commits.upload import CommitSettings, Marker, Uploader
from containers.state.files import LocalFiles
from containers.state.meters import Transfers
from containers.state.recovery.restore import Restored, Restorer, RestoreSettings
from containers.state.transfer import TransferContext
from sluice.blobs.port import BlobStore
from sluice.core.ids import Generation, JobName, Lineage, StageKey, StageName, TaskName
from sluice.core.snapshots.snapshot import BlobId, CommitId, SnapshotIndex
from tests.support.fakes import FakeClock

KEY = StageKey(JobName("delays"), TaskName("Partition 0"), StageName("hourly"))
TINY = CommitSettings(Packing(chunk_bytes=64, pack_bytes=48, small_bytes=32), concurrency=3)
"""Sizes at which a few dozen bytes count as a large file."""

File = tuple[bytes, int]
Tree = Mapping[str, File | None]
"""Path -> contents and mode, None for a directory. Parents may be omitted."""


def make(root: Path, tree: Tree) -> Path:
    """Make `root` contain exactly these files."""
    if root.exists():
        shutil.rmtree(root)
    root.mkdir(parents=True)
    for path, file in tree.items():
        if file is None:
            (root / path).mkdir(parents=True, exist_ok=True)
        else:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(file[0])
            (root / path).chmod(file[1])
    return root


def read(root: Path) -> dict[str, File | None]:
    found: dict[str, File | None] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        assert not path.is_symlink()
        found[name] = None if path.is_dir() else (path.read_bytes(), path.stat().st_mode & 0o777)
    return found


def with_parents(tree: Tree) -> dict[str, File | None]:
    """Adds the parents, as in the result of `read`."""
    parents = {str(parent): None for path in tree for parent in Path(path).parents if str(parent) != "."}
    return {**parents, **tree}


def plain(files: Mapping[str, bytes]) -> dict[str, File | None]:
    return {path: (body, 0o644) for path, body in files.items()}


names = st.sampled_from(["a", "b", "c.sst", "MANIFEST-000005", "12", "ä ö", ".hidden"])
contents = st.one_of(st.binary(max_size=40), st.integers(0, 300).map(lambda size: bytes(range(256))[:size].ljust(size, b"x")))
modes = st.sampled_from([0o644, 0o600, 0o755, 0o444, 0o640])


@st.composite
def trees(draw: st.DrawFn) -> dict[str, File | None]:
    """Trees of up to three levels; no name is both a file and a directory."""
    tree: dict[str, File | None] = {}
    dirs = [""]
    for depth in range(2):
        above = [directory for directory in dirs if directory.count("/") == depth]
        if above:
            dirs += sorted({f"{draw(st.sampled_from(above))}d-{name}/" for name in draw(st.lists(names, max_size=2))})
    for directory in dirs:
        if directory:
            tree[directory.removesuffix("/")] = None
        for name in draw(st.lists(names, max_size=4, unique=True)):
            tree[directory + name] = (draw(contents), draw(modes))
    return tree


@dataclass
class Place:
    """One stage on this disk, with its backups in a blob store. Files are settled, as if they were written long before each commit."""

    root: Path
    blobs: BlobStore
    settings: CommitSettings = TINY
    files: LocalFiles = field(default_factory=LocalFiles)
    clock: FakeClock = field(default_factory=FakeClock)
    newest: BlobId | None = None
    usable: timedelta = timedelta(0)
    """For how long an upload may use what a failed one has put."""

    def __post_init__(self) -> None:
        self._ids = (f"{number:016x}" for number in itertools.count(1))
        self.uploader = self.new_uploader()

    @property
    def store(self) -> Path:
        return self.root / "hourly"

    def new_uploader(self) -> Uploader:
        context = TransferContext(self.blobs, KEY, Transfers(), self.files)
        return Uploader(context, self.settings, self.clock, lambda: next(self._ids), lambda: self.usable)

    def make(self, tree: Tree) -> None:
        make(self.store, tree)
        self.settle()

    def settle(self) -> None:
        """Make the last change look old."""
        latest = max((path.lstat().st_mtime for path in self.store.rglob("*")), default=0)
        self.clock.advance(max(0, latest + 60 - self.clock.now().timestamp()))

    def cut(self, batch: int = 1) -> FrozenCheckpoint:
        """Freeze everything: other tests cover what `freeze` leaves out."""
        return FrozenCheckpoint(self.store, Lineage("lineage"), batch)

    def checkpoint(self, batch: int) -> CommitId:
        return CommitId(f"1700000000000-{batch:06}")

    async def upload(self, batch: int = 1) -> tuple[Marker, SnapshotIndex]:
        return await self.uploader.upload(self.cut(batch), self.checkpoint(batch), Generation(1))

    async def commit(self, batch: int = 1) -> Marker:
        """Upload and report."""
        marker, index = await self.upload(batch)
        self.uploader.reported(marker, index)
        self.newest = marker.index
        return marker

    def restorer(self, chunk_bytes: int = 64, leave_free: int | None = None) -> Restorer:
        return Restorer(TransferContext(self.blobs, KEY, Transfers(), self.files), RestoreSettings(chunk_bytes, 3, leave_free))

    async def restore(self, index: BlobId | None = None, target: Path | None = None) -> Restored:
        wanted = index or self.newest
        assert wanted is not None
        target = target or self.store
        return await self.restorer().restore(wanted, target, target if target.is_dir() else None)


def disk_is_clean(root: Path) -> bool:
    """A restore has left nothing beside the stage."""
    return all(not any((root / name).iterdir()) for name in (".staging", ".replaced") if (root / name).exists())


def flip(path: Path, at: int = 0) -> None:
    """Flip one bit of a file without changing its size and modification time."""
    found = path.stat()
    body = bytearray(path.read_bytes())
    body[at] ^= 1
    path.write_bytes(body)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
