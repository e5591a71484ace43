"""Whose place it is: an object or file of that name at its root says that what is beside it is Sluice's."""

from __future__ import annotations

import json

from sluice.core.errors import BlobStoreUnusable

MARKER = "sluice.json"
_FORMAT = 1
MARKER_BODY = json.dumps({"sluice-blobs": _FORMAT}).encode() + b"\n"


def check_marker(body: bytes, where: str) -> None:
    """Raises BlobStoreUnusable if the marker is not one that this version wrote."""
    try:
        found = json.loads(body)["sluice-blobs"]
    except (ValueError, KeyError, TypeError) as error:
        raise BlobStoreUnusable(f"{where} is not ours: its {MARKER} is not one that Sluice wrote") from error
    if found != _FORMAT:
        raise BlobStoreUnusable(f"{where} has the format {found!r}; this version knows {_FORMAT}: use a newer Sluice, or another place")


def not_ours(where: str, found: str) -> BlobStoreUnusable:
    return BlobStoreUnusable(f"{where} is not ours: it has {found!r} in it and no {MARKER}; choose an empty place")


def not_made(where: str) -> BlobStoreUnusable:
    return BlobStoreUnusable(f"{where} has no {MARKER}: the coordinator, which makes it, was never started with this place")
