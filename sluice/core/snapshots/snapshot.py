"""Snapshots: how a stage's checkpoint directory is stored in a blob store.

    local disk                             blob store
    <stage>/                               jobs/<job>/<task>/<stage>/
      metadata          never changes        snapshots/<id>          an index: this module as JSON; written last
      commits/N         never change         data/<id>               bytes of files: a chunk of a large one, or a pack of small ones
      offsets/N         never change         offsets/<lineage>/<N>   offset-log entry of batch N, before its output; put if absent
      sources/…, state/…

A snapshot is an index and the blobs that it refers to. Blobs are never changed, and their ids never reused. Consecutive snapshots share
most of their blobs. `files_removed` and `dirs_removed` list the entries of the previous index that this one does not have, as in Samza's
format. Sluice does not use these lists for deletions: a blob is garbage when no retained index refers to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, NewType, Protocol, TypeVar

from sluice.core.errors import BadName
from sluice.core.ids import Generation, JobName, Lineage, Ssp, StageKey, StageName, TaskName, directory_name
from sluice.core.snapshots.fingerprint import Fingerprint

BlobId = NewType("BlobId", str)
"""The name of a blob in its store: segments of letters, digits, '.', '_' and '-', joined by '/'."""

CommitId = NewType("CommitId", str)
"""Samza's spelling: "<milliseconds>-<number below a million>", both without leading zeros."""

BlobStoreName = NewType("BlobStoreName", str)
"""A blob store in the settings: "local", "s3"."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot that a stage may be restored from. `batch`: its last batch; -1 if there is none. `markers`: its index in each blob store.
    `restored_explicitly`: an operator chose it."""

    checkpoint: CommitId
    lineage: Lineage
    batch: int
    markers: Mapping[BlobStoreName, BlobId]
    restored_explicitly: bool = False


@dataclass(frozen=True, slots=True)
class FileBlob:
    """A part of a file: `length` bytes from `offset` in the file, stored from `at` in the blob, which has `blob_size` bytes. Without
    `length` the part is the whole blob, as Samza writes it."""

    blob: BlobId
    offset: int
    length: int | None = None
    at: int = 0
    blob_size: int | None = None


class FileMetadata(NamedTuple):
    """`mode`: the nine permission bits; times in milliseconds since 1970; `size` in bytes. A tuple, because a commit creates and compares
    one for each file, which takes a third of the time of a frozen dataclass."""

    created_millis: int
    modified_millis: int
    size: int
    owner: str
    group: str
    mode: int


@dataclass(frozen=True, slots=True)
class FileIndex:
    """`checksum`: CRC-32 of the contents; `digest`: their SHA-256 in hex, None in an index that Samza wrote."""

    name: str
    blobs: tuple[FileBlob, ...]
    metadata: FileMetadata
    checksum: int
    digest: str | None = None

    def matches(self, fingerprint: Fingerprint) -> bool:
        """Whether contents of the file's size with that fingerprint are the file's. Samza's indexes have the CRC-32 only."""
        return fingerprint.checksum == self.checksum and self.digest in (None, fingerprint.digest)


@dataclass(frozen=True, slots=True)
class DirIndex:
    """A directory; the root's name is "". Files and directories are in the order of their names."""

    name: str
    files: tuple[FileIndex, ...] = ()
    files_removed: tuple[FileIndex, ...] = ()
    dirs: tuple[DirIndex, ...] = ()
    dirs_removed: tuple[DirIndex, ...] = ()


class Named(Protocol):
    @property
    def name(self) -> str: ...


File = TypeVar("File", bound=Named)
FileCo = TypeVar("FileCo", bound=Named, covariant=True)


class Directory(Protocol[FileCo]):
    """A directory tree: of an index, or on a disk."""

    @property
    def name(self) -> str: ...

    @property
    def files(self) -> Sequence[FileCo]: ...

    @property
    def dirs(self) -> Sequence[Directory[FileCo]]: ...


