from __future__ import annotations

import asyncio
from collections.abc import Sequence

from coordinator.store.groupcommit import GroupCommit
from sluice.core.errors import SluiceError, StaleRun, StoreUnavailable


class Doubling:
    """Doubles numbers, refuses odd ones, and delays each batch until it is released."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.go_on = asyncio.Semaphore(0)
        self.failure: Exception | None = None

    async def run_batch(self, numbers: Sequence[int]) -> Sequence[int | SluiceError]:
        self.batches.append(list(numbers))
        await self.go_on.acquire()
        if self.failure is not None:
            raise self.failure
        return [StaleRun(f"{n} is odd") if n % 2 else 2 * n for n in numbers]


async def test_a_request_that_comes_alone_is_run_alone_and_immediately() -> None:
    doubling = Doubling()
    doubling.go_on.release()
    assert await GroupCommit(doubling.run_batch).submit(4) == 8
    assert doubling.batches == [[4]]


async def test_requests_that_come_meanwhile_run_together_in_order_and_up_to_the_limit() -> None:
    doubling = Doubling()
    commits = GroupCommit(doubling.run_batch, limit=3)
    submitted = [asyncio.create_task(commits.submit(n)) for n in range(0, 16, 2)]
    for _ in range(4):
        doubling.go_on.release()
    assert await asyncio.gather(*submitted) == [2 * n for n in range(0, 16, 2)]
    assert doubling.batches == [[0, 2, 4], [6, 8, 10], [12, 14]]


async def test_an_error_fails_only_its_own_request() -> None:
    doubling = Doubling()
    doubling.go_on.release()
    commits = GroupCommit(doubling.run_batch)
    first, second, third = await asyncio.gather(*(commits.submit(n) for n in (2, 3, 4)), return_exceptions=True)
    assert (first, third) == (4, 8)
    assert isinstance(second, StaleRun)
    assert str(second) == "3 is odd"


async def test_a_batch_that_raises_fails_each_of_its_requests_and_later_ones_run() -> None:
    doubling = Doubling()
    doubling.failure = StoreUnavailable("away")
    commits = GroupCommit(doubling.run_batch)
    doubling.go_on.release()
    found = await asyncio.gather(*(commits.submit(n) for n in (2, 4)), return_exceptions=True)
    assert [type(each) for each in found] == [StoreUnavailable] * 2
    doubling.failure = None
    doubling.go_on.release()
    assert await commits.submit(6) == 12


async def test_a_cancelled_request_does_not_affect_the_others() -> None:
    doubling = Doubling()
    commits = GroupCommit(doubling.run_batch)
    submitted = [asyncio.create_task(commits.submit(n)) for n in (2, 4, 6)]
    await asyncio.sleep(0)
    submitted[1].cancel()
    doubling.go_on.release()
    assert [await submitted[0], await submitted[2]] == [4, 12]
    assert submitted[1].cancelled()
    assert doubling.batches == [[2, 4, 6]]
