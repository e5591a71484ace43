"""The upload of a frozen checkpoint. Changes since the previous snapshot go into new blobs, and an index lists the blobs of each file.

    compare  the files with the previous index; a file that may be unchanged and is not known is read once
    plan     packs and chunks (`containers.state.commits.packing`): a list of puts
    put      read, hash, put: in parallel, `concurrency` blobs in memory at a time; each with a TTL, which the coordinator removes once
             the snapshot is reported
    index    put last: until then the blobs are garbage, which expires

Every put has a new blob id. So neither a failed upload nor one by a former owner of the task changes an existing blob. The next upload uses
the files that a failed one has put, as long as they cannot have been collected as garbage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, assert_never

from containers.state.commits.freeze import FrozenCheckpoint
from containers.state.commits.packing import Packing, Put, PutChunk, PutPack, files_to_repack, plan_puts
from containers.state.diff import DirDiff, Identity, LocalDir, LocalFile, diff, files_to_read, is_stable, next_index
from containers.state.transfer import FileInParts, TransferContext, in_parallel
from sluice.blobs.port import Purpose, RequestContext
from sluice.clock import Clock
from sluice.core.errors import BadSettings
from sluice.core.ids import Generation, Instant, Ssp
from sluice.core.snapshots.fingerprint import Fingerprint, fingerprint
from sluice.core.snapshots.indexjson import encoded
from sluice.core.snapshots.snapshot import (
    BlobId,
    CommitId,
    DirIndex,
    FileBlob,
    FileIndex,
    Kind,
    SnapshotIndex,
    SnapshotMetadata,
    fresh_blob_id,
    walk,
)

NO_OFFSETS: Mapping[Ssp, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class CommitSettings:
    """`concurrency` blobs are put at a time, and kept in memory. Raises BadSettings."""

    packing: Packing = field(default_factory=Packing)
    concurrency: int = 8
    ttl: timedelta = timedelta(days=30)

    def __post_init__(self) -> None:
        if self.concurrency < 1 or self.ttl <= timedelta(0):
            raise BadSettings(f"{self.concurrency} blobs at a time, with a TTL of {self.ttl}: both must be positive")


@dataclass(frozen=True, slots=True)
class Marker:
    """The report of a snapshot in one blob store: its index and the previous one, its files and bytes, and the cost of the upload. Retained
    bytes were already in the blob store. `puts` includes the index."""

    index: BlobId
    previous: BlobId | None
    files: int
    bytes: int
    uploaded_files: int
    uploaded_bytes: int
    retained_bytes: int
    puts: int


@dataclass(frozen=True, slots=True)
class _Plan:
    """`marker` has no index yet. `present`: the entries of files that an upload without a snapshot has put, by path."""

    found: DirDiff
    changed: Mapping[str, LocalFile]
    present: Mapping[str, FileIndex]
    puts: Sequence[Put]
    marker: Marker


@dataclass(frozen=True, slots=True)
class _PutFile:
    """A file in the blob store of which no snapshot is known yet. `since`: when its upload began."""

    entry: FileIndex
    fingerprint: Fingerprint
    since: Instant


class Uploader:
    """Uploads frozen checkpoints of one stage to one blob store, one at a time."""

    def __init__(
        self,
        context: TransferContext,
        settings: CommitSettings,
        clock: Clock,
        new_id: Callable[[], str],
        usable_for: Callable[[], timedelta] = timedelta,
    ) -> None:
        """`new_id` returns at least 16 random hex digits. `usable_for`: the longest time between the beginnings of two uploads of which the
        second may use what the first has put, although no snapshot refers to it."""
        self._context = context
        self._usable_for = usable_for
        self._settings = settings
        self._clock = clock
        self._new_id = new_id
        self._previous: tuple[BlobId, SnapshotIndex] | None = None
        self._follows: BlobId | None = None
        self._known: dict[Identity, Fingerprint] = {}
        self._put: dict[Identity, _PutFile] = {}
        self.gained_bytes = 0
        """The size of the files that uploads have put to their ends, less that of those that became too old before a snapshot referred to
        them. Uploads that it does not grow in come no nearer to a snapshot."""

    async def begin(self, previous: BlobId | None) -> None:
        """Continue after that snapshot; None if there is none. Raises what `read_index` raises."""
        self.begin_whole(previous)
        if previous is not None:
            self._previous = (previous, await self._context.read_index(previous))

    def begin_whole(self, previous: BlobId | None) -> None:
        """Continue after that snapshot without using its blobs: the next upload has everything. For a snapshot that has lost blobs."""
        self._previous, self._follows = None, previous
        self._put.clear()

    async def upload(
        self,
        frozen: FrozenCheckpoint,
        checkpoint: CommitId,
        generation: Generation,
        offsets: Mapping[Ssp, int] = NO_OFFSETS,
        continuation: Mapping[str, Any] | None = None,
    ) -> tuple[Marker, SnapshotIndex]:
        """Put what the blob store does not have, and then the index, which also contains `offsets` and `continuation`. Raises
        BlobUnavailable, BlobStoreUnusable, FileChanged, FileUnreadable, CheckpointUnreadable. After an error, nothing refers to the new
        blobs, and they expire unless a later upload uses them."""
        millis, began = self._millis(), self._clock.elapsed()
        before = self._previous[1].root if self._previous is not None else None
        local, unread = await self._context.run(lambda: self._list(frozen.directory, before))
        if self._put:
            self._put = await self._context.run(lambda: self._usable(local, began))
        known = self._known | await self._context.fingerprints(frozen.directory, unread)
        plan = await self._context.run(lambda: self._plan(local, before, known))
        self._context.progress.planned(plan.marker.uploaded_files, plan.marker.uploaded_bytes)
        self._context.progress.retained(plan.marker.files - plan.marker.uploaded_files, plan.marker.retained_bytes)
        upload = _Upload(self._context, frozen.directory, plan.changed, partial(self._put_blob, Kind.DATA, millis))
        try:
            await in_parallel((partial(upload.put, put) for put in plan.puts), self._settings.concurrency)
        except BaseException:
            self._keep(upload.complete(), began, millis)
            raise
        uploaded, complete = await self._context.run(lambda: (dict(upload.indexes()), list(upload.complete())))
        self._keep(complete, began, millis)
        root = await self._context.run(lambda: next_index(plan.found, {**plan.present, **uploaded}))
        index = replace(self._index(root, frozen, checkpoint, generation, millis), offsets=offsets, continuation=continuation)
        marker = replace(plan.marker, index=await self._put_index(index, millis))
        of_present = {identity: each.fingerprint for identity, each in self._put.items()}
        self._known = await self._context.run(lambda: _settled(local, known | of_present | dict(upload.fingerprints()), millis))
        return marker, index

    def _usable(self, local: LocalDir, now: Instant) -> dict[Identity, _PutFile]:
        """What was put, of the files that are there. What is too old may have been collected when a snapshot refers to it."""
        present, longest = {file.identity for _, file in walk(local)}, self._usable_for().total_seconds()
        usable = {identity: each for identity, each in self._put.items() if now - each.since < longest}
        self.gained_bytes -= sum(identity.size for identity in self._put.keys() - usable.keys())
        return {identity: each for identity, each in usable.items() if identity in present}

    def _keep(self, complete: Iterable[tuple[Identity, FileIndex, Fingerprint]], began: Instant, millis: int) -> None:
        put = {identity: _PutFile(entry, found, began) for identity, entry, found in complete if is_stable(identity, millis * 1_000_000)}
        self.gained_bytes += sum(identity.size for identity in put)
        self._put |= put

    async def put_again(self, directory: Path, files: Mapping[str, LocalFile]) -> Mapping[str, FileIndex]:
        """Put files of the directory, by path, into new blobs. Returns their entries in an index. Raises what `upload` raises."""
        self._context.progress.planned(len(files), sum(file.identity.size for file in files.values()))
        puts = plan_puts([(path, file.identity.size) for path, file in files.items()], self._settings.packing)
        upload = _Upload(self._context, directory, files, partial(self._put_blob, Kind.DATA, self._millis()))
        await in_parallel((partial(upload.put, put) for put in puts), self._settings.concurrency)
        return dict(upload.indexes())

    async def put_index(self, index: SnapshotIndex) -> BlobId:
        """Put another index of a snapshot. Raises BlobUnavailable, BlobStoreUnusable."""
        return await self._put_index(index, self._millis())

    def _millis(self) -> int:
        return int(self._clock.now().timestamp() * 1000)

    def _list(self, directory: Path, before: DirIndex | None) -> tuple[LocalDir, list[tuple[str, LocalFile]]]:
        """The listing, and the files that must be read. After a restore, each file is read once."""
        local = self._context.files.listing(directory)
        return local, list(files_to_read(local, before, self._known))

    def _plan(self, local: LocalDir, before: DirIndex | None, known: Mapping[Identity, Fingerprint]) -> _Plan:
        found = diff(local, before, known)
        changed = dict(found.walk_added())
        if again := files_to_repack(found.walk_retained(), self._settings.packing):
            changed |= {path: file for path, file in walk(local) if path in again}
        present = {
            path: replace(self._put[file.identity].entry, name=file.name, metadata=file.metadata)
            for path, file in changed.items()
            if file.identity in self._put
        }
        changed = {path: file for path, file in changed.items() if path not in present}
        puts = plan_puts([(path, file.identity.size) for path, file in changed.items()], self._settings.packing)
        sizes = [file.identity.size for _, file in walk(local)]
        size = sum(file.identity.size for file in changed.values())
        marker = Marker(BlobId(""), self._follows, len(sizes), sum(sizes), len(changed), size, sum(sizes) - size, len(puts) + 1)
        return _Plan(found, changed, present, puts, marker)

    def reported(self, marker: Marker, index: SnapshotIndex) -> None:
        """Record that the coordinator has the snapshot: it is the previous snapshot of the next upload."""
        self._previous, self._follows = (marker.index, index), marker.index
        self._put.clear()

    async def _put_index(self, index: SnapshotIndex, millis: int) -> BlobId:
        body = await self._context.run(lambda: encoded(index))
        return await self._put_blob(Kind.SNAPSHOTS, millis, body, Purpose.INDEX)

    async def _put_blob(self, kind: Kind, millis: int, body: bytes, purpose: Purpose) -> BlobId:
        blob = fresh_blob_id(self._context.key, kind, millis, self._new_id())
        await self._context.blobs.put(blob, body, RequestContext.of_stage(purpose, self._context.key), ttl=self._settings.ttl)
        return blob

    def _index(self, root: DirIndex, frozen: FrozenCheckpoint, checkpoint: CommitId, generation: Generation, millis: int) -> SnapshotIndex:
        return SnapshotIndex(
            created_millis=millis,
            metadata=SnapshotMetadata(checkpoint, self._context.key.job, self._context.key.task, self._context.key.stage),
            root=root,
            previous=self._previous[0] if self._previous is not None else None,
            generation=generation,
            lineage=frozen.lineage,
            batch=frozen.batch,
        )


def _settled(local: LocalDir, known: Mapping[Identity, Fingerprint], millis: int) -> dict[Identity, Fingerprint]:
    """The fingerprints that the next upload can use."""
    return {file.identity: known[file.identity] for _, file in walk(local) if is_stable(file.identity, millis * 1_000_000)}


@dataclass(slots=True)
class _FileInProgress(FileInParts):
    """A file that is being uploaded. `bytes`: how many were put and hashed."""

    parts: list[FileBlob] = field(default_factory=list)
    fingerprint: Fingerprint | None = None
    bytes: int = 0


class _Upload:
    """The puts of one upload, and the index entries of the uploaded files."""

    def __init__(
        self,
        context: TransferContext,
        directory: Path,
        changed: Mapping[str, LocalFile],
        put_blob: Callable[[bytes, Purpose], Coroutine[Any, Any, BlobId]],
    ) -> None:
        self._context = context
        self._directory = directory
        self._changed = changed
        self._put_blob = put_blob
        self._files = {path: _FileInProgress() for path in changed}

    async def put(self, put: Put) -> None:
        match put:
            case PutPack():
                await self._put_pack(put)
            case PutChunk():
                await self._put_chunk(put)
            case _:
                assert_never(put)

    async def _put_pack(self, pack: PutPack) -> None:
        body, read = await self._context.run(lambda: self._read_pack(pack))
        blob = await self._put_blob(body, Purpose.PACK)
        size = len(body)
        for each, found in zip(pack.files, read, strict=True):
            self._files[each.path].parts.append(FileBlob(blob, 0, each.length, each.at, size))
            self._files[each.path].fingerprint = found
            self._files[each.path].bytes = each.length
        self._context.progress.done(len(pack.files), size)

    def _read_pack(self, pack: PutPack) -> tuple[bytes, list[Fingerprint]]:
        parts = [self._read(each.path, 0, each.length) for each in pack.files]
        return b"".join(parts), [fingerprint(part) for part in parts]

    async def _put_chunk(self, chunk: PutChunk) -> None:
        file = self._files[chunk.path]
        if chunk.whole:
            part, file.fingerprint = await self._context.run(lambda: self._read_whole(chunk))
        else:
            part = await self._context.run(lambda: self._read(chunk.path, chunk.offset, chunk.length))
        put = asyncio.create_task(self._put_blob(part, Purpose.DATA))
        try:
            if not chunk.whole:
                await self._hash(file, chunk, part)
            file.parts.append(FileBlob(await put, chunk.offset))
            file.bytes += chunk.length
        finally:
            put.cancel()
            await asyncio.gather(put, return_exceptions=True)
        self._context.progress.done(int(chunk.offset + chunk.length == self._changed[chunk.path].identity.size), chunk.length)

    async def _hash(self, file: _FileInProgress, chunk: PutChunk, part: bytes) -> None:
        """Hash the chunk, after the chunks before it, while it is being put."""
        await file.order.turn(chunk.offset)
        await self._context.run(lambda: file.hashes.write(part))
        file.order.passed(chunk.offset + chunk.length)

    def _read_whole(self, chunk: PutChunk) -> tuple[bytes, Fingerprint]:
        part = self._read(chunk.path, 0, chunk.length)
        return part, fingerprint(part)

    def _read(self, path: str, offset: int, length: int) -> bytes:
        return self._context.files.read(self._directory / path, offset, length, self._changed[path].identity)

    def fingerprints(self) -> Iterator[tuple[Identity, Fingerprint]]:
        for path, file in self._files.items():
            yield self._changed[path].identity, file.fingerprint or file.hashes.fingerprint

    def complete(self) -> Iterator[tuple[Identity, FileIndex, Fingerprint]]:
        """The files that were put to their ends."""
        for path, entry in self.indexes():
            file, identity = self._files[path], self._changed[path].identity
            if file.parts and file.bytes == identity.size:
                yield identity, entry, file.fingerprint or file.hashes.fingerprint

    def indexes(self) -> Iterator[tuple[str, FileIndex]]:
        """Every uploaded file as in the index, by path. An empty file without a blob has the fingerprint of no bytes."""
        for path, file in self._files.items():
            local, found = self._changed[path], file.fingerprint or file.hashes.fingerprint
            parts = tuple(sorted(file.parts, key=lambda part: part.offset))
            yield path, FileIndex(local.name, parts, local.metadata, found.checksum, found.digest)
