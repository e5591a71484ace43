"""A coordinator dies between any two of the writes that raise the numbers of a restored database, or its blob store does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import count

import pytest

from coordinator.blobpool import Backup, BlobStores
from coordinator.fleet.issued import REMEDY, RESTORED, UNCONFIRMED, IssuedNumbers
from coordinator.fleet.leases import Leases
from coordinator.fleet.strangers import Strangers
from coordinator.store.sql import Store, WriteTransaction
from sluice.blobs.ledger import append, read_ledgers
from sluice.blobs.port import ListedBlob, Purpose, RequestContext
from sluice.core.errors import BlobUnavailable, CatalogIncomplete, NumbersNotReserved, StoreUnavailable
from sluice.core.leases.issued import BLOCK
from sluice.core.leases.lease import LeasePolicy
from sluice.core.snapshots.snapshot import BlobId, BlobStoreName
from tests.support.databases import temporary_store
from tests.support.fakes import FakeClock
from tests.support.memory import MemoryBlobs

LOCAL = BlobStoreName("local")


class Killed(BaseException):
    """The process has ended."""


@dataclass
class Writes:
    """Counts the writes of a process, which ends after the last of them."""

    left: float = float("inf")

    def happened(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed


class MortalStore(Store):
    """`away`: transactions are refused. `unanswered`: they are committed, and the answers are lost."""

    writes = Writes()
    away = unanswered = False

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[WriteTransaction]:
        self.writes.happened()
        if self.away:
            raise StoreUnavailable("the database is away")
        async with super().begin() as tx:
            yield tx
        if self.unanswered:
            raise StoreUnavailable("the answer of a commit is lost")


class MortalBlobs(MemoryBlobs):
    """`hangs`: requests are not answered. `accepts`: writes wait until this is set. `asked`: set when a write waits."""

    writes = Writes()
    hangs = False

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.accepts, self.asked = asyncio.Event(), asyncio.Event()
        self.accepts.set()

    async def put_if_absent(self, blob: BlobId, body: bytes, about: RequestContext) -> bool:
        self.asked.set()
        await self.accepts.wait()
        self.writes.happened()
        return await super().put_if_absent(blob, body, about)

    async def list(self, prefix: str, about: RequestContext, *, after: str = "") -> AsyncIterator[Sequence[ListedBlob]]:
        if self.hangs:
            await asyncio.Event().wait()
        async for page in super().list(prefix, about, after=after):
            yield page


@dataclass
class World:
    clock: FakeClock = field(default_factory=FakeClock)
    store: MortalStore = field(default_factory=lambda: temporary_store(MortalStore))
    ids: count[int] = field(default_factory=count)
    issued: set[int] = field(default_factory=set)
    completed: int = 0
    """How often the catalog was completed."""
    unreadable: bool = False
    """Whether the catalog cannot be completed, because a blob store cannot be read."""
    strangers: Strangers = field(init=False)
    numbers: IssuedNumbers = field(init=False)

    def __post_init__(self) -> None:
        self.blobs = MortalBlobs(self.clock)
        self.new_process()

    def new_process(self, dies_after: float = float("inf")) -> None:
        self.store.writes = self.blobs.writes = Writes(dies_after)
        stores = BlobStores({"local": "file:///not-opened"}, lambda name, url: self.blobs, Backup((LOCAL,), (LOCAL,)))
        self.strangers = Strangers(self.clock.elapsed)
        leases = Leases(LeasePolicy(), self.clock)
        self.numbers = IssuedNumbers(
            self.store,
            stores,
            leases,
            self.clock,
            self.strangers,
            _no_fences,
            lambda: f"id{next(self.ids)}",
            self._complete,
            start_within=timedelta(seconds=0.05) if self.blobs.hangs else timedelta(seconds=60),
        )

    async def _complete(self) -> Mapping[str, int]:
        self.store.writes.happened()
        if self.unreadable:
            raise BlobUnavailable("s3://second: no answer within 5 s")
        self.completed += 1
        return {}

    async def issue(self) -> int:
        """Issue a number as the first generation of a task that the database does not know."""
        self.strangers.check_catalog()
        async with self.store.begin() as tx:
            number = await tx.origin.next_number(max(self.issued, default=0) if not self.numbers.restored else 0)
        assert number not in self.issued
        self.issued.add(number)
        return number

    async def restore_what_it_was_before(self) -> None:
        """Replace the database by one of the same origin that has issued nothing."""
        async with self.store.begin() as tx:
            issued = await tx.origin.issued()
            assert issued is not None
            await tx.origin.put_issued(replace(issued, sequence=0, highest=0))


async def _no_fences() -> Mapping[str, int]:
    return {}


async def behind() -> World:
    """Five numbers were issued since the copy was made."""
    world = World()
    await world.numbers.start()
    for _ in range(5):
        await world.issue()
    await world.numbers.run_once()
    await world.restore_what_it_was_before()
    return world


@pytest.mark.parametrize("writes", range(6))
async def test_after_a_start_that_died_between_two_writes_the_ledger_covers_all_issued_numbers(writes: int) -> None:
    world = await behind()
    world.new_process(dies_after=writes)
    try:
        await world.numbers.start()
        await world.issue()
    except (Killed, NumbersNotReserved, CatalogIncomplete):
        pass
    world.new_process()
    await world.numbers.start()
    assert world.numbers.restored
    with pytest.raises(CatalogIncomplete):
        await world.issue()
    await world.numbers.run_once()
    assert await world.issue() > BLOCK
    (entry,) = await read_ledgers(world.blobs)
    async with world.store.read() as tx:
        issued = await tx.origin.issued()
    assert issued is not None
    assert issued.reserved is not None
    assert issued.highest <= issued.reserved <= entry.reserved
    assert entry.timeline == issued.timeline


@pytest.mark.parametrize("writes", range(4))
async def test_a_process_killed_while_it_completes_the_catalog_is_followed_by_one_that_completes_it(writes: int) -> None:
    world = await behind()
    world.new_process()
    await world.numbers.start()
    world.store.writes = world.blobs.writes = Writes(writes)
    with suppress(Killed):
        await world.numbers.run_once()
    done = world.completed
    world.new_process()
    await world.numbers.start()
    with pytest.raises(CatalogIncomplete):
        await world.issue()
    await world.numbers.run_once()
    assert world.completed == done + 1
    assert await world.issue() > BLOCK


async def test_the_problem_of_a_catalog_that_cannot_be_completed_names_the_blob_store_and_the_remedy() -> None:
    world = await behind()
    world.new_process()
    await world.numbers.start()
    world.unreadable = True
    with pytest.raises(BlobUnavailable):
        await world.numbers.run_once()
    held, why = world.numbers.sentences()
    assert held == RESTORED
    assert why == f"the catalog cannot be completed: s3://second: no answer within 5 s; {REMEDY}"
    world.unreadable = False
    await world.numbers.run_once()
    assert "containers that it does not know may act" in " ".join(world.numbers.sentences())


async def test_numbers_are_issued_while_a_write_to_the_ledger_hangs() -> None:
    world = World()
    await world.numbers.start()
    world.blobs.accepts.clear()
    world.blobs.asked.clear()
    await world.issue()
    reserving = asyncio.create_task(world.numbers.run_once())
    await asyncio.wait_for(world.blobs.asked.wait(), 60)
    assert [await world.issue() for _ in range(20)] == list(range(2, 22))
    assert not reserving.done()
    world.blobs.accepts.set()
    assert await asyncio.wait_for(reserving, 60) == {"published": 1}


async def test_a_database_counts_as_restored_until_no_unknown_container_may_act() -> None:
    world = await behind()
    world.new_process()
    await world.numbers.start()
    await world.numbers.run_once()
    assert world.numbers.restored
    world.clock.advance(world.strangers.left.total_seconds())
    await world.numbers.run_once()
    assert not world.numbers.restored
    assert world.numbers.sentences() == []


async def test_nothing_is_granted_until_memory_was_read_again_after_the_catalog_was_completed() -> None:
    world, read = await behind(), list[bool]()
    world.new_process()
    await world.numbers.start()

    async def read_again() -> None:
        read.append(len(read) > 0)
        if not read[-1]:
            raise StoreUnavailable("the database does not answer")

    world.numbers.changed = read_again
    with pytest.raises(StoreUnavailable):
        await world.numbers.run_once()
    with pytest.raises(CatalogIncomplete):
        await world.issue()
    await world.numbers.run_once()
    assert read == [False, True]
    assert await world.issue() > BLOCK


async def issued_at_last(world: World) -> int:
    """Run the chore until a number is issued: on a busy machine the blob store may appear to hang a little longer."""
    while True:
        await world.numbers.run_once()
        try:
            return await world.issue()
        except (CatalogIncomplete, NumbersNotReserved):
            await asyncio.sleep(0)


async def test_the_start_does_not_wait_for_a_hanging_blob_store_and_nothing_is_granted_until_it_answers() -> None:
    world = await behind()
    world.blobs.hangs = True
    world.new_process()
    await asyncio.wait_for(world.numbers.start(), 60)
    assert world.numbers.sentences()[0] == UNCONFIRMED
    with pytest.raises(CatalogIncomplete):
        await world.issue()
    world.blobs.hangs = False
    assert await asyncio.wait_for(issued_at_last(world), 60) > BLOCK
    assert world.numbers.restored


async def until_it_fails(world: World) -> None:
    while True:
        await world.numbers.run_once()


@pytest.mark.parametrize("fault", ["away", "unanswered"])
async def test_a_ledger_that_was_read_while_the_database_failed_is_compared_with_it_afterwards(fault: str) -> None:
    world = await behind()
    world.blobs.hangs = True
    world.new_process()
    await asyncio.wait_for(world.numbers.start(), 60)
    world.blobs.hangs = False
    setattr(world.store, fault, True)
    with pytest.raises(StoreUnavailable):
        await until_it_fails(world)
    setattr(world.store, fault, False)
    assert await asyncio.wait_for(issued_at_last(world), 60) > BLOCK
    assert (world.numbers.restored, world.completed) == (True, 1)


async def test_commits_that_the_database_has_lost_are_noticed_while_the_coordinator_runs() -> None:
    world = World()
    await world.numbers.start()
    before = await world.issue()
    async with world.store.read() as tx:
        lost = await tx.origin.issued()
    assert lost is not None
    world.numbers.check_lost(replace(lost, sequence=0))
    with pytest.raises(CatalogIncomplete):
        await world.issue()
    await world.numbers.run_once()
    assert await world.issue() > max(before, BLOCK)


async def test_appending_the_same_entry_to_a_ledger_again_succeeds_and_a_different_one_is_refused() -> None:
    world = World()
    await world.numbers.start()
    (entry,) = await read_ledgers(world.blobs)
    later = replace(entry, number=entry.number + 1, sequence=7)
    assert await append(world.blobs, later)
    assert await append(world.blobs, later)
    assert not await append(world.blobs, replace(later, timeline="of another coordinator"))
    assert await read_ledgers(world.blobs) == [later]


async def test_superseded_entries_of_a_ledger_are_deleted() -> None:
    world = World()
    await world.numbers.start()
    for _ in range(50):
        await world.issue()
        await world.numbers.run_once()
    listed = [each.blob async for page in world.blobs.list("issued/", RequestContext(Purpose.OPEN)) for each in page]
    assert 1 < len(listed) < 25
