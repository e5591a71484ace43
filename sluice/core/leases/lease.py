"""Leases: how long a container may run without an answer from the coordinator.

The container counts its lease from the moment it *sent* the last heartbeat that was answered, and stops `margin` before the end. The
coordinator counts from the moment the heartbeat *arrived*, which is later, and reassigns the container's tasks `grace` after the end. Both
use monotonic clocks (see `sluice.clock.elapsed`), so wall clocks may differ by hours; only the *rates* of the two clocks matter, and may
differ by MAX_DRIFT. The time during which two incarnations can act is therefore at most

    kill time + MAX_DRIFT * lease - margin - grace        (not below zero)

where the kill time is the time that the guardian needs to end the driver and its JVM. Appends and reports also contain the task's
generation, so writes of the older incarnation during that time are rejected.

A coordinator that has lost its claim on the database without noticing renews leases for a limited time, the *outage*. Its successor also
waits for this time. The *term* of a coordinator is the number of its claim. Every answer contains it. A container ignores answers with
lower terms than it knows (`KnownTerm`), and sends the highest one with each heartbeat. When a coordinator receives its own term from a
container, a former one can no longer renew that container's lease, and the normal times apply to it.

The coordinator sets lease and heartbeat interval together. Both grow with the fleet, so the rate of heartbeats stays under a cap. The
scheme follows river's leader election ("trust window") and Kafka's group heartbeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import ceil

from sluice.core.errors import BadSettings
from sluice.core.ids import Epoch, Instant

MAX_DRIFT = 0.01
"""The rates of two machines' clocks may differ by one part in a hundred; real ones differ by less than one in a thousand."""

KILL_TIME = timedelta(seconds=1)
"""From the end of a lease until the last process of the driver has ended (measured: 0.1 to 0.6 s)."""

BARE_INTERVAL = timedelta(seconds=60)
"""A client of Apache Samza sends a heartbeat at this fixed interval. It makes six attempts, which take up to 93 s, and then shuts
down, which takes up to 120 s (ContainerHeartbeatClient, ContainerHeartbeatMonitor)."""

JITTER = 0.1
"""A container shortens the interval by a random fraction up to this one, so that the heartbeats of a fleet are spread over time."""


@dataclass(frozen=True, slots=True)
class Terms:
    """A container's lease, and the interval until its next heartbeat."""

    lease: timedelta
    interval: timedelta


@dataclass(frozen=True, slots=True)
class LeasePolicy:
    """The coordinator's settings. Raises BadSettings, with the violated inequality, if they are not safe together. `bare_lease`: the lease
    of a bare container, which must cover its interval and the time of its attempts to send a heartbeat. `bare_grace`: how long its shutdown
    may take. `outage`: how long leases are renewed after the claim on the database was last confirmed; None: without limit, because no
    other coordinator can take the claim while this one runs."""

    lease: timedelta = timedelta(seconds=40)
    interval: timedelta = timedelta(seconds=5)
    margin: timedelta = timedelta(seconds=3)
    grace: timedelta = timedelta(seconds=5)
    max_rate: float = 2500.0
    bare_lease: timedelta = timedelta(seconds=160)
    bare_grace: timedelta = timedelta(seconds=120)
    outage: timedelta | None = None

    def __post_init__(self) -> None:
        wrong = self.problems()
        if wrong:
            raise BadSettings("; ".join(wrong))

    def problems(self) -> Sequence[str]:
        zero = timedelta(0)
        found = []
        if min(self.lease, self.interval) <= zero or min(self.margin, self.grace, self.bare_grace) < zero or self.max_rate <= 0:
            found.append("lease, interval and rate must be positive, margin and grace not negative")
        if self.bare_lease <= BARE_INTERVAL:
            found.append(
                f"bare lease > {BARE_INTERVAL.total_seconds():g} s fails ({self.bare_lease.total_seconds():g} s): "
                "a container without an epoch sends a heartbeat only at this interval"
            )
        if self.lease < 2 * self.interval + self.margin:
            found.append(
                f"lease >= 2 * interval + margin fails ({self.lease.total_seconds():g} s < 2 * {self.interval.total_seconds():g} s + "
                f"{self.margin.total_seconds():g} s): one lost heartbeat would end a healthy container"
            )
        if self.margin + self.grace < KILL_TIME + MAX_DRIFT * self.lease:
            need = (KILL_TIME + MAX_DRIFT * self.lease).total_seconds()
            found.append(
                f"margin + grace >= kill time + drift fails ({(self.margin + self.grace).total_seconds():g} s < {need:g} s): "
                "two incarnations of a slot could act at the same time"
            )
        return found

    def terms(self, fleet: int) -> Terms:
        """The terms for `fleet` containers. If fleet / interval exceeds `max_rate`, `interval` and `lease` grow by the same factor, in
        steps of a quarter, so that the terms do not change with every container."""
        stretch = max(1.0, ceil(4 * fleet / (self.max_rate * self.interval.total_seconds())) / 4)
        return Terms(lease=self.lease * stretch, interval=self.interval * stretch)

    def bounds(self, terms: Terms) -> LeaseBounds:
        """The lease and grace period of containers with these terms, and of bare containers."""
        return LeaseBounds(terms.lease, self.grace, self.bare_lease, self.bare_grace, self.outage or timedelta(0))

    @property
    def bare_terms(self) -> Terms:
        """The terms of bare containers. They do not depend on the fleet, because these clients read no terms."""
        return Terms(lease=self.bare_lease, interval=BARE_INTERVAL)

    def overlap(self, terms: Terms) -> timedelta:
        """How long two incarnations of a slot can act at the same time in the worst case (see the module's docstring)."""
        return max(timedelta(0), KILL_TIME + MAX_DRIFT * terms.lease - self.margin - self.grace)


