"""The events of a job, newest first, from the database: runs, versions of the job model, drains, containers, and the audit
log, which has the principal of each change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import chain

from coordinator.runs.runs import SHOWN_INCARNATIONS
from coordinator.store.access import EventRow
from coordinator.store.drains import DrainRow
from coordinator.store.fleet import ContainerRow, ContainerState
from coordinator.store.jobmodels import ModelHead
from coordinator.store.runs import NoticeRow, RunRow
from coordinator.store.sql import Store
from sluice.core.drain import Phase
from sluice.core.errors import UnknownJob
from sluice.core.ids import JobName
from sluice.core.lifecycle import RunState

EVENTS_KEPT = 300
"""A list of all events has those of the newest runs, versions, drains and requests, this number of each, and of the containers of the
current run."""

_PER_TURN = 20
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Kind(StrEnum):
    """What an event is about."""

    RUN = "run"
    VERSION = "version"
    DRAIN = "drain"
    CONTAINER = "container"
    REQUEST = "request"
    LINEAGE = "lineage"


_RANKS: Mapping[Kind, int] = {Kind.LINEAGE: 0, Kind.REQUEST: 1, Kind.CONTAINER: 2, Kind.DRAIN: 3, Kind.VERSION: 4, Kind.RUN: 5}


@dataclass(frozen=True, slots=True)
class JobEvent:
    """`subject`: the id of the run, drain or container, the version, or the number of the request in the audit log. `number`: orders
    subjects of one kind; 0 if their ids do. `actor`: who caused the event, "" if unknown. `tone`: "good", "busy", "bad" or "quiet"."""

    at: datetime
    kind: Kind
    subject: str
    what: str
    detail: str = ""
    actor: str = ""
    tone: str = "quiet"
    number: int = 0
    ends: bool = False
    """Whether it is the end of the run, drain or container."""

    @property
    def event_id(self) -> str:
        """Never changes, and sorts as the events do: by time; at the same time by kind and subject."""
        return f"{(self.at - _EPOCH) // _MICROSECOND:018d}.{_RANKS[self.kind]}.{self.number:010d}.{int(self.ends)}.{self.subject}"


EVENT_ID = r"^[0-9]{18}\.[0-9]\.[0-9]{10,19}\.[01]\..+$"
"""The pattern of `JobEvent.event_id`."""


class Timeline:
    """Reads the events of jobs."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def of_job(self, job: JobName, limit: int) -> Sequence[JobEvent]:
        """The events of the newest `limit` runs, versions, drains and requests of the job each, and of the containers and new lineages of
        its current run, newest first. Of ended containers, only the newest ones of each slot. Raises UnknownJob, StoreUnavailable."""
        async with self._store.read() as tx:
            run = await tx.runs.current(job)
            if run is None:
                raise UnknownJob(f"there is no job {job!r}")
            lazily = chain(
                of_runs(await tx.runs.page(job, None, limit)),
                of_versions(await tx.jobmodels.page(job, None, limit)),
                of_drains(await tx.drains.page(job, None, limit)),
                of_containers(await tx.fleet.containers(run.run_id, newest=SHOWN_INCARNATIONS)),
                of_requests(await tx.access.events(None, limit, job)),
                of_lineages(await tx.runs.lineages(run.run_id, limit)),
            )
        found = []
        for number, event in enumerate(lazily):
            found.append((event.event_id, event))
            if number % _PER_TURN == _PER_TURN - 1:
                await asyncio.sleep(0)
        return [event for _, event in sorted(found, key=lambda each: each[0], reverse=True)]


def of_runs(runs: Iterable[RunRow]) -> Iterator[JobEvent]:
    for run in runs:
        yield JobEvent(run.created_at, Kind.RUN, run.run_id, f"run {run.run_id} was deployed", f"{run.spec.containers} containers")
        if run.ended_at is not None:
            tone = "bad" if run.state is RunState.FAILED else "quiet"
            what = f"run {run.run_id} ended as {run.state}"
            yield JobEvent(run.ended_at, Kind.RUN, run.run_id, what, run.reason, tone=tone, ends=True)


def of_versions(versions: Iterable[ModelHead]) -> Iterator[JobEvent]:
    for each in versions:
        what = f"version {each.version} of the job model came into force"
        yield JobEvent(each.created_at, Kind.VERSION, str(each.version), what, each.why, each.who, "busy", each.version)


def of_drains(drains: Iterable[DrainRow]) -> Iterator[JobEvent]:
    for each in drains:
        began = "a drain was requested", f"mode {each.mode.value}"
        yield JobEvent(each.requested_at, Kind.DRAIN, each.drain_id, *began, tone="busy", number=each.seq)
        if each.ended_at is not None:
            tone = {Phase.DRAINED: "good", Phase.FAILED: "bad"}.get(each.phase, "quiet")
            over = f"the drain ended as {each.phase}", each.reason
            yield JobEvent(each.ended_at, Kind.DRAIN, each.drain_id, *over, tone=tone, number=each.seq, ends=True)


def of_containers(containers: Iterable[ContainerRow]) -> Iterator[JobEvent]:
    for each in containers:
        where = f" on {each.host}" if each.host else ""
        what = f"container {each.execution_id} registered for slot {each.processor_id}{where}"
        yield JobEvent(each.registered_at, Kind.CONTAINER, each.execution_id, what)
        if each.ended_at is not None:
            code = "was lost" if each.exit_code is None else f"exited with code {each.exit_code}"
            bad = each.state is ContainerState.LOST or each.exit_code not in (None, 0, 3)
            what = f"container {each.execution_id} {code}"
            tone = "bad" if bad else "quiet"
            yield JobEvent(each.ended_at, Kind.CONTAINER, each.execution_id, what, each.reason, tone=tone, ends=True)


def of_lineages(begun: Iterable[NoticeRow]) -> Iterator[JobEvent]:
    for each in begun:
        task, stage, lineage, batch, why = (each.detail[name] for name in ("task", "stage", "lineage", "batch", "why"))
        after = "with empty state" if batch is None else f"after batch {batch}"
        what = f"stage {stage} of task {task} began again {after}, under a new lineage"
        yield JobEvent(each.at, Kind.LINEAGE, lineage, what, why, tone="busy", number=each.seq)


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


def of_requests(events: Iterable[EventRow]) -> Iterator[JobEvent]:
    """The requests in the audit log, each with the client that sent it."""
    for each in events:
        what = REQUESTS.get(each.action) or REQUESTS.get(each.subject)
        if what is not None:
            actor = each.actor or "a client without a token"
            failed = each.status is not None and each.status >= 400
            outcome = f"refused: {each.reason}" if failed else "interrupted" if each.status is None else ""
            tone = "bad" if failed else "quiet"
            yield JobEvent(each.at, Kind.REQUEST, str(each.seq), f"{actor} requested {what}", outcome, tone=tone, number=each.seq)
