"""What the stages of a container share for backup and restore: the run's blob stores, threads for work on disk, settings and meters."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from containers.engine import StageStart
from containers.retries import until_available
from containers.settings import CommitPolicy, ContainerSettings
from containers.state.checkpoint import Checkpoints
from containers.state.commits.packing import Packing
from containers.state.commits.upload import CommitSettings, Uploader
from containers.state.copies import Copies
from containers.state.files import LocalFiles
from containers.state.meters import BackupMeter
from containers.state.recovery.restore import Restorer, RestoreSettings
from containers.state.store_credentials import handed_credentials
from containers.state.transfer import Progress, TransferContext
from sluice.blobs.counted import Requests
from sluice.blobs.locations import open_blob_store, wrapped
from sluice.blobs.port import BlobStore
from sluice.client.agents import AgentClient
from sluice.clock import Clock
from sluice.core.errors import SluiceError
from sluice.core.ids import JobName, RunId, StageKey, StageName, StreamId, TaskName
from sluice.core.snapshots.snapshot import BlobStoreName, CommitId
from sluice.core.waits import TOLERANCE
from sluice.randomness import below, new_uuid
from sluice.wire import runs as wire_runs

log = logging.getLogger(__name__)

T = TypeVar("T")

DISK_THREADS = 4
"""Hashing and reading release the interpreter lock, so threads help. More of them would take CPU time from the queries."""


@dataclass
class Destinations:
    """The blob stores of a container: all state is backed up `to` each of them, and restored from the first of `restore_from` that has it.
    Both are in the run's order. Changed on the agent's loop. `watchers` are called in order after a change of `to`."""

    open_blobs: Callable[[BlobStoreName, str], Awaitable[BlobStore]]
    to: Mapping[BlobStoreName, BlobStore] = field(default_factory=dict)
    restore_from: Mapping[BlobStoreName, BlobStore] = field(default_factory=dict)
    watchers: list[Callable[[], None]] = field(default_factory=list)
    _opened: dict[tuple[str, str], BlobStore] = field(default_factory=dict)

    async def adopt(self, run: wire_runs.BasicRun) -> None:
        """Use the blob stores of the run. If one cannot be opened, nothing changes. Raises BlobStoreUnusable, BlobUnavailable,
        BadSettings."""
        to = {BlobStoreName(name): await self._open(name, run.blob_stores[name]) for name in run.backup_to}
        restore_from = {BlobStoreName(name): await self._open(name, run.blob_stores[name]) for name in run.restore_from}
        changed = to != self.to
        self.to, self.restore_from = to, restore_from
        if changed:
            log.info("state is backed up to %s", ", ".join(to) or "no blob store")
            for watcher in tuple(self.watchers):
                watcher()

    @property
    def opened(self) -> Sequence[BlobStore]:
        """All blob stores of the run since the container's start."""
        return tuple(self._opened.values())

    async def _open(self, name: str, url: str) -> BlobStore:
        if (name, url) not in self._opened:
            blobs = await self.open_blobs(BlobStoreName(name), url)
            try:
                await blobs.open(create=False)
            except BaseException:  # each attempt makes another one, with threads and connections of its own
                await blobs.close()
                raise
            self._opened[name, url] = blobs
        return self._opened[name, url]

    async def close(self) -> None:
        for blobs in self._opened.values():
            await blobs.close()


class JobOfState(Protocol):
    """What the state of a job depends on: see `sluice.job.Job`."""

    @property
    def name(self) -> JobName: ...

    @property
    def code(self) -> str: ...


