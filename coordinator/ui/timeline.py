"""The events of a job, newest first, from the database: runs, versions of the job model, drains, containers, and the audit
log, which has the principal of each change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from coordinator.store.access import EventRow
from sluice.core.drain import Phase
from sluice.wire import drains as wire_drains
from sluice.wire import jobmodels as wire_jobmodels
from sluice.wire import runs as wire_runs


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """`actor`: who caused the event, "" if unknown. `link`: a page below `/ui/`, "" for none. `tone`: "good", "busy", "bad" or "quiet"."""

    at: datetime
    what: str
    detail: str = ""
    actor: str = ""
    link: str = ""
    tone: str = "quiet"


def of_runs(runs: Iterable[wire_runs.RunSummary]) -> Iterator[TimelineEvent]:
    for run in runs:
        yield TimelineEvent(run.created_at, f"run {run.run_id} was deployed", f"{run.containers} containers")
        if run.ended_at is not None:
            tone = "bad" if run.state == "FAILED" else "quiet"
            yield TimelineEvent(run.ended_at, f"run {run.run_id} ended as {run.state}", run.reason, tone=tone)


def of_versions(job: str, versions: Iterable[wire_jobmodels.VersionSummary]) -> Iterator[TimelineEvent]:
    for each in versions:
        link = f"jobs/{job}/versions/{each.version}"
        yield TimelineEvent(each.at, f"version {each.version} of the job model came into force", each.why, each.actor, link, "busy")


def of_drains(drains: Iterable[wire_drains.DrainSummary]) -> Iterator[TimelineEvent]:
    for each in drains:
        link = f"drains/{each.uuid}"
        yield TimelineEvent(each.requested_at, "a drain was requested", f"mode {each.drain_mode}", link=link, tone="busy")
        if each.ended_at is not None:
            tone = {Phase.DRAINED: "good", Phase.FAILED: "bad"}.get(each.phase, "quiet")
            yield TimelineEvent(each.ended_at, f"the drain ended as {each.phase}", each.reason, link=link, tone=tone)


def of_containers(containers: Iterable[wire_runs.ContainerReply]) -> Iterator[TimelineEvent]:
    for each in containers:
        where = f" on {each.host}" if each.host else ""
        yield TimelineEvent(each.registered_at, f"container {each.execution_container_id} registered for slot {each.processor_id}{where}")
        if each.ended_at is not None:
            code = "was lost" if each.exit_code is None else f"exited with code {each.exit_code}"
            bad = each.state == "LOST" or each.exit_code not in (None, 0, 3)
            yield TimelineEvent(
                each.ended_at, f"container {each.execution_container_id} {code}", each.reason, tone="bad" if bad else "quiet"
            )


REQUESTS: Mapping[str, str] = {
    "POST /runs": "a deployment",
    "POST /runs/{runId}/stop": "a stop",
    "PATCH /runs/{runId}": "a change of the job model",
    "PUT /runs/{runId}/backup": "a change of the backup",
    "POST /jobs/{job}/models/{version}/rollback": "a roll-back of the job model",
    "POST /drain": "a drain",
    "DELETE /drain/{uuid}": "the end of the drain",
    "POST /jobs/{job}/snapshots/{checkpointId}/restore": "a restore",
    "POST /jobs/{job}/pins": "a pin of snapshots",
    "DELETE /jobs/{job}/pins/{pinId}": "the deletion of a pin",
    "DELETE /jobs/{job}": "the removal of the job",
    "/ui/actions/stop": "a stop, on the page",
    "/ui/actions/drain": "a drain, on the page",
    "/ui/actions/cancel": "the end of the drain, on the page",
    "/ui/actions/scale": "a change of the job model, on the page",
    "/ui/actions/rollback": "a roll-back of the job model, on the page",
    "/ui/actions/pin": "a pin of snapshots, on the page",
    "/ui/actions/unpin": "the deletion of a pin, on the page",
    "/ui/actions/restore": "a restore, on the page",
    "/ui/actions/remove": "the removal of the job, on the page",
}
"""Requests of people and programs, by route -> what they request. Actions of the pages are listed by path. Requests of containers are not
listed: the containers have events of their own."""


def of_requests(events: Iterable[EventRow]) -> Iterator[TimelineEvent]:
    """The requests in the audit log, each with the client that sent it."""
    for each in events:
        what = REQUESTS.get(each.action) or REQUESTS.get(each.subject)
        if what is not None:
            actor = each.actor or "a client without a token"
            failed = each.status is not None and each.status >= 400
            outcome = f"refused: {each.reason}" if failed else "interrupted" if each.status is None else ""
            yield TimelineEvent(each.at, f"{actor} requested {what}", outcome, tone="bad" if failed else "quiet")


def newest(events: Iterable[TimelineEvent]) -> Sequence[TimelineEvent]:
    """The events, newest first."""
    return sorted(events, key=lambda each: each.at, reverse=True)
