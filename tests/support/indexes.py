from __future__ import annotations

from sluice.core.ids import Generation, JobName, Lineage, StageName, TaskName
from sluice.core.snapshots.snapshot import BlobId, CommitId, DirIndex, FileBlob, FileIndex, FileMetadata, SnapshotIndex, SnapshotMetadata

BLOB = BlobId("jobs/demo/Partition_0/counts/snapshots/1700000002100-0123456789abcdef")
ABOUT = SnapshotMetadata(CommitId("1700000002000-123456"), JobName("demo"), TaskName("Partition 0"), StageName("counts"))
METADATA = FileMetadata(1700000000000, 1700000001000, 16, "app", "app", 0o644)
DIGEST = "ab" * 32


def file(name: str = "CURRENT", size: int = 16, *parts: FileBlob) -> FileIndex:
    return FileIndex(name, parts or (FileBlob(BlobId("b-1"), 0),), METADATA._replace(size=size), 222957957, DIGEST)


def index(*files: FileIndex, dirs: tuple[DirIndex, ...] = ()) -> SnapshotIndex:
    root = DirIndex("", tuple(sorted(files, key=lambda each: each.name)), dirs=dirs)
    return SnapshotIndex(1700000002100, ABOUT, root, BlobId("prev"), Generation(3), Lineage("6f0c"), 41)
