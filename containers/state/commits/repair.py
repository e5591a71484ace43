"""The repair of snapshots in a blob store that has lost blobs, from the disk of the task's owner.

    list      the data blobs that the blob store has
    find      the files of retained snapshots whose blobs are lost; the same contents in another index, or in the frozen checkpoint
    put       contents that only the checkpoint has into new blobs with a TTL
    replace   for each snapshot concerned: put a new index, and let the coordinator register it in place of the former one

One file of Spark's state is in many snapshots, so one lost blob concerns many indexes. Each is replaced by a compare-and-swap of its own. A
crash between two of them leaves some snapshots repaired, and blobs without an index, which expire; the next repair finds the rest.

If an index itself is lost, it is not known which blobs its snapshot needs, and the snapshot is not repaired. If it is the newest one, the
commit uploads everything.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from containers.engine import StageStart
from containers.state.commits.freeze import FrozenCheckpoint
from containers.state.context import StateContext
from containers.state.diff import LocalFile
from containers.state.recovery.restore import LOST
from containers.state.transfer import TransferContext
from sluice.blobs.port import BlobStore, Purpose, RequestContext
from sluice.client import Refused, until_answered
from sluice.core.snapshots.fingerprint import Fingerprint
from sluice.core.snapshots.snapshot import (
    BlobId,
    BlobStoreName,
    CommitId,
    DirIndex,
    FileBlob,
    FileIndex,
    Kind,
    SnapshotIndex,
    stage_prefix,
    walk,
)
from sluice.wire import snapshots as wire_snapshots

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Repaired:
    """`newest`: the index of the newest snapshot in the blob store, None if it has none there; `whole`: whether all its blobs are there."""

    newest: BlobId | None
    whole: bool


class _Contents(NamedTuple):
    """The contents of a file; `digest` is None in an index that Samza wrote."""

    size: int
    checksum: int
    digest: str | None

    @classmethod
    def of(cls, file: FileIndex) -> _Contents:
        return cls(file.metadata.size, file.checksum, file.digest)

    def are(self, found: Fingerprint) -> bool:
        return self.checksum == found.checksum and self.digest in (None, found.digest)


async def repair(state: StateContext, start: StageStart, name: BlobStoreName, blobs: BlobStore, frozen: FrozenCheckpoint) -> Repaired:
    """Repair all retained snapshots of the stage in a blob store, as far as possible. No commit of the stage runs meanwhile. May be
    interrupted anywhere. Raises BlobUnavailable, BlobStoreUnusable, LeaseLost, Refused, FileChanged, FileUnreadable."""
    of_stage = partial(state.coordinator.snapshots_of, state.job, start.task, start.stage.name)
    rows = (await until_answered(of_stage, start.query)).snapshots
    work = _Repair(state, start, name, blobs, [row for row in rows if name in row.markers])
    await work.find()
    if work.wanted:
        await work.find_in_other_indexes()
        await work.put(frozen)
        for row in work.rows:
            await work.replace(row)
    newest = next((row.checkpoint_id for row in work.rows if row.head), None)
    return Repaired(None, whole=True) if newest is None else Repaired(work.indexes[newest], newest not in work.damaged)


@dataclass(slots=True)
class _Repair:
    """`indexes`: that of each snapshot now; `damaged`: the snapshots that need a lost blob; `wanted`: the paths of contents that are lost;
    `found`: blobs with these contents. One index is in memory at a time."""

    state: StateContext
    start: StageStart
    name: BlobStoreName
    blobs: BlobStore
    rows: Sequence[wire_snapshots.SnapshotReply]
    indexes: dict[str, BlobId] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)
    wanted: dict[_Contents, set[str]] = field(default_factory=lambda: defaultdict(set))
    found: dict[_Contents, tuple[FileBlob, ...]] = field(default_factory=dict)
    _there: set[BlobId] = field(default_factory=set)

    @property
    def _context(self) -> TransferContext:
        meter = self.state.meter(self.start).backup
        return TransferContext(self.blobs, self.state.key(self.start), meter, in_thread=self.state.in_thread)

    async def find(self) -> None:
        """Find the lost blobs. The ids of the indexes are read before the blobs are listed, so that all blobs of these indexes were put
        before the listing."""
        self.indexes = {row.checkpoint_id: BlobId(row.markers[self.name].index) for row in self.rows}
        context = self._context
        about = RequestContext.of_stage(Purpose.AUDIT, context.key)
        async for page in context.blobs.list(f"{stage_prefix(context.key)}{Kind.DATA}/", about):
            self._there |= {each.blob for each in page}
        for checkpoint in self.indexes:
            index = await self._read(checkpoint)
            if index is None:
                self.damaged.add(checkpoint)
                continue
            for path, file in self._lost(index):
                self.damaged.add(checkpoint)
                self.wanted[_Contents.of(file)].add(path)

    def _lost(self, index: SnapshotIndex) -> Iterator[tuple[str, FileIndex]]:
        for path, file in walk(index.root):
            if not self._has(file):
                yield path, file

    def _has(self, file: FileIndex) -> bool:
        return all(part.blob in self._there for part in file.blobs)

    async def _read(self, checkpoint: str) -> SnapshotIndex | None:
        """The index; None if it is lost, too."""
        try:
            return await self._context.read_index(self.indexes[checkpoint])
        except LOST as error:
            log.warning("snapshot %s of %s cannot be repaired in blob store %s: %s", checkpoint, self.start.query, self.name, error)
            return None

    async def find_in_other_indexes(self) -> None:
        """Find the contents in other indexes: an interrupted repair may have put blobs to which some snapshots refer already."""
        for checkpoint in self.indexes:
            index = await self._read(checkpoint)
            for _, file in walk(index.root) if index is not None else ():
                if _Contents.of(file) in self.wanted and self._has(file):
                    self.found[_Contents.of(file)] = file.blobs

    async def put(self, frozen: FrozenCheckpoint) -> None:
        """Put the contents that the checkpoint has at the same path."""
        context = self._context
        local = dict(walk(await context.run(lambda: context.files.listing(frozen.directory))))
        read: dict[str, LocalFile] = {}
        for contents in self.wanted.keys() - self.found.keys():
            read |= {path: local[path] for path in self.wanted[contents] if path in local and local[path].identity.size == contents.size}
        known = await context.fingerprints(frozen.directory, read.items())
        again: dict[str, LocalFile] = {}
        for contents in self.wanted.keys() - self.found.keys():
            same = (path for path in sorted(self.wanted[contents] & read.keys()) if contents.are(known[read[path].identity]))
            again |= {path: read[path] for path in [*same][:1]}
        if not again:
            return
        uploader = self.state.uploader(self._context.blobs, self.start)
        for file in (await uploader.put_again(frozen.directory, again)).values():
            self.found[_Contents.of(file)] = file.blobs
            self.found[_Contents.of(file)._replace(digest=None)] = file.blobs
            self._there |= {part.blob for part in file.blobs}

    async def replace(self, row: wire_snapshots.SnapshotReply) -> None:
        """Replace the index of a snapshot. A snapshot that is no longer retained is not changed."""
        checkpoint = CommitId(row.checkpoint_id)
        if checkpoint not in self.damaged or (former := await self._read(checkpoint)) is None:
            return
        index = replace(
            former, root=_with(former.root, {contents: self.found[contents] for contents in self.wanted if contents in self.found})
        )
        if index.blobs == former.blobs:
            return
        uploader = self.state.uploader(self._context.blobs, self.start)
        body = wire_snapshots.IndexReplacement(
            generation=self.start.generation,
            blob_store=self.name,
            previous=self.indexes[checkpoint],
            index=await uploader.put_index(index),
        )
        stage = self.start.stage.name
        request = partial(self.state.coordinator.replace_index, self.state.run_id, self.start.task, stage, checkpoint, body)
        try:
            await until_answered(request, self.start.query)
        except Refused as refused:
            log.warning("snapshot %s of %s is not repaired in blob store %s: %s", checkpoint, self.start.query, self.name, refused)
            return
        self.indexes[checkpoint] = BlobId(body.index)
        lost = sum(1 for _ in self._lost(index))
        if not lost:
            self.damaged.discard(checkpoint)
        left = f"; {lost} files are still missing" if lost else ""
        log.info("snapshot %s of %s was repaired in blob store %s%s", checkpoint, self.start.query, self.name, left)


def _with(directory: DirIndex, found: Mapping[_Contents, tuple[FileBlob, ...]]) -> DirIndex:
    """The directory with these blobs for these contents."""
    return replace(
        directory,
        files=tuple(replace(each, blobs=found.get(_Contents.of(each), each.blobs)) for each in directory.files),
        dirs=tuple(_with(each, found) for each in directory.dirs),
    )
