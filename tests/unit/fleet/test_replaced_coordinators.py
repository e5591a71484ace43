"""Coordinators that are cut off from the database, frozen or killed, their successors, and containers that reach some of them, in virtual
time: a task never has two holders that can act.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coordinator.fleet.leases import Leases
from sluice.core.errors import StoreUnavailable
from sluice.core.ids import Epoch, ExecutionContainerId, Generation, Instant
from sluice.core.leases.lease import KILL_TIME, ContainerLease, KnownTerm, LeaseBounds, LeasePolicy, bounds_at_start, former_outage
from sluice.core.leases.ownership import Granted, TaskOwner, acquire
from tests.support.fakes import FakeClock

ANSWER_SECONDS = 5.0

DEFAULTS = LeasePolicy(outage=timedelta(seconds=120))


class MachineClock(FakeClock):
    """Its rate differs from true time by up to half of what leases allow between two machines."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def advance(self, seconds: float) -> None:
        super().advance(seconds * self.rate)


@dataclass
class Database:
    """What coordinators store. `confirmed`: when the claim was renewed last, in true time."""

    claim: str = ""
    term: int = 0
    confirmed: float = -1e9
    bounds: LeaseBounds | None = None
    containers: dict[ExecutionContainerId, Epoch] = field(default_factory=dict)
    owner: TaskOwner | None = None


@dataclass
class Coordinator:
    name: str
    clock: MachineClock
    leases: Leases
    cut: bool = False


@dataclass
class Container:
    """It stops by itself when its lease ends less the margin, and has ended `KILL_TIME` later. `reaches`: the coordinators that it reaches
    in turns, 0 for the newest, 1 for the one before it.
    """

    execution_id: ExecutionContainerId
    epoch: Epoch
    clock: MachineClock
    trust: ContainerLease
    known: KnownTerm
    generation: int = 0
    reaches: tuple[int, ...] = (0,)

    @property
    def acts(self) -> bool:
        return not self.trust.expired(Instant(self.clock.elapsed() - KILL_TIME.total_seconds()))


