"""A blob store hangs when a coordinator starts or reserves numbers: neither the start nor a container waits for it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from sluice.core.ids import RunId
from tests.support.agents import Place, place
from tests.support.api import problem_slug
from tests.support.backups import BACKED_UP, one_stage
from tests.support.s3servers import S3Server, Toxiproxy, toxiproxy

pytestmark = pytest.mark.real_time

GENEROUS = 300
BATCH = 25
"""Containers in a row. Each registration issues an epoch, and each acquire a generation."""


async def call(there: Place, method: str, path: str, **body: Any) -> httpx.Response:
    async with httpx.AsyncClient(transport=there.app, base_url="http://c") as http:
        return await http.request(method, path, json=body or None)


async def acquire(there: Place, run_id: RunId, number: int) -> httpx.Response:
    """Acquire the task by a container that replaces the former one."""
    name = f"c{number}"
    registered = await call(there, "POST", f"/runs/{run_id}/containers", processorId="0", executionContainerId=name)
    assert registered.status_code == 201, registered.text
    body = {"executionContainerId": name, "epoch": registered.json()["epoch"]}
    answer = await call(there, "POST", f"/runs/{run_id}/tasks/Partition 0/acquire", **body)
    if answer.status_code == 200 and "generation" in answer.json():
        await call(there, "POST", f"/containers/{name}/exit", exitCode=0, reason="stopped")
    return answer


async def granted(there: Place, run_id: RunId, number: int) -> int:
    answer = await acquire(there, run_id, number)
    assert answer.status_code == 200, answer.text
    generation: int = answer.json()["generation"]
    return generation


@pytest.fixture
def settings(s3: S3Server, hanging: Toxiproxy) -> dict[str, Any]:
    proxy = hanging.proxy(urlsplit(s3.endpoint).netloc)
    return {**BACKED_UP, "blob_stores": {"far": f"s3://{s3.new_bucket()}/x?endpoint=http://{proxy}&region=us-east-1"}}


@pytest.fixture
def hanging(tmp_path: Path) -> Any:
    with toxiproxy(tmp_path) as made:
        yield made


def hang(proxy: Toxiproxy, s3: S3Server) -> None:
    """Connections stay open, and no data passes."""
    proxy.poison(urlsplit(s3.endpoint).netloc, "timeout", "upstream", timeout=0)


def heal(proxy: Toxiproxy, s3: S3Server) -> None:
    proxy.heal(urlsplit(s3.endpoint).netloc, "timeout")


async def test_containers_get_their_tasks_while_the_reservation_of_numbers_hangs(
    home: Path, settings: dict[str, Any], hanging: Toxiproxy, s3: S3Server
) -> None:
    async with place(home, **settings) as there:
        run_id = await there.deploy(job=one_stage())
        assert await granted(there, run_id, 0) == 1
        hang(hanging, s3)
        reserving = asyncio.create_task(there.parts.issued.run_once())
        for number in range(1, BATCH):
            assert await granted(there, run_id, number) == number + 1
        await asyncio.wait_for(reserving, GENEROUS)
        heal(hanging, s3)
        await there.parts.issued.run_once()
        assert await granted(there, run_id, BATCH) == BATCH + 1


async def test_a_coordinator_starts_while_its_only_blob_store_hangs_and_reports_what_is_missing_until_it_answers(
    home: Path, settings: dict[str, Any], hanging: Toxiproxy, s3: S3Server
) -> None:
    async with place(home, **settings) as there:
        run_id = await there.deploy(job=one_stage())
        assert await granted(there, run_id, 0) == 1
    hang(hanging, s3)
    async with asyncio.timeout(GENEROUS), place(home, **settings) as there:
        refused = await acquire(there, run_id, 1)
        assert problem_slug(refused) == (503, "catalog-incomplete")
        problems = "\n".join((await there.run(run_id)).catalog_problems)
        assert "no blob store has answered" in problems
        assert "blob store far was not compared with the database: no answer within 5 s" in problems
        heal(hanging, s3)
        while (answer := await acquire(there, run_id, 2)).status_code == 503:
            await there.parts.issued.run_once()
        assert answer.json()["generation"] == 2
        assert (await there.run(run_id)).catalog_problems == ()
