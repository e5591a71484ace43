"""The blob store in memory, which other tests use, fulfils the contract, bare and wrapped."""

from __future__ import annotations

import pytest

from sluice.blobs.port import BlobStore
from sluice.clock import SystemClock
from sluice.core.errors import BlobStoreUnusable
from tests.contracts.blobs import BlobStoreContract, WrappedBlobStoreContract
from tests.support.memory import MemoryBlobs


async def opened() -> MemoryBlobs:
    store = MemoryBlobs(SystemClock())
    await store.open(create=True)
    return store


class TestMemoryBlobs(BlobStoreContract):
    @pytest.fixture
    async def store(self) -> BlobStore:
        return await opened()

    @pytest.fixture
    def second(self, store: BlobStore) -> BlobStore:
        return store


class TestMemoryBlobsWrapped(WrappedBlobStoreContract):
    @pytest.fixture
    async def bare(self) -> BlobStore:
        return await opened()

    @pytest.fixture
    def bare_second(self, bare: BlobStore) -> BlobStore:
        return bare


async def test_a_store_that_was_not_created_cannot_be_used() -> None:
    with pytest.raises(BlobStoreUnusable):
        await MemoryBlobs(SystemClock()).open(create=False)
