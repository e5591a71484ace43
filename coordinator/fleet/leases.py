"""The leases of all containers, in memory: a steady heartbeat touches nothing else.

A container is *valid* (its heartbeats renew), or *ending*: it was replaced or its run is over, every heartbeat is answered with false, but
until its last lease and grace have passed it may still act, so its tasks are not given away. After a restart of the coordinator every
container that the database knows gets a fresh lease: a restart never ends a fleet.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import lru_cache
from math import inf

from sluice.clock import Clock
from sluice.core.ids import Epoch, ExecutionContainerId, Instant
from sluice.core.lease import Lease, LeasePolicy, Terms, granted, may_renew

HeaderList = Sequence[tuple[bytes, bytes]]


class LeaseEntry:
    """A valid container's lease, spread out so that renewing it makes nothing but a number, and the answer headers that go with it."""

    __slots__ = ("bare", "ends_at", "epoch", "headers", "model_version")

    def __init__(self, lease: Lease, model_version: int, headers: HeaderList) -> None:
        self.epoch = lease.epoch
        self.ends_at: float = lease.ends_at
        self.bare = lease.bare
        self.model_version = model_version
        self.headers = headers

    @property
    def lease(self) -> Lease:
        return Lease(self.epoch, Instant(self.ends_at), self.bare)