class StateContext:
    """The context of one container. Created on the agent's loop."""

    def __init__(
        self,
        job: JobOfState,
        settings: ContainerSettings,
        coordinator: AgentClient,
        clock: Clock,
        open_blobs: Callable[[str], BlobStore] | None = None,
    ) -> None:
        """`open_blobs` makes the blob store of a URL; by default `open_blob_store` with retries and counters."""
        self.coordinator = coordinator
        self.run_id: RunId = settings.run
        self.job: JobName = job.name
        self.code = job.code
        self.checkpoints = Checkpoints(settings.state_directory, job.name)
        self.policy: CommitPolicy = settings.commit_policy
        self.clock = clock
        self.requests = Requests()
        self._open_blobs = open_blobs
        self.destinations = Destinations(self._blobs_at)
        self.meters: dict[tuple[TaskName, StageName], BackupMeter] = {}
        self._settings = settings
        self._streams: Mapping[str, StreamId] = {}
        self._one_adoption = asyncio.Lock()
        self._usable_for = timedelta(0)
        """See `Uploader`. Garbage must not have been collected, by a clock that may differ, when a snapshot refers to it; and the
        coordinator may remove its time to live as late as a third of that after the report."""
        self._threads = ThreadPoolExecutor(max_workers=DISK_THREADS, thread_name_prefix="sluice-disk")
        self.copies = Copies(self.checkpoints, settings.processor_id, self.in_thread)

    def use_slot(self, processor_id: str) -> None:
        """Keep standby copies for this slot, which the container has taken later."""
        self.copies.close()
        self.copies = Copies(self.checkpoints, processor_id, self.in_thread)

    async def _blobs_at(self, name: BlobStoreName, url: str) -> BlobStore:
        """The blob store, not opened yet. One in S3 uses the coordinator's credentials, if it hands out any, otherwise those of this
        process."""
        if self._open_blobs is not None:
            return self._open_blobs(url)
        handed = await handed_credentials(self.coordinator, self.run_id, name, self.clock) if url.startswith("s3:") else None
        return wrapped(open_blob_store(url, self.clock, handed), self.requests, clock=self.clock)

    async def adopt(self, run: wire_runs.BasicRun) -> None:
        """Use the run's blob stores; see `Destinations.adopt`. Also raises BadSettings if a commit may take so long that its blobs are
        collected as garbage."""
        if run.backup_to and run.garbage_grace_seconds is not None:
            grace = timedelta(seconds=run.garbage_grace_seconds)
            self.policy.check(grace)
            self._usable_for = min(grace, timedelta(days=self._settings.blob_ttl_days) * 2 / 3) - self.policy.longest - TOLERANCE
        self._streams = {stream.name: StreamId(stream.system, stream.stream) for stream in run.streams}
        await self.destinations.adopt(run)

    async def adopt_current(self) -> None:
        """Use the blob stores that the run has now. Raises what `adopt` raises, and CoordinatorUnreachable."""
        async with self._one_adoption:  # otherwise an older answer could be used last
            await self.adopt(await self.coordinator.basic_run(self.run_id))

    async def adopt_when_possible(self) -> None:
        """`adopt_current`, repeated until it succeeds. Until then the former blob stores are used."""
        await until_available(self.adopt_current, (SluiceError,), what="the run's new blob stores cannot be used yet")

    async def in_thread(self, blocking: Callable[[], T]) -> T:
        """Run work on the disk threads. The loop's default pool is left free: heartbeats need it to resolve names."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, blocking)

    def reads(self, start: StageStart) -> list[StreamId]:
        return [self._streams[name] for name in start.stage.reads]

    def new_commit_id(self) -> CommitId:
        return commit_id(self.clock.now(), 100_000 + below(900_000))

    def uploader(self, blobs: BlobStore, start: StageStart) -> Uploader:
        settings = CommitSettings(
            packing=Packing(packs=self._settings.backup_packing),
            concurrency=self._settings.backup_concurrency,
            ttl=timedelta(days=self._settings.blob_ttl_days),
        )
        context = TransferContext(blobs, self.key(start), self.meter(start).backup, in_thread=self.in_thread)
        return Uploader(context, settings, self.clock, lambda: new_uuid().hex, lambda: self._usable_for)

    def restorer(self, blobs: BlobStore, start: StageStart) -> Restorer:
        context = TransferContext(blobs, self.key(start), self.meter(start).restore, LocalFiles(), self.in_thread)
        return Restorer(context, RestoreSettings(concurrency=self._settings.backup_concurrency))

    def copier(self, blobs: BlobStore, key: StageKey, progress: Progress, files: LocalFiles) -> Restorer:
        """Restores standby copies. They leave `disk_low_bytes` of the disk to the container's own tasks."""
        settings = RestoreSettings(concurrency=self._settings.backup_concurrency, leave_free=self._settings.disk_low_bytes)
        return Restorer(TransferContext(blobs, key, progress, files, self.in_thread), settings)

    def meter(self, start: StageStart) -> BackupMeter:
        """The meter of the stage, until `forget`."""
        return self.meters.setdefault((start.task, start.stage.name), BackupMeter())

    def forget(self, start: StageStart) -> None:
        """Drop the meter: the container has released the stage's task."""
        self.meters.pop((start.task, start.stage.name), None)

    def key(self, start: StageStart) -> StageKey:
        return StageKey(self.job, start.task, start.stage.name)

    async def close(self) -> None:
        await self.destinations.close()
        self.copies.close()
        self._threads.shutdown(wait=False, cancel_futures=True)


def commit_id(now: datetime, random: int) -> CommitId:
    """A commit id in Samza's format. `random` has six digits, without leading zeros."""
    return CommitId(f"{int(now.timestamp() * 1000)}-{random}")
