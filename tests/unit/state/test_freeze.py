"""What Spark writes into commits and changelogs, and which of these files a batch needs.

The changelogs here are made like those of lz4-java and Spark; `tests/spark/test_cuts_on_spark.py` reads Spark's own.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from containers.errors import CheckpointUnreadable
from containers.state.commits.freeze import (
    FreezeFailed,
    NeededVersion,
    Unreadable,
    Version,
    changelog_chain_by_number,
    changelog_chain_of,
    freeze,
    lz4_block,
    needed,
    shared_files,
    to_load,
)
from sluice.core.errors import BadSettings

ONE, TWO, THREE = Version(1, "a"), Version(2, "b"), Version(3, "c")


def utf(text: str) -> bytes:
    return len(text.encode()).to_bytes(2, "big") + text.encode()


def block(body: bytes, packed: bytes | None = None) -> bytes:
    """One block of an LZ4BlockOutputStream: raw, or compressed as `packed`."""
    method, data = (0x15, body) if packed is None else (0x25, packed)
    return b"LZ4Block" + bytes([method]) + len(data).to_bytes(4, "little") + len(body).to_bytes(4, "little") + bytes(4) + data


def literals(body: bytes) -> bytes:
    """An LZ4 block without matches."""
    if len(body) < 15:
        return bytes([len(body) << 4]) + body
    rest = len(body) - 15
    return bytes([0xF0]) + b"\xff" * (rest // 255) + bytes([rest % 255]) + body


def changelog(*lineage: Version, version: str = "v3") -> bytes:
    reported = json.dumps([{"version": each.number, "checkpointUniqueId": each.id} for each in lineage])
    return block(utf(version) + utf(reported) + b"\xff\xff\xff\xff") + block(b"")


# --- commits ----------------------------------------------------------------------------------------------------------


def test_a_commit_needs_the_version_after_it_of_every_store_of_every_partition() -> None:
    commit = 'v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{"0":[["a"],["b"]],"1":[["c","d"]]}}'
    assert needed(7, commit) == [
        NeededVersion("state/0/0", Version(8, "a")),
        NeededVersion("state/0/1", Version(8, "b")),
        NeededVersion("state/1/0", Version(8, "c")),
        NeededVersion("state/1/0", Version(8, "d")),
    ]


@pytest.mark.parametrize("commit", ['v1\n{"nextBatchWatermarkMs":0}', 'v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{}}', "v1\n{}"])
def test_a_commit_without_state_needs_nothing(commit: str) -> None:
    assert needed(7, commit) == []


@pytest.mark.parametrize("commit", ["", "v2", "v2\n[]", 'v2\n{"stateUniqueIds":7}', 'v2\n{"stateUniqueIds":{"0":[7]}}', "v2\n{"])
def test_text_that_is_not_a_commit_is_refused(commit: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        needed(7, commit)


# --- changelogs -------------------------------------------------------------------------------------------------------


def test_a_changelog_says_what_it_builds_upon() -> None:
    assert changelog_chain_of(changelog()) == []
    assert changelog_chain_of(changelog(ONE, TWO)) == [ONE, TWO]


def test_a_changelog_whose_beginning_takes_several_blocks_is_read() -> None:
    head = utf("v3") + utf(json.dumps([{"version": 1, "checkpointUniqueId": "a"}]))
    assert changelog_chain_of(block(head[:5]) + block(head[5:9], literals(head[5:9])) + block(head[9:])) == [ONE]


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"not compressed",
        changelog(ONE)[:40],
        changelog(ONE, version="v9"),
        block(utf("v3") + utf("nonsense")),
        block(b"", b"\x10"),
        b"(\xb5/\xfd zstd",
    ],
)
def test_an_unreadable_changelog_is_an_error(wrong: bytes) -> None:
    with pytest.raises(Unreadable):
        changelog_chain_of(wrong)


@given(st.binary(max_size=600))
def test_a_block_of_literals_is_unpacked(body: bytes) -> None:
    assert lz4_block(literals(body), len(body)) == body


def test_a_block_may_repeat_earlier_bytes_with_overlap() -> None:
    assert lz4_block(b"\x32abc\x03\x00\x10!", 10) == b"abcabcabc!"
    assert lz4_block(b"\x1fx\x01\x00\x05\x10!", 26) == b"x" * 25 + b"!"


@given(st.binary(max_size=200), st.integers(0, 300))
def test_any_block_ends_with_an_answer_or_a_clear_error(packed: bytes, size: int) -> None:
    with contextlib.suppress(ValueError, IndexError):
        assert len(lz4_block(packed, size)) == size


# --- required files -----------------------------------------------------------------------------------------------


def test_a_version_is_loaded_from_the_newest_zip_that_it_builds_upon() -> None:
    assert to_load(THREE, [ONE, TWO], {"1_a.zip", "2_b.zip", "3_c.changelog"}) == (TWO, [THREE])
    assert to_load(THREE, [ONE, TWO], {"3_c.zip"}) == (THREE, [])
    assert to_load(THREE, [ONE, TWO], {"2_other.zip"}) == (None, [ONE, TWO, THREE])


def test_names_show_what_a_version_builds_upon_as_far_as_they_can() -> None:
    files = {"1_a.changelog", "2_b.zip", "2_b.changelog", "3_c.changelog", "4_d.changelog", "_metadata", "3_c.changelog.crc"}
    assert changelog_chain_by_number(Version(4, "d"), files) == [TWO, THREE]
    assert changelog_chain_by_number(Version(4, "d"), files - {"3_c.changelog"})[1] == Version(3, "?")


def test_a_zip_names_the_files_that_it_shares() -> None:
    reported = 'v1\n{"sstFiles":[{"localFileName":"1.sst","dfsSstFileName":"1-x.sst","sizeBytes":5}],"numKeys":1}'
    assert shared_files(reported) == ["1-x.sst"]
    with pytest.raises(ValueError):  # noqa: PT011
        shared_files("v1\n{}")


# --- the frozen copy ----------------------------------------------------------------------------------------------------------


def checkpoint(root: Path, batches: int = 3, zip_of: int | None = None) -> Path:
    """Write the checkpoint of a query that has committed `batches` batches and planned one more."""
    state = root / "state/0/0"
    for directory in (root / "offsets", root / "commits", root / "sources/0", state):
        directory.mkdir(parents=True)
    (root / "metadata").write_text('{"id":"lineage"}')
    (root / ".metadata.crc").touch()
    (root / "sources/0/0").write_text("v1")
    for batch in range(batches + 1):
        (root / f"offsets/{batch}").write_text(f"v1\n{batch}")
        (root / f"offsets/.{batch}.crc").touch()
    lineage: list[Version] = []
    for batch in range(batches):
        version = Version(batch + 1, f"id-{batch + 1}")
        (state / version.changelog).write_bytes(changelog(*lineage))
        (state / f"{version.changelog}.crc").write_text("Spark's own")
        (state / f".{version.changelog}.crc").touch()
        (root / f"commits/{batch}").write_text(f'v2\n{{"stateUniqueIds":{{"0":[["{version.id}"]]}}}}')
        lineage.append(version)
        if batch + 1 == zip_of:
            (state / "SSTs").mkdir()
            (state / "SSTs/7-x.sst").write_text("sst")
            with zipfile.ZipFile(state / version.zip, "w") as archive:
                archive.writestr("metadata", 'v1\n{"sstFiles":[{"dfsSstFileName":"7-x.sst"}]}')
            lineage = [version]
    (state / ".99_x.changelog.6f.tmp").touch()
    return root


def paths(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def test_a_frozen_copy_ends_with_the_last_committed_batch(tmp_path: Path) -> None:
    store = checkpoint(tmp_path / "store")
    cut = freeze(store, tmp_path / "cut")
    assert (cut.directory, cut.lineage, cut.batch) == (tmp_path / "cut", "lineage", 2)
    assert not (tmp_path / "cut/offsets/3").exists()
    assert (store / "offsets/3").exists()


def test_a_frozen_copy_has_hard_links_of_all_files_but_checksums_and_drafts_of_hadoop(tmp_path: Path) -> None:
    store = checkpoint(tmp_path / "store")
    (store / "drain.json").touch()
    (store / ".metadata.sluice").touch()
    freeze(store, tmp_path / "cut")
    expected = {path for path in paths(store) if not Path(path).name.startswith(".")} - {"offsets/3"}
    assert paths(tmp_path / "cut") == expected
    assert "state/0/0/3_id-3.changelog.crc" in expected
    assert all((store / path).samefile(tmp_path / "cut" / path) for path in expected)


@pytest.mark.parametrize("why", [errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK])
def test_where_there_are_no_hard_links_a_frozen_copy_has_the_same_files_with_their_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: int
) -> None:
    def no_link(path: str, to: str, **more: bool) -> None:
        raise OSError(why, os.strerror(why), path, None, to)

    store = checkpoint(tmp_path / "store")
    freeze(store, tmp_path / "linked")
    monkeypatch.setattr("os.link", no_link)
    freeze(store, tmp_path / "copied")
    assert paths(tmp_path / "copied") == paths(tmp_path / "linked")
    for path in paths(tmp_path / "linked"):
        linked, copied = tmp_path / "linked" / path, tmp_path / "copied" / path
        assert copied.read_bytes() == linked.read_bytes()
        assert (copied.stat().st_mtime_ns, copied.stat().st_mode) == (linked.stat().st_mtime_ns, linked.stat().st_mode)
        assert not copied.samefile(linked)


def test_a_frozen_copy_made_before_the_first_batch_has_no_batch(tmp_path: Path) -> None:
    cut = freeze(checkpoint(tmp_path / "store", batches=0), tmp_path / "cut")
    assert cut.batch is None
    assert not (tmp_path / "cut/offsets/0").exists()


def test_empty_directories_are_in_the_frozen_copy(tmp_path: Path) -> None:
    store = checkpoint(tmp_path / "store")
    (store / "state/0/1").mkdir()
    freeze(store, tmp_path / "cut")
    assert (tmp_path / "cut/state/0/1").is_dir()


@pytest.mark.parametrize("gone", ["state/0/0/1_id-1.changelog", "state/0/0/3_id-3.changelog", "offsets/2", "offsets/1"])
def test_a_frozen_copy_without_a_file_that_its_last_batch_needs_is_refused(tmp_path: Path, gone: str) -> None:
    store = checkpoint(tmp_path / "store")
    (store / gone).unlink()
    with pytest.raises(FreezeFailed, match=Path(gone).name.partition(".")[0].partition("_")[2] or Path(gone).name):
        freeze(store, tmp_path / "cut")
    assert not (tmp_path / "cut").exists()


def test_files_older_than_the_loaded_zip_are_not_needed(tmp_path: Path) -> None:
    store = checkpoint(tmp_path / "store", batches=5, zip_of=3)
    for version in (1, 2):
        (store / f"state/0/0/{version}_id-{version}.changelog").unlink()
    assert freeze(store, tmp_path / "cut").batch == 4


@pytest.mark.parametrize("gone", ["3_id-3.zip", "SSTs/7-x.sst", "4_id-4.changelog"])
def test_a_zip_is_needed_with_its_files_and_the_changelogs_after_it(tmp_path: Path, gone: str) -> None:
    store = checkpoint(tmp_path / "store", batches=5, zip_of=3)
    (store / "state/0/0" / gone).unlink()
    with pytest.raises(FreezeFailed, match=r"is gone|is there"):
        freeze(store, tmp_path / "cut")


def test_changelogs_of_another_compression_are_judged_by_their_names(tmp_path: Path) -> None:
    store = checkpoint(tmp_path / "store", batches=5, zip_of=3)
    for path in (store / "state/0/0").glob("*.changelog"):
        path.write_bytes(b"(\xb5/\xfd zstd")
    assert freeze(store, tmp_path / "cut").batch == 4
    shutil.rmtree(tmp_path / "cut")
    (store / "state/0/0/4_id-4.changelog").unlink()
    with pytest.raises(FreezeFailed):
        freeze(store, tmp_path / "cut")


def test_freezing_starts_again_if_spark_deletes_a_file_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark commits batches 3 to 5, writes a zip and deletes old state between the linking of commits and of state."""
    store = checkpoint(tmp_path / "store")
    later = checkpoint(tmp_path / "later", batches=6, zip_of=5)
    for version in (1, 2, 3, 4):
        (later / f"state/0/0/{version}_id-{version}.changelog").unlink()
    link = os.link
    moved: list[Path] = []

    def meanwhile(path: str, to: str, **more: bool) -> None:
        if "/state/" in str(path) and not moved:
            moved.append(store.rename(tmp_path / "former"))
            later.rename(store)
        link(path, to, **more)

    monkeypatch.setattr("os.link", meanwhile)
    assert freeze(store, tmp_path / "cut").batch == 5
    assert moved


def test_a_directory_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointUnreadable, match="there is no checkpoint directory"):
        freeze(tmp_path / "nowhere", tmp_path / "cut")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointUnreadable, match="no metadata"):
        freeze(tmp_path / "empty", tmp_path / "cut")
    store = checkpoint(tmp_path / "store")
    (store / "commits/2").write_text("garbage")
    with pytest.raises(CheckpointUnreadable, match="commits/2 is not a commit"):
        freeze(store, tmp_path / "cut")
    assert not (tmp_path / "cut").exists()


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no second file system")
def test_a_frozen_copy_on_another_file_system_is_refused(tmp_path: Path) -> None:
    into = Path("/dev/shm") / f"sluice-{os.getpid()}"
    with pytest.raises(BadSettings, match="hard links"):
        freeze(checkpoint(tmp_path / "store"), into)
    assert not into.exists()
