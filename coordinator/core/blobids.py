"""How blobs are named: by job, task and stage first, so that a listing of a store's prefix is the store, and a registry can be rebuilt."""

from __future__ import annotations

import re
from enum import StrEnum

from coordinator.core.errors import BadName
from coordinator.core.ids import JobName, Lineage, StageName, TaskName, directory_name
from coordinator.core.snapshot import BlobId

_SEGMENT = r"[A-Za-z0-9_-][A-Za-z0-9._-]*"
_BLOB_ID = re.compile(rf"{_SEGMENT}(/{_SEGMENT})*")
LONGEST = 900
"""S3 takes keys of 1,024 bytes; the rest is for the prefix in the bucket."""


class Kind(StrEnum):
    """The directory of a store's prefix that a blob is in."""

    DATA = "data"
    SNAPSHOTS = "snapshots"
    OFFSETS = "offsets"


def checked_blob_id(text: str) -> BlobId:
    """Raises BadName: among what it refuses are '..', empty segments, hidden ones and absolute names."""
    if len(text) > LONGEST or not _BLOB_ID.fullmatch(text):
        raise BadName("blob", text)
    return BlobId(text)


def store_prefix(job: JobName, task: TaskName, stage: StageName) -> str:
    """Of everything of one store; ends in '/'. Different tasks have different prefixes (`directory_name`)."""
    return f"jobs/{job}/{directory_name(task)}/{stage}/"


def fresh_blob_id(job: JobName, task: TaskName, stage: StageName, kind: Kind, millis: int, random: str) -> BlobId:
    """An id that no other write has: listings of one kind are in the order of `millis`. `random` are at least 16 hex digits."""
    return checked_blob_id(f"{store_prefix(job, task, stage)}{kind}/{millis:013}-{random}")


def offsets_prefix(job: JobName, task: TaskName, stage: StageName, lineage: Lineage) -> str:
    return f"{store_prefix(job, task, stage)}{Kind.OFFSETS}/{lineage}/"


def offsets_blob_id(job: JobName, task: TaskName, stage: StageName, lineage: Lineage, batch: int) -> BlobId:
    """The one id that is named after what it holds: the plan of a batch. Batches list in their order."""
    return checked_blob_id(f"{offsets_prefix(job, task, stage, lineage)}{batch:012}")


def batch_of(blob: BlobId) -> int:
    """The batch of an offsets blob."""
    return int(blob.rpartition("/")[2])


def millis_of(blob: BlobId) -> int:
    """When a data or snapshot blob was named, by the clock of the one who named it."""
    return int(blob.rpartition("/")[2].partition("-")[0])


def checked_prefix(text: str) -> str:
    """What a listing may ask for: "", an id, or the beginning of ids that ends in '/'. Raises BadName."""
    if text:
        checked_blob_id(text.removesuffix("/"))
    return text
