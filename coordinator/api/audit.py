"""The route of the audit log."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from coordinator.api.access import AccessDep, GuardedRoute
from coordinator.api.deps import PROBLEMS
from coordinator.store.access import EventRow
from sluice.wire import access as wire_access
from sluice.wire import body as wire_body

router = APIRouter(responses=PROBLEMS, route_class=GuardedRoute)


@router.get("/audit-log")
async def get_audit_log(
    deps: AccessDep,
    before: Annotated[int | None, Query(ge=1, lt=2**63, description="only events with smaller numbers")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    job: Annotated[wire_body.Name | None, Query(description="only events of requests that name this job")] = None,
) -> wire_access.AuditLogReply:
    """The requests for changes and the refused requests, newest first. For the next page, set `before` to the answer's `next`."""
    found = await deps.audit_log.page(before, limit + 1, job)
    page = found[:limit]
    return wire_access.AuditLogReply(events=tuple(map(_event, page)), next=page[-1].seq if len(found) > limit else None)


def _event(row: EventRow) -> wire_access.AuditEventReply:
    return wire_access.AuditEventReply.model_validate({name: getattr(row, name) for name in row.__slots__})