@dataclass(frozen=True, slots=True)
class LeaseBounds:
    """The longest lease and grace period that a container which may still act was granted, by any coordinator under any settings.

    They are stored before a longer lease is granted. After a restart with shorter leases the coordinator waits for these bounds before it
    reassigns the tasks of a container that it has not seen, because the container may have the longer lease. The bounds contain the grace
    period because a container keeps the margin of its registration, and margin and grace are only safe together.

    `outage`: how long a coordinator may renew such leases after it has lost the claim on the database; 0 if the last one shut down cleanly,
    or if the claim cannot be lost."""

    lease: timedelta
    grace: timedelta
    bare_lease: timedelta
    bare_grace: timedelta
    outage: timedelta = timedelta(0)

    def covering(self, other: LeaseBounds) -> LeaseBounds:
        """The larger of each duration."""
        return LeaseBounds(
            max(self.lease, other.lease),
            max(self.grace, other.grace),
            max(self.bare_lease, other.bare_lease),
            max(self.bare_grace, other.bare_grace),
            max(self.outage, other.outage),
        )

    def lease_of(self, *, bare: bool) -> timedelta:
        return self.bare_lease if bare else self.lease

    def grace_of(self, *, bare: bool) -> timedelta:
        """How long after the end of a container's lease its tasks are reassigned."""
        return self.bare_grace if bare else self.grace

    @property
    def longest(self) -> timedelta:
        """After this long every lease within these bounds has expired, with its grace period, unless a coordinator that has the claim has
        renewed it."""
        return renewed_without_claim(self.outage) + max(self.lease + self.grace, self.bare_lease + self.bare_grace)


def renewed_without_claim(outage: timedelta) -> timedelta:
    """For how long after it has taken the claim a coordinator must expect renewals by the former one, which measures `outage` with its own
    clock."""
    return (1 + MAX_DRIFT) * outage


def bounds_at_start(stored: LeaseBounds | None, own: LeaseBounds, *, active: bool) -> LeaseBounds:
    """The bounds of a coordinator that starts. `stored`: what earlier coordinators stored, None before the first; `own`: those of its
    settings; `active`: whether a container of an earlier coordinator has not ended."""
    return stored.covering(own) if stored is not None and active else own


def former_outage(stored: LeaseBounds | None, own: LeaseBounds, *, active: bool) -> timedelta:
    """How long the former coordinator may renew leases without the claim, at a start with these bounds; see `bounds_at_start`."""
    if not active:
        return timedelta(0)
    return (own if stored is None else stored).outage


def bounds_after_start(at_start: LeaseBounds, granted: LeaseBounds) -> LeaseBounds:
    """The bounds after `at_start.longest` has passed since the start, when containers have only leases that were `granted` since. Their
    margins are those of their registration, so the grace periods are kept."""
    return LeaseBounds(granted.lease, at_start.grace, granted.bare_lease, at_start.bare_grace, granted.outage).covering(granted)


@dataclass(frozen=True, slots=True)
class Lease:
    """The coordinator's view: the container's epoch and the end of its lease. `bare`: the container is a client of Apache Samza, and
    sends no epoch."""

    epoch: Epoch
    ends_at: Instant
    bare: bool = False

    def free_at(self, bounds: LeaseBounds) -> Instant:
        """When the container's tasks may be reassigned, unless it renews the lease."""
        return Instant(self.ends_at + bounds.grace_of(bare=self.bare).total_seconds())


def may_renew(lease: Lease, sent: Epoch | None) -> bool:
    """Whether a heartbeat with epoch `sent` renews the lease: only that of the same incarnation, or of a bare container."""
    return sent == lease.epoch or (sent is None and lease.bare)


def granted(epoch: Epoch, now: Instant, terms: Terms, *, bare: bool = False) -> Lease:
    return Lease(epoch, Instant(now + terms.lease.total_seconds()), bare)


@dataclass(frozen=True, slots=True)
class ContainerLease:
    """The container's view of its lease. `sent_at`: when it sent the last heartbeat that was answered."""

    sent_at: Instant
    lease: timedelta
    margin: timedelta

    @property
    def ends_at(self) -> Instant:
        return Instant(self.sent_at + (self.lease - self.margin).total_seconds())

    def expired(self, now: Instant) -> bool:
        return now >= self.ends_at


@dataclass(slots=True)
class KnownTerm:
    """The highest term that a client knows; 0: none. Coordinators without a term have term 0: those on SQLite, where no other one can take
    the claim."""

    highest: int = 0

    def accepts(self, term: int) -> bool:
        """Whether an answer with this term may be used. An answer with a lower term comes from a coordinator that was replaced."""
        if term < self.highest:
            return False
        self.highest = term
        return True


MISSED = 3
"""Number of missing heartbeats in a row after which a container counts as silent: one is lost with a connection, and two with a restart of
the coordinator."""


def is_silent(heartbeat_age: timedelta, interval: timedelta) -> bool:
    """Whether a container has missed too many heartbeats. It is only displayed; the container keeps its lease and tasks until the lease
    expires."""
    return heartbeat_age > MISSED * interval


def next_heartbeat(interval: timedelta, chance: float) -> timedelta:
    """The pause before the next heartbeat; `chance` is uniform in [0, 1)."""
    return interval * (1 - JITTER * chance)
