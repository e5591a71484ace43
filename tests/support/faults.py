"""A blob store with faults at chosen operations: before or after the effect, or half way.

    store = FaultyBlobs(MemoryBlobs(clock), at(3, Fault.LOST))

Crash tests enumerate: run a plan once with `healthy` and count `operations`. Then run it once per number with `at(n, Fault.KILL)` and
`at(n, Fault.KILL_AFTER)`, and continue each time with the inner store.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto
from io import BytesIO
from pathlib import Path
from typing import TypeVar

from containers.state.diff import Identity, LocalDir
from containers.state.files import LocalFiles
from containers.state.recovery.restore_plan import Staged
from sluice.blobs.port import BlobStore, ListedBlob, RequestContext, Sink
from sluice.core.errors import BlobStoreUnusable, BlobUnavailable
from sluice.core.snapshots.fingerprint import Fingerprint
from sluice.core.snapshots.snapshot import BlobId

_T = TypeVar("_T")


class Fault(Enum):
    FAIL = auto()
    """BlobUnavailable, without effect."""
    LOST = auto()
    """BlobUnavailable, although the operation succeeded: its answer is lost."""
    PART = auto()
    """BlobUnavailable half way: after half of the bytes of a `get`, of the blobs of a `delete`, of a page of a `list`. A `put` has no
    effect.
    """
    HANG = auto()
    """Hangs without effect until `release`."""
    REFUSED = auto()
    """BlobStoreUnusable, without effect."""
    KILL = auto()
    """The process dies before the operation: `Killed`, now and in every later operation."""
    KILL_AFTER = auto()
    """The process dies after the operation."""
    KILL_PART = auto()
    """The process dies half way."""


class Killed(BaseException):
    """Simulates kill -9: `except Exception` does not catch it."""


@dataclass(frozen=True, slots=True)
class Operation:
    """The `number`-th operation, from 1, and its subject: the id of a blob, or the prefix of a list; "" for none."""

    number: int
    name: str
    blob: str
    about: RequestContext | None


Plan = Callable[[Operation], Fault | None]


def healthy(operation: Operation) -> None:
    return None


def at(number: int, fault: Fault) -> Plan:
    """The fault at the operation with that number only."""
    return lambda operation: fault if operation.number == number else None


def every(name: str, fault: Fault) -> Plan:
    """The fault at every operation with that name."""
    return lambda operation: fault if operation.name == name else None


_KILLS = {Fault.KILL, Fault.KILL_AFTER, Fault.KILL_PART}
_DONE = {Fault.LOST, Fault.KILL_AFTER}
_HALF = {Fault.PART, Fault.KILL_PART}


class FaultyBlobs:
    """`inner` with the faults of `plan`. With `late`, new blobs are missing from lists until `catch_up`."""

    def __init__(self, inner: BlobStore, plan: Plan = healthy, *, late: bool = False) -> None:
        self.inner = inner
        self.plan = plan
        self.operations: list[Operation] = []
        self.killed = False
        self._late = late
        self._unseen: set[str] = set()
        self._released = asyncio.Event()

    def release(self) -> None:
        """Let hanging operations continue; no later one hangs."""
        self._released.set()

    def catch_up(self) -> None:
        """Lists show everything from now on."""
        self._late = False
        self._unseen.clear()

    async def open(self, *, create: bool) -> None:
        await self._run("open", "", None, lambda: self.inner.open(create=create))

    async def put(self, blob: BlobId, body: bytes | memoryview, about: RequestContext, *, ttl: timedelta | None = None) -> None:
        if self._late:
            self._unseen.add(blob)
        await self._run("put", blob, about, lambda: self.inner.put(blob, body, about, ttl=ttl))

    async def put_if_absent(self, blob: BlobId, body: bytes, about: RequestContext) -> bool:
        return await self._run("put_if_absent", blob, about, lambda: self.inner.put_if_absent(blob, body, about))

    async def get(self, blob: BlobId, sink: Sink, about: RequestContext, *, start: int = 0, length: int | None = None) -> None:
        async def half() -> None:
            whole = BytesIO()
            await self.inner.get(blob, whole, about, start=start, length=length)
            sink.write(whole.getvalue()[: len(whole.getvalue()) // 2])

        await self._run("get", blob, about, lambda: self.inner.get(blob, sink, about, start=start, length=length), half)

    async def delete(self, blobs: Collection[BlobId], about: RequestContext) -> None:
        async def half() -> None:
            await self.inner.delete(list(blobs)[: len(blobs) // 2], about)

        await self._run("delete", next(iter(blobs), ""), about, lambda: self.inner.delete(blobs, about), half)

    async def remove_ttl(self, blob: BlobId, about: RequestContext) -> None:
        await self._run("remove_ttl", blob, about, lambda: self.inner.remove_ttl(blob, about))

    async def list(self, prefix: str, about: RequestContext, *, after: str = "") -> AsyncIterator[Sequence[ListedBlob]]:
        fault = await self._begin("list", prefix, about)
        async for page in self.inner.list(prefix, about, after=after):
            seen = [listed for listed in page if listed.blob not in self._unseen]
            if fault in _HALF:
                yield seen[: len(seen) // 2]
                break
            yield seen
        self._end(fault)

    async def sweep_expired(self, now: datetime, limit: int) -> int:
        async def half() -> int:
            return await self.inner.sweep_expired(now, limit // 2)

        return await self._run("sweep_expired", "", None, lambda: self.inner.sweep_expired(now, limit), half)

    async def close(self) -> None:
        await self.inner.close()

    async def _run(
        self,
        name: str,
        blob: str,
        about: RequestContext | None,
        whole: Callable[[], Awaitable[_T]],
        half: Callable[[], Awaitable[_T]] | None = None,
    ) -> _T:
        fault = await self._begin(name, blob, about)
        if fault in _HALF:
            if half is not None:
                await half()
            self._end(fault)
        done = await whole()
        self._end(fault)
        return done

    async def _begin(self, name: str, blob: str, about: RequestContext | None) -> Fault | None:
        """Raise faults that happen before the effect. Returns a fault that happens later, if any."""
        if self.killed:
            raise Killed
        operation = Operation(len(self.operations) + 1, name, blob, about)
        self.operations.append(operation)
        fault = self.plan(operation)
        match fault:
            case Fault.HANG:
                await self._released.wait()
                return None
            case Fault.FAIL:
                raise BlobUnavailable(f"{operation.name} of {blob} was made to fail")
            case Fault.REFUSED:
                raise BlobStoreUnusable(f"{operation.name} of {blob} was made to be refused")
            case Fault.KILL:
                self._kill()
        return fault

    def _end(self, fault: Fault | None) -> None:
        """Raise faults that happen after the effect."""
        if fault in _KILLS:
            self._kill()
        if fault in _DONE or fault in _HALF:
            raise BlobUnavailable("the answer was made to get lost")

    def _kill(self) -> None:
        self.killed = True
        raise Killed


class FaultyFiles(LocalFiles):
    """`fault` happens at operation `number`, counted from 1. KILL_PART leaves half of what is written. All later operations fail."""

    def __init__(self, number: int = 0, fault: Fault = Fault.KILL) -> None:
        self.number = number
        self.fault = fault
        self.operations: list[str] = []
        self.killed = False

    def _begin(self, name: str) -> bool:
        """Whether the fault happens now, after the operation or half way."""
        if self.killed:
            raise Killed
        self.operations.append(name)
        if len(self.operations) != self.number:
            return False
        if self.fault is Fault.KILL:
            self.killed = True
            raise Killed
        return True

    def _end(self, now: bool) -> None:
        if now:
            self.killed = True
            raise Killed

    def _run(self, name: str, work: Callable[[], None]) -> None:
        now = self._begin(name)
        work()
        self._end(now)

    def listing(self, directory: Path) -> LocalDir:
        self._begin("listing")
        return super().listing(directory)

    def staged(self, directory: Path) -> Staged:
        self._begin("staged")
        return super().staged(directory)

    def fingerprint(self, path: Path, identity: Identity) -> Fingerprint:
        self._begin("fingerprint")
        return super().fingerprint(path, identity)

    def read(self, path: Path, offset: int, length: int, identity: Identity) -> bytes:
        self._begin("read")
        return super().read(path, offset, length, identity)

    def make_directory(self, path: Path) -> None:
        self._run("make_directory", lambda: super(FaultyFiles, self).make_directory(path))

    def link(self, path: Path, to: Path) -> None:
        self._run("link", lambda: super(FaultyFiles, self).link(path, to))

    def write(self, path: Path, offset: int, parts: Sequence[bytes | memoryview], *, new: bool, mode: int | None) -> None:
        now = self._begin("write")
        if now and self.fault is Fault.KILL_PART:
            body = b"".join(parts)
            super().write(path, offset, [body[: len(body) // 2]], new=new, mode=None)
        else:
            super().write(path, offset, parts, new=new, mode=mode)
        self._end(now)

    def set_mode(self, path: Path, mode: int) -> None:
        self._run("set_mode", lambda: super(FaultyFiles, self).set_mode(path, mode))

    def sync(self, paths: Iterable[Path]) -> None:
        self._run("sync", lambda: super(FaultyFiles, self).sync(paths))

    def rename(self, path: Path, to: Path) -> None:
        self._run("rename", lambda: super(FaultyFiles, self).rename(path, to))

    def remove(self, path: Path) -> None:
        now = self._begin("remove")
        if now and self.fault is Fault.KILL_PART and path.is_dir() and not path.is_symlink():
            for each in sorted(path.iterdir())[::2]:
                super().remove(each)
        else:
            super().remove(path)
        self._end(now)


class FullDisk(LocalFiles):
    """A disk with `room` free bytes."""

    def __init__(self, room: int) -> None:
        self.room = room

    def write(self, path: Path, offset: int, parts: Sequence[bytes | memoryview], *, new: bool, mode: int | None) -> None:
        size = sum(map(len, parts))
        if size > self.room:
            super().write(path, offset, [b"".join(parts)[: self.room]], new=new, mode=None)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        self.room -= size
        super().write(path, offset, parts, new=new, mode=mode)
