"""Restores a snapshot to this disk, atomically.

    compare   find what the local directory, and the remains of an earlier restore, have of the snapshot
    plan      `containers.state.recovery.restore_plan`: a list of operations
    stage     in <parent>/.staging/<name>: link what is on disk, fetch the rest in parallel, verify CRC-32 and SHA-256 while writing
    swap      <name> -> .replaced/<name>, .staging/<name> -> <name>; then remove the former directory

A snapshot may be in several blob stores. It is restored from the first one whose index can be read. A file of which a blob is missing,
damaged or unavailable there is fetched from the next blob store that has it.

Until the swap, the target does not change. After an error or a crash, the next restore continues with the staged files. After a crash
within the swap, the next restore puts the former directory back if the target is missing.

A standby copy is fetched only if it fits, and what was staged of it is removed when the disk becomes full (`RestoreSettings.leave_free`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from errno import ENOSPC
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TypeVar, assert_never

from containers.errors import DiskFull, disk_error
from containers.state.diff import Identity, LocalDir, LocalFile
from containers.state.files import LocalFiles
from containers.state.recovery.restore_plan import (
    Fetch,
    Link,
    MakeDir,
    MakeEmpty,
    Operation,
    Piece,
    Remove,
    SetMode,
    Swap,
    Sync,
    candidates,
    plan_restore,
)
from containers.state.transfer import READERS, FileInParts, TransferContext, in_parallel
from sluice.blobs.port import BlobStore, Purpose, RequestContext
from sluice.core.errors import BlobCorrupted, BlobDeleted, BlobMissing, BlobUnavailable, IndexUnreadable, SluiceError
from sluice.core.snapshots.fingerprint import Fingerprint, Hashes, fingerprint
from sluice.core.snapshots.indexjson import lengths
from sluice.core.snapshots.snapshot import BlobId, FileIndex, SnapshotIndex, walk
from sluice.disks import NO_ROOM, readable

log = logging.getLogger(__name__)

T = TypeVar("T")

SYNCED_TOGETHER = 64


@dataclass(frozen=True, slots=True)
class RestoreSettings:
    """`concurrency` requests at a time, each for at most `chunk_bytes`, which are kept in memory. `leave_free`: the bytes of the disk that
    must stay free; what was fetched is removed if it does not fit. None: the disk may be filled, and what was fetched is kept for the next
    restore."""

    chunk_bytes: int = 16 << 20
    concurrency: int = 8
    leave_free: int | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """A snapshot in one blob store."""

    blobs: BlobStore
    index: BlobId


LOST = (BlobMissing, BlobCorrupted, IndexUnreadable)
"""Errors of a blob store that has lost blobs."""


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a restore: files and bytes of the snapshot, those reused from this disk, and those fetched, in `gets` requests.
    `damaged`: the sources, by their indexes, that have lost blobs of the snapshot."""

    index: SnapshotIndex
    files: int
    bytes: int
    reused_files: int
    reused_bytes: int
    fetched_files: int
    fetched_bytes: int
    gets: int
    damaged: frozenset[BlobId] = frozenset()

    def __str__(self) -> str:
        return (
            f"{self.files} files of {self.bytes} bytes; {self.reused_files} of {self.reused_bytes} bytes were on this disk, "
            f"{self.fetched_files} of {self.fetched_bytes} bytes came in {self.gets} requests"
        )


