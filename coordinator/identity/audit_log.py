"""The audit log: all requests for changes and all refused requests, with the actor, the address and the outcome.

An event is stored before its change begins, so that a change that cannot be recorded is refused. The status is added afterwards, with what
was different before and after the change. A request whose event has no status was interrupted: the event does not say whether the change
was made.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta

from coordinator.identity.audit_lines import AuditLines
from coordinator.identity.audited_state import AuditedState, differences
from coordinator.store.access import EventRow, Outcome
from coordinator.store.sql import Store
from coordinator.waits import DeletionHold
from sluice.clock import Clock
from sluice.core.access.tokens import BadLogins
from sluice.wire import access as wire_access

log = logging.getLogger(__name__)

MAX_SUBJECT = 1_000
"""Maximum length of a stored path, in characters."""


@dataclass(frozen=True, slots=True)
class AuditedRequest:
    """A request. `actor`: the principal; without authentication the user that the request names. `source`: the client's address. `action`:
    method and path of the route. `subject`: the path. `job`: the job that it names, "" if none."""

    actor: str
    authenticated: bool
    source: str
    action: str
    subject: str
    request_id: str
    job: str = ""


@dataclass(frozen=True, slots=True)
class Began:
    """A recorded change that is being made. `before`: the state of what it may change."""

    seq: int
    attempt: AuditedRequest
    before: AuditedState


class AuditLog:
    """`lines`: where events are also written, as JSON."""

    def __init__(self, store: Store, clock: Clock, lines: AuditLines) -> None:
        self._store = store
        self._clock = clock
        self._lines = lines
        self._refusals = BadLogins()

    async def begin(self, attempt: AuditedRequest, before: AuditedState) -> Began:
        """Record a request before it is executed. Raises StoreUnavailable, AuditUnavailable."""
        seq = await self._append(attempt, None, "", differences(before, {})[0])
        return Began(seq, attempt, before)

    async def refused(self, attempt: AuditedRequest, status: int, reason: str) -> None:
        """Record a request that was not admitted, at most BAD_LOGINS a minute of one actor, so that none fills the database. Raises
        StoreUnavailable, AuditUnavailable."""
        if self._refusals.refused({"actor": attempt.actor}, self._clock.elapsed()) is not None:
            return
        seq = await self._append(attempt, status, reason, None)
        _log_outcome(seq, attempt, status, reason)

    async def login_failed(self, attempt: AuditedRequest, status: int, reason: str) -> None:
        """Record a login with a wrong token, at most BAD_LOGINS a minute: clients without a token cannot fill the database. Raises
        StoreUnavailable, AuditUnavailable."""
        if self._refusals.refused({"all": "logins"}, self._clock.elapsed()) is None:
            await self.refused(attempt, status, reason)

    async def end(self, began: Began, status: int, reason: str, job: str = "", after: AuditedState | None = None) -> None:
        """`job`: that the request was found to name. `after`: the state of what it may have changed; None if it could not be read. Raises
        StoreUnavailable, AuditUnavailable."""
        before, now = (began.before, None) if after is None else differences(began.before, after)
        outcome = Outcome(status, reason, job, before, now)
        async with self._store.begin() as tx:
            await tx.access.set_outcome(began.seq, outcome)
        _log_outcome(began.seq, began.attempt, status, reason)
        await self._lines.append(_line(replace(self._row(began.attempt), seq=began.seq, **asdict(outcome))))

    async def _append(self, attempt: AuditedRequest, status: int | None, reason: str, before: AuditedState | None) -> int:
        row = replace(self._row(attempt), status=status, reason=reason, before=before)
        async with self._store.begin() as tx:
            seq = await tx.access.add_event(row)
        await self._lines.append(_line(replace(row, seq=seq)))
        return seq

    def _row(self, attempt: AuditedRequest) -> EventRow:
        return EventRow(
            at=self._clock.now(),
            actor=attempt.actor,
            authenticated=attempt.authenticated,
            source=attempt.source,
            action=attempt.action,
            subject=attempt.subject[:MAX_SUBJECT],
            request_id=attempt.request_id,
            status=None,
            reason="",
            job=attempt.job,
        )

    async def page(self, before: int | None, limit: int, job: str | None = None) -> Sequence[EventRow]:
        """The events, newest first; with `before`, only those with smaller numbers; with `job`, only those that name it. Raises
        StoreUnavailable."""
        async with self._store.read() as tx:
            return await tx.access.events(before, limit, job)


def _line(row: EventRow) -> dict[str, object]:
    """The event as a JSON object, with the names of the API."""
    event = wire_access.AuditEventReply.model_validate({name: getattr(row, name) for name in row.__slots__})
    return event.model_dump(mode="json", by_alias=True)


def _log_outcome(seq: int, attempt: AuditedRequest, status: int, reason: str) -> None:
    log.info(
        "audit %d: %s from %s: %s %s: %d %s (request %s)",
        seq,
        attempt.actor or "unknown",
        attempt.source,
        attempt.action.partition(" ")[0],
        attempt.subject,
        status,
        reason,
        attempt.request_id,
    )


@dataclass(frozen=True, slots=True)
class PruneAuditLog:
    """Delete events that are older than `keep`, at most `rows` in a transaction; none while the clock may have jumped ahead."""

    store: Store
    clock: Clock
    hold: DeletionHold
    keep: timedelta
    rows: int = 500
    every: timedelta = timedelta(hours=1)
    name: str = "prune_audit_log"

    async def run_once(self) -> Mapping[str, int]:
        if self.hold.active():
            return {"held_back": 1}
        before, deleted = self.clock.now() - self.keep, 0
        while found := await self._delete(before):
            deleted += found
        return {"deleted": deleted} if deleted else {}

    async def _delete(self, before: datetime) -> int:
        async with self.store.begin() as tx:
            return await tx.access.delete_events(before, self.rows)
