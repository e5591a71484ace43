"""The route of the events of jobs."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query

from coordinator.api.access import GuardedRoute
from coordinator.api.deps import PROBLEMS, JobPath, PartsDep
from coordinator.runs.timeline import EVENT_ID, EVENTS_KEPT, JobEvent
from sluice.core.ids import JobName
from sluice.wire import events as wire_events

router = APIRouter(responses=PROBLEMS, route_class=GuardedRoute)


@router.get("/jobs/{job}/events")
async def get_job_events(
    job: JobPath,
    parts: PartsDep,
    before: Annotated[str | None, Query(pattern=EVENT_ID, max_length=400, description="only events older than the one of this id")] = None,
    after: Annotated[str | None, Query(pattern=EVENT_ID, max_length=400, description="only events newer than the one of this id")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> wire_events.JobEventsReply:
    """What has happened to a job, newest first: the newest 300 runs, versions of the job model, drains and requests each, and the
    containers of the current run. For the next page, set `before` to the answer's `next`, and do not change `after`. An event may appear
    later than others that are newer, and the detail of a request changes when it has been answered."""
    found = _between(await parts.timeline.of_job(JobName(job), EVENTS_KEPT), after, before)
    page = found[:limit]
    return wire_events.JobEventsReply(job=job, events=tuple(map(_event, page)), next=page[-1].event_id if len(found) > limit else None)


def _between(events: Sequence[JobEvent], after: str | None, before: str | None) -> Sequence[JobEvent]:
    """The events, newest first, whose ids are between these two."""
    ids = [each.event_id for each in reversed(events)]
    end = len(ids) if before is None else bisect_left(ids, before)
    start = 0 if after is None else bisect_right(ids, after)
    return events[len(ids) - end : len(ids) - start]


def _event(event: JobEvent) -> wire_events.JobEventReply:
    return wire_events.JobEventReply(
        id=event.event_id,
        at=event.at,
        kind=event.kind.value,
        subject=event.subject,
        what=event.what,
        detail=event.detail,
        actor=event.actor,
        tone=event.tone,
    )
