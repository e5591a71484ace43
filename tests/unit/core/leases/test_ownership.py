from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from sluice.core.ids import ExecutionContainerId, Generation, Instant
from sluice.core.leases.ownership import Granted, TaskOwner, Wait, acquire, holds

OLD = ExecutionContainerId("old")
NEW = ExecutionContainerId("new")
NOW = Instant(100.0)


def held(generation: int = 3, holder: ExecutionContainerId = OLD, *, released: bool = False) -> TaskOwner:
    return TaskOwner(Generation(generation), holder, released)


def test_the_first_owner_has_generation_one() -> None:
    assert acquire(None, NEW, None, NOW) == Granted(Generation(1))


def test_an_owner_that_acquires_again_gets_the_same_generation() -> None:
    assert acquire(held(), OLD, Instant(130.0), NOW) == Granted(Generation(3))


def test_an_owner_that_released_a_task_gets_a_new_generation() -> None:
    assert acquire(held(released=True), OLD, Instant(130.0), NOW) == Granted(Generation(4))


def test_a_released_task_is_free_at_once() -> None:
    assert acquire(held(released=True), NEW, Instant(130.0), NOW) == Granted(Generation(4))


def test_another_container_waits_until_lease_and_grace_have_passed() -> None:
    assert acquire(held(), NEW, Instant(135.0), NOW) == Wait(OLD, timedelta(seconds=35))


def test_the_task_is_free_as_soon_as_lease_and_grace_end() -> None:
    assert acquire(held(), NEW, Instant(100.0), NOW) == Granted(Generation(4))


def test_a_container_does_not_wait_for_an_owner_without_a_lease() -> None:
    assert acquire(held(), NEW, None, NOW) == Granted(Generation(4))


def test_only_the_current_generation_is_accepted() -> None:
    assert holds(held(3), Generation(3))
    assert not holds(held(3), Generation(2))
    assert not holds(held(3), Generation(4))
    assert not holds(held(3, released=True), Generation(3))
    assert not holds(None, Generation(1))


@given(st.lists(st.tuples(st.sampled_from([OLD, NEW]), st.booleans(), st.floats(0, 50), st.floats(0, 50))))
def test_generations_never_decrease_and_never_belong_to_two_owners(steps: list[tuple[ExecutionContainerId, bool, float, float]]) -> None:
    hold: TaskOwner | None = None
    owner_of: dict[int, str] = {}
    for asker, release_first, free_at, now in steps:
        if hold is not None and release_first:
            hold = TaskOwner(hold.generation, hold.holder, released=True)
        decision = acquire(hold, asker, Instant(free_at), Instant(now))
        if isinstance(decision, Granted):
            assert hold is None or decision.generation >= hold.generation
            assert owner_of.setdefault(decision.generation, asker) == asker
            hold = TaskOwner(decision.generation, asker, released=False)
