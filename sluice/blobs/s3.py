"""A blob store in a bucket of S3, or of a compatible server. obstore transfers the blobs; `s3control` makes all other requests.

    <prefix>/sluice.json                 the marker, see `marker`
    <prefix>/blobs/jobs/…                a blob; the tag `sluice-ttl-days` while it has a TTL
    <prefix>/deleted/<millis>-<random>   ids that were deleted, one a line; kept until <millis> (`sluice.blobs.deletions`)

Blobs with a TTL are deleted by a lifecycle rule of the bucket, or, where rules are not supported, by `sweep_expired`, which reads the tags.
What frees space does not need any: a full server can be opened, and blobs are deleted from it without a deletion record.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from sluice.blobs.deletions import DeletionRecord, ended, merged_name, millis, names, plan_merge, record_name
from sluice.blobs.handed import RenewedCredentials
from sluice.blobs.marker import MARKER, MARKER_BODY, belongs_to_others, check_marker, not_made
from sluice.blobs.port import REMEMBER, ListedBlob, RequestContext, Sink
from sluice.blobs.s3config import S3Credentials, S3Location, code_of, credentials_for, error_for, is_full
from sluice.blobs.s3control import TTL_DAYS, TTL_TAG, ObjectNotFound, S3Control, check_handed
from sluice.clock import Clock
from sluice.core.errors import BadSettings, BlobCorrupted, BlobDeleted, BlobMissing, BlobUnavailable, SluiceError
from sluice.core.snapshots.snapshot import BlobId, checked_blob_id, checked_prefix

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Config, S3Credential

log = logging.getLogger(__name__)

_PAGE = 1000
_INLINE = 1 << 20
"""A body of up to this size is written into its sink on the event loop. A larger one is written on a thread, in parts of at least this
size."""
_CONCURRENCY = 16
_LOOKS = 5
"""Maximum number of searches of the deletion records, repeated if some were merged during a search."""

_TIMEOUTS: ClientConfig = {"connect_timeout": timedelta(seconds=5), "timeout": timedelta(minutes=10), "user_agent": "sluice"}
"""`timeout` is long because it applies to a whole request with its body. `sluice.blobs.timeouts` cancels requests without progress
earlier."""


@dataclass(frozen=True, slots=True)
class TagReads:
    """Limits for reading the tags of blobs, which a sweep does if lifecycle rules are not supported. `remembered`: maximum number of blobs
    that are known to have no TTL. `in_a_sweep`: maximum number of other blobs that a sweep reads; the next sweep continues after them."""

    remembered: int = 200_000
    in_a_sweep: int = 10_000


class S3Blobs:
    """A prefix in a bucket, which must exist. Credentials are `handed`; without those, they come from the environment."""

    def __init__(
        self, location: S3Location, clock: Clock, tag_reads: TagReads | None = None, handed: RenewedCredentials | None = None
    ) -> None:
        access = credentials_for(location, os.environ, handed=handed is not None)
        self.location = location
        self._clock = clock
        self._handed = handed
        self._store = _client(location, access, handed)
        self._control = S3Control(location, access, handed)
        self._threads = ThreadPoolExecutor(_CONCURRENCY, thread_name_prefix="blobs")
        self._lifecycle = False
        self._tag_reads = tag_reads or TagReads()
        self._without_ttl: set[str] = set()
        self._swept_to: str | None = None
        """The key at which the last sweep stopped."""

    async def open(self, *, create: bool) -> None:
        with self._translated_errors("open"):
            try:
                marker = await self._read(MARKER)
            except FileNotFoundError as error:
                if code_of(str(error)) == "NoSuchBucket":
                    raise
                await self._create_marker(create)
            else:
                check_marker(marker, str(self.location))
                if create:  # checks that the bucket can be written; a full one can be read, and blobs can be deleted
                    await self._write_unless_full(MARKER, MARKER_BODY)
        if create:
            self._lifecycle = await self._control.set_lifecycle()

    async def _create_marker(self, create: bool) -> None:
        """With `create`, mark an empty location as Sluice's."""
        async for page in obstore.list(self._store, prefix=self.location.prefix or None, chunk_size=10):
            if others := [found["path"] for found in page]:
                raise belongs_to_others(str(self.location), others[0])
        if not create:
            raise not_made(str(self.location))
        with suppress(AlreadyExistsError):
            await obstore.put_async(self._store, self.location.key(MARKER), MARKER_BODY, mode="create")

    async def put(self, blob: BlobId, body: bytes | memoryview, about: RequestContext, *, ttl: timedelta | None = None) -> None:
        """With a TTL an existing blob is not replaced: the same put has written it in an earlier attempt, and its TTL may have been removed
        since. A server may refuse such a request by closing the connection while a large body is sent."""
        with self._translated_errors(blob):
            try:
                await self._write(f"blobs/{checked_blob_id(blob)}", body, ttl, mode="overwrite" if ttl is None else "create")
            except AlreadyExistsError as error:
                _check_not_running(blob, error)
            except BaseError:
                if ttl is None or not await self._exists(blob, memoryview(body).nbytes):
                    raise

    async def _exists(self, blob: BlobId, size: int) -> bool:
        """Whether the blob exists with this size. False if the server does not answer."""
        try:
            return (await obstore.head_async(self._store, self._key(blob)))["size"] == size
        except (BaseError, FileNotFoundError):
            return False

    async def put_if_absent(self, blob: BlobId, body: bytes, about: RequestContext) -> bool:
        key = self._key(blob)
        with self._translated_errors(blob):
            try:
                await obstore.put_async(self._store, key, body, mode="create", use_multipart=False)
            except AlreadyExistsError as error:
                _check_not_running(blob, error)
                return False
        return True

    async def get(self, blob: BlobId, sink: Sink, about: RequestContext, *, start: int = 0, length: int | None = None) -> None:
        key = self._key(blob)
        with self._translated_errors(blob):
            try:
                result = await obstore.get_async(self._store, key, options=_range(start, length))
            except FileNotFoundError as error:
                raise await self._missing(blob, error) from error
            except BaseError as error:
                if code_of(str(error)) == "InvalidRange":
                    await self._check_end(blob, start, length)
                    return
                raise
            if length == 0:
                _check_range(blob, start, 0, result.meta["size"])
                return
            first, end = result.range
            _check_range(blob, start, length, result.meta["size"])
            if await self._write_into(result, end - first, sink) != end - first:
                raise BlobUnavailable(f"the body of {blob} ended early")

    async def _write_into(self, result: obstore.GetResult, size: int, sink: Sink) -> int:
        if size <= _INLINE:
            body = memoryview(await result.bytes_async())
            sink.write(body)
            return len(body)
        written = 0
        loop = asyncio.get_running_loop()
        async for part in result.stream(min_chunk_size=_INLINE):
            await loop.run_in_executor(self._threads, sink.write, memoryview(part))
            written += len(part)
        return written

    async def _check_end(self, blob: BlobId, start: int, length: int | None) -> None:
        """A range that S3 rejects may be the empty one at the end of the blob, which is valid. Raises BlobCorrupted for others."""
        found = await obstore.get_async(self._store, self._key(blob))
        _check_range(blob, start, length, found.meta["size"])

    async def delete(self, blobs: Collection[BlobId], about: RequestContext) -> None:
        """Record the ids, then delete the blobs; from a full server without a record, as in `sluice.blobs.filesystem`."""
        keys = [self._key(blob) for blob in blobs]
        rest = iter(blobs)
        while some := list(islice(rest, _PAGE)):
            until = millis(self._clock.now() + REMEMBER)
            with self._translated_errors("delete"):
                body = "".join(f"{blob}\n" for blob in some).encode()
                if not await self._write_unless_full(f"deleted/{record_name(until)}", body, REMEMBER):
                    log.warning("%s is full: %d blobs are deleted without a record, the first %s", self.location, len(some), some[0])
            await self._control.delete(keys[: len(some)])
            del keys[: len(some)]

    async def remove_ttl(self, blob: BlobId, about: RequestContext) -> None:
        key = self._key(blob)
        try:
            await self._control.remove_ttl(key)
        except ObjectNotFound as error:
            with self._translated_errors(blob):
                raise await self._missing(blob, error) from error

    async def list(self, prefix: str, about: RequestContext, *, after: str = "") -> AsyncIterator[Sequence[ListedBlob]]:
        cut = len(self.location.key("blobs/"))
        inside = checked_prefix(prefix)[: prefix.rfind("/") + 1]
        with self._translated_errors("list"):
            pages = obstore.list(
                self._store,
                prefix=self.location.key(f"blobs/{inside}"),
                offset=self._key(BlobId(after)) if after else None,
                chunk_size=_PAGE,
            )
            async for page in pages:
                found = ((found["path"][cut:], found) for found in page)
                yield [
                    ListedBlob(BlobId(blob), meta["size"], meta["last_modified"])
                    for blob, meta in found
                    if blob.startswith(prefix) and blob > after
                ]

    async def sweep_expired(self, now: datetime, limit: int) -> int:
        with self._translated_errors("sweep"):
            count = 0 if self._lifecycle else await self._sweep_by_tags(now, limit)
            await self._tidy_records(now)
            return count

    async def _sweep_by_tags(self, now: datetime, limit: int) -> int:
        count, left = 0, self._tag_reads.in_a_sweep
        pages = obstore.list(self._store, prefix=self.location.key("blobs"), offset=self._swept_to, chunk_size=_PAGE)
        async for page in pages:
            old = [(found["path"], found["last_modified"]) for found in page if found["last_modified"] + timedelta(days=1) < now]
            unknown = [(key, modified) for key, modified in old if key not in self._without_ttl]
            expired = await self._expired(unknown[:left], now)
            if some := expired[: limit - count]:
                await self._control.delete(some)
            count += len(some)
            if count == limit:
                return count
            if len(unknown) >= left:
                self._swept_to = unknown[left - 1][0]
                return count
            left -= len(unknown)
        self._swept_to = None
        return count

    async def _expired(self, objects: Sequence[tuple[str, datetime]], now: datetime) -> Sequence[str]:
        """The keys whose TTL has ended. Keys without a TTL are remembered."""
        slots = asyncio.Semaphore(_CONCURRENCY)

        async def expired(key: str, modified: datetime) -> bool:
            async with slots:
                days = None
                with suppress(ObjectNotFound):
                    days = await self._control.ttl_days(key)
            if days is None:
                if len(self._without_ttl) < self._tag_reads.remembered:
                    self._without_ttl.add(key)
                return False
            return modified + timedelta(days=days) < now

        found = await asyncio.gather(*(expired(key, modified) for key, modified in objects))
        return [key for (key, _), has_expired in zip(objects, found, strict=True) if has_expired]

    async def _tidy_records(self, now: datetime) -> None:
        """Delete expired deletion records, and merge small ones unless the server is full."""
        records = await self._records()
        old = ended(records, now)
        await self._delete_records(old)
        group = plan_merge(each for each in records if each.name not in set(old))
        if not group:
            return
        slots = asyncio.Semaphore(_CONCURRENCY)

        async def read(name: str) -> str | None:
            async with slots:
                return await self._record(name)

        bodies = await asyncio.gather(*(read(each.name) for each in group))
        merged = "".join(body or "" for body in bodies).encode()
        if await self._write_unless_full(f"deleted/{merged_name(group)}", merged, REMEMBER):
            await self._delete_records([each.name for each in group])

    async def _delete_records(self, names: Sequence[str]) -> None:
        for first in range(0, len(names), _PAGE):
            await self._control.delete([self.location.key(f"deleted/{name}") for name in names[first : first + _PAGE]])

    async def _records(self) -> Sequence[DeletionRecord]:
        pages = obstore.list(self._store, prefix=self.location.key("deleted"), chunk_size=_PAGE)
        return sorted([DeletionRecord(found["path"].rpartition("/")[2], found["size"]) async for page in pages for found in page])

    async def _missing(self, blob: BlobId, why: Exception) -> SluiceError | Exception:
        """The error for an object that does not exist. Searches the deletion records, newest first."""
        if code_of(str(why)) == "NoSuchBucket":
            return why
        for _ in range(_LOOKS):
            gone = False
            records = [*reversed(await self._records())]
            for first in range(0, len(records), _CONCURRENCY):
                bodies = await asyncio.gather(*(self._record(each.name) for each in records[first : first + _CONCURRENCY]))
                if any(body is not None and names(body, blob) for body in bodies):
                    return BlobDeleted(f"{blob} was deleted from {self.location}")
                gone |= None in bodies
            if not gone:
                break
        return BlobMissing(f"there is no blob {blob} in {self.location}")

    async def _record(self, name: str) -> str | None:
        """A deletion record; None if it no longer exists, because it has expired or was merged."""
        try:
            return (await self._read(f"deleted/{name}")).decode()
        except FileNotFoundError:
            return None

    async def close(self) -> None:
        self._threads.shutdown(wait=False)
        await self._control.close()
        if self._handed is not None:
            await self._handed.close()

    async def _read(self, name: str) -> bytes:
        return bytes(await (await obstore.get_async(self._store, self.location.key(name))).bytes_async())

    async def _write(
        self, name: str, body: bytes | memoryview, ttl: timedelta | None = None, *, mode: Literal["create", "overwrite"] = "overwrite"
    ) -> None:
        days = _days(ttl)
        tags = {TTL_TAG: str(days)} if days is not None else None
        await obstore.put_async(self._store, self.location.key(name), body, tags=tags, mode=mode, use_multipart=False)

    async def _write_unless_full(self, name: str, body: bytes, ttl: timedelta | None = None) -> bool:
        """False if the server is full."""
        try:
            await self._write(name, body, ttl)
        except BaseError as error:
            if not is_full(code_of(str(error))):
                raise
            return False
        return True

    def _key(self, blob: BlobId) -> str:
        return self.location.key(f"blobs/{checked_blob_id(blob)}")

    @contextmanager
    def _translated_errors(self, what: str) -> Iterator[None]:
        """Raise obstore's errors as those of the port."""
        try:
            yield
        except (BaseError, FileNotFoundError) as error:
            text = str(error).partition("\n\nDebug source")[0]
            if self._handed is not None:
                check_handed(self._handed, code_of(text), f"{what} in {self.location}", text)
            denied = isinstance(error, PermissionDeniedError | UnauthenticatedError)
            raise error_for(code_of(text), denied, f"{what} in {self.location}", text) from error


