"""The blobs of a stage's retained snapshots that a blob store has lost, and the snapshots that need them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sluice.core.ids import StageKey
from sluice.core.snapshots.snapshot import BlobId, BlobStoreName, CommitId


@dataclass(frozen=True, slots=True)
class LostBlobs:
    """`blobs`: the number of missing blobs. `snapshots`: the snapshots that need one of them, newest first. `newest`: whether the newest
    snapshot is among them."""

    blob_store: BlobStoreName
    key: StageKey
    blobs: int
    snapshots: Sequence[CommitId]
    newest: bool

    def __str__(self) -> str:
        what = f"{self.blobs} blob{'s' if self.blobs != 1 else ''}"
        costs = "the newest snapshot" if self.newest else f"snapshot {self.snapshots[0]}"
        more = f" and {len(self.snapshots) - 1} more" if len(self.snapshots) > 1 else ""
        stage = f"{self.key.task}/{self.key.stage}"
        return f"blob store {self.blob_store} has lost {what} of {stage}: {costs}{more} cannot be restored"


def find_lost(
    blob_store: BlobStoreName, key: StageKey, needs: Mapping[CommitId, Collection[BlobId]], listed: Collection[BlobId]
) -> LostBlobs | None:
    """`needs`: the blobs of each retained snapshot, newest first. `listed`: the existing blobs. None if nothing is missing."""
    missing = {checkpoint: [blob for blob in blobs if blob not in listed] for checkpoint, blobs in needs.items()}
    costs = [checkpoint for checkpoint, blobs in missing.items() if blobs]
    if not costs:
        return None
    return LostBlobs(blob_store, key, len({blob for blobs in missing.values() for blob in blobs}), costs, costs[0] == next(iter(needs)))
