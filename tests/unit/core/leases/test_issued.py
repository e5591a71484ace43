"""No number is issued twice, whatever copies of a database are restored, and wherever a coordinator ends."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.errors import NumbersNotReserved
from sluice.core.leases.issued import BLOCK, UNSEEN, Issued, LedgerEntry, compare, is_behind, raised
from sluice.core.leases.lease import LeaseBounds
from tests.contracts.rows import NOON

BOUNDS = LeaseBounds(*[timedelta(seconds=40)] * 4)
FRESH = Issued("o", "t1")


def entry(number: int = 1, **changes: object) -> LedgerEntry:
    return replace(LedgerEntry(number, "o", "t1", sequence=5, reserved=BLOCK, bounds=BOUNDS), **changes)  # type: ignore[arg-type]


def test_the_first_number_is_one() -> None:
    assert FRESH.after(0) == 1


def test_numbers_are_issued_above_the_floor() -> None:
    assert replace(FRESH, floor=BLOCK).after(3) == BLOCK + 1


def test_only_reserved_numbers_are_issued() -> None:
    with pytest.raises(NumbersNotReserved):
        replace(FRESH, reserved=7).after(7)


def test_a_block_is_reserved_when_half_of_the_last_one_is_left() -> None:
    assert not replace(FRESH, reserved=BLOCK, highest=BLOCK // 2).runs_out
    later = replace(FRESH, reserved=BLOCK, highest=BLOCK // 2 + 1)
    assert later.runs_out
    assert later.next_block() == BLOCK // 2 + 1 + BLOCK


def test_a_database_that_has_issued_more_than_its_ledger_says_is_not_behind() -> None:
    assert not is_behind(replace(FRESH, sequence=6), entry())


def test_a_database_is_behind_what_its_ledger_has_of_its_own_timeline() -> None:
    assert is_behind(replace(FRESH, sequence=4), entry())


def test_a_database_that_was_raised_above_another_timeline_is_not_behind_it() -> None:
    other = entry(timeline="t0", sequence=50)
    assert is_behind(FRESH, other)
    assert not is_behind(replace(FRESH, floor=BLOCK), other)


def test_a_fence_of_a_known_task_that_was_never_issued_shows_a_restored_database() -> None:
    found = compare(FRESH, [], fences={"job/t": 7}, holds={"job/t": 6})
    assert (found.floor, found.restored, found.strangers) == (7, True, True)


def test_the_fences_of_a_lost_database_raise_the_floor_at_once() -> None:
    found = compare(FRESH, [], fences={"job/t": 24, "lineage-of-a-tool": 1}, holds={})
    assert (found.floor, found.restored, found.strangers) == (24, False, True)
    assert raised(FRESH, [], found, "t2", NOON).after(0) == 25


def test_the_ledger_of_another_database_raises_the_floor_and_adds_no_snapshots() -> None:
    found = compare(FRESH, [entry(origin="lost")], fences={}, holds={})
    assert (found.floor, found.restored, found.strangers) == (BLOCK, False, True)


def test_a_database_that_is_known_to_be_restored_skips_many_numbers_without_a_ledger() -> None:
    assert compare(FRESH, [], fences={}, holds={}, known="by command").floor == UNSEEN


def test_after_a_crash_the_reserved_numbers_are_skipped_without_waiting() -> None:
    found = compare(replace(FRESH, sequence=9, reserved=BLOCK), [entry()], fences={}, holds={}, interrupted=True)
    assert (found.floor, found.restored, found.strangers) == (BLOCK, False, False)


class World:
    """A database, copies of it, and the ledgers of two blob stores, one of which may be away. A coordinator takes its steps one by one, and
    may end after each."""

    def __init__(self) -> None:
        self.database = Issued("o", "t0")
        self.last = 0
        """The last number of the one thing that is numbered here, in the database."""
        self.copies = [(self.database, 0)]
        self.ledgers: list[LedgerEntry | None] = [None, None]
        self.issued: set[int] = set()
        self.timelines = 0
        self.running = False

    def start(self, steps: int) -> None:
        """The coordinator ends after so many steps."""
        entries = [each for each in self.ledgers if each is not None]
        compared = compare(self.database, entries, fences={}, holds={})
        if compared.floor is not None:
            self.timelines += 1
            self.database = raised(self.database, entries, compared, f"t{self.timelines}", NOON)
        self.running = steps > 0 and self.publish(steps - 1)

    def publish(self, steps: int = 9) -> bool:
        """Returns whether it came to its end."""
        reserved = self.database.next_block()
        for which, before in enumerate(self.ledgers):
            if steps <= which:
                return False
            number = 1 if before is None else before.number + 1
            self.ledgers[which] = LedgerEntry(number, "o", self.database.timeline, self.database.sequence, reserved, BOUNDS)
        if steps <= len(self.ledgers):
            return False
        self.database = replace(self.database, reserved=reserved)
        return True

    def issue(self) -> None:
        number = self.database.after(self.last)
        assert number not in self.issued
        self.issued.add(number)
        self.last, self.database = number, self.database.noted(number)
        self.publish()

    def copy(self) -> None:
        self.copies.append((self.database, self.last))

    def restore(self, which: int) -> None:
        self.running = False
        self.database, self.last = self.copies[which % len(self.copies)]


ACTIONS = st.one_of(
    st.tuples(st.just("start"), st.integers(0, 4)),
    st.tuples(st.just("issue"), st.just(0)),
    st.tuples(st.just("copy"), st.just(0)),
    st.tuples(st.just("restore"), st.integers(0, 9)),
)


@given(st.lists(ACTIONS, max_size=40))
def test_no_number_is_issued_twice_whatever_is_restored_and_wherever_a_start_ends(actions: list[tuple[str, int]]) -> None:
    world = World()
    for what, which in actions:
        if what == "start":
            world.start(which)
        elif what == "restore":
            world.restore(which)
        elif world.running:
            world.issue() if what == "issue" else world.copy()


@given(st.integers(1, 3), st.integers(0, 3))
def test_a_start_that_ended_early_leaves_a_database_that_another_start_raises(issued: int, steps: int) -> None:
    world = World()
    world.start(9)
    for _ in range(issued):
        world.issue()
    world.restore(0)
    world.start(steps)
    assert not world.running
    with pytest.raises(NumbersNotReserved):
        world.database.after(world.last)
    world.start(9)
    world.issue()
    assert world.database.restored_at == NOON
