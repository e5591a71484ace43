"""Opens the blob store that a URL names.

    file:///var/lib/sluice/blobs
    s3://bucket/prefix?endpoint=http://127.0.0.1:7070&region=eu-central-1

Credentials of S3 come from the environment or from the coordinator, never from the URL, which is shown in logs and answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from sluice.blobs.counted import CountedBlobs, Requests
from sluice.blobs.filesystem import FilesystemBlobs
from sluice.blobs.handed import RenewedCredentials
from sluice.blobs.limited import LimitedBlobs
from sluice.blobs.port import BlobStore
from sluice.blobs.retrying import RetryingBlobs
from sluice.blobs.s3config import S3Location
from sluice.blobs.timeouts import TimeoutBlobs
from sluice.clock import Clock, SystemClock
from sluice.core.errors import BadSettings
from sluice.core.waits import Backoff

CONCURRENCY = 16
TIMEOUT = timedelta(seconds=20)


def open_blob_store(url: str, clock: Clock | None = None, handed: RenewedCredentials | None = None) -> BlobStore:
    """The blob store at `url`, without wrappers and not opened yet. `handed`: credentials of S3, instead of those in the environment.
    Raises BadSettings."""
    clock = clock or SystemClock()
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise BadSettings("a blob store's location is not a URL") from error
    if parts.username is not None or parts.password is not None:
        raise BadSettings(f"the {parts.scheme}:// location of a blob store has credentials in it: {_KEYS}")
    if port is not None or parts.fragment:
        raise BadSettings(f"a blob store's location is {_FORMS}: {url!r} has a port or a fragment")
    match parts.scheme:
        case "file":
            return FilesystemBlobs(_directory(parts, url), clock)
        case "s3":
            return _s3(parts, url, clock, handed)
        case _:
            raise BadSettings(f"a blob store's location is {_FORMS}, not {url!r}")


_FORMS = "file:///directory or s3://bucket/prefix?endpoint=...&region=..."
_KEYS = "remove them, and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment"
_S3_OPTIONS = {"endpoint", "region"}


def _directory(parts: SplitResult, url: str) -> Path:
    try:
        path = Path(unquote(parts.path, errors="strict"))
    except UnicodeDecodeError:
        raise BadSettings(f"the path of {url!r} is not UTF-8: rename the directory, or choose another one") from None
    if parts.netloc or parts.query or not path.is_absolute() or path == Path("/"):
        raise BadSettings(f"a directory of blobs is written file:///absolute/path, not {url!r}")
    return path


def s3_location(url: str) -> S3Location:
    """The location that an s3:// URL names. Raises BadSettings."""
    return _s3_location(urlsplit(url), url)


def _s3(parts: SplitResult, url: str, clock: Clock, handed: RenewedCredentials | None) -> BlobStore:
    from sluice.blobs.s3 import S3Blobs  # obstore and botocore take half a second to import

    return S3Blobs(_s3_location(parts, url), clock, handed=handed)


def _s3_location(parts: SplitResult, url: str) -> S3Location:
    options = _options(parts)
    if not parts.netloc:
        raise BadSettings(f"{url!r} has no bucket: write s3://bucket/prefix")
    return S3Location(parts.netloc, unquote(parts.path).strip("/"), options.get("endpoint"), options.get("region"))


def _options(parts: SplitResult) -> Mapping[str, str]:
    """The options in the query. Error messages contain no values, because a value may be a misplaced secret."""
    found = parse_qs(parts.query, keep_blank_values=True)
    for name, values in found.items():
        if name not in _S3_OPTIONS:
            raise BadSettings(f"an s3:// location has no option {name!r}, only endpoint and region. If it is a credential, {_KEYS}")
        if len(values) != 1 or not values[0]:
            raise BadSettings(f"an s3:// location has {name!r} without a value, or twice")
    return {name: values[0] for name, values in found.items()}


def wrapped(
    store: BlobStore,
    requests: Requests,
    *,
    concurrency: int = CONCURRENCY,
    backoff: Backoff | None = None,
    timeout: timedelta = TIMEOUT,
    clock: Clock | None = None,
) -> BlobStore:
    """The store with retries, a limit on concurrent requests, timeouts and counters. Pauses between retries do not count as concurrent
    requests; every attempt is counted."""
    limited = LimitedBlobs(TimeoutBlobs(CountedBlobs(store, requests), timeout), concurrency)
    return RetryingBlobs(limited, backoff or Backoff(), clock or SystemClock())
