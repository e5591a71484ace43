from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from containers.errors import CheckpointUnreadable
from containers.spark.systems.kafka_markers import Marker
from containers.state.checkpoint import inspect, next_watermark
from containers.state.offsets.offsetlog import parse
from containers.state.offsets.wal import OffsetLog, encoded, put_in_all
from containers.state.recovery.decision import OffsetLogEntry
from sluice.blobs.marker import check_marker
from sluice.blobs.port import BlobStore, Purpose, RequestContext
from sluice.core.errors import BlobCorrupted, BlobMissing, BlobStoreUnusable, BlobUnavailable, CorruptData
from sluice.core.ids import Generation, JobName, Lineage, StageKey, StageName, TaskName
from sluice.core.snapshots.snapshot import offsets_blob_id
from tests.support.fakes import FakeClock
from tests.support.memory import MemoryBlobs

JOB, TASK, STAGE, LINEAGE = JobName("delays"), TaskName("Partition 0"), StageName("hourly"), Lineage("one")
KEY = StageKey(JOB, TASK, STAGE)


def log_in(blobs: BlobStore, lineage: Lineage = LINEAGE) -> OffsetLog:
    return OffsetLog(blobs, StageKey(JOB, TASK, STAGE), lineage)


def plan(batch: int, text: str = "v1\n{}\n{}", generation: int = 1) -> OffsetLogEntry:
    return OffsetLogEntry(batch, text, Generation(generation), strict=True, code="c")


@pytest.fixture
def blobs() -> MemoryBlobs:
    return MemoryBlobs(FakeClock())


async def test_a_plan_that_was_settled_is_read_again_as_it_was(blobs: MemoryBlobs) -> None:
    log = log_in(blobs)
    assert await log.put_if_absent(plan(3)) == plan(3)
    assert await log.read(3) == plan(3)


async def test_the_second_of_two_holders_gets_the_plan_of_the_first(blobs: MemoryBlobs) -> None:
    await log_in(blobs).put_if_absent(plan(3, "the first", 1))
    assert await log_in(blobs).put_if_absent(plan(3, "the second", 2)) == plan(3, "the first", 1)


async def test_the_plans_after_a_batch_are_those_of_this_lineage_alone_in_their_order(blobs: MemoryBlobs) -> None:
    for batch in (0, 9, 10, 11, 100):
        await log_in(blobs).put_if_absent(plan(batch))
        await log_in(blobs, Lineage("two")).put_if_absent(plan(batch, "others"))
    assert list((await log_in(blobs).after(9)).items()) == [(10, plan(10)), (11, plan(11)), (100, plan(100))]
    assert list(await log_in(blobs).after(-1)) == [0, 9, 10, 11, 100]


async def test_what_the_first_blob_store_decided_is_in_all_of_them(blobs: MemoryBlobs) -> None:
    second = MemoryBlobs(FakeClock())
    await log_in(blobs).put_if_absent(plan(3, "the first"))
    assert (await put_in_all([log_in(blobs), log_in(second)], plan(3, "mine"))).text == "the first"
    assert (await log_in(second).read(3)).text == "the first"


async def test_two_blob_stores_that_disagree_are_logged(blobs: MemoryBlobs) -> None:
    second = MemoryBlobs(FakeClock())
    await log_in(second).put_if_absent(plan(3, "another"))
    with pytest.raises(BlobCorrupted, match="different offset-log entries"):
        await put_in_all([log_in(blobs), log_in(second)], plan(3))


async def test_a_missing_entry_is_reported_as_missing(blobs: MemoryBlobs) -> None:
    with pytest.raises(BlobMissing):
        await log_in(blobs).read(3)


ENDLESS = encoded(plan(3)).replace(b'"batch": 3', b'"batch": 1e400')
NESTED = b"[" * 100_000


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"version":1}', encoded(plan(4)), encoded(plan(3))[:-2], b"\xff", ENDLESS, NESTED])
async def test_an_entry_of_another_batch_is_reported_as_corrupted(blobs: MemoryBlobs, body: bytes) -> None:
    await blobs.put(offsets_blob_id(KEY, LINEAGE, 3), body, RequestContext(Purpose.OFFSETS))
    with pytest.raises(BlobCorrupted, match="offsets/one/000000000003"):
        await log_in(blobs).read(3)


async def test_an_entry_of_a_newer_version_is_refused(blobs: MemoryBlobs) -> None:
    body = json.dumps(json.loads(encoded(plan(3))) | {"version": 2}).encode()
    await blobs.put(offsets_blob_id(KEY, LINEAGE, 3), body, RequestContext(Purpose.OFFSETS))
    with pytest.raises(BlobUnavailable, match="newer version"):
        await log_in(blobs).read(3)


async def test_the_bytes_name_the_batch_and_hold_sparks_own_text(blobs: MemoryBlobs) -> None:
    await log_in(blobs).put_if_absent(plan(3, 'v1\n{"batchWatermarkMs":0}\n{"in":{"0":5}}'))
    sink = io.BytesIO()
    await blobs.get(offsets_blob_id(KEY, LINEAGE, 3), sink, RequestContext(Purpose.OFFSETS))
    assert json.loads(sink.getvalue())["plan"].splitlines()[2] == '{"in":{"0":5}}'


@pytest.mark.parametrize("body", [ENDLESS, NESTED, b'{"sluice-blobs": [' + NESTED])
def test_an_entry_with_huge_numbers_or_deep_nesting_is_reported_as_corrupted(tmp_path: Path, body: bytes) -> None:
    with pytest.raises(BlobStoreUnusable, match="not written by Sluice"):
        check_marker(body, "the bucket")
    with pytest.raises(CorruptData, match="has not written"):
        Marker.decoded(body.decode(), "group g")
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "3").write_bytes(b"v1\n" + body.replace(b"batch", b"nextBatchWatermarkMs"))
    with pytest.raises(CheckpointUnreadable, match="commits/3"):
        next_watermark(tmp_path, 3)
    (tmp_path / "metadata").write_bytes(body)
    with pytest.raises(CheckpointUnreadable, match="metadata"):
        inspect(tmp_path)
    with pytest.raises(CheckpointUnreadable, match="the entry"):
        parse("v1\n" + body.decode().replace("batch", "batchWatermarkMs"), "the entry")
