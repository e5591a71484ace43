"""What a blob store has lost, and which snapshots that costs."""

from __future__ import annotations

from sluice.core.ids import JobName, StageKey, StageName, TaskName
from sluice.core.snapshots.lost import LostBlobs, find_lost
from sluice.core.snapshots.snapshot import BlobId, BlobStoreName, CommitId

STORE = BlobStoreName("s3")
KEY = StageKey(JobName("delays"), TaskName("Partition 0"), StageName("only"))
NEW, OLD = CommitId("2-200000"), CommitId("1-100000")
A, B, C = BlobId("a"), BlobId("b"), BlobId("c")


def test_nothing_is_lost_if_every_blob_is_listed() -> None:
    assert find_lost(STORE, KEY, {NEW: {A, B}, OLD: {A}}, {A, B, C}) is None
    assert find_lost(STORE, KEY, {}, set()) is None


def test_a_blob_of_several_snapshots_counts_once_and_costs_all_of_them() -> None:
    assert find_lost(STORE, KEY, {NEW: {A, B}, OLD: {A}}, {B}) == LostBlobs(STORE, KEY, 1, [NEW, OLD], newest=True)


def test_a_blob_of_an_older_snapshot_costs_that_one() -> None:
    lost = find_lost(STORE, KEY, {NEW: {B}, OLD: {A, C}}, {B})
    assert lost == LostBlobs(STORE, KEY, 2, [OLD], newest=False)
    assert str(lost) == "blob store s3 has lost 2 blobs of Partition 0/only: snapshot 1-100000 cannot be restored"
