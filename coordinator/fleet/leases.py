"""The leases of all containers, in memory. A heartbeat only changes memory.

A container is *valid* while its heartbeats renew its lease. It is *ending* once it was superseded or its run has ended: its heartbeats are
answered with false, but it may still act until its last lease and the grace period have expired, so its tasks are not reassigned before
that. A *bare* container, a client of Apache Samza, sends no epoch and reads no terms, so bare containers have separate terms. After a
restart of the coordinator every container in the database gets a new lease, so that a restart stops no container. It is the longest lease
that any coordinator may have granted (`sluice.core.leases.lease.LeaseBounds`), because it is unknown which one the container has.

A former coordinator that has lost the claim on the database may still be running, and may still renew leases. Therefore a container that
has not *acknowledged* the term of this coordinator keeps its tasks longer, by the maximum time for which a coordinator without the claim
renews leases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import lru_cache
from math import inf

from sluice.clock import Clock
from sluice.core.access.tokens import Digest, digest, is_same
from sluice.core.errors import StoreUnavailable
from sluice.core.ids import Epoch, ExecutionContainerId, Instant
from sluice.core.leases.lease import (
    Lease,
    LeaseBounds,
    LeasePolicy,
    Terms,
    bounds_after_start,
    granted,
    is_silent,
    may_renew,
    renewed_without_claim,
)
from sluice.wire.body import HeaderList, header_lines


@dataclass(frozen=True, slots=True)
class Contact:
    """When a valid container was last seen. `heartbeat_age`: the time since its last heartbeat or its registration; with `seen` false,
    since this coordinator started. `silent`: see `sluice.core.leases.lease.is_silent`."""

    heartbeat_age: timedelta
    seen: bool
    silent: bool


class LeaseEntry:
    """A valid container's lease, with the headers of the answers to its heartbeats, as a list and as lines. Mutable, so that a renewal
    allocates only a number. `model_version`: of the run. `adopted`: the version that the container has reported. `acknowledged`: no former
    coordinator can renew it. `token`: the digest of the container's token; None if it has none."""

    __slots__ = (
        "acknowledged",
        "adopted",
        "bare",
        "ends_at",
        "epoch",
        "header_lines",
        "headers",
        "model_version",
        "seen",
        "seen_at",
        "term",
        "token",
    )

    def __init__(
        self,
        lease: Lease,
        model_version: int,
        terms: Terms,
        term: int,
        seen_at: float,
        *,
        seen: bool,
        acknowledged: bool,
        token: Digest | None,
        adopted: int,
    ) -> None:
        self.adopted = adopted
        self.token = token
        self.term = term
        self.acknowledged = acknowledged
        self.epoch = lease.epoch
        self.seen_at = seen_at
        self.seen = seen
        self.ends_at: float = lease.ends_at
        self.bare = lease.bare
        self.set_headers(model_version, terms)

    def set_headers(self, model_version: int, terms: Terms) -> None:
        self.model_version = model_version
        self.headers, self.header_lines = _headers(self.epoch, model_version, min(self.adopted, model_version), terms, self.term)

    @property
    def lease(self) -> Lease:
        return Lease(self.epoch, Instant(self.ends_at), self.bare)


