"""The store is divided by aggregate, so that a reader finds all statements about a table in one small class."""

from __future__ import annotations

import inspect
from typing import cast

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.store.sql import WriteTransaction

AGGREGATES = vars(WriteTransaction(cast("AsyncConnection", None)))


@pytest.mark.parametrize("name", sorted(AGGREGATES))
def test_an_aggregate_of_the_store_has_at_most_fifteen_methods(name: str) -> None:
    methods = [method for method, _ in inspect.getmembers(AGGREGATES[name], inspect.ismethod) if not method.startswith("_")]
    assert 0 < len(methods) <= 15, methods
