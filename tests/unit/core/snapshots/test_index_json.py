from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.errors import IndexUnreadable
from sluice.core.snapshots.indexjson import decoded, encoded, permissions
from sluice.core.snapshots.snapshot import BlobId, DirIndex, FileBlob, FileIndex, FileMetadata, walk
from tests.support.indexes import BLOB, DIGEST, METADATA, file, index


def samza_file(name: object = "CURRENT", size: object = 16, blobs: object = None, **more: object) -> dict[str, object]:
    return {
        "file-name": name,
        "blobs": [{"blob-id": "b-cur2", "offset": 0}] if blobs is None else blobs,
        "file-metadata": {
            "creation-time-millis": 1700000000000,
            "last-modified-time-millis": 1700000001000,
            "size": size,
            "owner": "app",
            "group": "app",
            "permissions": "rw-r--r--",
        },
        "checksum": 222957957,
        **more,
    }


def samza_dir(name: str = "", files: list[Any] | None = None, dirs: list[Any] | None = None) -> dict[str, Any]:
    return {"dir-name": name, "files-present": files or [], "files-removed": [], "sub-dirs-present": dirs or [], "sub-dirs-removed": []}


def samza(root: dict[str, Any], **more: object) -> bytes:
    """The JSON of Samza 1.8.0."""
    return json.dumps(
        {
            "creation-time-millis": 1700000002100,
            "snapshot-metadata": {
                "checkpoint-id": "1700000002000-123456",
                "job-name": "demo",
                "job-id": "1",
                "task-name": "Partition 0",
                "store-name": "counts",
            },
            "dir-index": root,
            "prev-snapshot-index-blob-id": None,
            **more,
        },
        indent=1,
    ).encode()


def refusal(body: bytes) -> str:
    with pytest.raises(IndexUnreadable) as caught:
        decoded(body, BLOB)
    assert BLOB in str(caught.value)
    assert "choose an earlier snapshot" in str(caught.value)
    return str(caught.value)


# --- what is written is read ------------------------------------------------------------------------------------------

letters = st.one_of(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), st.just("\udcff"))  # a byte that is not UTF-8
texts = st.text(letters, min_size=1, max_size=6).filter(lambda name: name not in (".", ".."))
metadatas = st.builds(
    FileMetadata, st.integers(0, 2**45), st.integers(0, 2**45), st.just(0), st.just("app"), st.just("app"), st.integers(0, 0o777)
)


@st.composite
def files(draw: st.DrawFn, name: str) -> FileIndex:
    lengths = draw(st.lists(st.integers(0, 2**33), max_size=4))
    packed = draw(st.booleans())
    parts, offset = [], 0
    for number, length in enumerate(lengths):
        blob = BlobId(f"data/b{number}")
        parts.append(FileBlob(blob, offset, length, 7, length + 7) if packed or length == 0 else FileBlob(blob, offset))
        offset += length
    digest = draw(st.one_of(st.none(), st.just(DIGEST)))
    return FileIndex(name, tuple(parts), draw(metadatas)._replace(size=offset), draw(st.integers(0, 2**32 - 1)), digest)


@st.composite
def directories(draw: st.DrawFn, name: str = "", depth: int = 2) -> DirIndex:
    found = sorted(draw(st.lists(texts, max_size=4, unique=True)))
    split = draw(st.integers(0, len(found))) if depth else len(found)
    removed = tuple(draw(files(each)) for each in sorted(draw(st.lists(texts, max_size=2, unique=True))))
    below = tuple(draw(directories(each, depth - 1)) for each in found[split:])
    gone = tuple(draw(directories(each, 0)) for each in draw(st.lists(texts, max_size=1)))
    return DirIndex(name, tuple(draw(files(each)) for each in found[:split]), removed, below, gone)


@given(directories())
def test_an_index_that_was_written_is_read_as_it_was(root: DirIndex) -> None:
    written = replace(index(), root=root)
    assert decoded(encoded(written), BLOB) == written


def test_the_same_index_always_gives_the_same_bytes() -> None:
    assert encoded(index(file(), file("LOCK", 0))) == encoded(index(file("LOCK", 0), file()))


def test_the_format_is_that_of_samza_with_additional_keys() -> None:
    packed = file("000012.sst", 16, FileBlob(BlobId("data/p"), 0, 16, 32, 100))
    document = json.loads(encoded(index(file(), packed)))
    ours = {key: document.pop(key) for key in ("schema-version", "generation", "lineage", "batch-id", "index-sha256")}
    assert (ours["generation"], ours["lineage"], ours["batch-id"]) == (3, "6f0c", 41)
    pack, plain = document["dir-index"]["files-present"]
    assert pack["blobs"] == [{"blob-id": "data/p", "offset": 0, "length": 16, "blob-offset": 32, "blob-size": 100}]
    assert plain == samza_file(blobs=[{"blob-id": "b-1", "offset": 0}], sha256=DIGEST)
    expected = json.loads(samza(samza_dir(files=[pack, plain])))
    assert document == expected | {"prev-snapshot-index-blob-id": "prev"}


@pytest.mark.parametrize(("mode", "text"), [(0o644, "rw-r--r--"), (0o755, "rwxr-xr-x"), (0o400, "r--------"), (0, "---------")])
def test_modes_are_spelt_in_letters(mode: int, text: str) -> None:
    assert permissions(mode) == text
    root = DirIndex("", (replace(file(), metadata=METADATA._replace(mode=mode)),))
    assert next(walk(decoded(encoded(replace(index(), root=root)), BLOB).root))[1].metadata.mode == mode


