from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coordinator.store.migrate import upgrade
from coordinator.store.sql import Store, open_store
from tests.contracts.query_plans import PARTIAL, QueryPlanContract, Statement, fill


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A filled database."""
    made = f"sqlite+aiosqlite:///{tmp_path_factory.mktemp('plans') / 'coordinator.db'}"

    async def make(database: Path) -> None:
        store = open_store(made)
        await upgrade(store)
        await fill(store)
        await store.close()

    asyncio.run(make(Path(made)))
    return made


class TestSqlitePlans(QueryPlanContract):
    @pytest.fixture
    async def store(self, url: str) -> AsyncIterator[Store]:
        made = open_store(url)
        yield made
        await made.close()

    async def scans(self, store: Store, statement: Statement) -> list[str]:
        """The lines of the plan that read a whole table or index; reading in order up to a limit does not count."""
        plan = await self._plan(store, statement)
        in_order = "LIMIT" in statement.sql and not any("TEMP B-TREE" in line for line in plan)
        bad = [line for line in plan if line.startswith("SCAN") and not ("USING" in line and in_order)]
        return [line for line in bad if not any(line.endswith(f" {name}") for name in PARTIAL)]

    async def indexes(self, store: Store, statement: Statement) -> list[str]:
        return [found[1] for line in await self._plan(store, statement) if (found := re.search(r"USING (?:COVERING )?INDEX (\w+)", line))]

    async def _plan(self, store: Store, statement: Statement) -> list[str]:
        async with store.engine.connect() as connection:
            found = await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement.sql}", statement.parameters)
            return [str(row.detail) for row in found]