def _check_not_running(blob: BlobId, error: AlreadyExistsError) -> None:
    """Raises BlobUnavailable if another put of the blob is running, because it may still fail."""
    if code_of(str(error)) == "ConditionalRequestConflict":
        raise BlobUnavailable(f"another put of {blob} is running") from error


def _client(location: S3Location, access: S3Credentials, handed: RenewedCredentials | None) -> S3Store:
    """obstore does not retry, see `sluice.blobs.retrying`. Over TLS the payload is not hashed, which makes puts a third faster."""
    http = access.endpoint is not None and access.endpoint.startswith("http://")
    config: S3Config = {"region": access.region, "unsigned_payload": not http}
    if access.endpoint is not None:
        config["endpoint"] = access.endpoint
    if access.key is not None and access.secret is not None:
        config["access_key_id"] = access.key
        config["secret_access_key"] = access.secret
    if access.token is not None:
        config["session_token"] = access.token
    options: ClientConfig = {**_TIMEOUTS, "allow_http": http}
    if access.authorities is not None and not http:
        try:
            options["root_certificate"] = access.authorities.read_bytes()
        except OSError as error:
            raise BadSettings(f"AWS_CA_BUNDLE cannot be read: {error}") from error
    return S3Store(
        location.bucket,
        config=config,
        client_options=options,
        retry_config={"max_retries": 0},
        credential_provider=None if handed is None else _provider(handed),
    )


def _provider(handed: RenewedCredentials) -> Callable[[], Coroutine[Any, Any, S3Credential]]:
    """obstore gets the credentials for each request, because it keeps those that have not expired, and would renew them by its own rule."""

    async def credential() -> S3Credential:
        found = await handed.current()
        return {"access_key_id": found.key, "secret_access_key": found.secret, "token": found.token, "expires_at": _EXPIRED}

    return credential


_EXPIRED = datetime(2000, 1, 1, tzinfo=UTC)


def _days(ttl: timedelta | None) -> int | None:
    if ttl is None:
        return None
    return next((days for days in TTL_DAYS if timedelta(days=days) >= ttl), None)


def _range(start: int, length: int | None) -> obstore.GetOptions | None:
    """The range of a request. None: the whole blob. Also None for an empty range, which cannot be requested; only the size is used then."""
    if length == 0 or (start == 0 and length is None):
        return None
    return {"range": {"offset": start} if length is None else (start, start + length)}


def _check_range(blob: BlobId, start: int, length: int | None, size: int) -> None:
    end = start if length is None else start + length
    if end > size:
        raise BlobCorrupted(f"{blob} has {size} bytes; a range up to {end} was requested")
