"""Compares the database with the ledgers of the blob stores and the fences of the embedded log, and keeps the ledgers up to date.

At a start, before anything is granted, registered or deleted, each blob store has START_WITHIN to answer. If a database is found to be
behind (`sluice.core.leases.issued`), its floor is raised, strangers are expected (`coordinator.fleet.strangers`), and the snapshots that it
lacks are registered (`coordinator.snapshots.merge`). A blob store that does not answer delays neither the start nor the comparison with the
others. If none answers, nothing is granted or deleted until one does, because it is not known whether the database is behind.

What is found later, when a blob store answers again or the database turns out to have lost commits, is treated in the same way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from coordinator.blobpool import BlobStores
from coordinator.fleet.leases import Leases
from coordinator.fleet.strangers import Strangers
from coordinator.store.sql import Store, WriteTransaction
from sluice.blobs.ledger import append, read_ledgers, tidy
from sluice.clock import Clock
from sluice.core.errors import SluiceError
from sluice.core.ids import Instant
from sluice.core.leases.issued import Issued, LedgerEntry, compare, is_behind, raised
from sluice.core.leases.lease import LeaseBounds
from sluice.core.snapshots.snapshot import BlobStoreName

log = logging.getLogger(__name__)

START_WITHIN = timedelta(seconds=5)
"""How long the start of the coordinator waits for ledgers."""

AT_LEAST_EVERY = timedelta(seconds=60)
"""The longest time until a registered snapshot is recorded in the ledgers. Issued numbers are recorded immediately."""

READ_AGAIN = timedelta(seconds=15)
"""How often a ledger that could not be read is tried again, if another one was read."""

RESTORED = "the database was restored from an older copy, and its catalog of snapshots is being completed: nothing is granted or deleted"
UNCONFIRMED = (
    "no blob store has answered since the start, so it is not known whether the database is older than they are: nothing is granted or "
    "deleted"
)
BY_COMMAND = "it was restored by `sluice db restore`"
LOST_COMMITS = "it has lost commits that this coordinator has seen"
COMPARING = f"the database is compared again ({LOST_COMMITS}): nothing is granted or deleted"
REMEDY = "make it available; if it is lost, remove it from SLUICE_BLOB_STORES and start the coordinator again"

Fences = Callable[[], Awaitable[Mapping[str, int]]]


class IssuedNumbers:
    """Chore, and what the coordinator does at its start. `fences` reads the fences of the embedded log; `new_id` makes ids. `complete`
    registers the snapshots that the blob stores have and the database lacks; `changed` reloads into memory what is kept there of the
    database."""

    name = "keep_ledgers"
    every = timedelta(seconds=1)

    def __init__(
        self,
        store: Store,
        blob_stores: BlobStores,
        leases: Leases,
        clock: Clock,
        strangers: Strangers,
        fences: Fences,
        new_id: Callable[[], str],
        complete: Callable[[], Awaitable[Mapping[str, int]]],
        start_within: timedelta = START_WITHIN,
    ) -> None:
        self._store = store
        self._blob_stores = blob_stores
        self._leases = leases
        self._clock = clock
        self._strangers = strangers
        self._fences = fences
        self._new_id = new_id
        self._complete = complete
        self._start_within = start_within
        self._ledgers: dict[BlobStoreName, Sequence[LedgerEntry]] = {}
        """The newest entries of each blob store that was read since the start."""
        self._uncompared = False
        """Whether a ledger was read that was not compared with the database."""
        self._problems: dict[BlobStoreName, str] = {}
        self._published_at: dict[BlobStoreName, Instant] = {}
        self._unpublished: dict[BlobStoreName, str] = {}
        """Why the last entry was not written."""
        self._read_again_at = Instant(0.0)
        self._numbers_published = 0
        self._behind = ""
        """Why the database is known to be behind; "" if it is not, or if `_settle` has raised its floor."""
        self._catalog_complete = True
        self._incomplete_because = ""
        """Why the last attempt to complete the catalog failed; "" if it did not."""
        self._running = asyncio.Lock()
        self.restored = False
        """Whether the database was restored, and its catalog is not complete yet or strangers may act."""
        self.changed: Callable[[], Awaitable[None]] | None = None

    @property
    def blob_stores(self) -> Sequence[BlobStoreName]:
        return self._blob_stores.names

    @property
    def holds(self) -> bool:
        """Whether grants and deletions are suspended."""
        return self._strangers.held

    @property
    def unread(self) -> Mapping[BlobStoreName, str]:
        """The blob stores whose ledgers were not read since the start, and why."""
        return {name: self._problems.get(name, "not read yet") for name in self._blob_stores.names if name not in self._ledgers}

    def sentences(self) -> Sequence[str]:
        """The problems, and what an operator can do about them."""
        found = [self._strangers.hold] if self._strangers.hold else []
        if not self._catalog_complete and self._incomplete_because:
            found.append(f"the catalog cannot be completed: {self._incomplete_because}; {REMEDY}")
        if self.restored and not found:
            found.append(
                f"the database was restored from an older copy: containers that it does not know may act for {self._strangers.left}"
            )
        return [*found, *(f"blob store {name} was not compared with the database: {why}; {REMEDY}" for name, why in self.unread.items())]

    async def start(self) -> None:
        """Compare the database with everything that answers in time. Call it when the database is claimed, before `Registrations.recover`.
        Raises StoreUnavailable."""
        async with self._store.begin() as tx:
            await self._known(tx)
            stored = await tx.promises.lease_bounds()
        interrupted = stored is not None and bool(stored.outage)
        await self._in_time(map(self._read, self._blob_stores.names))
        await self._settle(interrupted=interrupted, starting=True)
        await self._publish_all()

    async def _in_time(self, several: Iterable[Coroutine[Any, Any, object]]) -> None:
        """Wait for all, but no longer than a start may take."""
        tasks = [asyncio.create_task(each) for each in several]
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=self._start_within.total_seconds())
        for each in late:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _known(self, tx: WriteTransaction) -> Issued:
        """The database's row. Its first coordinator writes it."""
        issued = await tx.origin.issued()
        if issued is None:
            issued = Issued(self._new_id(), self._new_id(), highest=await tx.origin.highest_number())
            await tx.origin.put_issued(issued)
        if issued.reserved is not None and not self._blob_stores.names:  # the settings name none any more
            issued = replace(issued, reserved=None)
            await tx.origin.put_issued(issued)
        return issued

    async def _read(self, name: BlobStoreName) -> None:
        """Read the ledger of a blob store; a failure is recorded."""
        try:
            self._ledgers[name] = await read_ledgers(await self._blob_stores.opened(name))
            self._uncompared = True
            self._problems.pop(name, None)
        except SluiceError as error:
            if self._problems.get(name) != str(error):
                log.warning("blob store %s is not compared with the database: %s", name, error)
            self._problems[name] = str(error)
        except asyncio.CancelledError:
            self._problems[name] = f"no answer within {self._start_within.total_seconds():g} s"
            raise

    def _entries(self) -> Sequence[LedgerEntry]:
        return [entry for entries in self._ledgers.values() for entry in entries]

    async def _settle(self, *, interrupted: bool = False, starting: bool = False) -> None:
        """Compare, and raise the floor if the database is behind. All changes that follow are written in one transaction. If it fails, the
        next run does it again."""
        self._uncompared = False
        try:
            await self._compare_all(interrupted=interrupted, starting=starting)
        except BaseException:
            self._uncompared = True
            raise

    async def _compare_all(self, *, interrupted: bool, starting: bool) -> None:
        fences, entries = await self._fences() if starting else {}, self._entries()
        async with self._store.begin() as tx:
            issued, known = await self._known(tx), self._behind
            if starting and await tx.origin.is_marked():
                known = BY_COMMAND
            holds = await tx.origin.generations() if fences else {}
            compared = compare(issued, entries, fences=fences, holds=holds, known=known, interrupted=interrupted)
            bounds = await self._bounds(tx, entries, strangers=compared.strangers or issued.restored_at is not None)
            if compared.floor is not None:
                log.warning("the database is behind (%s): numbers up to %d are skipped", compared.why, compared.floor)
                issued = raised(issued, entries, compared, self._new_id(), self._clock.now())
                await tx.origin.put_issued(issued)
                await tx.origin.unmark()
        # The floor may have been raised by an earlier comparison, whose commit had no answer.
        unknown = issued.restored_at is not None and (starting or not self.restored)
        self._behind = ""
        self.restored = issued.restored_at is not None
        if compared.restored or unknown:
            self._catalog_complete = False
        if compared.strangers or unknown:
            self._strangers.expect(issued.floor, bounds.longest)
        self._hold(issued)
        if not starting and (compared.restored or unknown) and self.changed is not None:
            self._leases.set_bounds(self._leases.bounds.covering(bounds))
            await self.changed()

    async def _bounds(self, tx: WriteTransaction, entries: Sequence[LedgerEntry], *, strangers: bool) -> LeaseBounds:
        """The longest leases that may be held, which are stored if the database does not know them."""
        own = self._leases.needed(0)
        stored = await tx.promises.lease_bounds()
        bounds = own if stored is None else stored
        for entry in entries:
            bounds = bounds.covering(entry.bounds)
        if not strangers:
            return own
        if bounds != stored:
            await tx.promises.put_lease_bounds(bounds)
        return _without_bare(bounds) if not _has_bare(entries) else bounds

    def _hold(self, issued: Issued) -> None:
        confirmed = not self._blob_stores.names or issued.reserved is None or bool(self._ledgers)
        if not confirmed:
            self._strangers.hold = UNCONFIRMED
        elif self.restored and not self._catalog_complete:
            self._strangers.hold = RESTORED
        else:
            self._strangers.hold = ""

    def check_lost(self, issued: Issued | None) -> None:
        """Called when memory is resynchronised with the database, whose row is `issued`. If its `sequence` is lower than the last one that
        this coordinator has committed, the database has lost commits: nothing is granted or deleted until it has been handled as a restored
        one."""
        if issued is not None and issued.sequence < self._store.sequence:
            self._behind, self._strangers.hold = LOST_COMMITS, COMPARING

    async def run_once(self) -> Mapping[str, int]:
        """Read the ledgers that were not read, publish what was issued, and complete the catalog of a restored database."""
        async with self._running:
            return await self._run()

    async def _run(self) -> Mapping[str, int]:
        now = self._clock.elapsed()
        unread = list(self.unread) if self.holds or now >= self._read_again_at else []
        if unread:
            self._read_again_at = Instant(now + READ_AGAIN.total_seconds())
            await self._in_time(map(self._read, unread))
        if self._behind or self._uncompared:
            await self._settle()
        done = {"published": await self._publish_all()}
        if self.restored:
            done |= await self._finish()
        return {what: count for what, count in done.items() if count}

    async def _finish(self) -> Mapping[str, int]:
        done: Mapping[str, int] = {}
        if not self._catalog_complete:
            try:
                done = await self._complete()
            except SluiceError as error:
                self._incomplete_because = str(error)
                raise
            if self.changed is not None:
                await self.changed()  # if it fails, the next round calls it again
            self._catalog_complete, self._incomplete_because = True, ""
            log.warning("the catalog of the restored database is complete: %d snapshots were added", done.get("snapshots", 0))
        ended = not self._strangers.left
        async with self._store.begin() as tx:
            issued = await self._known(tx)
            if ended:
                issued = replace(issued, restored_at=None)
                await tx.origin.put_issued(issued)
        self.restored = not ended
        self._hold(issued)
        return done

    async def _publish_all(self) -> int:
        """Append an entry to each ledger that is not up to date. Returns their number."""
        async with self._store.read() as tx:
            issued = await tx.origin.issued()
        if issued is None or not self._ledgers:
            return 0
        numbers = self._store.numbers_issued
        due = [name for name in self._ledgers if self._is_due(name, issued, at_once=numbers != self._numbers_published)]
        entries = await asyncio.gather(*(self._publish(name, issued) for name in due))
        reserved = [entry.reserved for entry in entries if entry is not None]
        if len(reserved) == len(due):
            self._numbers_published = numbers
        if reserved and issued.runs_out:
            async with self._store.begin() as tx:
                now = await self._known(tx)
                if now.timeline == issued.timeline and now.highest <= max(reserved):
                    await tx.origin.put_issued(replace(now, reserved=max(reserved)))
        return len(reserved)

    def _own(self, name: BlobStoreName, issued: Issued) -> LedgerEntry | None:
        return next((each for each in self._ledgers[name] if each.origin == issued.origin), None)

    def _is_due(self, name: BlobStoreName, issued: Issued, *, at_once: bool) -> bool:
        own = self._own(name, issued)
        if own is None or own.timeline != issued.timeline or issued.runs_out:
            return True
        if own.bounds != self._promised(own):
            return True
        waited = self._clock.elapsed() - self._published_at.get(name, -AT_LEAST_EVERY.total_seconds())
        return own.sequence < issued.sequence and (at_once or waited >= AT_LEAST_EVERY.total_seconds())

    def _promised(self, own: LedgerEntry | None) -> LeaseBounds:
        """The longest leases that were ever promised, or that could be promised to a fleet that doubles before the next entry."""
        bounds = self._leases.needed(len(self._leases))
        bounds = bounds if self._leases.bare else _without_bare(bounds)
        return bounds if own is None else own.bounds.covering(bounds)

    async def _publish(self, name: BlobStoreName, issued: Issued) -> LedgerEntry | None:
        """Append an entry to the ledger of a blob store. Returns None if that failed; then it is tried again."""
        own = self._own(name, issued)
        number, bounds = (0 if own is None else own.number) + 1, self._promised(own)
        reserved = max(issued.next_block(), 0 if own is None else own.reserved)
        entry = LedgerEntry(number, issued.origin, issued.timeline, issued.sequence, reserved, bounds)
        try:
            async with asyncio.timeout(self._start_within.total_seconds()):
                blobs = await self._blob_stores.opened(name)
                if not await append(blobs, entry):
                    await self._overtaken(name, issued)
                    return None
                others = [each for each in self._ledgers[name] if each.origin != issued.origin]
                self._ledgers[name] = [*others, entry]
                self._published_at[name] = self._clock.elapsed()
                await tidy(blobs, issued.origin)
        except (SluiceError, TimeoutError) as error:
            why = str(error) or f"no answer within {self._start_within.total_seconds():g} s"
            if self._unpublished.get(name) != why:
                log.warning("the ledger of blob store %s is not up to date: %s", name, why)
            self._unpublished[name] = why
            return None
        self._unpublished.pop(name, None)
        return entry

    async def _overtaken(self, name: BlobStoreName, issued: Issued) -> None:
        """Handle an entry in the ledger that this coordinator has not read. Either it has written the entry and did not get the answer, or
        another coordinator uses a copy of its database. In the second case each of the two finds its own database behind, and raises its
        floor, so each number is still issued only once."""
        await self._read(name)
        own = self._own(name, issued) if name in self._ledgers else None
        if own is not None and is_behind(issued, own):
            self._behind = "another coordinator has written to its ledger"
            log.error("blob store %s: another coordinator uses a copy of this database, or the same blob store", name)


def _has_bare(entries: Sequence[LedgerEntry]) -> bool:
    return any(each.bounds.bare_lease for each in entries)


def _without_bare(bounds: LeaseBounds) -> LeaseBounds:
    return replace(bounds, bare_lease=timedelta(0), bare_grace=timedelta(0))
