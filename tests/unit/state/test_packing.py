from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from containers.state.commits.packing import MANY_PACKS, Packed, Packing, PutChunk, PutPack, files_to_repack, plan_puts
from sluice.core.errors import BadSettings
from sluice.core.snapshots.snapshot import BlobId, FileBlob, FileIndex, FileMetadata

SIZES = Packing(chunk_bytes=100, pack_bytes=80, small_bytes=50)
PLAIN = Packing(chunk_bytes=100, pack_bytes=80, small_bytes=50, packs=False)
MIB = 1 << 20


def packed(path: str, blob: str, length: int, at: int, blob_size: int | None = 80) -> tuple[str, FileIndex]:
    part = FileBlob(BlobId(blob), 0, length, at, blob_size)
    return path, FileIndex(path, (part,), FileMetadata(0, 0, length, "app", "app", 0o644), 0, "")


def test_small_files_are_packed_together_and_large_ones_divided_into_chunks() -> None:
    assert plan_puts([("a", 49), ("b", 50), ("c", 30), ("d", 250), ("e", 30)], SIZES) == [
        PutPack((Packed("a", 49, 0), Packed("c", 30, 49))),
        PutPack((Packed("e", 30, 0),)),
        PutChunk("b", 0, 50, whole=True),
        PutChunk("d", 0, 84, whole=False),
        PutChunk("d", 84, 84, whole=False),
        PutChunk("d", 168, 82, whole=False),
    ]


def test_an_empty_file_needs_no_blob_unless_samza_is_to_find_one() -> None:
    assert plan_puts([("empty", 0)], SIZES) == []
    assert plan_puts([("empty", 0)], PLAIN) == [PutChunk("empty", 0, 0, whole=True)]


def test_without_packs_each_file_has_blobs_of_its_own() -> None:
    assert plan_puts([("a", 1), ("b", 100), ("c", 101)], PLAIN) == [
        PutChunk("a", 0, 1, whole=True),
        PutChunk("b", 0, 100, whole=True),
        PutChunk("c", 0, 51, whole=False),
        PutChunk("c", 51, 50, whole=False),
    ]


def test_a_change_of_one_percent_of_two_thousand_files_is_one_pack_and_the_chunks_of_the_large_files() -> None:
    changed = [(f"small-{number}", 16 << 10) for number in range(19)] + [("large", 21_000_000)]
    puts = plan_puts(changed, Packing())
    assert [type(put) for put in puts] == [PutPack, PutChunk, PutChunk]


@pytest.mark.parametrize(("chunk", "pack", "small"), [(0, 80, 50), (100, 40, 50), (100, 80, 0)])
def test_invalid_sizes_are_refused(chunk: int, pack: int, small: int) -> None:
    with pytest.raises(BadSettings):
        Packing(chunk, pack, small)


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 400), max_size=30), st.booleans())
def test_every_byte_of_every_file_is_put_once(files: dict[str, int], packs: bool) -> None:
    sizes = Packing(chunk_bytes=100, pack_bytes=80, small_bytes=50, packs=packs)
    covered: dict[str, list[int]] = {path: [] for path in files}
    for put in plan_puts(files.items(), sizes):
        assert put.size <= 100
        if isinstance(put, PutPack):
            assert put.size <= 80
            assert [each.at for each in put.files] == [sum(e.length for e in put.files[:n]) for n in range(len(put.files))]
            for each in put.files:
                covered[each.path] += range(each.length)
        else:
            covered[put.path] += range(put.offset, put.offset + put.length)
    assert covered == {path: list(range(size)) for path, size in files.items()}


# --- packs that are rewritten ---------------------------------------------------------------------------------------------------


def test_a_pack_of_which_less_than_half_is_used_is_uploaded_again() -> None:
    assert files_to_repack([packed("a", "p", 20, 0), packed("b", "p", 19, 20)], SIZES) == {"a", "b"}
    assert files_to_repack([packed("a", "p", 20, 0), packed("b", "p", 20, 20)], SIZES) == frozenset()


def test_a_pack_with_unused_files_at_its_end_is_uploaded_again_too() -> None:
    assert files_to_repack([packed("a", "p", 10, 0)], SIZES) == {"a"}


def test_a_pack_of_unknown_size_ends_with_its_last_used_file() -> None:
    assert files_to_repack([packed("a", "p", 10, 30, None)], SIZES) == {"a"}
    assert files_to_repack([packed("a", "p", 10, 10, None)], SIZES) == frozenset()


def test_files_with_blobs_of_their_own_are_left_alone() -> None:
    file = FileIndex("a", (FileBlob(BlobId("b"), 0),), FileMetadata(0, 0, 5, "app", "app", 0o644), 0, "")
    assert files_to_repack([("a", file)], SIZES) == frozenset()


def test_packs_are_unpacked_when_packing_is_turned_off() -> None:
    assert files_to_repack([packed("a", "p", 80, 0)], PLAIN) == {"a"}


def test_many_small_packs_are_put_together_so_that_a_restore_needs_few_requests() -> None:
    packs = [packed(f"f{number}", f"p{number}", 9, 0, 9) for number in range(MANY_PACKS)]
    assert files_to_repack(packs[1:], SIZES) == frozenset()
    assert files_to_repack(packs, SIZES) == {path for path, _ in packs}
    assert files_to_repack([*packs, packed("large", "q", 80, 0)], SIZES) == {path for path, _ in packs}