class World:
    def __init__(self) -> None:
        self.now = 0.0
        self.database = Database()
        self.coordinators: dict[str, Coordinator] = {}
        self.containers: dict[str, Container] = {}
        self.started = 0
        self.registered = 0
        self.grants = 0
        self.turns = 0

    def pass_time(self, seconds: float) -> None:
        """Coordinators confirm their claims each second, and release the tasks of containers whose leases have expired."""
        while seconds > 0:
            passed = min(1.0, seconds)
            seconds -= passed
            self.now += passed
            for clock in [each.clock for each in self.coordinators.values()] + [each.clock for each in self.containers.values()]:
                clock.advance(passed)
            for coordinator in list(self.coordinators.values()):
                if not coordinator.cut:
                    self.keep_claim(coordinator)
            self.check()

    def advance(self, seconds: float) -> None:
        """Containers send heartbeats every four seconds, and ask for the task."""
        while seconds > 0:
            self.pass_time(min(4.0, seconds))
            seconds -= 4.0
            self.turns += 1
            for container in list(self.containers.values()):
                coordinator = self.coordinator(container.reaches[self.turns % len(container.reaches)])
                if coordinator is not None and container.acts:
                    self.beat(container, coordinator, 0, 0, lost=False)
                    self.acquire(container, coordinator)
                self.check()

    def coordinator(self, age: int) -> Coordinator | None:
        found = list(self.coordinators.values())
        return found[-1 - age] if age < len(found) else None

    def keep_claim(self, coordinator: Coordinator) -> None:
        database, leases = self.database, coordinator.leases
        if database.claim != coordinator.name:
            del self.coordinators[coordinator.name]  # another has the claim: this one ends
            return
        database.confirmed = self.now
        leases.claim_confirmed(coordinator.clock.elapsed())
        for overdue in leases.overdue(9):
            if database.owner is not None and database.owner.holder == overdue:
                database.owner = replace(database.owner, released=True)
            database.containers.pop(overdue, None)
            leases.drop(overdue)
        lower = leases.lower_bounds()
        if lower is not None:
            database.bounds = lower
            leases.set_bounds(lower)

    def start(self, policy: LeasePolicy, rate: float) -> None:
        """Refused while the holder of the claim reaches the database. The session of one that does not may have ended, so its claim need
        not run out."""
        database = self.database
        holder = self.coordinators.get(database.claim)
        if holder is not None and not holder.cut:
            return
        clock = MachineClock(rate)
        leases = Leases(policy, clock)
        self.started += 1
        database.claim, database.term, database.confirmed = f"coordinator {self.started}", database.term + 1, self.now
        leases.claim_confirmed(clock.elapsed())
        stored, own, active = database.bounds, leases.needed(len(database.containers)), bool(database.containers)
        database.bounds = bounds_at_start(stored, own, active=active)
        leases.begin(database.bounds, database.term, former_outage(stored, own, active=active))
        newest = max(database.containers.values(), default=None)
        for each, epoch in database.containers.items():
            if epoch == newest:
                leases.grant(each, epoch, 1, seen=False)
        leases.renew_all()
        for each, epoch in database.containers.items():
            if epoch != newest:
                leases.remember_superseded(each)
        self.coordinators[database.claim] = Coordinator(database.claim, clock, leases)

    def stop(self, coordinator: Coordinator) -> None:
        bounds = coordinator.leases.end()
        del self.coordinators[coordinator.name]
        if bounds is not None and not coordinator.cut and self.database.claim == coordinator.name:
            self.database.bounds = bounds

    def register(self, coordinator: Coordinator, rate: float) -> None:
        """A new incarnation supersedes the former ones."""
        database, leases = self.database, coordinator.leases
        if coordinator.cut or database.claim != coordinator.name:
            return
        bounds = leases.needed(1)
        database.bounds = bounds
        leases.set_bounds(bounds)
        self.registered += 1
        execution_id, epoch = ExecutionContainerId(f"c{self.registered}"), Epoch(self.registered)
        for former in database.containers:
            leases.supersede(former)
        database.containers[execution_id] = epoch
        terms = leases.grant(execution_id, epoch, 1)
        clock = MachineClock(rate)
        trust = ContainerLease(clock.elapsed(), terms.lease, leases.policy.margin)
        self.containers[execution_id] = Container(execution_id, epoch, clock, trust, KnownTerm(leases.term))

    def beat(self, container: Container, coordinator: Coordinator, there: float, back: float, *, lost: bool) -> None:
        sent_at = container.clock.elapsed()
        term = b"%d" % container.known.highest
        self.pass_time(there)
        if coordinator.name not in self.coordinators:
            return
        try:
            entry = coordinator.leases.beat(container.execution_id, container.epoch, term)
        except StoreUnavailable:
            return
        lease = None if entry is None else float(dict(entry.headers)[b"sluice-lease-seconds"])
        self.pass_time(back)
        if lost or not container.acts or container.clock.elapsed() - sent_at > ANSWER_SECONDS:
            return
        if not container.known.accepts(coordinator.leases.term):
            return
        if lease is None:
            self.containers.pop(container.execution_id, None)  # it ends at once
        else:
            container.trust = ContainerLease(sent_at, timedelta(seconds=lease), container.trust.margin)

    def acquire(self, container: Container, coordinator: Coordinator) -> None:
        database, leases = self.database, coordinator.leases
        valid = leases.epoch_of(container.execution_id) == container.epoch
        if coordinator.cut or database.claim != coordinator.name or not container.acts or not valid:
            return
        free_at = leases.free_at(database.owner.holder) if database.owner else None
        decision = acquire(database.owner, container.execution_id, free_at, coordinator.clock.elapsed())
        if isinstance(decision, Granted):
            database.owner = TaskOwner(decision.generation, container.execution_id, released=False)
            container.generation = decision.generation
            self.grants += 1

    def check(self) -> None:
        acting = [each.execution_id for each in self.containers.values() if each.generation and each.acts]
        assert len(acting) <= 1, f"at {self.now:.1f}: {acting}"

    def do(self, what: str, age: int, slot: int, seconds: float, rate: float, policy: LeasePolicy) -> None:
        """`age`: of the coordinator, 0 for the newest. `slot`: the same for the container."""
        containers = list(self.containers.values())
        coordinator = self.coordinator(age)
        container = containers[-1 - slot] if slot < len(containers) else None
        if what == "advance":
            self.advance(seconds)
        elif what == "start":
            self.start(policy, rate)
        elif coordinator is not None:
            self.do_to_coordinator(what, coordinator, rate)
        if container is not None:
            self.do_to_container(what, age, container, coordinator, seconds)
        self.check()

    def do_to_coordinator(self, what: str, coordinator: Coordinator, rate: float) -> None:
        match what:
            case "kill":
                del self.coordinators[coordinator.name]
            case "stop":
                self.stop(coordinator)
            case "cut" | "mend":
                coordinator.cut = what == "cut"
            case "register":
                self.register(coordinator, rate)

    def do_to_container(self, what: str, age: int, container: Container, coordinator: Coordinator | None, seconds: float) -> None:
        match what:
            case "reach":
                container.reaches = (age,)
            case "reach both":
                container.reaches = (0, 1)
            case "beat" | "lose answer" if coordinator is not None and container.acts:
                self.beat(container, coordinator, seconds / 100, seconds / 80, lost=what == "lose answer")
            case "exit":
                del self.containers[container.execution_id]  # without a report


