"""The marker of a blob store: an object or file at its root that marks the location as Sluice's."""

from __future__ import annotations

import json

from sluice.core.errors import BlobStoreUnusable

MARKER = "sluice.json"
_FORMAT = 1
MARKER_BODY = json.dumps({"sluice-blobs": _FORMAT}).encode() + b"\n"


def check_marker(body: bytes, where: str) -> None:
    """Raises BlobStoreUnusable unless the marker is of this version's format."""
    try:
        found = json.loads(body)["sluice-blobs"]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise BlobStoreUnusable(f"{where} does not belong to Sluice: its {MARKER} was not written by Sluice") from error
    if found != _FORMAT:
        raise BlobStoreUnusable(
            f"{where} has the format {found!r}; this version supports {_FORMAT}: use a newer version of Sluice, or another location"
        )


def belongs_to_others(where: str, found: str) -> BlobStoreUnusable:
    return BlobStoreUnusable(f"{where} does not belong to Sluice: it contains {found!r} and no {MARKER}; choose an empty location")


def not_made(where: str) -> BlobStoreUnusable:
    return BlobStoreUnusable(f"{where} has no {MARKER}: start the coordinator with this location first, which creates it")
