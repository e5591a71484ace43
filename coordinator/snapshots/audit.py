"""Read-only checks of blob stores: verify a snapshot, explain why a blob exists, compare the catalog with the blob stores."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from coordinator.blobpool import BlobStores
from coordinator.snapshots.concurrent import run_all
from coordinator.snapshots.inventory import StageSnapshots, find_blob, is_known, stage_snapshots, stages_by_prefix
from coordinator.snapshots.operations import Progress
from coordinator.store.snapshots import SnapshotRow
from coordinator.store.sql import Store
from sluice.blobs.indexes import read_index
from sluice.blobs.port import BlobStore, Purpose, RequestContext
from sluice.core.errors import BlobCorrupted, BlobMissing, CorruptData, UnknownJob, UnknownSnapshot
from sluice.core.ids import JobName, StageKey
from sluice.core.snapshots.fingerprint import Hashes
from sluice.core.snapshots.indexjson import lengths
from sluice.core.snapshots.retention import split
from sluice.core.snapshots.snapshot import BlobId, BlobStoreName, CommitId, FileIndex, walk

ABOUT = RequestContext(Purpose.AUDIT)
AT_ONCE = 8
SHOWN = 100

_VerifiedFile: TypeAlias = tuple[BlobStoreName, StageKey, FileIndex]


@dataclass(frozen=True, slots=True)
class BlobExplanation:
    """A blob in one blob store, and why it exists."""

    blob_store: BlobStoreName
    there: bool
    size: int | None
    modified: datetime | None
    verdict: str
    why: str
    referenced_by: Sequence[str] = ()
    condemned_at: datetime | None = None


@dataclass(slots=True)
class AuditResult:
    """A blob store compared with the catalog. `missing`: blobs that snapshots refer to; `garbage`: blobs that no snapshot refers to;
    `unread`: indexes that cannot be read; `unknown`: prefixes of jobs that are not in the database."""

    blob_store: BlobStoreName
    looked_at: int = 0
    snapshots: int = 0
    garbage: int = 0
    garbage_bytes: int = 0
    first_garbage: list[BlobId] = field(default_factory=list)
    missing: int = 0
    first_missing: dict[BlobId, str] = field(default_factory=dict)
    unread: dict[BlobId, str] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        return not self.missing and not self.unread


def _no_snapshot(job: JobName, where: BlobStoreName | None) -> UnknownSnapshot:
    return UnknownSnapshot(f"job {job} has no snapshot" + (f" in {where}" if where else ""))


class Audits:
    def __init__(self, store: Store, blob_stores: BlobStores) -> None:
        self._store = store
        self._blob_stores = blob_stores

    # --- one snapshot ---

    async def verify(self, key: StageKey, checkpoint: CommitId, where: BlobStoreName | None, progress: Progress) -> Mapping[str, Any]:
        """Read a whole snapshot, in one blob store or in each that has it, and compare sizes and hashes.

        Raises UnknownSnapshot, BlobUnavailable.
        """
        async with self._store.read() as tx:
            row = await tx.snapshots.get(key, checkpoint)
        names = [] if row is None else [name for name in row.markers if where in (None, name)]
        if row is None or not names:
            raise UnknownSnapshot(f"stage {key.stage} of task {key.task} has no snapshot {checkpoint}" + (f" in {where}" if where else ""))
        wrong: dict[str, dict[str, str]] = {}
        files = 0
        for name in names:
            wrong[name] = {}
            try:
                index = await read_index(
                    await self._blob_stores.opened(name), row.markers[name].index, RequestContext.of_stage(Purpose.AUDIT, key)
                )
            except CorruptData as error:
                wrong[name][row.markers[name].index] = str(error)
                continue
            found = list(walk(index.root))
            files += len(found)
            progress.total = (progress.total or 0) + index.size
            await self._verify(await self._blob_stores.opened(name), found, key, wrong[name], progress)
        return {"whole": not any(wrong.values()), "files": files, "bytes": progress.done, "wrong": wrong}

    async def _verify(
        self, blobs: BlobStore, found: Sequence[tuple[str, FileIndex]], key: StageKey, wrong: dict[str, str], progress: Progress
    ) -> None:
        free, about = asyncio.Semaphore(AT_ONCE), RequestContext.of_stage(Purpose.AUDIT, key)

        async def one(path: str, file: FileIndex) -> None:
            async with free:
                try:
                    await _verify_file(blobs, path, file, about)
                except CorruptData as error:
                    wrong[path] = str(error)
                progress.done += file.metadata.size

        await run_all(one(path, file) for path, file in found)

    # --- all snapshots of a job ---

    async def check_job(self, job: JobName, where: BlobStoreName | None) -> None:
        """Raises UnknownJob, and UnknownSnapshot if the job has no snapshot there."""
        async with self._store.read() as tx:
            if not await is_known(tx, job):
                raise UnknownJob(f"there is no job {job!r}")
            for key in await tx.snapshots.stages(job):
                if any(where is None or where in row.markers for row in await tx.snapshots.of_stage(key)):
                    return
        raise _no_snapshot(job, where)

    async def verify_job(self, job: JobName, where: BlobStoreName | None, progress: Progress) -> Mapping[str, Any]:
        """Read all that the retained snapshots of a job need, in one blob store or in each, and compare sizes and hashes. A file that
        several snapshots share is read once. Snapshots that are retired in the meantime are ignored.

        Raises UnknownSnapshot, BlobUnavailable.
        """
        async with self._store.read() as tx:
            keys = await tx.snapshots.stages(job)
        wrong: defaultdict[str, dict[str, str]] = defaultdict(dict)
        verified: set[_VerifiedFile] = set()
        snapshots = 0
        for key in keys:
            async with self._store.read() as tx:
                rows = await tx.snapshots.of_stage(key)
            for row, name in ((each, name) for each in rows for name in each.markers if where in (None, name)):
                snapshots += 1
                found = await self._damage(key, row, name, verified, progress)
                if found and await self._is_retained(key, row.checkpoint):
                    wrong[name] |= {f"{key.task} {key.stage} {row.checkpoint}: {path}": problem for path, problem in found.items()}
        if not snapshots:
            raise _no_snapshot(job, where)
        return {"whole": not wrong, "snapshots": snapshots, "files": len(verified), "bytes": progress.done, "wrong": wrong}

    async def _damage(
        self,
        key: StageKey,
        row: SnapshotRow,
        name: BlobStoreName,
        verified: set[tuple[BlobStoreName, StageKey, FileIndex]],
        progress: Progress,
    ) -> Mapping[str, str]:
        """The problems of a snapshot, by path. Files in `verified` are not read again."""
        wrong: dict[str, str] = {}
        blobs = await self._blob_stores.opened(name)
        try:
            index = await read_index(blobs, row.markers[name].index, RequestContext.of_stage(Purpose.AUDIT, key))
        except CorruptData as error:
            return {row.markers[name].index: str(error)}
        new = [(path, file) for path, file in walk(index.root) if (name, key, file) not in verified]
        progress.total = (progress.total or 0) + sum(file.metadata.size for _, file in new)
        await self._verify(blobs, new, key, wrong, progress)
        verified |= {(name, key, file) for path, file in new if path not in wrong}
        return wrong

    async def _is_retained(self, key: StageKey, checkpoint: CommitId) -> bool:
        async with self._store.read() as tx:
            return await tx.snapshots.get(key, checkpoint) is not None

    # --- one blob ---

    async def explain(self, blob: BlobId, grace: timedelta) -> Sequence[BlobExplanation]:
        """Why a blob exists, in each blob store. Raises BlobUnavailable."""
        return [await self._explain(name, blob, grace) for name in self._blob_stores.names]

    async def _explain(self, name: BlobStoreName, blob: BlobId, grace: timedelta) -> BlobExplanation:
        blobs = await self._blob_stores.opened(name)
        listed = await find_blob(blobs, blob)
        job, prefix, _ = split(blob)
        async with self._store.read() as tx:
            known = await stages_by_prefix(tx, JobName(job)) if job and await is_known(tx, JobName(job)) else None
            key = (known or {}).get(prefix)
            store = None if key is None else await stage_snapshots(tx, key)
            condemned = next(iter(await tx.cleanup.marked(name, blob[:-1], blob)), None)
        since = condemned.marked_at if condemned is not None and condemned.blob == blob else None
        by: list[str] = []
        try:
            by = [] if store is None else await self._referring(name, blobs, store, blob)
            verdict, why = _verdict(by, listed is not None, since, grace)
        except CorruptData as error:
            verdict, why = "not judged", f"an index of its stage cannot be read: {error}"
        if known is None:
            verdict, why = "not judged", "it belongs to no job in the database"
        size, modified = (None, None) if listed is None else (listed.size, listed.modified)
        return BlobExplanation(name, listed is not None, size, modified, verdict, why, by, since)

    async def _referring(self, name: BlobStoreName, blobs: BlobStore, store: StageSnapshots, blob: BlobId) -> list[str]:
        found, about = [], RequestContext.of_stage(Purpose.AUDIT, store.key)
        for row in store.snapshots:
            if name not in row.markers:
                continue
            label = f"{row.job} {row.task} {row.stage} {row.checkpoint}"
            if row.markers[name].index == blob:
                found.append(f"{label}: its index")
                continue
            index = await read_index(blobs, row.markers[name].index, about)
            paths = [path for path, file in walk(index.root) if any(part.blob == blob for part in file.blobs)]
            if paths:
                found.append(f"{label}: {paths[0]}" + (f" and {len(paths) - 1} more files" if len(paths) > 1 else ""))
        if not found and store.references().refer_to(blob):
            found.append(
                f"{store.key.job} {store.key.task} {store.key.stage}: the offset-log entry of a batch that may have to be replayed"
            )
        return found

    # --- everything ---

    async def audit(self, progress: Progress) -> Mapping[str, Any]:
        """Compare each blob store with the catalog, in both directions. Raises BlobUnavailable."""
        found = [await self._audit(name, progress) for name in self._blob_stores.names]
        return {"good": all(each.good for each in found), "stores": [_spelled(each) for each in found]}

    async def _audit(self, name: BlobStoreName, progress: Progress) -> AuditResult:
        audited, blobs = AuditResult(name), await self._blob_stores.opened(name)
        async with self._store.read() as tx:
            jobs = {*await tx.snapshots.jobs(), *(row.job for row in await tx.runs.jobs())}
        for job in sorted(jobs):
            async with self._store.read() as tx:
                stores = await stages_by_prefix(tx, job)
            for prefix in sorted(stores):
                await self._audit_store(name, blobs, prefix, stores[prefix], audited, progress)
        async for page in blobs.list("jobs/", ABOUT):
            for listed in page:
                job_name, _, _ = split(listed.blob)
                if job_name not in jobs:
                    prefix = f"jobs/{job_name}/"
                    audited.unknown[prefix] = audited.unknown.get(prefix, 0) + 1
        return audited

    async def _audit_store(
        self, name: BlobStoreName, blobs: BlobStore, prefix: str, key: StageKey, audited: AuditResult, progress: Progress
    ) -> None:
        """Compare one stage. A blob that seems to be missing is checked again, because snapshots may have been retired."""
        async with self._store.read() as tx:
            known = await stage_snapshots(tx, key)
        wanted = await self._wanted(name, blobs, known, audited)
        needed = known.references()
        async for page in blobs.list(prefix, ABOUT):
            progress.done += len(page)
            audited.looked_at += len(page)
            for listed in page:
                if wanted.pop(listed.blob, None) is None and not (needed.refer_to(listed.blob)):
                    audited.garbage += 1
                    audited.garbage_bytes += listed.size
                    audited.first_garbage += [listed.blob][: SHOWN - len(audited.first_garbage)]
        for blob, checkpoint in sorted(wanted.items()):
            if await self._gone(known, blob, checkpoint, blobs):
                audited.missing += 1
                if len(audited.first_missing) < SHOWN:
                    audited.first_missing[blob] = checkpoint

    async def _wanted(self, name: BlobStoreName, blobs: BlobStore, known: StageSnapshots, audited: AuditResult) -> dict[BlobId, CommitId]:
        """The blobs that the snapshots of a stage refer to, each with one of these snapshots."""
        wanted: dict[BlobId, CommitId] = {}
        for row in known.snapshots:
            if name not in row.markers:
                continue
            audited.snapshots += 1
            wanted[row.markers[name].index] = row.checkpoint
            try:
                index = await read_index(blobs, row.markers[name].index, RequestContext.of_stage(Purpose.AUDIT, known.key))
            except BlobMissing:
                continue  # reported as missing
            except CorruptData as error:
                audited.unread[row.markers[name].index] = str(error)
                continue
            wanted |= dict.fromkeys(index.blobs - wanted.keys(), row.checkpoint)
        return wanted

    async def _gone(self, known: StageSnapshots, blob: BlobId, checkpoint: CommitId, blobs: BlobStore) -> bool:
        """Whether the blob is missing although its snapshot is still retained."""
        if await find_blob(blobs, blob) is not None:
            return False
        async with self._store.read() as tx:
            return await tx.snapshots.get(known.key, checkpoint) is not None


def _verdict(by: Sequence[str], there: bool, since: datetime | None, grace: timedelta) -> tuple[str, str]:
    if by:
        return "referenced", "" if there else "a snapshot refers to it, but it is missing"
    if not there:
        return "not there", "nothing refers to it"
    if since is None:
        return "garbage", "nothing refers to it; the next collection marks it"
    return "condemned", f"nothing refers to it; it is deleted after {since + grace:%Y-%m-%d %H:%M:%S} UTC if it is still unreferenced"


async def _verify_file(blobs: BlobStore, path: str, file: FileIndex, about: RequestContext) -> None:
    """Raises BlobCorrupted, BlobMissing."""
    sink = Hashes()
    for part, length in lengths(file.blobs, file.metadata.size, path):
        before = sink.size
        await blobs.get(part.blob, sink, about, start=part.at, length=length)
        if sink.size - before != length:
            raise BlobCorrupted(f"{part.blob} gave {sink.size - before} bytes; {path} needs {length}")
    if sink.size != file.metadata.size:
        raise BlobCorrupted(f"{path} has {sink.size} bytes in the blob store; its index says {file.metadata.size}")
    if not file.matches(sink.fingerprint):
        raise BlobCorrupted(f"{path} is not what was uploaded: its checksum differs")


def _spelled(audited: AuditResult) -> Mapping[str, Any]:
    return {
        "blobStore": audited.blob_store,
        "good": audited.good,
        "lookedAt": audited.looked_at,
        "snapshots": audited.snapshots,
        "garbage": {"blobs": audited.garbage, "bytes": audited.garbage_bytes, "first": audited.first_garbage},
        "missing": {"blobs": audited.missing, "first": audited.first_missing},
        "unreadIndexes": audited.unread,
        "unknownJobs": audited.unknown,
    }
