"""The leases of all containers, in memory. A heartbeat changes nothing else.

A container is *valid* while its heartbeats renew its lease. It is *ending* once it was superseded or its run has ended: its heartbeats are
answered with false, but it may still act until its last lease and the grace period have expired, so its tasks are not reassigned before
that. A *bare* container, a client of Apache Samza, sends no epoch and reads no terms, so it has terms of its own. After a restart of the
coordinator every container in the database gets a new lease, so that a restart stops no container: the longest that any coordinator may
have granted (`sluice.core.lease.LeaseBounds`), because it is not known which one the container has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from math import inf

from sluice.clock import Clock
from sluice.core.errors import StoreUnavailable
from sluice.core.ids import Epoch, ExecutionContainerId, Instant
from sluice.core.lease import Lease, LeaseBounds, LeasePolicy, Terms, bounds_after_start, granted, is_silent, may_renew

HeaderList = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Contact:
    """When a valid container was last heard of. `heartbeat_age`: the time since its last heartbeat or its registration; with `heard` false,
    since this coordinator started. `silent`: see `sluice.core.lease.is_silent`."""

    heartbeat_age: timedelta
    heard: bool
    silent: bool


class LeaseEntry:
    """A valid container's lease, with the headers of the answers to its heartbeats. Mutable, so that a renewal allocates only a number."""

    __slots__ = ("bare", "ends_at", "epoch", "headers", "heard", "heard_at", "model_version")

    def __init__(self, lease: Lease, model_version: int, headers: HeaderList, heard_at: float, *, heard: bool) -> None:
        self.epoch = lease.epoch
        self.heard_at = heard_at
        self.heard = heard
        self.ends_at: float = lease.ends_at
        self.bare = lease.bare
        self.model_version = model_version
        self.headers = headers

    @property
    def lease(self) -> Lease:
        return Lease(self.epoch, Instant(self.ends_at), self.bare)