def walk(directory: Directory[File], prefix: str = "") -> Iterator[tuple[str, File]]:
    """Every file below, with its path relative to the root, separated by '/'. Of an index, the files that are present."""
    for file in directory.files:
        yield prefix + file.name, file
    for each in directory.dirs:
        yield from walk(each, f"{prefix}{each.name}/")


def walk_dirs(directory: Directory[Any], prefix: str = "") -> Iterator[str]:
    """The path of every directory below, parents first. Of an index, the directories that are present."""
    for each in directory.dirs:
        yield prefix + each.name
        yield from walk_dirs(each, f"{prefix}{each.name}/")


@dataclass(frozen=True, slots=True)
class SnapshotMetadata:
    checkpoint: CommitId
    job: JobName
    task: TaskName
    store: StageName

    @property
    def key(self) -> StageKey:
        return StageKey(self.job, self.task, self.store)


@dataclass(frozen=True, slots=True)
class SnapshotIndex:
    """`generation`, `lineage`: of the owner that created it. `batch`: its last committed batch. These are None in an index that Samza
    wrote. `offsets`: the next offsets of the stage. `continuation`: what the owner got from the coordinator
    (`sluice.wire.snapshots.Continuation`)."""

    created_millis: int
    metadata: SnapshotMetadata
    root: DirIndex
    previous: BlobId | None = None
    generation: Generation | None = None
    lineage: Lineage | None = None
    batch: int | None = None
    offsets: Mapping[Ssp, int] = field(default_factory=dict)
    continuation: Mapping[str, Any] | None = None

    @property
    def blobs(self) -> frozenset[BlobId]:
        """The blobs that it refers to, without the index itself and removed files."""
        return frozenset(part.blob for _, file in walk(self.root) for part in file.blobs)

    @property
    def size(self) -> int:
        """Bytes of the directory's files."""
        return sum(file.metadata.size for _, file in walk(self.root))


_SEGMENT = r"[A-Za-z0-9_-][A-Za-z0-9._-]*"
_BLOB_ID = re.compile(rf"{_SEGMENT}(/{_SEGMENT})*")
LONGEST = 900
"""S3 keys have at most 1,024 bytes; the rest is for the prefix in the bucket."""


class Kind(StrEnum):
    """The directory under a stage's prefix that contains a blob."""

    DATA = "data"
    SNAPSHOTS = "snapshots"
    OFFSETS = "offsets"


def checked_blob_id(text: str) -> BlobId:
    """Returns the text as a BlobId. Raises BadName, for example for '..', empty or hidden segments and absolute names."""
    if len(text) > LONGEST or not _BLOB_ID.fullmatch(text):
        raise BadName("blob", text)
    return BlobId(text)


def stage_prefix(key: StageKey) -> str:
    """The prefix of all blobs of a stage, with a trailing '/'. Different tasks have different prefixes (`directory_name`)."""
    return f"jobs/{key.job}/{directory_name(key.task)}/{key.stage}/"


def fresh_blob_id(key: StageKey, kind: Kind, millis: int, random: str) -> BlobId:
    """A unique id. Blobs of one kind list in the order of `millis`. `random` is at least 16 hex digits."""
    return checked_blob_id(f"{stage_prefix(key)}{kind}/{millis:013}-{random}")


def offsets_prefix(key: StageKey, lineage: Lineage) -> str:
    return f"{stage_prefix(key)}{Kind.OFFSETS}/{lineage}/"


def offsets_blob_id(key: StageKey, lineage: Lineage, batch: int) -> BlobId:
    """The id of a batch's offset-log entry. Unlike other ids, it is the same for each write. Batches list in their order."""
    return checked_blob_id(f"{offsets_prefix(key, lineage)}{batch:012}")


def batch_of(blob: BlobId) -> int:
    """The batch of an offsets blob."""
    return int(blob.rpartition("/")[2])


def checked_prefix(text: str) -> str:
    """A valid prefix of a listing: "", an id, or the beginning of ids that ends in '/'. Raises BadName."""
    if text:
        checked_blob_id(text.removesuffix("/"))
    return text
