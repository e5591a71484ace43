from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from containers.state.diff import Identity, LocalDir, LocalFile
from containers.state.recovery.restore_plan import (
    NEAR,
    Fetch,
    Link,
    MakeDir,
    MakeEmpty,
    Operation,
    Piece,
    Remove,
    SetMode,
    Staged,
    Swap,
    Sync,
    plan_restore,
)
from sluice.core.snapshots.fingerprint import Fingerprint
from sluice.core.snapshots.snapshot import BlobId, DirIndex, FileBlob, FileIndex, FileMetadata, walk

NOTHING = Staged(LocalDir(""))
CHUNK = 1 << 20


def indexed(name: str, *parts: FileBlob, size: int, mode: int = 0o644) -> FileIndex:
    return FileIndex(name, parts, FileMetadata(1, 2, size, "app", "app", mode), 7, f"sha256 of {name}")


def packed(name: str, length: int, at: int, blob: str = "p") -> FileIndex:
    return indexed(name, FileBlob(BlobId(blob), 0, length, at), size=length)


def local(name: str, size: int, inode: int = 1, mode: int = 0o644, links: int = 1) -> LocalFile:
    return LocalFile(name, Identity(inode, size, 5), FileMetadata(1, 2, size, "app", "app", mode), links)


def read(file: LocalFile) -> dict[Identity, Fingerprint]:
    """The file contains what the index says."""
    return {file.identity: Fingerprint(7, f"sha256 of {file.name}")}


def fetches(plan: list[Operation]) -> list[Fetch]:
    return [each for each in plan if isinstance(each, Fetch)]


def test_on_an_empty_disk_directories_are_made_files_fetched_and_all_is_synced_and_swapped() -> None:
    root = DirIndex("", (indexed("empty", size=0),), dirs=(DirIndex("d", (packed("a", 5, 0),), dirs=(DirIndex("e"),)),))
    assert plan_restore(root, NOTHING, None, {}, CHUNK) == [
        MakeDir("d"),
        MakeDir("d/e"),
        MakeEmpty("empty"),
        Fetch(BlobId("p"), 0, 5, (Piece("d/a", 0, 5, 0, True),)),
        Sync(("empty", "d/a", "d", "d/e", "")),
        Swap(),
    ]


def test_files_that_are_near_each_other_in_a_pack_come_in_one_request() -> None:
    root = DirIndex("", (packed("a", 10, 100), packed("b", 10, 0), packed("far", 10, 300 + NEAR), packed("other", 10, 20, "q")))
    assert fetches(plan_restore(root, NOTHING, None, {}, CHUNK)) == [
        Fetch(BlobId("p"), 0, 110, (Piece("b", 0, 10, 0, True), Piece("a", 0, 10, 100, True))),
        Fetch(BlobId("p"), 300 + NEAR, 10, (Piece("far", 0, 10, 0, True),)),
        Fetch(BlobId("q"), 20, 10, (Piece("other", 0, 10, 0, True),)),
    ]


def test_a_large_blob_as_samza_writes_it_comes_in_ranges_in_their_order() -> None:
    root = DirIndex("", (indexed("large", FileBlob(BlobId("x"), 0), size=25),))
    assert fetches(plan_restore(root, NOTHING, None, {}, 10)) == [
        Fetch(BlobId("x"), 0, 10, (Piece("large", 0, 10, 0, False),)),
        Fetch(BlobId("x"), 10, 10, (Piece("large", 10, 10, 0, False),)),
        Fetch(BlobId("x"), 20, 5, (Piece("large", 20, 5, 0, True),)),
    ]


def test_an_identical_local_file_is_linked_and_one_that_differs_is_fetched() -> None:
    root = DirIndex("", (packed("a", 5, 0),))
    file = local("a", 5)
    assert Link("a") in plan_restore(root, NOTHING, LocalDir("", (file,)), read(file), CHUNK)
    assert fetches(plan_restore(root, NOTHING, LocalDir("", (file,)), {file.identity: Fingerprint(7, "another")}, CHUNK))
    other_mode = local("a", 5, mode=0o600)
    assert fetches(plan_restore(root, NOTHING, LocalDir("", (other_mode,)), read(other_mode), CHUNK))


