"""What upload and restore share: whose store it is, how far it is, and bounded work in parallel."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from containers.filecontents import LocalFiles
from coordinator.core.diff import Fingerprint, Identity, LocalFile
from sluice.blobs.port import About, Purpose
from sluice.core.ids import JobName, StageName, TaskName
from sluice.core.snapshot import BlobId, Kind, fresh_blob_id

T = TypeVar("T")

READERS = 4
"""So many threads read files only to compare them."""

_TOGETHER = 4 << 20
_OPENING = 16 << 10
"""To open a file takes about as long as to hash so many bytes."""


@dataclass(frozen=True, slots=True)
class StoreKey:
    """Which store: a stage of a task of a job."""

    job: JobName
    task: TaskName
    stage: StageName

    def about(self, purpose: Purpose) -> About:
        return About(purpose, self.job, self.task, self.stage)

    def fresh_id(self, kind: Kind, millis: int, random: str) -> BlobId:
        return fresh_blob_id(self.job, self.task, self.stage, kind, millis, random)

    def __str__(self) -> str:
        return f"stage {self.stage} of task {self.task} of job {self.job}"


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


class NoProgress:
    """Nobody asks."""

    def planned(self, files: int, size: int) -> None: ...

    def retained(self, files: int, size: int) -> None: ...

    def done(self, files: int, size: int) -> None: ...


class InThread(Protocol):
    """Runs blocking work on a thread, as `asyncio.to_thread` does."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


async def to_its_end(work: Awaitable[T]) -> T:
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

        known.update(await to_its_end(in_thread(work)))

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
