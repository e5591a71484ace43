"""What the backups of a container share: the blob stores that the run names, threads for work on disk, and how a stage's backup is made."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeVar
from uuid import uuid4

from containers.engine import StageStart
from containers.settings import CommitPolicy, ContainerSettings
from containers.state.checkpoint import Checkpoints
from containers.state.copies import Copies
from containers.state.files import LocalFiles
from containers.state.meters import BackupMeter
from containers.state.restore import Restorer, RestoreSettings
from containers.state.transfer import Progress
from containers.state.upload import CommitSettings, Uploader
from sluice.blobs.counted import Requests
from sluice.blobs.locations import open_blob_store, wrapped
from sluice.blobs.port import BlobStore
from sluice.client import CoordinatorClient
from sluice.clock import Clock
from sluice.core.ids import JobName, RunId, StageKey, StageName, StreamId, TaskName
from sluice.core.snapshot import BlobStoreName, CommitId
from sluice.job import Job
from sluice.wire import runs as wire_runs

log = logging.getLogger(__name__)

T = TypeVar("T")

DISK_THREADS = 4
"""Hashing and reading release the interpreter's lock; more threads than cores only take the queries' time."""


@dataclass
class Destinations:
    """The blob stores of a container: `to` which all state goes, and `restore_from`, both in the run's order. Changed on the agent's
    loop."""

    open_blobs: Callable[[str], BlobStore]
    to: Mapping[BlobStoreName, BlobStore] = field(default_factory=dict)
    restore_from: Mapping[BlobStoreName, BlobStore] = field(default_factory=dict)
    _opened: dict[tuple[str, str], BlobStore] = field(default_factory=dict)

    async def adopt(self, run: wire_runs.RunDetail) -> None:
        """Use what the run says. Nothing is changed if a store cannot be opened: raises BlobStoreUnusable, BlobUnavailable, BadSettings."""
        to = {BlobStoreName(name): await self._open(name, run.blob_stores[name]) for name in run.backup_to}
        restore_from = {BlobStoreName(name): await self._open(name, run.blob_stores[name]) for name in run.restore_from}
        if to.keys() != self.to.keys():
            log.info("state is backed up to %s", ", ".join(to) or "no blob store")
        self.to, self.restore_from = to, restore_from

    async def _open(self, name: str, url: str) -> BlobStore:
        if (name, url) not in self._opened:
            blobs = self.open_blobs(url)
            await blobs.open(create=False)
            self._opened[name, url] = blobs
        return self._opened[name, url]

    async def close(self) -> None:
        for blobs in self._opened.values():
            await blobs.close()


class StateContext:
    """Of one container. Made on the agent's loop."""

    def __init__(
        self,
        job: Job,
        settings: ContainerSettings,
        coordinator: CoordinatorClient,
        clock: Clock,
        open_blobs: Callable[[str], BlobStore] | None = None,
    ) -> None:
        """`open_blobs` makes the blob store that a URL names; by default the one that `locations` says, with retries and counted."""
        self.coordinator = coordinator
        self.run_id: RunId = settings.run
        self.job: JobName = job.name
        self.code = job.code
        self.checkpoints = Checkpoints(settings.state_directory, job.name)
        self.policy: CommitPolicy = settings.commit_policy
        self.clock = clock
        self.requests = Requests()
        self.destinations = Destinations(open_blobs or (lambda url: wrapped(open_blob_store(url, clock), self.requests, clock=clock)))
        self.meters: dict[tuple[TaskName, StageName], BackupMeter] = {}
        self._settings = settings
        self._streams: Mapping[str, StreamId] = {}
        self._threads = ThreadPoolExecutor(max_workers=DISK_THREADS, thread_name_prefix="sluice-disk")
        self.copies = Copies(self.checkpoints, settings.processor_id, self.in_thread)

    async def adopt(self, run: wire_runs.RunDetail) -> None:
        """Use the run's blob stores; see `Destinations.adopt`. Raises BadSettings also when a commit may last until its blobs are collected
        as garbage."""
        if run.backup_to and run.garbage_grace_seconds is not None:
            self.policy.check(timedelta(seconds=run.garbage_grace_seconds))
        self._streams = {stream.name: StreamId(stream.system, stream.stream) for stream in run.streams}
        await self.destinations.adopt(run)

    async def in_thread(self, blocking: Callable[[], T]) -> T:
        """The default pool also resolves names, and heartbeats need it."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, blocking)

    def reads(self, start: StageStart) -> list[StreamId]:
        return [self._streams[name] for name in start.declared.stage.reads]

    def new_commit_id(self) -> CommitId:
        return commit_id(self.clock.now(), secrets.randbelow(1_000_000))

    def uploader(self, blobs: BlobStore, start: StageStart) -> Uploader:
        settings = CommitSettings(
            packing=self._settings.backup_packing,
            concurrency=self._settings.backup_concurrency,
            ttl=timedelta(days=self._settings.blob_ttl_days),
        )
        return Uploader(
            blobs, self.key(start), settings, self.clock, lambda: uuid4().hex, self.meter(start).backup, in_thread=self.in_thread
        )

    def restorer(self, blobs: BlobStore, start: StageStart) -> Restorer:
        return self.restorer_of(blobs, self.key(start), self.meter(start).restore)

    def restorer_of(self, blobs: BlobStore, key: StageKey, progress: Progress, files: LocalFiles | None = None) -> Restorer:
        settings = RestoreSettings(concurrency=self._settings.backup_concurrency)
        return Restorer(blobs, key, settings, progress, files=files, in_thread=self.in_thread)

    def meter(self, start: StageStart) -> BackupMeter:
        """Of that stage, for as long as the container has it."""
        return self.meters.setdefault((start.task, start.declared.stage.name), BackupMeter())

    def forget(self, start: StageStart) -> None:
        """The container does not run that stage any more."""
        self.meters.pop((start.task, start.declared.stage.name), None)

    def key(self, start: StageStart) -> StageKey:
        return StageKey(self.job, start.task, start.declared.stage.name)

    async def close(self) -> None:
        await self.destinations.close()
        self.copies.close()
        self._threads.shutdown(wait=False, cancel_futures=True)


def commit_id(now: datetime, random: int) -> CommitId:
    """Samza's spelling; `random` is below a million."""
    return CommitId(f"{int(now.timestamp() * 1000)}-{random:06}")