POLICIES = st.builds(
    LeasePolicy,
    lease=st.sampled_from([timedelta(seconds=40), timedelta(seconds=300)]),
    grace=st.sampled_from([timedelta(seconds=5), timedelta(seconds=20)]),
    max_rate=st.sampled_from([0.3, 2500.0]),
    outage=st.sampled_from([timedelta(seconds=15), timedelta(seconds=120)]),
)
KINDS = [
    *("advance", "advance", "advance", "start", "start", "cut", "cut", "register", "register", "reach", "reach", "reach both"),
    *("beat", "lose answer", "kill", "stop", "mend", "exit"),
]
STEPS = st.tuples(
    st.sampled_from(KINDS),
    st.sampled_from([0, 0, 1]),
    st.sampled_from([0, 1]),
    st.sampled_from([4.0, 36.0, 48.0, 130.0, 170.0, 400.0]),
    st.sampled_from([0.995, 1.0, 1.005]),
    POLICIES,
)
Step = tuple[str, int, int, float, float, LeasePolicy]


def step(what: str, age: int = 0, seconds: float = 0.0) -> Step:
    return what, age, 0, seconds, 1.0, DEFAULTS


HELD = [step("start"), step("register"), step("advance", seconds=4)]
"""The container has the task."""

REPLACED = [step("cut"), step("start")]
"""The coordinator is cut off from the database alone, and another takes the claim."""

UNREACHED = [step("reach", age=1), step("register"), step("advance", seconds=400)]
"""The container reaches only the former coordinator, and the other one has a container for its slot."""

CUT_OFF = [*HELD, *REPLACED, *UNREACHED[:-1]]


def happened(steps: list[Step]) -> World:
    world = World()
    for each in steps:
        world.do(*each)
    return world


@settings(max_examples=settings().max_examples * 3)
@given(steps=st.lists(STEPS, max_size=30))
@example(steps=[*REPLACED, *UNREACHED])
@example(steps=[*REPLACED, step("advance", seconds=8), *UNREACHED])
@example(steps=[*REPLACED, step("lose answer"), step("lose answer"), *UNREACHED])
@example(steps=[*REPLACED, step("reach", age=1), step("stop"), step("start"), *UNREACHED])
def test_a_task_never_has_two_holders_that_can_act(steps: list[Step]) -> None:
    happened([*HELD, *steps])


def given_away_after(*steps: Step) -> float:
    """How long after these steps the task is given to the newest container."""
    world = happened(list(steps))
    began, grants = world.now, world.grants
    while world.grants == grants:
        world.do(*step("advance", seconds=1))
        assert world.now - began < 1000
    return world.now - began


LONGEST = 120 * 1.01 + 40 + 5


def test_a_container_that_only_the_former_coordinator_reaches_keeps_its_task_until_that_one_renews_no_more() -> None:
    assert LONGEST <= given_away_after(*CUT_OFF) <= LONGEST + 2


def test_a_container_that_has_acknowledged_the_successor_is_not_kept_alive_by_the_former_coordinator() -> None:
    acknowledged = [*HELD, *REPLACED, step("advance", seconds=8), *UNREACHED[:-1]]
    assert 40 + 5 - 4 <= given_away_after(*acknowledged) <= 40 + 5 + 2


@pytest.mark.parametrize(("end", "longest"), [("stop", 40 + 5), ("kill", LONGEST)])
def test_only_after_an_orderly_end_the_successor_waits_for_no_former_coordinator(end: str, longest: float) -> None:
    assert longest <= given_away_after(*HELD, step(end), step("exit"), step("start"), step("register")) <= longest + 2


def test_an_orderly_end_does_not_cover_an_earlier_coordinator() -> None:
    assert given_away_after(*HELD, *REPLACED, step("reach", age=1), step("stop"), step("start"), *UNREACHED[:-1]) >= LONGEST


def test_no_container_is_lost_in_ninety_seconds_without_the_database() -> None:
    world = happened([*HELD, step("cut"), step("advance", seconds=90), step("mend"), step("advance", seconds=60)])
    (container,), (coordinator,) = world.containers.values(), world.coordinators.values()
    assert container.acts
    assert coordinator.leases.known() == [container.execution_id]
    assert world.database.owner == TaskOwner(Generation(1), container.execution_id, released=False)


def test_unacknowledged_containers_are_counted_while_a_former_coordinator_may_renew_their_leases() -> None:
    killed = [*HELD, step("kill"), step("start")]

    def unacknowledged(*more: Step) -> int:
        (coordinator,) = happened([*killed, *more]).coordinators.values()
        return coordinator.leases.unacknowledged

    assert [unacknowledged(), unacknowledged(step("beat")), unacknowledged(step("beat"), step("beat"))] == [1, 1, 0]
    assert unacknowledged(step("exit"), step("advance", seconds=121)) == 1
    assert unacknowledged(step("exit"), step("advance", seconds=122)) == 0
