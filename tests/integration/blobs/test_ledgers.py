"""Ledgers in each kind of blob store, and on an S3 server that loses answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from sluice.blobs.counted import Requests
from sluice.blobs.ledger import append, read_ledgers
from sluice.blobs.locations import open_blob_store, wrapped
from sluice.blobs.port import BlobStore
from sluice.core.errors import BlobUnavailable
from sluice.core.waits import Backoff
from tests.contracts.ledger import ENTRY, LedgerContract
from tests.support.s3_faults import Answer, Lost, faulty_s3
from tests.support.s3servers import S3Server

QUICK = Backoff(first=timedelta(milliseconds=5), longest=timedelta(milliseconds=50), budget=timedelta(minutes=1))


@pytest.fixture(params=["file", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return (tmp_path / "blobs").as_uri()
    s3: S3Server = request.getfixturevalue("s3")
    return f"s3://{s3.new_bucket()}/ledgers?endpoint={s3.endpoint}&region=us-east-1"


@pytest.fixture
async def store(url: str) -> AsyncIterator[BlobStore]:
    made = wrapped(open_blob_store(url), Requests())
    await made.open(create=True)
    yield made
    await made.close()


@pytest.fixture
async def second(url: str, store: BlobStore) -> AsyncIterator[BlobStore]:
    made = wrapped(open_blob_store(url), Requests())
    await made.open(create=False)
    yield made
    await made.close()


class TestLedgers(LedgerContract):
    pass


async def test_an_entry_is_written_once_although_the_answer_was_lost(s3: S3Server) -> None:
    async with faulty_s3(s3.endpoint) as proxy:
        bare = open_blob_store(f"s3://{s3.new_bucket()}/x?endpoint={proxy.endpoint}")
        await bare.open(create=True)
        proxy.first(Lost())
        with pytest.raises(BlobUnavailable):
            await append(bare, ENTRY)
        assert await append(bare, ENTRY)
        assert not await append(bare, replace(ENTRY, timeline="of another coordinator"))
        proxy.first(Lost(), Answer(409, "ConditionalRequestConflict"))
        later = replace(ENTRY, number=2)
        assert await append(wrapped(bare, Requests(), backoff=QUICK), later)
        assert await read_ledgers(bare) == [later]
        await bare.close()
