from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from sluice.core.ids import Lineage
from sluice.core.snapshots.retention import BlobSize, References, decide, split
from sluice.core.snapshots.snapshot import BlobId

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
GRACE = timedelta(hours=24)
STORE = "jobs/j/t/s/"


def blob(rest: str) -> BlobId:
    return BlobId(STORE + rest)


def test_a_blob_is_of_a_job_and_a_store() -> None:
    assert split(blob("data/1-a")) == ("j", STORE, "data/1-a")
    assert split(BlobId("jobs/j/t/s")) == ("", "", "jobs/j/t/s")
    assert split(BlobId("registries/000000-x")) == ("", "", "registries/000000-x")


def test_only_added_blobs_are_referenced() -> None:
    references = References({}, None)
    references.add([blob("data/1-a"), blob("snapshots/2-b")])
    wanted = {"data/1-a": True, "data/1-b": False, "snapshots/2-b": True, "snapshots/1-a": False}
    assert {rest: references.refer_to(blob(rest)) for rest in wanted} == wanted


def test_blobs_of_unknown_kinds_are_not_garbage() -> None:
    references = References({}, None)
    assert references.refer_to(blob("future/1-a"))
    assert references.refer_to(blob("offsets/l/not-a-batch"))


def test_plans_are_referred_to_by_their_lineage() -> None:
    references = References({Lineage("l1"): 5}, Lineage("l2"))
    wanted = {
        "offsets/l1/000000000005": False,
        "offsets/l1/000000000006": True,
        "offsets/l2/000000000000": True,
        "offsets/l3/000000000009": False,
    }
    assert {rest: references.refer_to(blob(rest)) for rest in wanted} == wanted


def test_garbage_is_marked_and_deleted_only_if_it_is_found_again_after_the_grace_period() -> None:
    found = [BlobSize(blob("data/1"), 7)]
    first = decide(found, {}, lambda _: False, NOON, GRACE)
    assert (first.condemn, first.delete) == (found, [])
    since = {blob("data/1"): NOON}
    second = decide(found, since, lambda _: False, NOON + GRACE - timedelta(seconds=1), GRACE)
    assert (second.wait, second.delete) == (found, [])
    assert decide(found, since, lambda _: False, NOON + GRACE, GRACE).delete == found


def test_a_marked_blob_that_is_used_again_or_was_deleted_is_unmarked() -> None:
    since = {blob("data/1"): NOON, blob("data/2"): NOON}
    decision = decide([BlobSize(blob("data/1"), 7)], since, lambda _: True, NOON + 9 * GRACE, GRACE)
    assert (decision.referenced, decision.delete, set(decision.pardon)) == (1, [], set(since))


ids = st.sets(st.integers(0, 12).map(lambda n: blob(f"data/{n}")))


@given(there=ids, condemned=st.dictionaries(st.integers(0, 12).map(lambda n: blob(f"data/{n}")), st.integers(0, 48)), used=ids)
def test_blobs_in_use_are_never_marked_or_deleted(there: set[BlobId], condemned: dict[BlobId, int], used: set[BlobId]) -> None:
    since = {each: NOON - timedelta(hours=hours) for each, hours in condemned.items()}
    decision = decide([BlobSize(each, 1) for each in sorted(there)], since, used.__contains__, NOON, GRACE)
    harmed = {each.blob for each in (*decision.condemn, *decision.delete, *decision.wait)}
    assert not harmed & used
    assert {each.blob for each in decision.delete} == {each for each in there - used if condemned.get(each, 0) >= 24}
    assert harmed | (there & used) == there
    assert {each for each in since if each not in there} <= set(decision.pardon)
