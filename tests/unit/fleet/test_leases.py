from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.fleet.leases import Leases
from sluice.core.ids import Epoch, ExecutionContainerId
from sluice.core.leases.lease import KILL_TIME, LeasePolicy, bounds_at_start
from tests.support.fakes import FakeClock

C1, C2, C3 = (ExecutionContainerId(name) for name in ("c1", "c2", "c3"))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def leases(clock: FakeClock) -> Leases:
    """Lease 30 s, grace 5 s."""
    return Leases(LeasePolicy(lease=timedelta(seconds=30)), clock)


def headers(leases: Leases, execution_id: ExecutionContainerId, epoch: int) -> dict[str, str]:
    entry = leases.beat(execution_id, Epoch(epoch))
    assert entry is not None
    return {name.decode(): value.decode() for name, value in entry.headers}


def test_a_container_without_a_registration_is_invalid(leases: Leases) -> None:
    assert leases.beat("stranger", None) is None


def test_a_heartbeat_of_the_valid_epoch_renews_the_lease(leases: Leases, clock: FakeClock) -> None:
    leases.grant(C1, Epoch(1), 1)
    clock.advance(29)
    assert leases.beat(C1, Epoch(1)) is not None
    assert leases.free_at(C1) == clock.elapsed() + 35


@pytest.mark.parametrize("epoch", [1, 3])
def test_another_epoch_is_invalid_and_renews_nothing(leases: Leases, clock: FakeClock, epoch: int) -> None:
    leases.grant(C1, Epoch(2), 1)
    before = leases.free_at(C1)
    clock.advance(10)
    assert leases.beat(C1, Epoch(epoch)) is None
    assert leases.free_at(C1) == before


def test_a_heartbeat_without_epoch_is_alive_and_renews_nothing(leases: Leases, clock: FakeClock) -> None:
    leases.grant(C1, Epoch(1), 1)
    before = leases.free_at(C1)
    clock.advance(10)
    assert leases.beat(C1, None) is not None
    assert leases.free_at(C1) == before


def test_a_bare_container_renews_without_an_epoch(leases: Leases, clock: FakeClock) -> None:
    leases.grant(C1, Epoch(1), 1, bare=True)
    clock.advance(10)
    assert leases.beat(C1, None) is not None
    assert leases.free_at(C1) == clock.elapsed() + 280


def test_the_answer_has_the_version_that_the_container_has_reported_if_it_is_an_older_one(leases: Leases) -> None:
    leases.grant(C1, Epoch(4), 7, adopted=6)
    assert headers(leases, C1, 4)["sluice-adopted-version"] == "6"
    leases.set_adopted(C1, 7)
    assert "sluice-adopted-version" not in headers(leases, C1, 4)
    leases.set_model_version([C1], 8)
    assert headers(leases, C1, 4)["sluice-adopted-version"] == "7"


def test_the_answer_has_epoch_lease_interval_and_model(leases: Leases) -> None:
    leases.grant(C1, Epoch(4), 7)
    assert headers(leases, C1, 4) == {
        "sluice-epoch": "4",
        "sluice-lease-seconds": "30",
        "sluice-next-heartbeat-seconds": "5",
        "sluice-job-model-version": "7",
    }


def test_a_superseded_container_is_invalid_but_its_tasks_are_not_yet_free(leases: Leases, clock: FakeClock) -> None:
    leases.grant(C1, Epoch(1), 1)
    clock.advance(10)
    leases.supersede(C1)
    assert leases.beat(C1, Epoch(1)) is None
    assert leases.free_at(C1) == clock.elapsed() + 25


def test_superseding_twice_and_superseding_an_unknown_container_change_nothing(leases: Leases) -> None:
    leases.grant(C1, Epoch(1), 1)
    leases.supersede(C1)
    before = leases.free_at(C1)
    leases.supersede(C1)
    leases.supersede(C2)
    assert (leases.free_at(C1), leases.free_at(C2)) == (before, None)


def test_a_container_is_overdue_only_when_lease_and_grace_have_passed(leases: Leases, clock: FakeClock) -> None:
    leases.grant(C1, Epoch(1), 1)
    leases.grant(C2, Epoch(1), 1)
    leases.supersede(C2)
    clock.advance(34.9)
    assert leases.overdue(10) == []
    clock.advance(0.1)
    assert sorted(leases.overdue(10)) == [C1, C2]