class Leases:
    """For one event loop; there are no locks. `bounds` are stored in the database; see `needed`."""

    def __init__(self, policy: LeasePolicy, clock: Clock) -> None:
        self.policy = policy
        self.term = 0
        """The term of this coordinator's claim; 0 if it has none."""
        self.term_text = b""
        """The term as containers send it; empty if there is none."""
        self._renews_until = inf
        self._former_renews_until = -inf
        """The time until which a former coordinator may renew the leases of containers that have not acknowledged the term."""
        self.terms: Terms = policy.terms(0)
        self.bounds: LeaseBounds = policy.bounds(self.terms)
        self._granted = self.bounds
        """The bounds of the leases granted since the start."""
        self._inherited_until: Instant | None = None
        """The time until which `bounds` also cover the leases of earlier coordinators."""
        self._lease_seconds = self.terms.lease.total_seconds()
        self._grace_seconds = policy.grace.total_seconds()
        self._bare_lease_seconds = policy.bare_lease.total_seconds()
        self._bare_grace_seconds = policy.bare_grace.total_seconds()
        self.answered_alive = 0
        self.answered_invalid = 0
        """Incremented where that answer is sent, which is not on the fast path."""
        self._clock = clock
        self._valid: dict[str, LeaseEntry] = {}
        self._ending: dict[str, Instant] = {}
        self.bare: set[str] = set()
        """The bare containers that may act, valid or ending."""
        self._renewed: set[str] = set()
        self._next_expiry = Instant(0.0)
        """No valid container is overdue before this time: a lower bound, because heartbeats postpone expiry."""

    def __len__(self) -> int:
        return len(self._valid)

    @property
    def ending(self) -> int:
        """How many containers are no longer valid but may still act."""
        return len(self._ending)

    def claim_confirmed(self, at: Instant) -> None:
        """Record that the claim on the database was held at this time, when the request that confirmed it was sent."""
        if self.policy.outage is not None:
            self._renews_until = at + self.policy.outage.total_seconds()

    @property
    def may_renew(self) -> bool:
        """Whether the claim was confirmed recently enough. Otherwise another coordinator may have it, and may reassign the tasks."""
        return self._clock.elapsed() < self._renews_until

    def needed(self, more: int) -> LeaseBounds:
        """The bounds to store before leases are granted to `more` containers."""
        return self.bounds.covering(self.policy.bounds(self.policy.terms(len(self._valid) + more)))

    def set_bounds(self, bounds: LeaseBounds) -> None:
        """Use these bounds. Call it after they are stored."""
        self.bounds = bounds
        self._grace_seconds = bounds.grace.total_seconds()
        self._bare_grace_seconds = bounds.bare_grace.total_seconds()

    def begin(self, bounds: LeaseBounds, term: int = 0, former_outage: timedelta = timedelta(0)) -> None:
        """Set the bounds at the start of the coordinator; see `sluice.core.leases.lease.bounds_at_start`. Call it before any grant, and
        after the claim was taken. `former_outage`: how long the former coordinator may renew leases after it has lost the claim."""
        now = self._clock.elapsed()
        self.set_bounds(bounds)
        self.term, self.term_text = term, b"%d" % term if term else b""
        if former_outage:
            self._former_renews_until = now + renewed_without_claim(former_outage).total_seconds()
        self._inherited_until = Instant(now + bounds.longest.total_seconds())

    @property
    def unacknowledged(self) -> int:
        """The number of valid containers whose leases a former coordinator may still renew."""
        if self._clock.elapsed() >= self._former_renews_until:
            return 0
        return sum(not entry.acknowledged for entry in self._valid.values())

    def end(self) -> LeaseBounds | None:
        """Renew no lease from now on. Returns the bounds to store at a clean shutdown, after which the next coordinator need not wait for
        this one. None if an earlier coordinator may still renew leases, or if the stored bounds already say so."""
        self._renews_until = -inf
        former = self._clock.elapsed() < self._former_renews_until and (self.unacknowledged or self._ending)
        return None if former or not self.bounds.outage else replace(self.bounds, outage=timedelta(0))

    def lower_bounds(self) -> LeaseBounds | None:
        """Lower bounds to store after the leases of earlier coordinators have expired. None if they have not, or if the bounds would be the
        same. Call `set_bounds` after storing them."""
        if self._inherited_until is None or self._clock.elapsed() < self._inherited_until:
            return None
        bounds = bounds_after_start(self.bounds, self._granted)
        if bounds == self.bounds:
            self._inherited_until = None
            return None
        return bounds

    def grant(
        self,
        execution_id: ExecutionContainerId,
        epoch: Epoch,
        model_version: int,
        *,
        bare: bool = False,
        seen: bool = True,
        token: Digest | None = None,
        adopted: int | None = None,
    ) -> Terms:
        """Make the container valid, with a full lease from now. `seen` is false for a container that was read from the database: it gets
        the longest lease that an earlier coordinator may have granted. `adopted`: the version that it has reported; None:
        `model_version`."""
        self._ending.pop(execution_id, None)
        self._adjust_terms(len(self._valid) + (execution_id not in self._valid))
        now, terms = self._clock.elapsed(), self._terms_of(bare=bare)
        lease = granted(epoch, now if seen else self._last_renewal, terms if seen else self._longest_terms(bare=bare), bare=bare)
        former = self._valid.get(execution_id)
        recorded = model_version if adopted is None else adopted
        acknowledged = former.acknowledged if former is not None else seen or now >= self._former_renews_until
        if bare:
            self.bare.add(execution_id)
        entry = LeaseEntry(lease, model_version, terms, self.term, now, seen=seen, acknowledged=acknowledged, token=token, adopted=recorded)
        self._valid[execution_id] = entry
        if former is not None:
            entry.ends_at = max(entry.ends_at, former.ends_at)
        self._expect_expiry(self._free_at(entry))
        return terms

    def _terms_of(self, *, bare: bool) -> Terms:
        return self.policy.bare_terms if bare else self.terms

    def _longest_terms(self, *, bare: bool) -> Terms:
        terms = self._terms_of(bare=bare)
        return Terms(max(terms.lease, self.bounds.lease_of(bare=bare)), terms.interval)

    @property
    def _last_renewal(self) -> Instant:
        """The last time at which another coordinator may renew a lease."""
        return Instant(max(self._clock.elapsed(), self._former_renews_until))

    def _free_at(self, entry: LeaseEntry) -> float:
        """When its lease and grace period have expired."""
        return entry.ends_at + (self._bare_grace_seconds if entry.bare else self._grace_seconds)

    def has_token(self, execution_id: str, token: str) -> bool:
        """Whether the container is valid and this is its token."""
        entry = self._valid.get(execution_id)
        return entry is not None and entry.token is not None and is_same(digest(token), entry.token)

    def is_bare(self, execution_id: str) -> bool:
        """Whether the container is valid and sends no epoch."""
        entry = self._valid.get(execution_id)
        return entry is not None and entry.bare

    def set_model_version(self, execution_ids: Sequence[ExecutionContainerId], version: int) -> None:
        """Set the version of the job model in the answers to the heartbeats of these containers. Invalid containers are ignored."""
        for execution_id in execution_ids:
            entry = self._valid.get(execution_id)
            if entry is not None:
                entry.set_headers(version, self._terms_of(bare=entry.bare))

    def set_adopted(self, execution_id: ExecutionContainerId, version: int) -> None:
        """Record which version of the job model the container has reported. An invalid container is ignored."""
        entry = self._valid.get(execution_id)
        if entry is not None:
            entry.adopted = version
            entry.set_headers(entry.model_version, self._terms_of(bare=entry.bare))

    def renew_all(self) -> None:
        """Give every valid container the longest lease. Used after a restart, when the terms are known once all containers are loaded."""
        last_renewal = self._last_renewal
        for entry in self._valid.values():
            entry.ends_at = last_renewal + self._longest_terms(bare=entry.bare).lease.total_seconds()
            self._expect_expiry(self._free_at(entry))

    def beat(self, execution_id: str, sent: int | None, term: bytes = b"") -> LeaseEntry | None:
        """Renew the lease if the heartbeat is from the valid incarnation. Returns its entry, or None if the answer is false. `term`: the
        highest one that the container knows, in digits.

        A heartbeat without an epoch, from a container that has one, is answered as alive and renews nothing. A heartbeat after the lease
        and the grace period is refused, because the tasks may have been reassigned. A lease never ends earlier than a former answer said: a
        shrinking fleet shortens the terms, and if this answer is lost, the container relies on the longer lease of the previous answer.

        Raises StoreUnavailable if no lease may be renewed; see `may_renew`."""
        now = self._clock.elapsed()
        if now >= self._renews_until:
            raise StoreUnavailable("the claim on the database was not confirmed recently enough: another coordinator may have it")
        entry = self._valid.get(execution_id)
        if entry is None or (sent is not None and sent != entry.epoch):
            return None
        bare = entry.bare
        if now >= entry.ends_at + (self._bare_grace_seconds if bare else self._grace_seconds):
            return None
        self.answered_alive += 1
        if sent is not None or may_renew(entry.lease, None):  # as `granted` does, without creating a Lease
            if not entry.acknowledged and self.term and term == self.term_text:
                # The container has a lease from an answer of this coordinator, and ignores answers of former ones from then on.
                entry.acknowledged, entry.ends_at = True, now + self._longest_terms(bare=bare).lease.total_seconds()
                self._expect_expiry(self._free_at(entry))
            entry.ends_at = max(entry.ends_at, now + (self._bare_lease_seconds if bare else self._lease_seconds))
            entry.seen_at, entry.seen = now, True
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
        """Add a superseded container whose lease is unknown, with the longest lease that it can have. A known container is not changed."""
        if execution_id in self._ending:
            return
        if bare:
            self.bare.add(execution_id)
        lease = granted(Epoch(0), self._last_renewal, self._longest_terms(bare=bare), bare=bare)
        self._ending[execution_id] = lease.free_at(self.bounds)

    def drop(self, execution_id: ExecutionContainerId) -> None:
        """Remove a container that has ended."""
        self.bare.discard(execution_id)
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
        """When the container was last seen; None if it is not valid. A bare container is never silent, because it chooses its interval."""
        entry = self._valid.get(execution_id)
        if entry is None:
            return None
        heartbeat_age = timedelta(seconds=max(0.0, self._clock.elapsed() - entry.seen_at))
        return Contact(heartbeat_age, entry.seen, silent=not entry.bare and is_silent(heartbeat_age, self.terms.interval))

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
                entry.set_headers(entry.model_version, self._terms_of(bare=entry.bare))


@lru_cache(maxsize=1024)
def _headers(epoch: Epoch, model_version: int, adopted: int, terms: Terms, term: int) -> tuple[HeaderList, bytes]:
    """The headers, as a list and as lines. Cached, because most containers of a fleet get equal headers."""
    headers = (
        *term_headers(term),
        (b"sluice-epoch", b"%d" % epoch),
        (b"sluice-lease-seconds", _seconds(terms.lease)),
        (b"sluice-next-heartbeat-seconds", _seconds(terms.interval)),
        (b"sluice-job-model-version", b"%d" % model_version),
        *(((b"sluice-adopted-version", b"%d" % adopted),) if adopted < model_version else ()),
    )
    return headers, header_lines(headers)


@lru_cache(maxsize=1)
def term_headers(term: int) -> HeaderList:
    """The header with the term; none if there is no term."""
    return ((b"sluice-term", b"%d" % term),) if term else ()


def _seconds(duration: timedelta) -> bytes:
    return f"{duration.total_seconds():g}".encode()
