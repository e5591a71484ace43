"""Long polls for notices: waiting clients are woken, and a waiting fleet puts no load on the database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from coordinator.fleet.notices import Notices
from coordinator.store.sql import ReadTransaction, Store
from sluice.core.errors import UnknownRun
from sluice.core.ids import RunId
from tests.contracts.rows import NOON, run_row
from tests.support.databases import temporary_store

RUN = RunId("r1")
LONG, SHORT = timedelta(seconds=300), timedelta(seconds=0.01)


class CountingStore(Store):
    reads = 0

    @asynccontextmanager
    async def read(self) -> AsyncIterator[ReadTransaction]:
        self.reads += 1
        async with super().read() as tx:
            yield tx


@pytest.fixture
async def store() -> CountingStore:
    made = temporary_store(CountingStore)
    async with made.begin() as tx:
        await tx.runs.put(run_row("r1"))
    return made


async def add(store: CountingStore, notices: Notices) -> None:
    async with store.begin() as tx:
        await tx.runs.add_notice(RUN, "STOP", NOON, {})
    notices.notify(RUN)


async def waiting(notices: Notices, count: int) -> None:
    while notices.waiting(RUN) < count:  # noqa: ASYNC110 – nothing is notified when a poll begins
        await asyncio.sleep(0)
    for _ in range(10):  # after its query of the database
        await asyncio.sleep(0)


async def test_all_polls_of_a_waiting_fleet_share_one_read_and_one_wake_up(store: CountingStore) -> None:
    notices = Notices(store)
    async with asyncio.TaskGroup() as group:
        polls = [group.create_task(notices.after(RUN, 0, LONG))]
        await waiting(notices, 1)
        polls += [group.create_task(notices.after(RUN, 0, LONG)) for _ in range(50)]
        await waiting(notices, 51)
        assert store.reads == 1
        await add(store, notices)
    assert [[row.seq for row in poll.result()] for poll in polls] == [[1]] * 51


async def test_a_poll_with_a_lower_number_reads_the_database_although_another_poll_found_nothing(store: CountingStore) -> None:
    notices = Notices(store)
    await add(store, notices)
    poll = asyncio.create_task(notices.after(RUN, 1, LONG))
    await waiting(notices, 1)
    assert [row.seq for row in await notices.after(RUN, 0, LONG)] == [1]
    poll.cancel()


async def test_a_notice_that_arrives_while_a_poll_reads_is_not_missed(store: CountingStore) -> None:
    notices = Notices(store)
    for _ in range(20):
        before = len(await notices.after(RUN, 0, SHORT))
        polls = [asyncio.create_task(notices.after(RUN, before, LONG)) for _ in range(3)]
        for _ in range(before % 5):
            await asyncio.sleep(0)
        await add(store, notices)
        polls += [asyncio.create_task(notices.after(RUN, before, LONG))]
        assert [[row.seq for row in found] for found in await asyncio.gather(*polls)] == [[before + 1]] * 4


async def test_a_notice_without_a_notification_is_found_by_the_poll_after_the_next(store: CountingStore) -> None:
    notices = Notices(store)
    poll = asyncio.create_task(notices.after(RUN, 0, SHORT))
    await waiting(notices, 1)
    async with store.begin() as tx:
        await tx.runs.add_notice(RUN, "STOP", NOON, {})
    assert await poll == []
    assert [row.seq for row in await notices.after(RUN, 0, LONG)] == [1]


async def test_every_poll_of_an_unknown_run_raises_an_error(store: CountingStore) -> None:
    notices = Notices(store)
    for _ in range(2):
        with pytest.raises(UnknownRun):
            await notices.after(RunId("lost"), 0, LONG)


async def test_polls_for_notices_end_when_the_coordinator_ends(store: CountingStore) -> None:
    notices = Notices(store)
    polls = [asyncio.create_task(notices.after(RUN, 0, LONG)) for _ in range(3)]
    await waiting(notices, 3)
    notices.close()
    assert await asyncio.gather(*polls) == [[]] * 3
    assert await notices.after(RUN, 0, LONG) == []
    assert notices.polls == 0