def test_a_heartbeat_that_comes_after_lease_and_grace_is_too_late(leases: Leases, clock: FakeClock) -> None:
    leases.grant(C1, Epoch(1), 1)
    clock.advance(35)
    assert leases.beat(C1, Epoch(1)) is None
    assert leases.overdue(10) == [C1]


def test_overdue_containers_come_in_bounded_portions(leases: Leases, clock: FakeClock) -> None:
    for n in range(10):
        leases.grant(ExecutionContainerId(f"c{n}"), Epoch(1), 1)
    clock.advance(35)
    assert len(leases.overdue(3)) == 3


def test_a_container_that_has_ended_is_removed(leases: Leases, clock: FakeClock) -> None:
    leases.grant(C1, Epoch(1), 1)
    leases.grant(C2, Epoch(1), 1)
    leases.supersede(C2)
    leases.drop(C1)
    leases.drop(C2)
    leases.drop(C3)
    clock.advance(100)
    assert (leases.free_at(C1), leases.free_at(C2), leases.overdue(10), len(leases)) == (None, None, [], 0)


def test_a_superseded_container_keeps_its_tasks_after_a_restart_for_the_longest_possible_lease(leases: Leases, clock: FakeClock) -> None:
    leases.remember_superseded(C1)
    assert leases.beat(C1, Epoch(1)) is None
    assert leases.free_at(C1) == clock.elapsed() + 35


def test_each_renewal_is_returned_once(leases: Leases) -> None:
    leases.grant(C1, Epoch(1), 1)
    leases.grant(C2, Epoch(1), 1)
    leases.beat(C1, Epoch(1))
    leases.beat(C1, Epoch(1))
    leases.beat(C2, None)
    assert leases.take_renewed() == [C1]
    assert leases.take_renewed() == []


def small_rate(clock: FakeClock) -> Leases:
    return Leases(LeasePolicy(lease=timedelta(seconds=30), max_rate=0.2), clock)


def test_a_growing_fleet_gets_longer_terms_with_the_next_heartbeat(clock: FakeClock) -> None:
    leases = small_rate(clock)
    leases.grant(C1, Epoch(1), 1)
    assert headers(leases, C1, 1)["sluice-lease-seconds"] == "30"
    leases.grant(C2, Epoch(1), 1)
    assert headers(leases, C1, 1)["sluice-lease-seconds"] == "60"
    leases.drop(C2)
    assert headers(leases, C1, 1)["sluice-next-heartbeat-seconds"] == "5"


def test_a_lease_never_ends_before_what_an_earlier_answer_promised(clock: FakeClock) -> None:
    leases = small_rate(clock)
    leases.grant(C1, Epoch(1), 1)
    leases.grant(C2, Epoch(1), 1)
    assert headers(leases, C1, 1)["sluice-lease-seconds"] == "60"
    promised = leases.free_at(C1)
    leases.drop(C2)
    clock.advance(10)
    leases.beat(C1, Epoch(1))  # an answer with 30 s, which is lost
    assert leases.free_at(C1) == promised
    leases.grant(C1, Epoch(1), 1)
    assert leases.free_at(C1) == promised


def test_the_lease_in_the_answer_to_a_registration_is_the_lease_that_is_kept(clock: FakeClock) -> None:
    leases = small_rate(clock)
    leases.grant(C1, Epoch(1), 1)
    terms = leases.grant(C2, Epoch(1), 1)
    assert terms.lease == timedelta(seconds=60)
    assert leases.free_at(C2) == clock.elapsed() + 65


def test_after_a_restart_every_container_gets_the_lease_of_the_whole_fleet(clock: FakeClock) -> None:
    leases = small_rate(clock)
    leases.grant(C1, Epoch(1), 1)
    leases.grant(C2, Epoch(1), 1)
    leases.renew_all()
    leases.remember_superseded(C3)
    assert [leases.free_at(each) for each in (C1, C2, C3)] == [clock.elapsed() + 65] * 3


def test_valid_heartbeats_are_counted(leases: Leases) -> None:
    leases.grant(C1, Epoch(1), 1)
    leases.beat(C1, Epoch(1))
    leases.beat(C1, Epoch(9))
    leases.beat("stranger", None)
    assert leases.answered_alive == 1