def test_what_is_staged_already_is_kept_and_given_its_mode() -> None:
    root = DirIndex("", (packed("a", 5, 0),))
    file = local("a", 5, mode=0o600)
    plan = plan_restore(root, Staged(LocalDir("", (file,))), None, read(file), CHUNK)
    assert plan == [SetMode("a", 0o644), Sync(("a", "")), Swap()]


def test_a_staged_file_that_others_share_is_not_given_another_mode_but_brought_again() -> None:
    root = DirIndex("", (packed("a", 5, 0),))
    file = local("a", 5, mode=0o600, links=2)
    plan = plan_restore(root, Staged(LocalDir("", (file,))), None, read(file), CHUNK)
    assert (plan[0], len(fetches(plan))) == (Remove("a"), 1)


def test_obstructing_staged_files_are_removed_first_by_their_topmost_path() -> None:
    root = DirIndex("", (packed("a", 5, 0),), dirs=(DirIndex("d"),))
    staged = LocalDir("", (local("d", 1), local("x", 1)), (LocalDir("a", (local("b", 1),), (LocalDir("c"),)),))
    plan = plan_restore(root, Staged(staged, ("a/link", "l")), None, {}, CHUNK)
    assert plan[:5] == [Remove("a"), Remove("d"), Remove("l"), Remove("x"), MakeDir("d")]


@st.composite
def roots(draw: st.DrawFn) -> DirIndex:
    """Files in packs, some sharing bytes, and files of several parts."""
    files = []
    for number in range(draw(st.integers(0, 8))):
        if draw(st.booleans()):
            files.append(packed(f"s{number}", draw(st.integers(1, 40)), draw(st.integers(0, 200_000)), draw(st.sampled_from("pq"))))
        else:
            parts, end = [], 0
            for part, length in enumerate(draw(st.lists(st.integers(1, 60), min_size=1, max_size=4))):
                parts.append(FileBlob(BlobId(f"l{number}-{part}"), end, length, draw(st.integers(0, 9))))
                end += length
            files.append(indexed(f"l{number}", *parts, size=end))
    return DirIndex("", tuple(files))


@given(roots(), st.integers(40, 100))
def test_every_byte_of_every_file_is_fetched_once_from_where_it_is(root: DirIndex, chunk: int) -> None:
    found: dict[str, dict[int, tuple[str, int]]] = {}
    for fetch in fetches(plan_restore(root, NOTHING, None, {}, chunk)):
        assert fetch.length <= chunk
        for piece in fetch.pieces:
            assert piece.at + piece.length <= fetch.length
            of_file = found.setdefault(piece.path, {})
            for byte in range(piece.length):
                assert piece.offset + byte not in of_file
                of_file[piece.offset + byte] = (fetch.blob, fetch.start + piece.at + byte)
    expected = {
        path: {part.offset + byte: (part.blob, part.at + byte) for part in file.blobs for byte in range(part.length or 0)}
        for path, file in walk(root)
    }
    assert found == expected


@given(roots(), st.integers(40, 100))
def test_a_fetch_of_a_part_of_a_file_waits_for_an_earlier_one(root: DirIndex, chunk: int) -> None:
    """So that fetches that begin in this order never wait for each other in a cycle."""
    reached: dict[str, int] = {}
    for fetch in fetches(plan_restore(root, NOTHING, None, {}, chunk)):
        assert len(fetch.pieces) == 1 or all(piece.whole for piece in fetch.pieces)
        for piece in fetch.pieces:
            assert piece.offset == reached.get(piece.path, 0)
            reached[piece.path] = piece.offset + piece.length
