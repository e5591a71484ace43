"""Retrying, patient, limited and counted blob stores, around a store in memory with faults."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from io import BytesIO

import pytest

from sluice.blobs.counted import CountedBlobs, RequestKind, Requests
from sluice.blobs.limited import LimitedBlobs
from sluice.blobs.port import BlobStore, Purpose, RequestContext, Sink
from sluice.blobs.retrying import RetryingBlobs
from sluice.blobs.timeouts import TimeoutBlobs
from sluice.core.errors import BlobMissing, BlobStoreUnusable, BlobUnavailable
from sluice.core.snapshots.snapshot import BlobId
from sluice.core.waits import Backoff
from tests.contracts.blobs import ABOUT, bytes_of, ids, put
from tests.support.fakes import FakeClock
from tests.support.faults import Fault, FaultyBlobs, Plan, at, every, healthy
from tests.support.memory import MemoryBlobs

BACKOFF = Backoff(first=timedelta(seconds=1), longest=timedelta(seconds=8), budget=timedelta(seconds=30))


@dataclass
class Stage:
    """A store with faults, and a retrying store around it. Pauses advance the fake clock."""

    clock: FakeClock = field(default_factory=FakeClock)
    pauses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.faulty = FaultyBlobs(MemoryBlobs(self.clock))
        self.store: BlobStore = RetryingBlobs(self.faulty, BACKOFF, self.clock, self._sleep, lambda: 0.5)

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.clock.advance(seconds)

    def first(self, *faults: Fault) -> None:
        """The next operations have these faults, later ones none."""
        begun = len(self.faulty.operations)
        self.faulty.plan = lambda op: faults[op.number - begun - 1] if op.number - begun <= len(faults) else None

    @property
    def names(self) -> list[str]:
        return [operation.name for operation in self.faulty.operations]


@pytest.fixture
def stage() -> Stage:
    return Stage()


async def test_failures_are_retried_after_pauses_that_double_up_to_a_bound(stage: Stage) -> None:
    stage.first(*[Fault.FAIL] * 6)
    await put(stage.store, "a", b"x")
    assert await bytes_of(stage.faulty.inner, "a") == b"x"
    assert stage.pauses == [0.5, 1, 2, 4, 4, 4]


async def test_retries_end_when_their_budget_is_spent(stage: Stage) -> None:
    stage.faulty.plan = every("put", Fault.FAIL)
    with pytest.raises(BlobUnavailable, match="given up after 10 attempts in 27"):
        await put(stage.store, "a")
    assert sum(stage.pauses) < BACKOFF.budget.total_seconds()


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOST, Fault.PART])
async def test_every_operation_survives_a_failure(stage: Stage, fault: Fault) -> None:
    store = stage.store
    blobs = [BlobId(f"b/{n}") for n in range(4)]
    for blob in blobs:
        await put(store, blob)
    sink = BytesIO()
    steps: list[Callable[[], Awaitable[object]]] = [
        lambda: store.open(create=True),
        lambda: store.put(BlobId("a"), b"0123456789", ABOUT, ttl=timedelta(days=1)),
        lambda: store.remove_ttl(BlobId("a"), ABOUT),
        lambda: store.get(BlobId("a"), sink, ABOUT, start=2, length=6),
        lambda: store.put_if_absent(BlobId("c"), b"x", ABOUT),
        lambda: store.delete(blobs, ABOUT),
        lambda: store.sweep_expired(stage.clock.now(), 10),
    ]
    for step in steps:
        stage.first(fault)
        await step()
    assert sink.getvalue() == b"234567"
    assert await ids(stage.faulty.inner) == ["a", "c"]


async def test_a_get_continues_in_mid_body(stage: Stage) -> None:
    await put(stage.store, "a", b"0123456789abcdef")
    stage.first(Fault.PART, Fault.FAIL, Fault.PART)
    sink = BytesIO()
    await stage.store.get(BlobId("a"), sink, ABOUT, start=0, length=16)
    assert sink.getvalue() == b"0123456789abcdef"
    stage.first(Fault.PART, Fault.PART, Fault.PART, Fault.LOST)
    assert await bytes_of(stage.store, "a") == b"0123456789abcdef"


async def test_a_list_continues_behind_the_last_page(stage: Stage) -> None:
    blobs = [f"a/{n:04}" for n in range(2500)]
    for blob in blobs:
        await put(stage.faulty.inner, blob)
    stage.first(Fault.PART, Fault.FAIL, Fault.PART)
    assert await ids(stage.store, "a/") == blobs
    assert stage.names == ["list"] * 4


async def test_a_put_that_succeeded_and_whose_answer_was_lost_returns_that_it_succeeded(stage: Stage) -> None:
    stage.first(Fault.LOST)
    assert await stage.store.put_if_absent(BlobId("a"), b"mine", ABOUT) is True


async def test_a_put_that_failed_first_and_came_second_returns_that_it_came_second(stage: Stage) -> None:
    await put(stage.faulty.inner, "a", b"another's")
    stage.first(Fault.FAIL)
    assert await stage.store.put_if_absent(BlobId("a"), b"mine", ABOUT) is False


async def test_a_put_that_came_second_at_once_does_not_read_the_first_one_s_bytes(stage: Stage) -> None:
    await put(stage.faulty.inner, "a", b"mine")
    assert await stage.store.put_if_absent(BlobId("a"), b"mine", ABOUT) is False
    assert stage.names == ["put_if_absent"]


async def test_only_temporary_errors_are_retried(stage: Stage) -> None:
    stage.first(Fault.REFUSED)
    with pytest.raises(BlobStoreUnusable):
        await put(stage.store, "a")
    with pytest.raises(BlobMissing):
        await bytes_of(stage.store, "a")
    assert stage.pauses == []


@pytest.mark.parametrize(("failures", "chance", "seconds"), [(1, 0.5, 0.5), (3, 0.25, 1), (9, 0.5, 4), (1000, 0.5, 4), (2, 0, 0)])
def test_a_pause_is_drawn_from_nothing_up_to_a_bound(failures: int, chance: float, seconds: float) -> None:
    assert BACKOFF.pause(failures, timedelta(), chance) == timedelta(seconds=seconds)


def test_no_pause_goes_beyond_the_budget() -> None:
    assert BACKOFF.pause(5, timedelta(seconds=27), 0.5) is None
    assert BACKOFF.pause(5, timedelta(seconds=25), 0.5) == timedelta(seconds=4)


def patient(plan: Plan, patience: float = 0.01) -> tuple[FaultyBlobs, BlobStore]:
    faulty = FaultyBlobs(MemoryBlobs(FakeClock()), plan)
    return faulty, TimeoutBlobs(faulty, timedelta(seconds=patience))


@pytest.mark.parametrize("name", ["open", "put", "put_if_absent", "get", "delete", "remove_ttl", "list"])
async def test_a_request_that_hangs_is_abandoned(name: str) -> None:
    faulty, store = patient(healthy)
    await put(store, "a")
    faulty.plan = every(name, Fault.HANG)
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "open": lambda: store.open(create=True),
        "put": lambda: put(store, "a"),
        "put_if_absent": lambda: store.put_if_absent(BlobId("a"), b"", ABOUT),
        "get": lambda: bytes_of(store, "a"),
        "delete": lambda: store.delete([BlobId("a")], ABOUT),
        "remove_ttl": lambda: store.remove_ttl(BlobId("a"), ABOUT),
        "list": lambda: ids(store),
    }
    with pytest.raises(BlobUnavailable, match="no progress"):
        await calls[name]()


class Slow(MemoryBlobs):
    """Its bodies arrive in five pieces, 30 ms apart; then it hangs or ends."""

    def __init__(self, *, hangs: bool) -> None:
        super().__init__(FakeClock())
        self.hangs = hangs
        self.late: Callable[[], object] | None = None

    async def get(self, blob: BlobId, sink: Sink, about: RequestContext, *, start: int = 0, length: int | None = None) -> None:
        self.late = lambda: sink.write(b"too late")
        for n in range(1, 6):  # timers of one loop run in order, however late it is
            asyncio.get_running_loop().call_later(0.03 * n, sink.write, b"x")
        await asyncio.sleep(0.16)
        if self.hangs:
            await asyncio.Event().wait()


async def test_a_slow_body_is_not_a_hang() -> None:
    store = TimeoutBlobs(Slow(hangs=False), timedelta(seconds=0.05))
    assert await bytes_of(store, "a") == b"xxxxx"


async def test_a_sink_gets_nothing_more_from_an_abandoned_request() -> None:
    slow = Slow(hangs=True)
    sink = BytesIO()
    with pytest.raises(BlobUnavailable, match="no progress"):
        await TimeoutBlobs(slow, timedelta(seconds=0.05)).get(BlobId("a"), sink, ABOUT)
    assert slow.late is not None
    with pytest.raises(BlobUnavailable, match="cancelled"):
        slow.late()
    assert sink.getvalue() == b"xxxxx"


async def test_no_more_requests_are_under_way_than_the_limit_says() -> None:
    faulty = FaultyBlobs(MemoryBlobs(FakeClock()), every("put", Fault.HANG))
    store = LimitedBlobs(faulty, 3)
    puts = [asyncio.create_task(put(store, f"a/{n}")) for n in range(10)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(faulty.operations) == 3
    faulty.release()
    await asyncio.gather(*puts)
    assert len(faulty.operations) == 10


async def test_a_paused_list_holds_no_permit() -> None:
    store = LimitedBlobs(MemoryBlobs(FakeClock()), 1)
    await put(store, "a")
    async for _ in store.list("", ABOUT):
        await put(store, "b")


async def test_every_attempt_is_counted_by_what_it_did_and_what_it_was_for() -> None:
    requests = Requests()
    faulty = FaultyBlobs(MemoryBlobs(FakeClock()), at(2, Fault.FAIL))
    store = CountedBlobs(faulty, requests)
    await store.put(BlobId("a"), b"12345", RequestContext(Purpose.DATA))
    with pytest.raises(BlobUnavailable):
        await store.put(BlobId("b"), b"123", RequestContext(Purpose.PACK))
    await store.put(BlobId("b"), b"123", RequestContext(Purpose.PACK))
    await store.get(BlobId("a"), BytesIO(), RequestContext(Purpose.AUDIT), start=1)
    await store.delete([BlobId("a")], RequestContext(Purpose.COLLECTION))
    assert requests.requests == {
        RequestKind("put", Purpose.DATA): 1,
        RequestKind("put", Purpose.PACK): 2,
        RequestKind("get", Purpose.AUDIT): 1,
        RequestKind("delete", Purpose.COLLECTION): 1,
    }
    assert requests.failed == {RequestKind("put", Purpose.PACK): 1}
    assert requests.sent == {Purpose.DATA: 5, Purpose.PACK: 3}
    assert requests.received == {Purpose.AUDIT: 4}


async def test_the_error_of_a_put_is_known_until_the_same_kind_of_put_succeeds() -> None:
    requests = Requests()
    faulty = FaultyBlobs(MemoryBlobs(FakeClock()), every("put", Fault.FAIL))
    store = TimeoutBlobs(CountedBlobs(faulty, requests), timedelta(milliseconds=10))
    with pytest.raises(BlobUnavailable):
        await put(store, "a", b"1")
    assert requests.put_error == "put of a was made to fail"
    faulty.plan = every("get", Fault.FAIL)
    await put(store, "a", b"1")
    assert requests.put_error is None
    with pytest.raises(BlobUnavailable):
        await bytes_of(store, "a")
    assert requests.put_error is None
    faulty.plan = every("put", Fault.HANG)
    with pytest.raises(BlobUnavailable):
        await put(store, "b", b"1")
    assert requests.put_error == "put of b was not answered"


async def test_half_a_body_counts_as_half() -> None:
    requests = Requests()
    faulty = FaultyBlobs(MemoryBlobs(FakeClock()))
    store = CountedBlobs(faulty, requests)
    await put(store, "a", b"12345678")
    faulty.plan = every("get", Fault.PART)
    with pytest.raises(BlobUnavailable):
        await bytes_of(store, "a")
    assert requests.received == {Purpose.DATA: 4}