def test_a_lease_that_is_granted_after_a_sweep_and_ends_before_all_others_is_found(clock: FakeClock) -> None:
    leases = Leases(LeasePolicy(lease=timedelta(seconds=30), max_rate=0.2), clock)
    for each in (C1, C2):
        leases.grant(each, Epoch(1), 1)  # a fleet of two has leases of 60 s
    assert leases.overdue(9) == []
    leases.drop(C1)
    leases.drop(C2)
    leases.grant(C1, Epoch(2), 1)
    clock.advance(34.9)
    assert leases.overdue(9) == []
    clock.advance(0.2)
    assert leases.overdue(9) == [C1]


def test_a_sweep_finds_expired_leases_until_they_are_dropped(leases: Leases, clock: FakeClock) -> None:
    for each in (C1, C2, C3):
        leases.grant(each, Epoch(1), 1)
    clock.advance(20)
    assert leases.beat(C2, Epoch(1)) is not None
    clock.advance(20)
    assert [leases.overdue(1), leases.overdue(9)] == [[C1], [C1, C3]]
    leases.drop(C1)
    assert leases.overdue(9) == [C3]
    leases.drop(C3)
    assert leases.overdue(9) == []
    clock.advance(15)
    assert leases.overdue(9) == [C2]


def test_every_overdue_lease_is_found_after_any_history(clock: FakeClock) -> None:
    """Compares with the plain rule, over many random turns."""
    chance, leases = random.Random(7), Leases(LeasePolicy(lease=timedelta(seconds=30), max_rate=0.5), clock)
    ids = [ExecutionContainerId(f"c{n}") for n in range(8)]
    for _ in range(3_000):
        each = chance.choice(ids)
        match chance.choice(["grant", "beat", "drop"]):
            case "grant":
                leases.grant(each, Epoch(1), 1)
            case "beat":
                leases.beat(each, Epoch(1))
            case _:
                leases.drop(each)
        clock.advance(chance.choice([0.0, 1.0, 10.0, 40.0]))
        due = {each for each in ids if (free_at := leases.free_at(each)) is not None and free_at <= clock.elapsed()}
        assert set(leases.overdue(99)) == due
        for gone in due if chance.random() < 0.5 else ():
            leases.drop(gone)


# --- silence ---------------------------------------------------------------------------------------------------------


def heartbeat_age(leases: Leases, execution_id: ExecutionContainerId = C1) -> tuple[float, bool, bool]:
    """Age of the last heartbeat in seconds, whether there was one since the start, and whether the container counts as silent."""
    found = leases.contact(execution_id)
    assert found is not None
    return found.heartbeat_age.total_seconds(), found.seen, found.silent


def test_a_container_is_silent_when_more_than_three_heartbeats_are_missing(leases: Leases, clock: FakeClock) -> None:
    leases.grant(C1, Epoch(1), 1)
    clock.advance(15)
    assert heartbeat_age(leases) == (15, True, False)
    clock.advance(1)
    assert heartbeat_age(leases) == (16, True, True)
    leases.beat(C1, Epoch(1))
    assert heartbeat_age(leases) == (0, True, False)


def test_after_a_restart_a_container_is_silent_only_if_it_does_not_come_back(leases: Leases, clock: FakeClock) -> None:
    leases.grant(C1, Epoch(1), 1, seen=False)
    assert heartbeat_age(leases) == (0, False, False)
    clock.advance(16)
    assert heartbeat_age(leases) == (16, False, True)


def test_a_bare_container_is_never_silent_and_one_that_is_invalid_is_not_expected(leases: Leases, clock: FakeClock) -> None:
    leases.grant(C1, Epoch(1), 1, bare=True)
    clock.advance(29)
    assert heartbeat_age(leases) == (29, True, False)
    assert leases.contact(C2) is None


# --- bare containers -------------------------------------------------------------------------------------------------


def test_a_bare_container_has_its_own_terms_in_any_fleet(leases: Leases, clock: FakeClock) -> None:
    assert leases.grant(C1, Epoch(1), 1, bare=True).lease == timedelta(seconds=160)
    leases.grant(C2, Epoch(1), 1)
    assert (leases.is_bare(C1), leases.is_bare(C2), leases.is_bare(C3)) == (True, False, False)
    clock.advance(60)
    entry = leases.beat(C1, None)
    assert entry is not None
    assert dict(entry.headers)[b"sluice-lease-seconds"] == b"160"
    assert leases.free_at(C1) == clock.elapsed() + 280
    assert list(leases.overdue(10)) == [C2]


