"""Whether a driver still owns its job: the question, and its ways to an answer."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread

import pytest

from containers.attached.confirmation import Confirmations
from sluice.core.errors import LeaseLost, Unavailable


def asked(answer: Callable[[Confirmations, int], None]) -> None:
    """Ask, and let another thread do this with the number of the question."""
    threads: list[Thread] = []

    def send(number: int) -> None:
        threads.append(Thread(target=answer, args=(made, number)))
        threads[0].start()

    made = Confirmations(send)
    try:
        made.ask()
    finally:
        threads[0].join()


def test_a_driver_that_owns_its_job_continues() -> None:
    asked(lambda made, number: made.take(number, ""))


def test_a_driver_that_does_not_own_its_job_gets_the_reason() -> None:
    with pytest.raises(LeaseLost, match="generation 4 owns it"):
        asked(lambda made, number: made.take(number, "generation 4 owns it"))


def test_an_answer_to_another_question_is_ignored() -> None:
    def answer(made: Confirmations, number: int) -> None:
        made.take(number + 1, "generation 4 owns it")
        made.take(number, "")

    asked(answer)


def test_no_question_waits_for_a_supervisor_that_has_ended() -> None:
    with pytest.raises(Unavailable, match="supervisor of this script has ended"):
        asked(lambda made, number: made.end())
    made = Confirmations(lambda number: None)
    made.end()
    with pytest.raises(Unavailable):
        made.ask()
