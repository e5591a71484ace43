"""Shared by upload and restore: progress, fingerprints of files, and a bounded number of concurrent operations."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from containers.state.diff import Identity, LocalFile
from containers.state.files import LocalFiles
from containers.state.meters import Transfers
from sluice.blobs.indexes import read_index
from sluice.blobs.port import BlobStore, Purpose, RequestContext
from sluice.core.ids import StageKey
from sluice.core.snapshots.fingerprint import Fingerprint, Hashes
from sluice.core.snapshots.snapshot import BlobId, SnapshotIndex

T = TypeVar("T")

READERS = 4
"""The number of threads that read files to compare them."""

_TOGETHER = 4 << 20
_OPENING = 16 << 10
"""Opening a file takes about as long as hashing this many bytes."""


class Progress(Protocol):
    """Receives the progress of an upload or a restore. Each call adds to the totals, and must not block."""

    def planned(self, files: int, size: int) -> None:
        """Files and bytes that are to be transferred."""
        ...

    def retained(self, files: int, size: int) -> None:
        """Files and bytes that need no transfer."""
        ...

    def done(self, files: int, size: int) -> None:
        """Files and bytes, of those planned, that were transferred."""
        ...


class InThread(Protocol):
    """Runs blocking work on a thread, like `asyncio.to_thread`."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


@dataclass(frozen=True, slots=True)
class TransferContext:
    """What the uploads or restores of one stage use: a blob store, the disk, threads, and the receiver of their progress."""

    blobs: BlobStore
    key: StageKey
    progress: Progress
    files: LocalFiles = field(default_factory=LocalFiles)
    in_thread: InThread = asyncio.to_thread

    def run(self, work: Callable[[], T]) -> Awaitable[T]:
        """Run blocking work on a thread, to its end even if cancelled."""
        return run_to_completion(self.in_thread(work))

    async def read_index(self, index: BlobId, blobs: BlobStore | None = None) -> SnapshotIndex:
        """Read the index of a snapshot of this stage, from `blobs` if given. Raises what `read_index` raises."""
        about = RequestContext.of_stage(Purpose.INDEX, self.key)
        return await read_index(blobs or self.blobs, index, about, self.in_thread, expected=self.key)

    async def fingerprints(self, directory: Path, wanted: Iterable[tuple[str, LocalFile]]) -> dict[Identity, Fingerprint]:
        """Fingerprints of files of a directory, given by path. Small files are read together, since a thread costs more than reading one.
        Raises FileChanged, FileUnreadable."""
        known: dict[Identity, Fingerprint] = {}

        async def read(some: list[tuple[str, LocalFile]]) -> None:
            def work() -> list[tuple[Identity, Fingerprint]]:
                return [(file.identity, self.files.fingerprint(directory / path, file.identity)) for path, file in some]

            known.update(await self.run(work))

        await in_parallel((partial(read, some) for some in _together(wanted)), READERS)
        return known


async def run_to_completion(work: Awaitable[T]) -> T:
    """Await work on a thread to its end, even if cancelled. Otherwise the thread would continue to write in the background."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()
        raise


async def in_parallel(works: Iterable[Callable[[], Awaitable[None]]], concurrency: int) -> None:
    """Start the works in order, `concurrency` at a time. After an error, the works under way finish, and then it is raised."""
    left = iter(works)

    async def worker() -> None:
        for work in left:
            await work()

    workers = [asyncio.create_task(worker()) for _ in range(concurrency)]
    try:
        done, _ = await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
        for each in done:
            each.result()
    finally:
        for each in workers:
            each.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


def _together(files: Iterable[tuple[str, LocalFile]]) -> Iterator[list[tuple[str, LocalFile]]]:
    some: list[tuple[str, LocalFile]] = []
    size = 0
    for path, file in files:
        some.append((path, file))
        size += _OPENING + file.identity.size
        if size >= _TOGETHER:
            yield some
            some, size = [], 0
    if some:
        yield some


class InOrder:
    """Orders the parts of one file, which are read or fetched concurrently, by their offsets. Parts must be started in the order of their
    offsets."""

    def __init__(self) -> None:
        self._reached = 0
        self._waiting: dict[int, asyncio.Future[None]] = {}

    async def turn(self, offset: int) -> None:
        if offset != self._reached:
            self._waiting[offset] = asyncio.get_running_loop().create_future()
            await self._waiting[offset]

    def passed(self, end: int) -> None:
        self._reached = end
        waiting = self._waiting.pop(end, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)


@dataclass(slots=True)
class FileInParts:
    """A file whose parts are transferred concurrently, and hashed in the order of their offsets."""

    order: InOrder = field(default_factory=InOrder)
    hashes: Hashes = field(default_factory=Hashes)


log = logging.getLogger(__name__)

EVERY = timedelta(seconds=10)


@asynccontextmanager
async def log_progress(what: str, transfers: Transfers, every: timedelta = EVERY) -> AsyncIterator[None]:
    """Log the progress periodically while the block runs."""
    files, size = transfers.done_files, transfers.done_bytes

    async def log_now_and_then() -> None:
        while True:
            await asyncio.sleep(every.total_seconds())
            planned = transfers.planned_bytes - size
            done = transfers.done_bytes - size
            part = f"{100 * done // planned} %, " if planned else ""
            log.info("%s: %s%d files, %.1f of %.1f MB", what, part, transfers.done_files - files, done / 1e6, planned / 1e6)

    logger = asyncio.create_task(log_now_and_then())
    try:
        yield
    finally:
        logger.cancel()
