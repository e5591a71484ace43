"""The bodies about the events of jobs."""

from __future__ import annotations

from datetime import datetime

from sluice.wire.body import Reply


class JobEventReply(Reply):
    """`id`: never changes; events sort by it, oldest first. `kind`: "run", "version", "drain", "container", "request" or "lineage".
    `subject`: the id of the run, drain, container or lineage, the version of the job model, or the number of the request in the audit log.
    `what`: a sentence; `detail`: a reason or a number, "" if none. `actor`: who caused the event, "" if unknown. `tone`: "good", "busy",
    "bad" or "quiet"."""

    id: str
    at: datetime
    kind: str
    subject: str
    what: str
    detail: str
    actor: str
    tone: str


class JobEventsReply(Reply):
    """Newest first. `next` is the `before` of the following page, null on the last."""

    job: str
    events: tuple[JobEventReply, ...]
    next: str | None = None
