"""A blob store in a directory: the default, for one machine or a disk that all machines share.

    <root>/sluice.json                 the marker, see `marker`
    <root>/blobs/jobs/…                a blob; moved here by a rename, so it is complete
    <root>/ttl/jobs/…                  when the blob of that name expires; written before the blob
    <root>/deleted/<millis>-<random>   ids that were deleted, one a line; kept until <millis> (`sluice.blobs.deletions`)
    <root>/tmp                         files being written
    <root>/lock                        held while a TTL is written or removed, and while deciding whether a blob has expired

File and directory are fsynced before a call returns. What frees space does not need any: a full disk can be opened, its blobs are deleted
without a deletion record, and expired blobs are removed before records are merged.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import ParamSpec, TypeVar

from sluice.blobs import durable_fs
from sluice.blobs.deletions import DeletionRecord, ended, merged_name, millis, names, plan_merge, record_name
from sluice.blobs.durable_fs import Move
from sluice.blobs.marker import MARKER, MARKER_BODY, belongs_to_others, check_marker, not_made
from sluice.blobs.port import REMEMBER, ListedBlob, RequestContext, Sink
from sluice.clock import Clock
from sluice.core.errors import BadName, BlobCorrupted, BlobDeleted, BlobMissing, BlobStoreUnusable, BlobUnavailable, SluiceError
from sluice.core.snapshots.snapshot import BlobId, checked_blob_id, checked_prefix
from sluice.randomness import token_hex

log = logging.getLogger(__name__)

_P = ParamSpec("_P")
_T = TypeVar("_T")

_PAGE = 1000
_READ = 1 << 20
_THREADS = 8
_ABANDONED = timedelta(days=1)
"""Age at which a file in tmp is considered to be left over from a killed process."""

_LOOKS = 5
"""Maximum number of searches of the deletion records, repeated if some were merged during a search."""

_FULL = {errno.ENOSPC, errno.EDQUOT}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}
_UNFIT = {errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR}


class FilesystemBlobs:
    """A blob store in the directory `root`, with its own thread pool until it is closed."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self._clock = clock
        self._files = _Files(root, clock)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="blobs")

    async def open(self, *, create: bool) -> None:
        await self._run(self._files.open, create)

    async def put(self, blob: BlobId, body: bytes | memoryview, about: RequestContext, *, ttl: timedelta | None = None) -> None:
        if await self._run(self._files.begin, blob):
            return
        until = None if ttl is None else (self._clock.now() + ttl).isoformat().encode()
        bodies = [body] if until is None else [until, body]
        written = await asyncio.gather(*(self._run(self._files.write, blob, one) for one in bodies), return_exceptions=True)
        await self._run(self._files.place, blob, written)

    async def put_if_absent(self, blob: BlobId, body: bytes, about: RequestContext) -> bool:
        return await self._run(self._files.put_if_absent, blob, body)

    async def get(self, blob: BlobId, sink: Sink, about: RequestContext, *, start: int = 0, length: int | None = None) -> None:
        await self._run(self._files.get, blob, sink, start, length)

    async def delete(self, blobs: Collection[BlobId], about: RequestContext) -> None:
        rest = iter(blobs)
        while some := list(islice(rest, _PAGE)):
            await self._run(self._files.delete, some)

    async def remove_ttl(self, blob: BlobId, about: RequestContext) -> None:
        await self._run(self._files.remove_ttl, blob)

    async def list(self, prefix: str, about: RequestContext, *, after: str = "") -> AsyncIterator[Sequence[ListedBlob]]:
        found = self._files.list(checked_prefix(prefix), after)
        while page := await self._run(self._files.page, found):
            yield page

    async def sweep_expired(self, now: datetime, limit: int) -> int:
        return await self._run(self._files.sweep_expired, now, limit)

    async def close(self) -> None:
        self._threads.shutdown(wait=False)

    async def _run(self, step: Callable[_P, _T], *arguments: _P.args, **options: _P.kwargs) -> _T:
        assert not options
        return await asyncio.get_running_loop().run_in_executor(self._threads, step, *arguments)


