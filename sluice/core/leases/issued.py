"""The numbers that a database has issued. A database that was restored from an older copy is recognized, and issues none of them again.

Epochs, generations, versions of job models and numbers of notices distinguish the new from the old, so none may be issued twice. A database
that is restored from a copy, or has lost its last commits, does not know which ones were issued after that state. So each blob store has a
*ledger*, whose newest entry records what the database had issued when it was written:

* `reserved`: no greater number of any kind was issued. Numbers are reserved in blocks, so that no request waits for a blob store.
* `sequence`: how often the database had issued a number or registered a snapshot.
* `timeline`: an id that changes when the database is found to be restored. PostgreSQL uses the word in the same sense.
* `bounds`: the longest leases that were ever promised.

A database is behind an entry of its own timeline with a higher sequence, and behind an entry of another timeline that has reserved numbers
beyond its *floor*. Then the floor is raised to all that was ever reserved: each number that is issued afterwards is above the floor. The
new timeline is written with the floor, in one transaction.

    database                            ledger of each blob store
    1. floor, new timeline, leases
                                        2. entry of the new timeline, with a further block
    3. the block

If the coordinator ends after step 1, the next one finds the database behind again, and raises the floor again. If it ends after step 2, it
has reserved a block that is not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from sluice.core.errors import NumbersNotReserved
from sluice.core.leases.lease import LeaseBounds

BLOCK = 10_000
"""Numbers that are reserved at once. A restored database skips at most as many; its columns have room for 200,000 restores."""

UNSEEN = 1_000_000
"""A database that is known to be restored skips this many numbers if no ledger records what it has issued."""


@dataclass(frozen=True, slots=True)
class Issued:
    """What a database knows of the numbers that it has issued. `highest`: the highest of them; `reserved`: the highest that it may issue,
    None without a ledger. `restored_at`: when it was found to be restored, until its catalog of snapshots is complete again."""

    origin: str
    timeline: str
    sequence: int = 0
    highest: int = 0
    floor: int = 0
    reserved: int | None = None
    restored_at: datetime | None = None

    def after(self, known: int) -> int:
        """The number to issue after `known`, which is the last of its kind in the database. Raises NumbersNotReserved."""
        number = max(known, self.floor) + 1
        if self.reserved is not None and number > self.reserved:
            raise NumbersNotReserved(
                f"numbers up to {self.reserved} are reserved in the blob stores, and {number} is needed: no blob store can be written"
            )
        return number

    def noted(self, number: int = 0) -> Issued:
        """The row after that number was issued, or a snapshot was registered."""
        return replace(self, sequence=self.sequence + 1, highest=max(self.highest, number))

    @property
    def runs_out(self) -> bool:
        """Whether the next block is to be reserved."""
        return self.reserved is None or max(self.highest, self.floor) + BLOCK // 2 > self.reserved

    def next_block(self) -> int:
        """The number up to which to reserve."""
        wanted = max(self.highest, self.floor) + BLOCK
        return wanted if self.runs_out else max(self.reserved or 0, 0)


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What a database of that origin had issued; see the module's docstring. Entries of a ledger are numbered from 1."""

    number: int
    origin: str
    timeline: str
    sequence: int
    reserved: int
    bounds: LeaseBounds


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of the comparison of a database with ledgers and fences. `floor`: the value to which its floor must be raised; None if
    that is not needed. `restored`: whether snapshots may be missing as well. `strangers`: whether containers that it does not know may
    still act. `why`: for the log."""

    floor: int | None = None
    restored: bool = False
    strangers: bool = False
    why: str = ""


def is_behind(issued: Issued, entry: LedgerEntry) -> bool:
    """Whether the entry of the database's own ledger records something that the database does not know."""
    if entry.timeline == issued.timeline:
        return entry.sequence > issued.sequence
    return entry.reserved > issued.floor


def overtaking(fences: Mapping[str, int], holds: Mapping[str, int]) -> Mapping[str, int]:
    """The fences of the embedded log that are above the generation of their owner in the database. Both are by owner, "job/task"."""
    return {owner: generation for owner, generation in fences.items() if "/" in owner and generation > holds.get(owner, 0)}


def compare(
    issued: Issued,
    entries: Iterable[LedgerEntry],
    *,
    fences: Mapping[str, int],
    holds: Mapping[str, int],
    known: str = "",
    interrupted: bool = False,
) -> Comparison:
    """Compare a database with the newest entries of the ledgers, of any origin, and with the fences of the embedded log. `holds`: the
    generations in the database. `known`: how it is known to be restored; "" if it is not. `interrupted`: its last coordinator did not shut
    down cleanly, and may have seen a commit that is lost.

    A ledger of another origin is that of a lost database which this one replaces, or of one that uses the same blob store: its numbers are
    skipped, and its snapshots are not touched."""
    found, why = list(entries), list[str]()
    own = [each for each in found if each.origin == issued.origin]
    ahead = {owner: generation for owner, generation in overtaking(fences, holds).items() if generation > issued.floor}
    if known:
        why.append(known)
    if any(is_behind(issued, each) for each in own):
        why.append("a blob store has a ledger of what it has issued since")
    if any(owner in holds for owner in ahead):
        why.append(
            f"the log has generations that it has not issued, of {', '.join(sorted(owner for owner in ahead if owner in holds)[:3])}"
        )
    restored = bool(why)
    if any(each.origin != issued.origin and each.reserved > issued.floor for each in found):
        why.append("a blob store has the ledger of another database")
    if any(owner not in holds for owner in ahead):
        why.append("the log has generations of a database that was lost")
    strangers = bool(why)
    if interrupted and issued.reserved is not None:
        why.append("its last coordinator has not ended in order")
    if not why:
        return Comparison()
    unseen = UNSEEN if known and not own else 0
    highest = [issued.floor, issued.highest, issued.reserved or 0, *ahead.values(), *(each.reserved for each in found)]
    return Comparison(max(highest) + unseen, restored, strangers, "; ".join(why))


def raised(issued: Issued, entries: Iterable[LedgerEntry], compared: Comparison, timeline: str, now: datetime) -> Issued:
    """The row after the database was found to be behind. If it has reserved blocks before, it issues nothing until the next one is
    reserved."""
    assert compared.floor is not None
    own = [each for each in entries if each.origin == issued.origin]
    return replace(
        issued,
        timeline=timeline,
        sequence=max([issued.sequence, *(each.sequence for each in own)]) + 1,
        highest=max(issued.highest, compared.floor),
        floor=compared.floor,
        reserved=compared.floor if own or issued.reserved is not None else None,
        restored_at=(issued.restored_at or now) if compared.restored else issued.restored_at,
    )
