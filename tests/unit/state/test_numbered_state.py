"""Which files a version of a state store is loaded from, if its versions have only numbers; and copies of such state."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from containers.state.commits.freeze import FreezeFailed, freeze
from containers.state.commits.numbered_state import files_to_load


def names(text: str) -> set[str]:
    return set(text.split())


def test_a_version_is_loaded_from_the_newest_whole_state_and_the_changes_since() -> None:
    files = names("1.delta 2.delta 3.delta 3.snapshot 4.delta 5.delta 6.delta 6.snapshot")
    assert files_to_load(files, 5) == ["5.delta", "4.delta", "3.delta", "3.snapshot"]
    assert files_to_load(files, 6) == ["6.delta", "6.snapshot"]
    assert files_to_load(files, 2) == ["2.delta", "1.delta"]


def test_changelogs_of_rocksdb_are_loaded_in_the_same_way_and_checksums_belong_to_their_files() -> None:
    files = names("4.zip 4.changelog 5.changelog 5.changelog.crc 6.changelog 7.zip 7.zip.crc")
    assert files_to_load(files, 6) == ["6.changelog", "5.changelog", "5.changelog.crc", "4.changelog", "4.zip"]
    assert files_to_load(files, 7) == ["7.zip", "7.zip.crc"]


@pytest.mark.parametrize("there", ["", "1.delta 3.delta", "2.delta 3.delta", "1.delta 2.delta", "metadata", "3.delta.crc"])
def test_a_version_of_which_a_file_is_missing_cannot_be_loaded(there: str) -> None:
    assert files_to_load(names(there), 3) is None


# --- copies ----------------------------------------------------------------------------------------------------------


def checkpoint(root: Path, committed: int, planned: int, state: Iterable[str]) -> Path:
    for part, last in (("commits", committed), ("offsets", planned)):
        (root / part).mkdir(parents=True)
        for batch in range(last + 1):
            (root / part / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    (root / "metadata").write_text('{"id":"q"}')
    for name in state:
        file = root / "state" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    return root


def state_of(copy: Path) -> set[str]:
    return {str(each.relative_to(copy / "state")) for each in (copy / "state").rglob("*") if each.is_file()}


def test_a_copy_has_nothing_above_its_last_committed_version_and_nothing_that_is_not_needed(tmp_path: Path) -> None:
    """Batch 4 is planned, and its state is written already. Spark has also written a whole state of it in the background."""
    files = [f"0/{partition}/{n}.delta" for partition in (0, 1) for n in range(1, 6)] + ["0/0/2.snapshot", "0/0/5.snapshot"]
    live = checkpoint(tmp_path / "live", 3, 4, [*files, "0/_metadata/metadata", "0/0/_metadata/schema"])
    frozen = freeze(live, tmp_path / "copy")
    assert frozen.batch == 3
    assert state_of(tmp_path / "copy") == {
        *("0/0/2.snapshot", "0/0/2.delta", "0/0/3.delta", "0/0/4.delta"),
        *("0/1/1.delta", "0/1/2.delta", "0/1/3.delta", "0/1/4.delta"),
        *("0/_metadata/metadata", "0/0/_metadata/schema"),
    }
    assert sorted(each.name for each in (tmp_path / "copy" / "offsets").iterdir()) == ["0", "1", "2", "3"]


def test_a_copy_of_the_stores_of_a_join_is_made_store_by_store(tmp_path: Path) -> None:
    stores = ("left-keyToNumValues", "left-keyWithIndexToValue")
    live = checkpoint(tmp_path / "live", 0, 0, [f"0/0/{store}/{n}.delta" for store in stores for n in (1, 2)])
    freeze(live, tmp_path / "copy")
    assert state_of(tmp_path / "copy") == {f"0/0/{store}/1.delta" for store in stores}


def test_a_copy_of_rocksdb_has_the_files_that_its_whole_state_refers_to(tmp_path: Path) -> None:
    live = checkpoint(tmp_path / "live", 2, 2, ["0/0/3.changelog", "0/0/SSTs/a.sst", "0/0/SSTs/b.sst"])
    for version, shared in ((2, "a.sst"), (4, "b.sst")):
        with zipfile.ZipFile(live / "state/0/0" / f"{version}.zip", "w") as archive:
            files = [{"localFileName": "1.sst", "dfsSstFileName": shared, "sizeBytes": 1}]
            archive.writestr("metadata", "v1\n" + json.dumps({"sstFiles": files}))
    freeze(live, tmp_path / "copy")
    assert state_of(tmp_path / "copy") == {"0/0/2.zip", "0/0/3.changelog", "0/0/SSTs/a.sst"}


def test_a_checkpoint_whose_state_lacks_the_version_of_its_last_batch_is_not_copied(tmp_path: Path) -> None:
    live = checkpoint(tmp_path / "live", 3, 3, ["0/0/1.delta", "0/0/2.delta", "0/0/3.delta"])
    with pytest.raises(FreezeFailed, match=r"has no version 4, or not all that it builds upon"):
        freeze(live, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
