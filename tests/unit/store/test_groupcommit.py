from __future__ import annotations

import asyncio
from collections.abc import Sequence

from coordinator.store.groupcommit import GroupCommit
from sluice.core.errors import SluiceError, StaleRun, StoreUnavailable


class Doubling:
    """Answers a number with its double, refuses odd ones, and holds every batch until it is let go."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.go_on = asyncio.Semaphore(0)
        self.failure: Exception | None = None

    async def answer_all(self, numbers: Sequence[int]) -> Sequence[int | SluiceError]:
        self.batches.append(list(numbers))
        await self.go_on.acquire()
        if self.failure is not None:
            raise self.failure
        return [StaleRun(f"{n} is odd") if n % 2 else 2 * n for n in numbers]


async def test_a_question_that_comes_alone_is_answered_alone_and_at_once() -> None:
    doubling = Doubling()
    doubling.go_on.release()
    assert await GroupCommit(doubling.answer_all).ask(4) == 8
    assert doubling.batches == [[4]]


async def test_what_comes_meanwhile_is_answered_together_in_order_and_in_portions() -> None:
    doubling = Doubling()
    gathering = GroupCommit(doubling.answer_all, most=3)
    asked = [asyncio.create_task(gathering.ask(n)) for n in range(0, 16, 2)]
    for _ in range(4):
        doubling.go_on.release()
    assert await asyncio.gather(*asked) == [2 * n for n in range(0, 16, 2)]
    assert doubling.batches == [[0, 2, 4], [6, 8, 10], [12, 14]]


async def test_a_refusal_is_only_its_own_questions() -> None:
    doubling = Doubling()
    doubling.go_on.release()
    gathering = GroupCommit(doubling.answer_all)
    first, second, third = await asyncio.gather(*(gathering.ask(n) for n in (2, 3, 4)), return_exceptions=True)
    assert (first, third) == (4, 8)
    assert isinstance(second, StaleRun)
    assert str(second) == "3 is odd"


async def test_trouble_is_everybodys_and_later_questions_are_answered_again() -> None:
    doubling = Doubling()
    doubling.failure = StoreUnavailable("away")
    gathering = GroupCommit(doubling.answer_all)
    doubling.go_on.release()
    found = await asyncio.gather(*(gathering.ask(n) for n in (2, 4)), return_exceptions=True)
    assert [type(each) for each in found] == [StoreUnavailable] * 2
    doubling.failure = None
    doubling.go_on.release()
    assert await gathering.ask(6) == 12


async def test_who_does_not_wait_any_more_keeps_nobody_from_an_answer() -> None:
    doubling = Doubling()
    gathering = GroupCommit(doubling.answer_all)
    asked = [asyncio.create_task(gathering.ask(n)) for n in (2, 4, 6)]
    await asyncio.sleep(0)
    asked[1].cancel()
    doubling.go_on.release()
    assert [await asked[0], await asked[2]] == [4, 12]
    assert asked[1].cancelled()
    assert doubling.batches == [[2, 4, 6]]