@pytest.mark.parametrize("superseded", [False, True])
def test_its_tasks_are_free_after_its_lease_and_the_time_that_it_needs_to_exit(leases: Leases, clock: FakeClock, superseded: bool) -> None:
    leases.grant(C1, Epoch(1), 1, bare=True)
    if superseded:
        leases.supersede(C1)
        assert leases.beat(C1, None) is None
    clock.advance(279)
    assert list(leases.overdue(10)) == []
    clock.advance(1)
    assert list(leases.overdue(10)) == [C1]
    assert leases.beat(C1, None) is None


def test_after_a_restart_it_gets_its_own_terms_again(leases: Leases, clock: FakeClock) -> None:
    leases.grant(C1, Epoch(1), 1, bare=True)
    leases.grant(C2, Epoch(1), 1)
    clock.advance(20)
    leases.renew_all()
    leases.remember_superseded(C3, bare=True)
    assert [leases.free_at(each) for each in (C1, C2, C3)] == [clock.elapsed() + after for after in (280, 35, 280)]


# --- restarts under other settings -----------------------------------------------------------------------------------

POLICIES = st.builds(
    LeasePolicy,
    lease=st.sampled_from([timedelta(seconds=30), timedelta(seconds=300)]),
    margin=st.sampled_from([timedelta(seconds=2), timedelta(seconds=9)]),
    grace=st.sampled_from([timedelta(seconds=2), timedelta(seconds=20)]),
    max_rate=st.sampled_from([0.2, 5000.0]),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("advance"), st.floats(0, 200)),
        st.tuples(st.sampled_from(["beat", "lose answer", "register", "end"]), st.integers(0, 3)),
        st.tuples(st.just("restart"), POLICIES),
    ),
    max_size=40,
)


class Restarts:
    """Consecutive coordinators, and containers.

    Each container acts until the end of the last lease that it received, less the margin with which it registered. `stored` is the bound in
    the database: it is written before the leases that need it.
    """

    def __init__(self, policy: LeasePolicy) -> None:
        self.clock = FakeClock()
        self.leases = Leases(policy, self.clock)
        self.stored = self.leases.bounds
        self.margins: dict[ExecutionContainerId, float] = {}
        self.acts_until: dict[ExecutionContainerId, float] = {}

    def do(self, what: str, detail: Any) -> None:
        which = ExecutionContainerId(f"c{detail}")
        match what:
            case "advance":
                self.clock.advance(detail)
            case "restart":
                self.restart(detail)
            case "register" if which not in self.margins:
                self.leases.set_bounds(self.leases.needed(1))
                self.stored = self.leases.bounds
                self.margins[which] = self.leases.policy.margin.total_seconds()
                self.hear(which, self.leases.grant(which, Epoch(1), 1).lease)
            case "beat" | "lose answer" if self.acts_until.get(which, 0.0) > self.clock.elapsed():
                entry = self.leases.beat(which, 1)
                if entry is not None and what == "beat":
                    self.hear(which, timedelta(seconds=float(dict(entry.headers)[b"sluice-lease-seconds"])))
            case "end" if which in self.margins:
                self.forget(which)

    def hear(self, which: ExecutionContainerId, lease: timedelta) -> None:
        self.acts_until[which] = self.clock.elapsed() + lease.total_seconds() - self.margins[which] + KILL_TIME.total_seconds()

    def restart(self, policy: LeasePolicy) -> None:
        self.leases = Leases(policy, self.clock)
        self.stored = bounds_at_start(self.stored, self.leases.needed(len(self.margins)), active=bool(self.margins))
        self.leases.begin(self.stored)
        for each in self.margins:
            self.leases.grant(each, Epoch(1), 1, seen=False)
        self.leases.renew_all()

    def chores(self) -> None:
        lower = self.leases.lower_bounds()
        if lower is not None:
            self.leases.set_bounds(lower)
            self.stored = lower
        for each in self.leases.overdue(9):
            assert self.acts_until[each] <= self.clock.elapsed(), each
            self.forget(each)

    def forget(self, which: ExecutionContainerId) -> None:
        self.leases.drop(which)
        del self.margins[which], self.acts_until[which]


@given(first=POLICIES, steps=STEPS)
def test_tasks_are_never_free_while_their_owner_may_act_with_any_settings_of_restarts(
    first: LeasePolicy, steps: list[tuple[str, Any]]
) -> None:
    world = Restarts(first)
    for what, detail in steps:
        world.do(what, detail)
        world.chores()
