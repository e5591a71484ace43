"""What upload and restore share: progress, reading files to compare them, and bounded work in parallel."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from containers.state.diff import Identity, LocalFile
from containers.state.files import LocalFiles
from containers.state.meters import Transfers
from sluice.core.fingerprint import Fingerprint

T = TypeVar("T")

READERS = 4
"""So many threads read files only to compare them."""

_TOGETHER = 4 << 20
_OPENING = 16 << 10
"""To open a file takes about as long as to hash so many bytes."""


class Progress(Protocol):
    """Told how a long upload or restore goes on. Each call adds to the totals; it must not block."""

    def planned(self, files: int, size: int) -> None:
        """There are so many files to transfer, and bytes."""
        ...

    def retained(self, files: int, size: int) -> None:
        """So many files, and bytes, are where they should be already."""
        ...

    def done(self, files: int, size: int) -> None:
        """So many files, and bytes, of those planned are transferred."""
        ...


class InThread(Protocol):
    """Runs blocking work on a thread, as `asyncio.to_thread` does."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


async def run_to_completion(work: Awaitable[T]) -> T:
    """Wait for work on a thread even when cancelled: a thread that nobody waits for would go on writing."""
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


async def in_parallel(works: Iterable[Callable[[], Awaitable[None]]], at_once: int) -> None:
    """Begin them in their order, `at_once` at a time. The first failure is raised once the others have ended."""
    left = iter(works)

    async def worker() -> None:
        for work in left:
            await work()

    workers = [asyncio.create_task(worker()) for _ in range(at_once)]
    try:
        done, _ = await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
        for each in done:
            each.result()
    finally:
        for each in workers:
            each.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


async def fingerprints(
    files: LocalFiles, directory: Path, wanted: Iterable[tuple[str, LocalFile]], in_thread: InThread
) -> dict[Identity, Fingerprint]:
    """Read files of a directory, given by path, to compare them: small ones together, since a thread costs more than they do. Raises
    FileChanged, FileUnreadable."""
    known: dict[Identity, Fingerprint] = {}

    async def read(some: list[tuple[str, LocalFile]]) -> None:
        def work() -> list[tuple[Identity, Fingerprint]]:
            return [(file.identity, files.fingerprint(directory / path, file.identity)) for path, file in some]

        known.update(await run_to_completion(in_thread(work)))

    await in_parallel((partial(read, some) for some in _together(wanted)), READERS)
    return known


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
    """Lets the parts of one file, which are read or fetched at the same time, pass one after the other by their offsets. Whoever waits must
    have begun after those he waits for."""

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


log = logging.getLogger(__name__)

EVERY = timedelta(seconds=10)


@asynccontextmanager
async def log_progress(what: str, transfers: Transfers, every: timedelta = EVERY) -> AsyncIterator[None]:
    """While the block runs, say now and then how far it is; nothing of one that is over sooner than that."""
    files, size = transfers.done_files, transfers.done_bytes

    async def tell() -> None:
        while True:
            await asyncio.sleep(every.total_seconds())
            planned = transfers.planned_bytes - size
            done = transfers.done_bytes - size
            part = f"{100 * done // planned} %, " if planned else ""
            log.info("%s: %s%d files, %.1f of %.1f MB", what, part, transfers.done_files - files, done / 1e6, planned / 1e6)

    teller = asyncio.create_task(tell())
    try:
        yield
    finally:
        teller.cancel()