class Restorer:
    """Restores snapshots of one stage from a blob store, and from other blob stores if blobs are missing there."""

    def __init__(
        self,
        context: TransferContext,
        settings: RestoreSettings,
    ) -> None:
        self._context = context
        self._settings = settings

    async def restore(self, index: BlobId, target: Path, local: Path | None, others: Sequence[Source] = ()) -> Restored:
        """Restore the snapshot into `target`, reusing files of `local`: the same directory, or another one on its file system. No query may
        run on either. `others`: the same snapshot in further blob stores, which are used in this order.

        If no source has a file, the error of the first source is raised: IndexUnreadable; BlobMissing, BlobDeleted, BlobCorrupted, which
        name the blob and the file; BlobUnavailable. Also raises DiskUnwritable, and CheckpointUnreadable if a link is in the place of a
        directory. After an error, `target` is unchanged, and the staged files are kept for the next restore. With `leave_free` they are
        removed after DiskFull, which is then raised before anything is fetched if the rest does not fit.
        """
        run = await self._begin([Source(self._context.blobs, index), *others], target)
        try:
            return await run.restore(local)
        except OSError as error:
            if error.errno is None:  # a TimeoutError that the caller has set
                raise
            what = f"{error.filename or target}: {error.strerror}: {self._context.key} cannot be restored into {target}, which is unchanged"
            if self._settings.leave_free is not None and error.errno in NO_ROOM:
                await run.discard_staged()
                raise DiskFull(f"{what}; what was fetched is removed") from error
            remedy = f"what was fetched is kept in {run.staging}: free some space, or repair the disk, and start again"
            raise disk_error(error, f"{what}; {remedy}") from error

    async def _begin(self, sources: Sequence[Source], target: Path) -> _Run:
        """Begin with the first source whose index can be read."""
        errors: list[SluiceError] = []
        damaged: set[BlobId] = set()
        for number, source in enumerate(sources):
            try:
                found = await _read_index(self._context, source)
                return _Run(self._context, self._settings, source, found, target, sources[number + 1 :], damaged)
            except (*LOST, BlobUnavailable) as error:
                errors.append(error)
                if isinstance(error, LOST):
                    damaged.add(source.index)
                if number + 1 < len(sources):
                    log.warning("the snapshot of %s is restored from another blob store: %s", self._context.key, error)
        raise next((error for error in errors if isinstance(error, BlobUnavailable)), errors[0])


async def _read_index(context: TransferContext, source: Source) -> SnapshotIndex:
    """The index of a source. Raises what `read_index` raises."""
    try:
        return await context.read_index(source.index, source.blobs)
    except BlobMissing as error:
        raise _missing(error, f"{error}; it is the index of a snapshot of {context.key}") from error


def _missing(error: BlobMissing, what: str) -> BlobMissing:
    text = f"{what}; nothing on this disk was changed: put the blob back, restore from another blob store, or choose an earlier snapshot"
    return BlobDeleted(text) if isinstance(error, BlobDeleted) else BlobMissing(text)


class _Parts(list[bytes | memoryview]):
    """A sink that keeps the parts that it gets, without copying them."""

    write = list.append


