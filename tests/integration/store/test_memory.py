from __future__ import annotations

import pytest

from coordinator.store.memory import MemoryStore
from tests.contracts.store import StoreContract


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore()