# --- indexes of others ------------------------------------------------------------------------------------------------


def test_an_index_of_samza_is_read() -> None:
    chunked = samza_file("000012.sst", 5000000, [{"blob-id": "b-12b", "offset": 4194304}, {"blob-id": "b-12a", "offset": 0}])
    found = decoded(samza(samza_dir(files=[chunked, samza_file()], dirs=[samza_dir("archive", [samza_file("000007.log")])])), BLOB)
    assert [path for path, _ in walk(found.root)] == ["000012.sst", "CURRENT", "archive/000007.log"]
    assert found.root.files[0].blobs == (FileBlob(BlobId("b-12a"), 0), FileBlob(BlobId("b-12b"), 4194304))
    assert (found.generation, found.lineage, found.batch, found.previous) == (None, None, None, None)
    assert found.root.files[0].digest is None


def test_unknown_keys_are_ignored() -> None:
    assert decoded(samza(samza_dir(files=[samza_file(colour="red")]), mood="good"), BLOB).root.files[0].name == "CURRENT"


def test_a_part_three_gigabytes_into_a_file_is_read_although_samza_refuses_it() -> None:
    blobs = [{"blob-id": "b-1", "offset": 0}, {"blob-id": "b-2", "offset": 3_000_000_000}]
    found = decoded(samza(samza_dir(files=[samza_file("huge", 3_000_000_005, blobs)])), BLOB)
    assert found.root.files[0].blobs[1].offset == 3_000_000_000


# --- what is refused --------------------------------------------------------------------------------------------------


def test_the_refusal_of_an_index_of_a_newer_version_names_that_version() -> None:
    assert "run that version" in refusal(samza(samza_dir(), **{"schema-version": 2, "index-sha256": ""}))


@given(st.integers(0, len(encoded(index(file()))) - 1))
def test_an_index_that_is_cut_short_is_refused(length: int) -> None:
    refusal(encoded(index(file()))[:length])


@given(st.integers(0, len(encoded(index(file()))) * 8 - 1))
def test_an_index_with_a_flipped_bit_is_refused(bit: int) -> None:
    body = bytearray(encoded(index(file())))
    body[bit // 8] ^= 1 << bit % 8
    refusal(bytes(body))


@pytest.mark.parametrize("body", [b"", b"PK\x03\x04", b"[]", b"null", b"{}", b'{"a": 1}', b"\xff\xfe", b"[" * 100_000, b"1" * 10_000])
def test_other_files_are_refused(body: bytes) -> None:
    refusal(body)


@pytest.mark.parametrize("name", ["../escaped", "..", ".", "", "/etc/passwd", "a/b", "nul\0", "x" * 256, 7, None])
def test_a_name_that_would_leave_its_directory_is_refused(name: object) -> None:
    refusal(samza(samza_dir(files=[samza_file(name)])))
    refusal(samza(samza_dir(dirs=[{**samza_dir(), "dir-name": name}])))


def test_a_duplicate_name_is_refused() -> None:
    assert "twice" in refusal(samza(samza_dir(files=[samza_file(), samza_file()])))
    assert "twice" in refusal(samza(samza_dir(files=[samza_file("a")], dirs=[samza_dir("a")])))
    assert "twice" in refusal(samza(samza_dir(dirs=[samza_dir("a"), samza_dir("a")])))


@pytest.mark.parametrize(
    "blobs",
    [
        [],
        [{"blob-id": "b", "offset": 1}],
        [{"blob-id": "b", "offset": 0}, {"blob-id": "c", "offset": 0}],
        [{"blob-id": "b", "offset": 0}, {"blob-id": "c", "offset": 17}],
        [{"blob-id": "b", "offset": 0, "length": 15}],
        [{"blob-id": "b", "offset": 0, "length": 8}, {"blob-id": "c", "offset": 9}],
        [{"blob-id": "b", "offset": -1}],
        [{"blob-id": "b", "offset": 0.0}],
        [{"blob-id": "b", "offset": True}],
        [{"blob-id": "../b", "offset": 0}],
        [{"blob-id": "", "offset": 0}],
        {"blob-id": "b"},
    ],
)
def test_parts_that_do_not_make_up_their_file_are_refused(blobs: object) -> None:
    refusal(samza(samza_dir(files=[samza_file(blobs=blobs)])))


@pytest.mark.parametrize("size", [-1, 16.0, "16", True, None])
def test_a_size_that_is_no_number_is_refused(size: object) -> None:
    refusal(samza(samza_dir(files=[samza_file(size=size)])))


@pytest.mark.parametrize("letters", ["rwx", "rw-r--r--x", "w--------", "rw-r--r-?"])
def test_impossible_permissions_are_refused(letters: str) -> None:
    wrong = samza_file()
    wrong["file-metadata"] = {**wrong["file-metadata"], "permissions": letters}  # type: ignore[dict-item]
    refusal(samza(samza_dir(files=[wrong])))


def test_directories_nested_too_deeply_are_refused() -> None:
    body = samza({"deep": 1}).replace(b'{\n  "deep": 1\n }', b'{"dir-name": "", "sub-dirs-present": [' * 50_000)
    assert "nested" in refusal(body)