class _Files:
    """The blocking operations."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self._root = root
        self._clock = clock
        self._blobs, self._ttl, self._deleted, self._tmp = (root / name for name in ("blobs", "ttl", "deleted", "tmp"))
        self._lock = root / "lock"

    def open(self, create: bool) -> None:
        with self._translated_errors("open"):
            if create:
                self._root.mkdir(parents=True, exist_ok=True)
            if not self._root.is_dir():
                raise BlobStoreUnusable(f"there is no directory {self._root}")
            self._check_marker(create)
            if create:
                for directory in (self._blobs, self._ttl, self._deleted, self._tmp):
                    directory.mkdir(exist_ok=True)
                self._lock.touch()
                durable_fs.sync(self._root)
                with _ignore_full_disk():  # blobs can be read and deleted
                    durable_fs.write_temporary(self._tmp, b"can be written").unlink()
            elif not self._blobs.is_dir():
                raise self._vanished()

    def _check_marker(self, create: bool) -> None:
        """Check that the directory is Sluice's. With `create`, an empty one becomes Sluice's."""
        marker = self._root / MARKER
        if marker.exists():
            check_marker(marker.read_bytes(), str(self._root))
            return
        if others := [name for name in _names(self._root) if not name.startswith(".") and name != "lost+found"]:
            raise belongs_to_others(str(self._root), others[0])
        if not create:
            raise not_made(str(self._root))
        made = self._root / f".{MARKER}-{token_hex(8)}"
        made.write_bytes(MARKER_BODY)
        made.replace(marker)

    def begin(self, blob: BlobId) -> bool:
        """Whether the same put was already executed. Its TTL may have been removed since, and must not be written again."""
        target = self._path(blob)
        with self._translated_errors(blob):
            if target.is_file():
                durable_fs.sync(target.parent)
                return True
        return False

    def write(self, blob: BlobId, body: bytes | memoryview) -> Path:
        with self._translated_errors(blob):
            return durable_fs.write_temporary(self._tmp, body)

    def place(self, blob: BlobId, written: Sequence[Path | BaseException]) -> None:
        """Move the written files into place: the TTL, if any, before the blob. If a write failed, delete the others and
        raise its error.

        If the blob already exists, nothing is moved: the caller has repeated this put after a timeout, and may have removed the TTL."""
        paths = [path for path in written if isinstance(path, Path)]
        targets = [(self._ttl / blob, self._ttl), (self._blobs / blob, self._blobs)][-len(written) :]
        moves = [Move(path, target, top) for path, (target, top) in zip(paths, targets, strict=False)]
        try:
            for failure in written:
                if isinstance(failure, BaseException):
                    raise failure
            with self._translated_errors(blob):
                with durable_fs.locked(self._lock):
                    if not (self._blobs / blob).is_file():
                        durable_fs.rename(*moves)
                for one in moves:
                    durable_fs.sync(one.target.parent if one.target.parent.is_dir() else one.top)
        finally:
            for path in paths:
                path.unlink(missing_ok=True)

    def put_if_absent(self, blob: BlobId, body: bytes) -> bool:
        target = self._path(blob)
        with self._translated_errors(blob):
            written = durable_fs.write_temporary(self._tmp, body)
            try:
                return durable_fs.link(Move(written, target, self._blobs))
            finally:
                written.unlink()

    def get(self, blob: BlobId, sink: Sink, start: int, length: int | None) -> None:
        with self._open(blob) as opened:
            size = os.fstat(opened.fileno()).st_size
            end = size if length is None else start + length
            if max(start, end) > size:
                raise BlobCorrupted(f"{blob} has {size} bytes; a range up to {max(start, end)} was requested")
            opened.seek(start)
            rest = end - start
            while rest > 0:
                with self._translated_errors(blob):
                    part = opened.read(min(rest, _READ))
                if not part:
                    raise BlobCorrupted(f"{blob} was truncated while it was read")
                sink.write(part)
                rest -= len(part)

    def _open(self, blob: BlobId) -> FileIO:
        with self._translated_errors(blob):
            try:
                return self._path(blob).open("rb", buffering=0)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
                raise self._missing(blob) from error

    def delete(self, blobs: list[BlobId]) -> None:
        """Record the ids, then delete the blobs. On a full disk they are deleted without a record, as nothing could be deleted otherwise. A
        later request for one of them then raises BlobMissing, not BlobDeleted: these differ only in what they tell an operator."""
        for blob in blobs:
            checked_blob_id(blob)
        with self._translated_errors(f"{len(blobs)} blobs, the first {blobs[0]}"):
            body, until = "".join(f"{blob}\n" for blob in blobs).encode(), millis(self._clock.now() + REMEMBER)
            if not self._record(body, record_name(until)):
                log.warning("the disk of %s is full: %d blobs are deleted without a record, the first %s", self._root, len(blobs), blobs[0])
            durable_fs.remove(blobs, self._blobs)
            durable_fs.remove(blobs, self._ttl)

    def _record(self, body: bytes, name: str) -> bool:
        """Write a deletion record. False if the disk is full."""
        with _ignore_full_disk():
            written = durable_fs.write_temporary(self._tmp, body)
            try:
                durable_fs.move(Move(written, self._deleted / name, self._deleted))
            except OSError:
                written.unlink(missing_ok=True)
                raise
            return True
        return False

    def remove_ttl(self, blob: BlobId) -> None:
        target = self._path(blob)
        with self._translated_errors(blob), durable_fs.locked(self._lock):
            if not target.is_file():
                raise self._missing(blob)
            durable_fs.remove([blob], self._ttl)

    def list(self, prefix: str, after: str) -> Iterator[ListedBlob]:
        for blob in durable_fs.walk(self._blobs, prefix, after):
            with suppress(FileNotFoundError):
                found = os.stat(f"{self._blobs}/{blob}")  # noqa: PTH116 — as in `durable_fs.remove`
                yield ListedBlob(BlobId(blob), found.st_size, datetime.fromtimestamp(found.st_mtime, UTC))

    def page(self, found: Iterator[ListedBlob]) -> Sequence[ListedBlob]:
        with self._translated_errors("list"):
            page = list(islice(found, _PAGE))
            if not page and not self._blobs.is_dir():
                raise self._vanished()
            return page

    def sweep_expired(self, now: datetime, limit: int) -> int:
        with self._translated_errors("sweep"):
            expired = (blob for blob in durable_fs.walk(self._ttl) if self._expired(blob, now))
            count = sum(self._expire(BlobId(blob), now) for blob in islice(expired, limit))
            self._remove_old(now)
            return count

    def _expire(self, blob: BlobId, now: datetime) -> bool:
        with durable_fs.locked(self._lock):
            if not self._expired(blob, now):
                return False
            durable_fs.remove([blob], self._blobs)
            durable_fs.remove([blob], self._ttl)
            return True

    def _expired(self, blob: str, now: datetime) -> bool:
        try:
            return datetime.fromisoformat((self._ttl / blob).read_text()) < now
        except (FileNotFoundError, ValueError):  # the TTL was removed, or is unreadable: keep the blob
            return False

    def _remove_old(self, now: datetime) -> None:
        """Delete expired deletion records and files in tmp that killed processes have left. Then merge small records, unless the disk is
        full."""
        records = [DeletionRecord(name, (self._deleted / name).stat().st_size) for name in _names(self._deleted)]
        old = ended(records, now)
        durable_fs.remove(old, self._deleted)
        for path in self._tmp.iterdir():
            with suppress(FileNotFoundError):
                if datetime.fromtimestamp(path.stat().st_mtime, UTC) + _ABANDONED < now:
                    path.unlink()
        if group := plan_merge(each for each in records if each.name not in set(old)):
            bodies = b"".join((self._deleted / each.name).read_bytes() for each in group)
            if self._record(bodies, merged_name(group)):
                durable_fs.remove([each.name for each in group], self._deleted)

    def _missing(self, blob: BlobId) -> SluiceError:
        if not self._blobs.is_dir():
            return self._vanished()
        for _ in range(_LOOKS):
            gone = False
            for name in reversed(_names(self._deleted)):
                try:
                    if names((self._deleted / name).read_text(), blob):
                        return BlobDeleted(f"{blob} was deleted from {self._root}")
                except FileNotFoundError:
                    gone = True
            if not gone:
                break
        return BlobMissing(f"there is no blob {blob} in {self._root}")

    def _path(self, blob: BlobId) -> Path:
        return self._blobs / checked_blob_id(blob)

    def _vanished(self) -> BlobStoreUnusable:
        return BlobStoreUnusable(f"{self._blobs} no longer exists: is its disk mounted?")

    @contextmanager
    def _translated_errors(self, what: str) -> Iterator[None]:
        """Raise errors of the file system as those of the port."""
        try:
            yield
        except FileNotFoundError as error:
            raise BlobUnavailable(f"{what}: {error}") if self._tmp.is_dir() else self._vanished() from error
        except OSError as error:
            if error.errno in _UNFIT:
                raise BadName("blob", what) from error
            if error.errno in _REFUSED:
                raise BlobStoreUnusable(f"{self._root} cannot be read or written: {error}") from error
            full = f"; the disk of {self._root} is full" if error.errno in _FULL else ""
            raise BlobUnavailable(f"{what}: {error}{full}") from error


@contextmanager
def _ignore_full_disk() -> Iterator[None]:
    """End the block, without an error, when the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise


def _names(directory: Path) -> Sequence[str]:
    return sorted(path.name for path in directory.iterdir())
