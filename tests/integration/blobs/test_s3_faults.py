"""Faults of an S3 server: the bare store distinguishes them, the retrying store survives them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from sluice.blobs.counted import Requests
from sluice.blobs.locations import open_blob_store, wrapped
from sluice.blobs.port import BlobStore, Purpose
from sluice.core.errors import BlobDeleted, BlobMissing, BlobUnavailable
from sluice.core.snapshots.snapshot import BlobId
from sluice.core.waits import Backoff
from tests.contracts.blobs import ABOUT, DAY, bytes_of, ids, later, put
from tests.support.s3_faults import INTERNAL, SLOW_DOWN, Answer, Cut, Fault, FaultyS3, Hang, Late, Lost, faulty_s3
from tests.support.s3servers import S3Server, toxiproxy

QUICK = Backoff(first=timedelta(milliseconds=5), longest=timedelta(milliseconds=50), budget=timedelta(minutes=1))
BODY = os.urandom(3 << 20)


@pytest.fixture
async def proxy(s3: S3Server) -> AsyncIterator[FaultyS3]:
    async with faulty_s3(s3.endpoint) as made:
        yield made


@pytest.fixture
async def bare(s3: S3Server, proxy: FaultyS3) -> AsyncIterator[BlobStore]:
    made = open_blob_store(f"s3://{s3.new_bucket()}/x?endpoint={proxy.endpoint}")
    await made.open(create=True)
    yield made
    await made.close()


@pytest.fixture
def requests() -> Requests:
    return Requests()


@pytest.fixture
def store(bare: BlobStore, requests: Requests) -> BlobStore:
    return wrapped(bare, requests, backoff=QUICK, timeout=timedelta(seconds=2))


async def everything(store: BlobStore) -> list[Callable[[], Awaitable[object]]]:
    """Every operation, of a store that has a and b."""
    await put(store, "a", BODY, ttl=DAY)
    await put(store, "b", b"body")
    return [
        lambda: store.open(create=True),
        lambda: put(store, "c", BODY, ttl=DAY),
        lambda: store.put_if_absent(BlobId("d"), b"x", ABOUT),
        lambda: bytes_of(store, "a"),
        lambda: ids(store),
        lambda: store.remove_ttl(BlobId("a"), ABOUT),
        lambda: store.sweep_expired(later(1.5), 10),
        lambda: store.delete([BlobId("b")], ABOUT),
    ]


FAULTS = [SLOW_DOWN, INTERNAL, Answer(429, "TooManyRequests"), Answer(400, "RequestTimeout"), Lost(), Cut(0), Cut(40)]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
async def test_every_request_to_a_failing_server_is_unavailable(bare: BlobStore, proxy: FaultyS3, fault: Fault) -> None:
    calls = await everything(bare)
    proxy.plan = lambda request: fault
    for call in calls:
        with pytest.raises(BlobUnavailable):
            await call()


@pytest.mark.parametrize("fault", FAULTS, ids=str)
async def test_a_server_that_fails_for_a_while_is_survived(store: BlobStore, proxy: FaultyS3, fault: Fault) -> None:
    for call in await everything(store):
        proxy.first(fault, fault)
        await call()
    assert await ids(store) == ["a", "d"]
    assert await bytes_of(store, "a") == BODY
    with pytest.raises(BlobDeleted):
        await bytes_of(store, "b")


FULL = [Answer(507, "XMinioStorageFull"), Answer(400, "XMinioAdminBucketQuotaExceeded"), Answer(403, "QuotaExceeded")]


@pytest.mark.parametrize("answer", FULL, ids=str)
async def test_blobs_are_deleted_from_a_server_that_is_full(bare: BlobStore, proxy: FaultyS3, answer: Answer) -> None:
    for name in ("a", "b", "expires"):
        await put(bare, name, ttl=DAY if name == "expires" else None)
    for number in range(20):
        await bare.delete([BlobId(f"deleted/{number}")], ABOUT)
    proxy.plan = lambda request: answer if request.method == "PUT" else None
    await bare.open(create=True)  # by a coordinator that is started again
    await bare.delete([BlobId("a")], ABOUT)
    assert await bare.sweep_expired(later(2.5), 10) == 1
    assert await ids(bare) == ["b"]
    proxy.plan = lambda request: None
    with pytest.raises(BlobMissing, match="there is no blob a"):
        await bytes_of(bare, "a")


@pytest.mark.parametrize("answer", FULL, ids=str)
async def test_a_blob_is_put_again_when_a_server_that_was_full_has_room(bare: BlobStore, proxy: FaultyS3, answer: Answer) -> None:
    proxy.plan = lambda request: answer if request.method == "PUT" else None
    with pytest.raises(BlobUnavailable):
        await put(bare, "a")
    proxy.plan = lambda request: None
    await put(bare, "a")


async def test_an_interrupted_body_continues_where_it_was_interrupted(store: BlobStore, proxy: FaultyS3, requests: Requests) -> None:
    await put(store, "a", BODY)
    proxy.first(Cut(1_500_000), Cut(1_200_000))
    assert await bytes_of(store, "a") == BODY
    assert requests.received[Purpose.DATA] == len(BODY)
    assert sum(requests.failed.values()) == 2


async def test_an_interrupted_body_is_never_taken_for_a_shorter_blob(bare: BlobStore, proxy: FaultyS3) -> None:
    await put(bare, "a", BODY)
    for size in (1000, 1_500_000, len(BODY)):
        proxy.plan = lambda request, size=size: Cut(size)  # type: ignore[misc]
        with pytest.raises(BlobUnavailable):
            await bytes_of(bare, "a")


async def test_put_if_absent_returns_the_right_result_although_its_first_answer_was_lost(store: BlobStore, proxy: FaultyS3) -> None:
    proxy.first(Lost())
    assert await store.put_if_absent(BlobId("a"), b"mine", ABOUT) is True
    proxy.first(Lost())
    assert await store.put_if_absent(BlobId("a"), b"another's", ABOUT) is False
    assert await bytes_of(store, "a") == b"mine"


async def test_a_conflict_of_two_concurrent_writes_is_retried(store: BlobStore, bare: BlobStore, proxy: FaultyS3) -> None:
    conflict = Answer(409, "ConditionalRequestConflict")
    proxy.first(conflict)
    with pytest.raises(BlobUnavailable):
        await bare.put_if_absent(BlobId("a"), b"x", ABOUT)
    proxy.first(conflict)
    assert await store.put_if_absent(BlobId("a"), b"x", ABOUT) is True


async def test_a_request_that_hangs_is_given_up_and_its_connection_with_it(bare: BlobStore, proxy: FaultyS3) -> None:
    impatient = wrapped(bare, Requests(), backoff=QUICK, timeout=timedelta(seconds=0.2))
    await put(impatient, "a")
    for call in (lambda: put(impatient, "b"), lambda: bytes_of(impatient, "a"), lambda: impatient.remove_ttl(BlobId("a"), ABOUT)):
        proxy.gone.clear()
        proxy.first(Hang())
        await call()
        await asyncio.wait_for(proxy.gone.wait(), 30)


async def test_the_secret_key_is_in_no_message(bare: BlobStore, proxy: FaultyS3) -> None:
    proxy.plan = lambda request: SLOW_DOWN
    with pytest.raises(BlobUnavailable, match="SlowDown") as caught:
        await put(bare, "a")
    assert "sluice-secret" not in str(caught.value)
    assert "Debug" not in str(caught.value)


async def test_an_outage_and_a_broken_connection_are_survived(s3: S3Server, tmp_path: Path) -> None:
    upstream = urlsplit(s3.endpoint).netloc
    with toxiproxy(tmp_path) as toxic:
        made = open_blob_store(f"s3://{s3.new_bucket()}?endpoint=http://{toxic.proxy(upstream)}")
        store = wrapped(made, Requests(), backoff=QUICK, timeout=timedelta(seconds=2))
        await store.open(create=True)
        toxic.cut(upstream, on=True)
        putting = asyncio.gather(*(store.put(BlobId(f"a/{n}"), BODY, ABOUT) for n in range(4)))
        with pytest.raises(BlobUnavailable):
            await put(made, "b")
        toxic.cut(upstream, on=False)
        await putting
        toxic.poison(upstream, "limit_data", "downstream", bytes=2_000_000)
        sink = BytesIO()
        await store.get(BlobId("a/1"), sink, ABOUT)
        assert sink.getvalue() == BODY
        toxic.heal(upstream, "limit_data")
        toxic.poison(upstream, "latency", "upstream", latency=30)
        assert await asyncio.gather(*(bytes_of(store, f"a/{n}") for n in range(4))) == [BODY] * 4
        await made.close()


async def test_a_put_that_was_given_up_and_arrives_late_does_not_restore_a_removed_ttl(store: BlobStore, proxy: FaultyS3) -> None:
    proxy.first(Late())
    await put(store, "a", BODY, ttl=DAY)
    await store.remove_ttl(BlobId("a"), ABOUT)
    assert await proxy.arrive() == 1
    assert await store.sweep_expired(later(3), 100) == 0
    assert await bytes_of(store, "a") == BODY
