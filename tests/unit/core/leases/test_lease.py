from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.errors import BadSettings
from sluice.core.ids import Epoch, Instant
from sluice.core.leases.lease import (
    JITTER,
    KILL_TIME,
    MAX_DRIFT,
    ContainerLease,
    Lease,
    LeasePolicy,
    Terms,
    granted,
    may_renew,
    next_heartbeat,
)


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


def policy(lease: float = 30, interval: float = 5, margin: float = 3, grace: float = 5, max_rate: float = 5000) -> LeasePolicy:
    return LeasePolicy(seconds(lease), seconds(interval), seconds(margin), seconds(grace), max_rate)


def test_the_defaults_are_safe() -> None:
    assert list(LeasePolicy().problems()) == []


@pytest.mark.parametrize("wrong", [{"lease": 0}, {"interval": 0}, {"margin": -1}, {"grace": -1}, {"max_rate": 0}])
def test_durations_and_rate_must_make_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(BadSettings, match="must be positive"):
        policy(**wrong)


@pytest.mark.parametrize(
    ("wrong", "expected"), [({"bare_lease": seconds(60)}, "bare lease > 60 s"), ({"bare_grace": seconds(-1)}, "not negative")]
)
def test_the_lease_of_a_bare_container_covers_its_interval(wrong: dict[str, timedelta], expected: str) -> None:
    with pytest.raises(BadSettings, match=expected):
        LeasePolicy(**wrong)  # type: ignore[arg-type]


def test_a_lease_that_one_lost_heartbeat_would_end_is_refused_by_the_inequalitys_name() -> None:
    with pytest.raises(BadSettings, match=r"lease >= 2 \* interval \+ margin fails \(10 s < 2 \* 5 s \+ 3 s\)"):
        policy(lease=10)


def test_a_margin_and_grace_too_short_to_kill_a_driver_are_refused_by_the_inequalitys_name() -> None:
    with pytest.raises(BadSettings, match=r"margin \+ grace >= kill time \+ drift fails \(1\.2 s < 1\.3 s\)"):
        policy(margin=0.6, grace=0.6)


def test_both_violated_inequalities_are_reported_at_once() -> None:
    with pytest.raises(BadSettings, match=r"2 \* interval.*;.*kill time"):
        policy(lease=9, interval=5, margin=0, grace=0)


def test_exactly_equal_sides_are_safe() -> None:
    assert policy(lease=13, interval=5, margin=3).problems() == []


def test_a_small_fleet_gets_the_terms_as_they_are_set() -> None:
    assert policy().terms(25_000) == Terms(seconds(30), seconds(5))


def test_a_large_fleet_sends_heartbeats_less_often_and_gets_proportionally_longer_leases() -> None:
    assert policy().terms(50_000) == Terms(seconds(60), seconds(10))


def test_terms_grow_in_steps_of_a_quarter() -> None:
    assert {policy(max_rate=100).terms(n).interval for n in range(501, 626)} == {seconds(6.25)}


@given(fleet=st.integers(0, 1_000_000), max_rate=st.floats(1, 10_000))
def test_the_rate_of_heartbeats_stays_under_the_cap(fleet: int, max_rate: float) -> None:
    terms = policy(max_rate=max_rate).terms(fleet)
    assert fleet / terms.interval.total_seconds() <= max_rate * 1.0001
    assert terms.lease / terms.interval == pytest.approx(6)


def test_stretched_terms_that_exceed_margin_and_grace_are_reported_as_an_overlap() -> None:
    tight = policy(margin=1, grace=0.5)
    assert tight.overlap(Terms(seconds(30), seconds(5))) == timedelta(0)
    assert tight.overlap(Terms(seconds(300), seconds(50))) == KILL_TIME + MAX_DRIFT * seconds(300) - seconds(1.5)


def test_a_lease_ends_after_its_duration_and_its_tasks_are_free_after_the_grace_period() -> None:
    lease = granted(Epoch(4), Instant(100.0), Terms(seconds(30), seconds(5)))
    assert lease == Lease(Epoch(4), Instant(130.0), bare=False)
    assert lease.free_at(policy().bounds(policy().terms(0))) == 135.0


@pytest.mark.parametrize(
    ("bare", "sent", "renews"),
    [(False, 3, True), (False, 2, False), (False, 4, False), (False, None, False), (True, None, True), (True, 3, True), (True, 2, False)],
)
def test_only_the_incarnations_own_epoch_renews_unless_it_is_bare(bare: bool, sent: int | None, renews: bool) -> None:
    lease = Lease(Epoch(3), Instant(1.0), bare)
    assert may_renew(lease, None if sent is None else Epoch(sent)) is renews


def test_a_container_trusts_its_lease_from_the_time_of_sending_less_the_margin() -> None:
    trust = ContainerLease(Instant(100.0), seconds(30), seconds(3))
    assert trust.ends_at == 127.0
    assert not trust.expired(Instant(126.999))
    assert trust.expired(Instant(127.0))


@given(
    lease=st.floats(11, 120),
    margin=st.floats(0, 5),
    grace=st.floats(0, 20),
    delay=st.floats(0, 100),
    drift=st.floats(-MAX_DRIFT, MAX_DRIFT),
)
def test_a_dead_containers_tasks_are_free_only_after_it_was_killed(
    lease: float, margin: float, grace: float, delay: float, drift: float
) -> None:
    try:
        safe = policy(lease=lease, interval=1, margin=margin, grace=grace)
    except BadSettings:
        return
    trust = ContainerLease(Instant(0.0), safe.lease, safe.margin)
    killed_at = trust.ends_at * (1 + drift) + KILL_TIME.total_seconds()
    kept = granted(Epoch(1), Instant(delay), Terms(safe.lease, safe.interval))
    assert killed_at <= kept.free_at(safe.bounds(safe.terms(0))) + 1e-6


@pytest.mark.parametrize(("chance", "expected"), [(0.0, 10.0), (0.5, 9.5), (1.0, 9.0)])
def test_the_pause_is_shortened_by_chance_and_never_lengthened(chance: float, expected: float) -> None:
    assert next_heartbeat(seconds(10), chance) == seconds(expected)


@given(st.floats(0, 1, exclude_max=True))
def test_jitter_stays_in_its_bounds(chance: float) -> None:
    assert seconds(5) * (1 - JITTER) <= next_heartbeat(seconds(5), chance) <= seconds(5)