class _Run:
    """One restore. `damaged`: the sources that are known to have lost blobs, by their indexes."""

    def __init__(
        self,
        context: TransferContext,
        settings: RestoreSettings,
        source: Source,
        snapshot: SnapshotIndex,
        target: Path,
        others: Sequence[Source],
        damaged: set[BlobId],
    ) -> None:
        self._context = context
        self._settings = settings
        self._disk = context.files
        self._source = source
        self._index = source.index
        self._others = others
        self._damaged = damaged
        self._failed: dict[str, SluiceError] = {}
        self._files_of: dict[BlobId, Mapping[str, FileIndex]] = {}
        self._snapshot = snapshot
        self._files: Mapping[str, FileIndex] = dict(walk(snapshot.root))
        self._target = target
        self.staging = staging_of(target)
        self._local = target
        self._fetching: dict[str, FileInParts] = {}

    async def restore(self, local: Path | None) -> Restored:
        await self._context.run(self._prepare)
        plan = await self._plan(local or self._target)
        fetches = [each for each in plan if isinstance(each, Fetch)]
        fetched = {piece.path for fetch in fetches for piece in fetch.pieces}
        size = sum(self._files[path].metadata.size for path in fetched)
        total = self._snapshot.size
        if (leave := self._settings.leave_free) is not None and size:
            await self._context.run(lambda: self._check_room(size, leave))
        self._context.progress.planned(len(fetched), size)
        self._context.progress.retained(len(self._files) - len(fetched), total - size)
        await self._run(plan)
        reused = len(self._files) - len(fetched)
        damaged = frozenset(self._damaged)
        return Restored(self._snapshot, len(self._files), total, reused, total - size, len(fetched), size, len(fetches), damaged)

    def _check_room(self, size: int, leave: int) -> None:
        """Raises OSError if files of this size leave less than `leave` bytes free. A file system without a size is no disk."""
        space = self._disk.space(self.staging)
        if space.size and size > space.free - leave:
            why = f"{readable(size)} do not fit, as {readable(leave)} of the disk must stay free ({space})"
            raise OSError(ENOSPC, why, str(self._target))

    async def discard_staged(self) -> None:
        with suppress(OSError):  # the disk may be in trouble
            await self._context.run(lambda: self._disk.remove(self.staging))

    def _prepare(self) -> None:
        for beside in (self.staging.parent, _replaced(self._target).parent):
            self._disk.is_directory(beside)
        finish_swap(self._target, self._disk)
        if not self._disk.is_directory(self.staging):
            self._disk.make_directory(self.staging)

    # --- compare and plan ------------------------------------------------------------------------------------------------------

    async def _plan(self, local: Path) -> Sequence[Operation]:
        context, disk, root = self._context, self._disk, self._snapshot.root
        self._local = local
        staged = await context.run(lambda: disk.staged(self.staging))
        here = await context.run(lambda: disk.staged(local).listing if disk.is_directory(local) else None)
        left = await context.run(lambda: list(candidates(root, staged.listing, same_mode=False)))
        known = await context.fingerprints(self.staging, left)
        if here is not None:
            usable = await context.run(lambda: self._usable(here, left, known))
            known |= await context.fingerprints(local, usable)
        return await context.run(lambda: plan_restore(root, staged, here, known, self._settings.chunk_bytes))

    def _usable(
        self, here: LocalDir, left: Iterable[tuple[str, LocalFile]], known: Mapping[Identity, Fingerprint]
    ) -> list[tuple[str, LocalFile]]:
        """The local files that may be used for paths of which no staged file can be used."""
        ready = {path for path, file in left if self._files[path].matches(known[file.identity])}
        return [(path, file) for path, file in candidates(self._snapshot.root, here, same_mode=True) if path not in ready]

    # --- stage and swap --------------------------------------------------------------------------------------------

    async def _run(self, plan: Sequence[Operation]) -> None:
        """Consecutive fetches run concurrently, and so do syncs; everything else runs in order."""
        for kind, operations in groupby(plan, key=lambda each: type(each) if isinstance(each, Fetch | Sync) else None):
            batch = list(operations)
            if kind is None:
                await self._context.run(partial(self._do, batch))
            for each in batch:
                if isinstance(each, Sync):
                    await self._sync(each.paths)
            fetches = [each for each in batch if isinstance(each, Fetch)]
            await in_parallel((partial(self._fetch, each) for each in fetches), self._settings.concurrency)
            for path in sorted(self._failed):
                await self._fetch_from_others(path, self._failed.pop(path))

    async def _sync(self, paths: Sequence[str]) -> None:
        def work(some: Sequence[str]) -> Callable[[], None]:
            return lambda: self._disk.sync(self.staging / path for path in some)

        batches = [paths[begin : begin + SYNCED_TOGETHER] for begin in range(0, len(paths), SYNCED_TOGETHER)]
        await in_parallel((partial(self._context.run, work(some)) for some in batches), READERS)

    def _do(self, operations: Iterable[Operation]) -> None:
        disk = self._disk
        for each in operations:
            match each:
                case Remove(path=path):
                    disk.remove(self.staging / path)
                case MakeDir(path=path):
                    disk.make_directory(self.staging / path)
                case Link(path=path):
                    disk.link(self._local / path, self.staging / path)
                case MakeEmpty(path=path):
                    self._write(path, 0, (), new=True, last=True)
                case SetMode(path=path, mode=mode):
                    disk.set_mode(self.staging / path, mode)
                case Swap():
                    swap(self.staging, self._target, disk)
                case Fetch() | Sync():
                    raise AssertionError(f"{each} is not an operation for this thread")
                case _:
                    assert_never(each)

    async def _fetch(self, fetch: Fetch) -> None:
        parts: _Parts | None = None
        try:
            parts = await self._get(fetch)
        except (*LOST, BlobUnavailable) as error:
            self._record_failure(error, *fetch.pieces)
        if fetch.pieces[0].whole:
            if parts is not None:
                body = memoryview(parts[0] if len(parts) == 1 else b"".join(parts))
                await self._context.run(lambda: self._write_whole(fetch, body))
        else:
            await self._write_piece(fetch, fetch.pieces[0], parts)
        self._context.progress.done(sum(piece.last for piece in fetch.pieces), sum(piece.length for piece in fetch.pieces))

    async def _get(self, fetch: Fetch) -> _Parts:
        parts = _Parts()
        try:
            purpose = Purpose.PACK if len(fetch.pieces) > 1 else Purpose.DATA
            about = RequestContext.of_stage(purpose, self._context.key)
            await self._source.blobs.get(fetch.blob, parts, about, start=fetch.start, length=fetch.length)
        except BlobMissing as error:
            raise _missing(error, f"{error}; {self._described(fetch.pieces)} needs it") from error
        if (got := sum(map(len, parts))) != fetch.length:
            raise BlobCorrupted(self._corrupt(fetch, f"has {got} of {fetch.length} bytes"))
        return parts

    def _record_failure(self, error: SluiceError, *pieces: Piece) -> None:
        """Record that the files of these pieces must be fetched from another source. Raises the error if there is none."""
        if not self._others:
            raise error
        if isinstance(error, LOST):
            self._damaged.add(self._index)
        for piece in pieces:
            self._failed.setdefault(piece.path, error)

    def _write_whole(self, fetch: Fetch, body: memoryview) -> None:
        """Verify and write the pieces of a fetch, which are whole files."""
        for piece in fetch.pieces:
            part = body[piece.at : piece.at + piece.length]
            try:
                self._verify(fetch, piece, fingerprint(part))
            except BlobCorrupted as error:
                self._record_failure(error, piece)
            else:
                self._write(piece.path, 0, (part,), new=True, last=True)

    async def _write_piece(self, fetch: Fetch, piece: Piece, parts: _Parts | None) -> None:
        """Hash and write a piece, in the order of the pieces of its file; they are fetched concurrently. After one has failed, the others
        are skipped."""
        file = self._fetching.setdefault(piece.path, FileInParts())
        await file.order.turn(piece.offset)
        if parts is not None and piece.path not in self._failed:
            try:
                await self._context.run(lambda: self._hash_and_write(fetch, piece, parts, file.hashes))
            except BlobCorrupted as error:
                self._record_failure(error, piece)
        file.order.passed(piece.offset + piece.length)

    def _hash_and_write(self, fetch: Fetch, piece: Piece, parts: _Parts, hashes: Hashes) -> None:
        for part in parts:
            hashes.write(part)
        if piece.last:
            self._verify(fetch, piece, hashes.fingerprint)
        self._write(piece.path, piece.offset, parts, new=piece.offset == 0, last=piece.last)

    async def _fetch_from_others(self, path: str, error: SluiceError) -> None:
        """Fetch a whole file from the first other source that has it. Raises `error` if none has."""
        for source in self._others:
            try:
                file = (await self._files_in(source)).get(path)
                if file is not None and file.digest == self._files[path].digest and file.metadata.size == self._files[path].metadata.size:
                    await self._context.run(partial(self._disk.remove, self.staging / path))  # what another source had of it
                    await self._fetch_file(source, path, file)
                    return
            except (*LOST, BlobUnavailable) as another:
                if isinstance(another, LOST):
                    self._damaged.add(source.index)
                log.warning("%s of %s is not in this blob store either: %s", path, self._context.key, another)
        raise error

    async def _files_in(self, source: Source) -> Mapping[str, FileIndex]:
        if source.index not in self._files_of:
            self._files_of[source.index] = dict(walk((await _read_index(self._context, source)).root))
        return self._files_of[source.index]

    async def _fetch_file(self, source: Source, path: str, file: FileIndex) -> None:
        """Fetch the parts of the file one after the other, each in ranges that fit into memory. Raises LOST, BlobUnavailable."""
        hashes, size, about = Hashes(), file.metadata.size, RequestContext.of_stage(Purpose.DATA, self._context.key)
        for part, length in lengths(file.blobs, size, path):
            for begin in range(0, length, self._settings.chunk_bytes):
                wanted = min(self._settings.chunk_bytes, length - begin)
                found, offset = _Parts(), part.offset + begin
                await source.blobs.get(part.blob, found, about, start=part.at + begin, length=wanted)
                for each in found:
                    hashes.write(each)
                last = offset + wanted == size
                if sum(map(len, found)) != wanted or (last and not self._files[path].matches(hashes.fingerprint)):
                    raise BlobCorrupted(f"{part.blob} does not match {path} of snapshot {source.index}")
                write = partial(self._write, path, offset, found, new=offset == 0, last=last)
                await self._context.run(write)

    def _write(self, path: str, offset: int, parts: Sequence[bytes | memoryview], *, new: bool, last: bool) -> None:
        mode = self._files[path].metadata.mode if last else None
        self._disk.write(self.staging / path, offset, parts, new=new, mode=mode)

    def _verify(self, fetch: Fetch, piece: Piece, found: Fingerprint) -> None:
        if not self._files[piece.path].matches(found):
            raise BlobCorrupted(self._corrupt(fetch, f"does not match {piece.path} (SHA-256 {found.digest})"))

    def _described(self, pieces: Sequence[Piece]) -> str:
        more = f" and {len(pieces) - 1} more" if len(pieces) > 1 else ""
        return f"{pieces[0].path}{more} of snapshot {self._index}"

    def _corrupt(self, fetch: Fetch, what: str) -> str:
        others = dict.fromkeys(part.blob for piece in fetch.pieces for part in self._files[piece.path].blobs)
        return (
            f"{', '.join(others)} {what}, which {self._described(fetch.pieces)} needs; {self._target} is unchanged: restore from another "
            "blob store, or choose an earlier snapshot"
        )


def swap(staging: Path, target: Path, disk: LocalFiles) -> None:
    """Replace `target` by `staging`, and remove the former `target`. Call `finish_swap` first; then a crash at any line loses nothing."""
    replaced = _replaced(target)
    disk.make_directory(replaced.parent)
    if disk.is_directory(target):
        disk.rename(target, replaced)
    disk.rename(staging, target)
    disk.sync((target.parent, replaced.parent, staging.parent))
    disk.remove(replaced)


def finish_swap(target: Path, disk: LocalFiles | None = None) -> None:
    """Finish a swap that a crash interrupted: put the former directory back if the new one is missing, else remove it. Raises OSError."""
    disk, replaced = disk or LocalFiles(), _replaced(target)
    if disk.is_directory(replaced):
        if disk.is_directory(target):
            disk.remove(replaced)
        else:
            disk.rename(replaced, target)


def staging_of(target: Path) -> Path:
    """The directory in which a restore into `target` stages files."""
    return target.parent / ".staging" / target.name


def _replaced(target: Path) -> Path:
    return target.parent / ".replaced" / target.name
