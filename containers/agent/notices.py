"""The notices of a run, as events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

from pydantic import ValidationError

from containers.agent.lifecycle import RETRY
from sluice.client import Refused
from sluice.client.agents import AgentClient
from sluice.clock import Clock
from sluice.core.errors import Unavailable
from sluice.core.ids import RunId, StageName, TaskName
from sluice.core.snapshots.snapshot import BlobStoreName
from sluice.wire import body as wire_body
from sluice.wire import drains as wire_drains

log = logging.getLogger("sluice")

LONG_POLL = timedelta(seconds=20)
"""The longest duration of a poll for notices."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The run is to stop, or has ended."""

    reason: str


@dataclass(frozen=True, slots=True)
class NewModel:
    """The run's job model has this version."""

    version: int


@dataclass(frozen=True, slots=True)
class NewBlobStores:
    """The run has other blob stores."""


@dataclass(frozen=True, slots=True)
class BlobsLost:
    """A blob store has lost blobs of snapshots of this stage, which this container need not run."""

    task: TaskName
    stage: StageName
    blob_store: BlobStoreName


Event = StopRequested | wire_drains.DrainNotice | NewModel | NewBlobStores | BlobsLost


async def events(coordinator: AgentClient, run: RunId, clock: Clock) -> AsyncIterator[Event]:
    """All events of the run, including those from before the registration, which may contain a stop. Never ends."""
    seq = 0
    while True:
        sent = clock.elapsed()
        try:
            found = await coordinator.notices(run, seq, LONG_POLL)
        except (Unavailable, Refused) as error:
            log.debug("no notices: %s", error)
            await asyncio.sleep(RETRY.total_seconds())
            continue
        for notice in found:
            seq = notice.seq
            for event in events_of(notice):
                yield event
        if not found and clock.elapsed() - sent < RETRY.total_seconds():  # a coordinator that shuts down answers polls early
            await asyncio.sleep(RETRY.total_seconds())


def events_of(notice: wire_body.Notice) -> list[Event]:
    """What a notice says; nothing if it cannot be read."""
    detail = notice.detail
    try:
        match notice.kind:
            case "STOP" | "ENDED":
                return [StopRequested(str(detail.get("reason", "")))]
            case "DRAIN":
                return [wire_drains.DrainNotice.model_validate(detail)]
            case "MODEL":
                return [NewModel(int(detail["version"]))]
            case "BACKUP" if "lost" in detail:
                return list(_lost(detail["lost"]))
            case "BACKUP":
                return [NewBlobStores()]
    except (ValidationError, ValueError, TypeError, KeyError):
        log.warning("ignoring an invalid notice, %s: %s", notice.kind, str(detail)[:200])
        return []


def _lost(entries: Iterable[Mapping[str, str]]) -> Iterator[BlobsLost]:
    """Each of the entries that can be read. Raises TypeError for what is no list."""
    for each in entries:
        try:
            yield BlobsLost(TaskName(each["task"]), StageName(each["stage"]), BlobStoreName(each["blobStore"]))
        except (TypeError, KeyError):
            log.warning("ignoring an invalid notice of lost blobs: %s", str(each)[:200])
