"""Write-ahead offsets: Spark's offset-log entry of a batch is in the blob stores before the batch writes any output.

    jobs/<job>/<task>/<stage>/offsets/<lineage>/<batch>     {"version": 1, "batch", "plan", "generation", "strict", "code"}

"plan" is the text of Spark's `offsets/<batch>`. An entry is put only if the batch has none. So two containers that both assume that they
own a task never run one batch with different offsets: the second finds the entry of the first. With several blob stores, the first one
decides and the others get a copy.

`OffsetLog` reads and writes the entries of one stage in one blob store. `OffsetLogGate` holds each batch of a running query until its entry
is durable.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from containers.engine import StageStart
from containers.state.checkpoint import read_offset_log, write_offset_log
from containers.state.context import StateContext
from containers.state.offsets.batch_waits import BatchInterrupted, BatchWaits
from containers.state.recovery.decision import OffsetLogEntry
from sluice.blobs.port import BlobStore, Purpose, RequestContext
from sluice.client import RETRY_DELAY
from sluice.core.errors import BlobCorrupted, BlobMissing, BlobUnavailable, SluiceError, Unavailable
from sluice.core.ids import Generation, Instant, Lineage, StageKey
from sluice.core.snapshots.snapshot import BlobId, BlobStoreName, batch_of, offsets_blob_id, offsets_prefix

log = logging.getLogger(__name__)

VERSION = 1

FORMER_STORE = timedelta(seconds=10)
"""How long to wait for a blob store that the run is not backed up to any more."""


class PlanReplaced(Unavailable):
    """Another owner of the task has planned this batch."""


@dataclass(frozen=True, slots=True)
class OffsetLog:
    """The durable offset-log entries of one lineage of a stage, in one blob store."""

    blobs: BlobStore
    key: StageKey
    lineage: Lineage

    @property
    def _about(self) -> RequestContext:
        return RequestContext.of_stage(Purpose.OFFSETS, self.key)

    def _id(self, batch: int) -> BlobId:
        return offsets_blob_id(self.key, self.lineage, batch)

    async def put_if_absent(self, entry: OffsetLogEntry) -> OffsetLogEntry:
        """Put the entry unless its batch has one. Returns the entry of the batch. Raises BlobUnavailable, BlobCorrupted."""
        if await self.blobs.put_if_absent(self._id(entry.batch), encoded(entry), self._about):
            return entry
        return await self.read(entry.batch)

    async def read(self, batch: int) -> OffsetLogEntry:
        """Raises BlobMissing, BlobUnavailable, BlobCorrupted."""
        blob, sink = self._id(batch), io.BytesIO()
        await self.blobs.get(blob, sink, self._about)
        return decoded(sink.getvalue(), blob, batch)

    async def after(self, batch: int, damaged: dict[int, BlobCorrupted] | None = None) -> Mapping[int, OffsetLogEntry]:
        """The entries of all later batches. With `damaged`, the errors of entries that cannot be read are put into it by their batches.
        Raises BlobUnavailable, and without `damaged` BlobCorrupted."""
        found: dict[int, OffsetLogEntry] = {}

        async def read(batch: int) -> None:
            try:
                found[batch] = await self.read(batch)
            except BlobCorrupted as error:
                if damaged is None:
                    raise
                damaged.setdefault(batch, error)

        prefix = offsets_prefix(self.key, self.lineage)
        async for page in self.blobs.list(prefix, self._about, after=self._id(batch) if batch >= 0 else ""):
            batches = [batch_of(listed.blob) for listed in page]
            await asyncio.gather(*map(read, batches))
        return dict(sorted(found.items()))


def offset_log(state: StateContext, start: StageStart, blobs: BlobStore) -> OffsetLog:
    return OffsetLog(blobs, state.key(start), start.lineage)


async def put_in_all(logs: Sequence[OffsetLog], entry: OffsetLogEntry) -> OffsetLogEntry:
    """Put the entry into the first log, and the entry that the first log then has into the others. May be repeated. Raises BlobUnavailable,
    BlobCorrupted."""
    decided: OffsetLogEntry | None = None
    for each in logs:
        try:
            found = await each.put_if_absent(decided or entry)
        except BlobCorrupted as error:
            decided = decided or await _readable(logs, entry.batch, error)
            log.error("this offset-log entry is only in the other blob stores: %s", error)
            continue
        if decided is not None and found.text != decided.text:
            raise BlobCorrupted(
                f"batch {entry.batch} of {each.key} has different offset-log entries in two blob stores: restore from the first one only"
            )
        decided = decided or found
    assert decided is not None
    return decided


async def copy_entries(state: StateContext, start: StageStart, after: int) -> None:
    """Copy the entries of the batches after `after` to the present blob stores, from all that the run has used since the container's start.
    These batches may have been written, and a restore from a blob store that was added since must run them as they were planned. A former
    blob store that does not answer is left out. Raises BlobUnavailable, BlobCorrupted."""
    to = tuple(state.destinations.to.values())
    sources = (*to, *(each for each in state.destinations.opened if each not in to))
    if len(sources) == 1:
        return
    found: dict[int, OffsetLogEntry] = {}
    for blobs in sources:
        try:
            async with asyncio.timeout(None if blobs in to else FORMER_STORE.total_seconds()):
                entries = await offset_log(state, start, blobs).after(after, {})
        except (BlobUnavailable, TimeoutError) as error:
            if blobs in to:
                raise
            log.warning("%s: the plans of its batches in a former blob store cannot be read: %s", start.query, error or "it took too long")
        else:
            found = {**entries, **found}
    for entry in found.values():
        await put_in_all([offset_log(state, start, blobs) for blobs in to], entry)


async def _readable(logs: Sequence[OffsetLog], batch: int, error: BlobCorrupted) -> OffsetLogEntry:
    """The entry in the first log that has a readable one. Raises `error` if none has: the batch may have been written."""
    for each in logs:
        with suppress(BlobMissing, BlobCorrupted):
            return await each.read(batch)
    raise error


def encoded(entry: OffsetLogEntry) -> bytes:
    document = {
        "version": VERSION,
        "batch": entry.batch,
        "plan": entry.text,
        "generation": entry.generation,
        "strict": entry.strict,
        "code": entry.code,
    }
    return json.dumps(document).encode()


def decoded(body: bytes, blob: BlobId, batch: int) -> OffsetLogEntry:
    """Raises BlobCorrupted, naming the blob; BlobUnavailable for one that a newer Sluice wrote, which can be read after an upgrade."""
    try:
        document = json.loads(body)
        if document["version"] > VERSION:
            raise BlobUnavailable(f"{blob} was written by a newer version of Sluice: run that version")
        entry = OffsetLogEntry(
            int(document["batch"]), document["plan"], Generation(document["generation"]), document["strict"], document["code"]
        )
        if entry.batch != batch or not isinstance(entry.text, str) or not isinstance(entry.strict, bool):
            raise ValueError("its contents do not match its name")
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise BlobCorrupted(f"{blob} is not an offset-log entry: {error}") from error
    return entry


# --- the gate --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PendingEntry:
    """The entry with which the running batch was planned. `decided` becomes the valid entry of the batch, or None when the run has no
    backups any more."""

    entry: OffsetLogEntry
    decided: Future[OffsetLogEntry | None]


class OffsetLogGate:
    """Holds each batch of one stage until its offset-log entry is durable. Created on the agent's loop; `before_batch` and `before_write`
    are called on the threads of Spark."""

    def __init__(self, state: StateContext, start: StageStart, waits: BatchWaits) -> None:
        self._state = state
        self._start = start
        self._waits = waits
        self._directory = state.checkpoints.directory(start.task, start.stage.name)
        self._pending: PendingEntry | None = None
        self._last_begun = -1
        self._put_into: Mapping[BlobStoreName, BlobStore] = {}
        """The blob stores that have the last entry."""
        self._put_since: dict[int, Instant] = {}
        """For each batch whose entry is being put: since when."""
        self._background: set[asyncio.Task[None]] = set()

    def before_batch(self, batch: int) -> None:
        """Start to put the entry, while the batch is being computed. Does not wait."""
        self._last_begun = batch
        entry = self._entry(batch, strict=True)
        self._pending = PendingEntry(entry, self._waits.submit(self._put(entry)))

    def before_write(self, batch: int) -> None:
        """Wait until the entry is durable. May be called more than once for a batch.

        The decided entry is compared with the one that the batch started with, because the file on disk may have been replaced since.
        Raises BatchInterrupted, PlanReplaced, BlobUnavailable, BlobCorrupted.
        """
        pending = self._pending
        if pending is None or pending.entry.batch != batch:
            raise BatchInterrupted(f"batch {batch} of {self._start.query} was abandoned: another batch has started since")
        self._settle(pending, self._waits.result(pending.decided))

    async def keep(self, batch: int) -> None:
        """Put the entry of a batch that does not wait in `before_write`, and return when it is durable. Raises what that raises."""
        await self._state.in_thread(lambda: self.before_batch(batch))
        pending = self._pending
        assert pending is not None
        decided = await asyncio.wrap_future(pending.decided)
        await self._state.in_thread(lambda: self._settle(pending, decided))

    def _settle(self, pending: PendingEntry, decided: OffsetLogEntry | None) -> None:
        batch = pending.entry.batch
        if decided is not None and decided.text != pending.entry.text:
            write_offset_log(self._directory, batch, decided.text)
            self._state.meter(self._start).replaced += 1
            raise PlanReplaced(
                f"batch {batch} was planned by generation {decided.generation} before: it runs again with that offset-log entry"
            )

    def committed(self, batch: int) -> bool:
        """Whether a committed batch has passed this gate. A batch that is not written through the task has not: its entry is put
        afterwards, in the background, and is not strict."""
        if batch <= self._last_begun:
            return True
        task = asyncio.get_running_loop().create_task(self._put_afterwards(batch))
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return False

    def _entry(self, batch: int, *, strict: bool) -> OffsetLogEntry:
        return OffsetLogEntry(batch, read_offset_log(self._directory, batch), self._start.generation, strict, self._state.code)

    async def _put(self, entry: OffsetLogEntry) -> OffsetLogEntry | None:
        """Put the entry into all blob stores. Waits for an unavailable blob store for as long as a commit may; if the query failed instead,
        it would use up its restarts."""
        policy = self._state.policy
        began = self._put_since[entry.batch] = self._state.clock.elapsed()
        give_up = began + (policy.max_delay + policy.timeout).total_seconds()
        try:
            while to := self._state.destinations.to:
                try:
                    entry = await put_in_all([offset_log(self._state, self._start, blobs) for blobs in to.values()], entry)
                    if self._state.destinations.to in ({}, to):  # else they have changed meanwhile
                        self._put_into = to
                        return entry
                except BlobUnavailable as error:
                    if self._state.clock.elapsed() >= give_up:
                        raise
                    log.warning(
                        "%s: batch %d waits, because its offset-log entry is not durable yet: %s", self._start.query, entry.batch, error
                    )
                    await asyncio.sleep(RETRY_DELAY.total_seconds())
        finally:
            self._put_since.pop(entry.batch, None)
        return None

    async def keep_running_batch(self, after: int) -> None:
        """Put the entry of the running batch, if it is later than `after`, into the present blob stores, if they have changed since it was
        put. A restore of a snapshot from them must run the batch as it was planned. Raises BlobUnavailable, BlobCorrupted."""
        pending = self._pending
        if pending is None or pending.entry.batch <= after:
            return
        try:
            decided = await asyncio.shield(asyncio.wrap_future(pending.decided))
        except (CancelledError, asyncio.CancelledError, SluiceError):
            if not pending.decided.done():
                raise
            return  # the batch writes nothing
        to = self._state.destinations.to
        if to and to != self._put_into:
            await put_in_all([offset_log(self._state, self._start, blobs) for blobs in to.values()], decided or pending.entry)

    def late_batch(self, delay: timedelta) -> int | None:
        """The first batch whose entry has not been durable for longer than `delay`; None if there is none."""
        now = self._state.clock.elapsed()
        return min((batch for batch, since in self._put_since.items() if now - since > delay.total_seconds()), default=None)

    async def _put_afterwards(self, batch: int) -> None:
        try:
            await self._put(self._entry(batch, strict=False))
        except SluiceError as error:
            log.warning("the offset-log entry of batch %d of %s was not made durable: %s", batch, self._start.query, error)