class Leases:
    """One event loop's; no locks."""

    def __init__(self, policy: LeasePolicy, clock: Clock) -> None:
        self.policy = policy
        self.terms: Terms = policy.terms(0)
        self._lease_seconds = self.terms.lease.total_seconds()
        self._grace_seconds = policy.grace.total_seconds()
        self.answered_alive = 0
        self.answered_invalid = 0
        """Counted by who sends that answer, which is not the fast path."""
        self._clock = clock
        self._valid: dict[str, LeaseEntry] = {}
        self._ending: dict[str, Instant] = {}
        self._seen: set[str] = set()
        self._quiet_until = Instant(0.0)
        """Before this no valid container can be overdue: at the last look none was to be earlier, and heartbeats only put it off."""

    def __len__(self) -> int:
        return len(self._valid)

    @property
    def ending(self) -> int:
        """How many containers are not valid and may still act."""
        return len(self._ending)

    def grant(self, execution_id: ExecutionContainerId, epoch: Epoch, model_version: int, *, bare: bool = False) -> Terms:
        """Make the container valid with a full lease from now."""
        self._ending.pop(execution_id, None)
        self._restretch(len(self._valid) + (execution_id not in self._valid))
        lease = granted(epoch, self._clock.elapsed(), self.terms, bare=bare)
        promised = self._valid.get(execution_id)
        entry = self._valid[execution_id] = LeaseEntry(lease, model_version, _headers(epoch, model_version, self.terms))
        if promised is not None:
            entry.ends_at = max(entry.ends_at, promised.ends_at)
        self._look_at(entry.ends_at)
        return self.terms

    def set_model_version(self, execution_ids: Sequence[ExecutionContainerId], version: int) -> None:
        """Tell the version of the job model in the answers to these containers. Those that are not valid are passed over."""
        for execution_id in execution_ids:
            entry = self._valid.get(execution_id)
            if entry is not None:
                entry.model_version = version
                entry.headers = _headers(entry.epoch, version, self.terms)

    def renew_all(self) -> None:
        """Give every valid container a full lease from now: after a restart the terms are known only when the whole fleet is."""
        ends_at = self._clock.elapsed() + self._lease_seconds
        for entry in self._valid.values():
            entry.ends_at = ends_at
        self._look_at(ends_at)

    def beat(self, execution_id: str, sent: int | None) -> LeaseEntry | None:
        """Renew if this is the valid incarnation: its entry, else None (the answer is false). A beat without epoch of a container that
        sends one is answered as alive and renews nothing; one after lease and grace is too late, since the tasks may be another's.

        A lease never ends earlier than was promised: when a shrinking fleet shortens the terms and this answer is lost, the container goes
        on trusting the longer lease of the answer before."""
        entry = self._valid.get(execution_id)
        if entry is None or (sent is not None and sent != entry.epoch):
            return None
        now = self._clock.elapsed()
        if now >= entry.ends_at + self._grace_seconds:
            return None
        self.answered_alive += 1
        if sent is not None or may_renew(entry.lease, None):  # as `granted` does, without making a Lease
            entry.ends_at = max(entry.ends_at, now + self._lease_seconds)
            self._seen.add(execution_id)
        return entry

    def supersede(self, execution_id: ExecutionContainerId) -> None:
        """Answer false from now on; the container's tasks stay its own until its lease and grace have passed. May run twice."""
        entry = self._valid.pop(execution_id, None)
        if entry is not None:
            self._ending[execution_id] = entry.lease.free_at(self.policy)
            self._restretch(len(self._valid))

    def remember_superseded(self, execution_id: ExecutionContainerId) -> None:
        """After a restart: a replaced container whose lease is not known any more gets the longest that it can have."""
        self._ending[execution_id] = granted(Epoch(0), self._clock.elapsed(), self.terms).free_at(self.policy)

    def drop(self, execution_id: ExecutionContainerId) -> None:
        """Forget a container that is gone."""
        self._ending.pop(execution_id, None)
        if self._valid.pop(execution_id, None) is not None:
            self._restretch(len(self._valid))

    def free_at(self, execution_id: ExecutionContainerId) -> Instant | None:
        """When the container's tasks may be given away; None if it has no lease."""
        entry = self._valid.get(execution_id)
        return entry.lease.free_at(self.policy) if entry else self._ending.get(execution_id)

    def left(self, execution_id: ExecutionContainerId) -> timedelta | None:
        """How long the container's lease still is, 0 s when it is over; None for one that is not valid."""
        entry = self._valid.get(execution_id)
        return timedelta(seconds=max(0.0, entry.ends_at - self._clock.elapsed())) if entry else None

    def overdue(self, limit: int) -> Sequence[ExecutionContainerId]:
        """Up to `limit` containers, valid or ending, whose lease and grace have passed.

        It goes through all valid ones only when one of them may be overdue, which with a healthy fleet is once a lease."""
        now = self._clock.elapsed()
        found = [each for each, free_at in self._ending.items() if free_at <= now]
        if now >= self._quiet_until:
            first = min((entry.ends_at for entry in self._valid.values()), default=inf) + self._grace_seconds
            self._quiet_until = Instant(first)
            if first <= now:
                found += [each for each, entry in self._valid.items() if entry.ends_at + self._grace_seconds <= now]
        return [ExecutionContainerId(each) for each in found[:limit]]

    def _look_at(self, ends_at: float) -> None:
        self._quiet_until = Instant(min(self._quiet_until, ends_at + self._grace_seconds))

    def take_seen(self) -> Sequence[ExecutionContainerId]:
        """The containers that were heard since the last call."""
        seen, self._seen = self._seen, set()
        return [ExecutionContainerId(each) for each in seen]

    def _restretch(self, fleet: int) -> None:
        terms = self.policy.terms(fleet)
        if terms != self.terms:
            self.terms = terms
            self._lease_seconds = terms.lease.total_seconds()
            for entry in self._valid.values():
                entry.headers = _headers(entry.epoch, entry.model_version, terms)


@lru_cache(maxsize=1024)
def _headers(epoch: Epoch, model_version: int, terms: Terms) -> HeaderList:
    """Shared by the containers that are told the same, which is most of a fleet."""
    return (
        (b"sluice-epoch", b"%d" % epoch),
        (b"sluice-lease-seconds", _seconds(terms.lease)),
        (b"sluice-next-heartbeat-seconds", _seconds(terms.interval)),
        (b"sluice-job-model-version", b"%d" % model_version),
    )


def _seconds(duration: timedelta) -> bytes:
    return f"{duration.total_seconds():g}".encode()