class Leases:
    """For one event loop; there are no locks. `bounds` are stored in the database; see `needed`. `outage`: leases are renewed so long after
    the claim on the database was last confirmed; None: without limit, where no other coordinator can take it while this one runs."""

    def __init__(self, policy: LeasePolicy, clock: Clock, outage: timedelta | None = None) -> None:
        self.policy = policy
        self._outage = outage
        self._renews_until = inf
        self.terms: Terms = policy.terms(0)
        self.bounds: LeaseBounds = policy.bounds(self.terms)
        self._granted = self.bounds
        """The bounds of the leases granted since the start."""
        self._inherited_until: Instant | None = None
        """Until then `bounds` are also those of earlier coordinators."""
        self._lease_seconds = self.terms.lease.total_seconds()
        self._grace_seconds = policy.grace.total_seconds()
        self._bare_lease_seconds = policy.bare_lease.total_seconds()
        self._bare_grace_seconds = policy.bare_grace.total_seconds()
        self.answered_alive = 0
        self.answered_invalid = 0
        """Counted where that answer is sent, which is not on the fast path."""
        self._clock = clock
        self._valid: dict[str, LeaseEntry] = {}
        self._ending: dict[str, Instant] = {}
        self._renewed: set[str] = set()
        self._next_expiry = Instant(0.0)
        """No valid container is overdue before this time: a lower bound, because heartbeats only postpone expiry."""

    def __len__(self) -> int:
        return len(self._valid)

    @property
    def ending(self) -> int:
        """How many containers are no longer valid but may still act."""
        return len(self._ending)

    def claim_confirmed(self, at: Instant) -> None:
        """The claim on the database was held when a request was sent at that time."""
        if self._outage is not None:
            self._renews_until = at + self._outage.total_seconds()

    @property
    def may_renew(self) -> bool:
        """Whether the claim was confirmed recently enough. Otherwise another coordinator may have it, and give the tasks away."""
        return self._clock.elapsed() < self._renews_until

    def needed(self, more: int) -> LeaseBounds:
        """The bounds to store before leases are granted to so many more containers."""
        return self.bounds.covering(self.policy.bounds(self.policy.terms(len(self._valid) + more)))

    def set_bounds(self, bounds: LeaseBounds) -> None:
        """Call it when they are stored."""
        self.bounds = bounds
        self._grace_seconds = bounds.grace.total_seconds()
        self._bare_grace_seconds = bounds.bare_grace.total_seconds()

    def begin(self, bounds: LeaseBounds) -> None:
        """Set the bounds at the start of the coordinator; see `sluice.core.lease.bounds_at_start`. Call it before any grant."""
        self.set_bounds(bounds)
        self._inherited_until = Instant(self._clock.elapsed() + bounds.longest.total_seconds())

    def lower_bounds(self) -> LeaseBounds | None:
        """Lower bounds to store, when the leases of earlier coordinators have expired; None if they have not, or the bounds would be the
        same. `set_bounds` ends it."""
        if self._inherited_until is None or self._clock.elapsed() < self._inherited_until:
            return None
        bounds = bounds_after_start(self.bounds, self._granted)
        if bounds == self.bounds:
            self._inherited_until = None
            return None
        return bounds

    def grant(
        self, execution_id: ExecutionContainerId, epoch: Epoch, model_version: int, *, bare: bool = False, heard: bool = True
    ) -> Terms:
        """Make the container valid, with a full lease from now. `heard` is false for one that is known from the database: it gets the
        longest lease that it may have from an earlier coordinator."""
        self._ending.pop(execution_id, None)
        self._adjust_terms(len(self._valid) + (execution_id not in self._valid))
        now, terms = self._clock.elapsed(), self._terms_of(bare=bare)
        lease = granted(epoch, now, terms if heard else self._longest_terms(bare=bare), bare=bare)
        former = self._valid.get(execution_id)
        headers = _headers(epoch, model_version, terms)
        entry = self._valid[execution_id] = LeaseEntry(lease, model_version, headers, now, heard=heard)
        if former is not None:
            entry.ends_at = max(entry.ends_at, former.ends_at)
        self._expect_expiry(self._free_at(entry))
        return terms

    def _terms_of(self, *, bare: bool) -> Terms:
        return self.policy.bare_terms if bare else self.terms

    def _longest_terms(self, *, bare: bool) -> Terms:
        terms = self._terms_of(bare=bare)
        return Terms(max(terms.lease, self.bounds.lease_of(bare=bare)), terms.interval)

    def _free_at(self, entry: LeaseEntry) -> float:
        """When its lease and grace period have expired."""
        return entry.ends_at + (self._bare_grace_seconds if entry.bare else self._grace_seconds)

    def is_bare(self, execution_id: str) -> bool:
        """Whether it is a valid container that sends no epoch."""
        entry = self._valid.get(execution_id)
        return entry is not None and entry.bare

    def set_model_version(self, execution_ids: Sequence[ExecutionContainerId], version: int) -> None:
        """Name the version of the job model in the answers to the heartbeats of these containers. Containers that are not valid are
        ignored."""
        for execution_id in execution_ids:
            entry = self._valid.get(execution_id)
            if entry is not None:
                entry.model_version = version
                entry.headers = _headers(entry.epoch, version, self._terms_of(bare=entry.bare))

    def renew_all(self) -> None:
        """Give every valid container the longest lease from now. Used after a restart, when the terms are known once all containers are
        loaded."""
        now = self._clock.elapsed()
        for entry in self._valid.values():
            entry.ends_at = now + self._longest_terms(bare=entry.bare).lease.total_seconds()
            self._expect_expiry(self._free_at(entry))

    def beat(self, execution_id: str, sent: int | None) -> LeaseEntry | None:
        """Renew the lease if the heartbeat is of the valid incarnation. Returns its entry, or None if the answer is false.

        A heartbeat without epoch, of a container that sends one, is answered as alive and renews nothing. A heartbeat after lease and grace
        period is refused, because the tasks may have been reassigned. A lease never ends earlier than a former answer said: if a shrinking
        fleet shortens the terms and this answer is lost, the container trusts the longer lease of the answer before.

        Raises StoreUnavailable if no lease may be renewed; see `may_renew`."""
        if not self.may_renew:
            raise StoreUnavailable("the claim on the database has not been confirmed for too long: another coordinator may have it")
        entry = self._valid.get(execution_id)
        if entry is None or (sent is not None and sent != entry.epoch):
            return None
        now = self._clock.elapsed()
        bare = entry.bare
        if now >= entry.ends_at + (self._bare_grace_seconds if bare else self._grace_seconds):
            return None
        self.answered_alive += 1
        if sent is not None or may_renew(entry.lease, None):  # as `granted` does, without making a Lease
            entry.ends_at = max(entry.ends_at, now + (self._bare_lease_seconds if bare else self._lease_seconds))
            entry.heard_at, entry.heard = now, True
            self._renewed.add(execution_id)
        return entry

    def epoch_of(self, execution_id: ExecutionContainerId) -> Epoch | None:
        """The epoch of a valid container."""
        entry = self._valid.get(execution_id)
        return entry.epoch if entry else None

    def known(self) -> Sequence[ExecutionContainerId]:
        """All containers that may act, valid or ending."""
        return [ExecutionContainerId(each) for each in (*self._valid, *self._ending)]

    def supersede(self, execution_id: ExecutionContainerId) -> None:
        """Answer its heartbeats with false from now on. The container keeps its tasks until lease and grace period have expired.
        Idempotent."""
        entry = self._valid.pop(execution_id, None)
        if entry is not None:
            self._ending[execution_id] = Instant(self._free_at(entry))
            self._adjust_terms(len(self._valid))

    def remember_superseded(self, execution_id: ExecutionContainerId, *, bare: bool = False) -> None:
        """For a superseded container whose lease is unknown: it gets the longest that it can have. Nothing if it is known."""
        if execution_id in self._ending:
            return
        lease = granted(Epoch(0), self._clock.elapsed(), self._longest_terms(bare=bare), bare=bare)
        self._ending[execution_id] = lease.free_at(self.bounds)

    def drop(self, execution_id: ExecutionContainerId) -> None:
        """Forget a container that has ended."""
        self._ending.pop(execution_id, None)
        if self._valid.pop(execution_id, None) is not None:
            self._adjust_terms(len(self._valid))

    def free_at(self, execution_id: ExecutionContainerId) -> Instant | None:
        """When the container's tasks may be reassigned; None if it has no lease."""
        entry = self._valid.get(execution_id)
        return Instant(self._free_at(entry)) if entry else self._ending.get(execution_id)

    def left(self, execution_id: ExecutionContainerId) -> timedelta | None:
        """The time until the container's lease expires, at least 0; None for a container that is not valid."""
        entry = self._valid.get(execution_id)
        return timedelta(seconds=max(0.0, entry.ends_at - self._clock.elapsed())) if entry else None

    def contact(self, execution_id: ExecutionContainerId) -> Contact | None:
        """When the container was last heard of; None for one that is not valid. A bare container is never silent: it chooses its own
        interval."""
        entry = self._valid.get(execution_id)
        if entry is None:
            return None
        heartbeat_age = timedelta(seconds=max(0.0, self._clock.elapsed() - entry.heard_at))
        return Contact(heartbeat_age, entry.heard, silent=not entry.bare and is_silent(heartbeat_age, self.terms.interval))

    def overdue(self, limit: int) -> Sequence[ExecutionContainerId]:
        """Up to `limit` containers, valid or ending, whose lease and grace period have expired.

        All valid containers are scanned only if one of them may be overdue: once per lease duration if no container fails."""
        now = self._clock.elapsed()
        found = [each for each, free_at in self._ending.items() if free_at <= now]
        if now >= self._next_expiry:
            first = min(map(self._free_at, self._valid.values()), default=inf)
            self._next_expiry = Instant(first)
            if first <= now:
                found += [each for each, entry in self._valid.items() if self._free_at(entry) <= now]
        return [ExecutionContainerId(each) for each in found[:limit]]

    def _expect_expiry(self, free_at: float) -> None:
        self._next_expiry = Instant(min(self._next_expiry, free_at))

    def take_renewed(self) -> Sequence[ExecutionContainerId]:
        """The containers whose lease was renewed since the last call."""
        renewed, self._renewed = self._renewed, set()
        return [ExecutionContainerId(each) for each in renewed]

    def _adjust_terms(self, fleet: int) -> None:
        terms = self.policy.terms(fleet)
        if terms != self.terms:
            self.terms = terms
            self._granted = self._granted.covering(self.policy.bounds(terms))
            self._lease_seconds = terms.lease.total_seconds()
            for entry in self._valid.values():
                entry.headers = _headers(entry.epoch, entry.model_version, self._terms_of(bare=entry.bare))


@lru_cache(maxsize=1024)
def _headers(epoch: Epoch, model_version: int, terms: Terms) -> HeaderList:
    """Cached, because most containers of a fleet get equal headers."""
    return (
        (b"sluice-epoch", b"%d" % epoch),
        (b"sluice-lease-seconds", _seconds(terms.lease)),
        (b"sluice-next-heartbeat-seconds", _seconds(terms.interval)),
        (b"sluice-job-model-version", b"%d" % model_version),
    )


def _seconds(duration: timedelta) -> bytes:
    return f"{duration.total_seconds():g}".encode()
