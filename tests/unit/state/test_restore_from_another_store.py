"""A large file of which a later part is lost in the first blob store, and whole in the second."""

from __future__ import annotations

import io
from pathlib import Path

from containers.state.recovery.restore import Source
from sluice.blobs.indexes import read_index
from sluice.blobs.port import Purpose, RequestContext
from sluice.core.snapshots.snapshot import BlobId, walk
from tests.support.fakes import FakeClock
from tests.support.memory import MemoryBlobs
from tests.support.trees import KEY, Place, plain, read

TREE = plain({"metadata": b'{"id":"lineage"}', "state/large.sst": bytes(range(200))})
ABOUT = RequestContext.of_stage(Purpose.AUDIT, KEY)


async def two_stores(tmp_path: Path) -> tuple[Place, Place]:
    clock = FakeClock()
    places = [Place(tmp_path / name, MemoryBlobs(clock), clock=clock) for name in ("a", "b")]
    for place in places:
        place.make(TREE)
        await place.commit()
    return places[0], places[1]


def newest(place: Place) -> BlobId:
    assert place.newest is not None
    return place.newest


async def parts_of_large_file(place: Place) -> list[BlobId]:
    index = await read_index(place.blobs, newest(place), RequestContext.of_stage(Purpose.INDEX, KEY))
    return [each.blob for each in dict(walk(index.root))["state/large.sst"].blobs]


async def test_a_later_chunk_of_a_large_file_that_is_lost_in_one_store_comes_from_the_other(tmp_path: Path) -> None:
    one, two = await two_stores(tmp_path)
    await one.blobs.delete([(await parts_of_large_file(one))[-1]], ABOUT)
    target = tmp_path / "new" / "hourly"
    restored = await one.restorer().restore(newest(one), target, None, [Source(two.blobs, newest(two))])
    assert read(target) == {**{"state": None}, **TREE}
    assert restored.damaged == {one.newest}


async def test_a_flipped_bit_in_a_large_file_in_one_store_is_repaired_from_the_other(tmp_path: Path) -> None:
    one, two = await two_stores(tmp_path)
    part = (await parts_of_large_file(one))[0]
    body = io.BytesIO()
    await one.blobs.get(part, body, ABOUT)
    flipped = bytes([body.getvalue()[0] ^ 1]) + body.getvalue()[1:]
    await one.blobs.delete([part], ABOUT)
    await one.blobs.put(part, flipped, ABOUT)
    target = tmp_path / "new" / "hourly"
    await one.restorer().restore(newest(one), target, None, [Source(two.blobs, newest(two))])
    assert read(target) == {**{"state": None}, **TREE}
