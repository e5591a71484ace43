from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import pytest

from coordinator.store.migrate import upgrade
from coordinator.store.sql import Store, open_store
from tests.contracts.query_plans import PARTIAL, SMALL, QueryPlanContract, Statement, fill
from tests.support.servers import Postgres


@pytest.fixture(scope="module")
def url(postgres_server: Postgres) -> str:
    """A filled database."""
    made = postgres_server.new_database()

    async def make() -> None:
        store = open_store(made)
        await upgrade(store)
        await fill(store)
        await store.close()

    asyncio.run(make())
    return made


def nodes(plan: Mapping[str, Any], above: str = "") -> Iterator[tuple[Mapping[str, Any], str]]:
    """All nodes of a plan, each with the type of the node above it."""
    yield plan, above
    for below in plan.get("Plans", ()):
        yield from nodes(below, plan["Node Type"])


def scans_a_table(node: Mapping[str, Any], above: str) -> bool:
    """Whether a node reads a whole table or a whole index; reading in order up to a limit does not count."""
    kind = node["Node Type"]
    if kind == "Seq Scan":
        return node["Relation Name"] not in SMALL
    return "Index" in kind and "Index Cond" not in node and above != "Limit" and node["Index Name"] not in PARTIAL


@pytest.mark.long
class TestPostgresPlans(QueryPlanContract):
    @pytest.fixture
    async def store(self, url: str) -> AsyncIterator[Store]:
        made = open_store(url)
        yield made
        await made.close()

    async def scans(self, store: Store, statement: Statement) -> list[str]:
        plan = await self._plan(store, statement)
        return [f"{node['Node Type']} of {node.get('Relation Name')}" for node, above in nodes(plan) if scans_a_table(node, above)]

    async def indexes(self, store: Store, statement: Statement) -> list[str]:
        return [str(node["Index Name"]) for node, _ in nodes(await self._plan(store, statement)) if "Index Name" in node]

    async def _plan(self, store: Store, statement: Statement) -> Mapping[str, Any]:
        async with store.engine.connect() as connection:
            found = await connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {statement.sql}", statement.parameters)
            (reported,) = found.one()
        (explained,) = json.loads(reported) if isinstance(reported, str) else reported
        plan: Mapping[str, Any] = explained["Plan"]
        return plan
