from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from containers.errors import CheckpointUnreadable
from containers.state.checkpoint import Checkpoints, relocate, relocated
from sluice.core.ids import Lineage

OPERATOR = Path("/disk 2/job/Partition_0/totals/state/0")
LINEAGE = Lineage("6f0c9a52-3f5b-4e58-9c53-0d8e7a1f3b01")


def metadata(*paths: str, **more: Any) -> str:
    stores = [{"storeName": "default", "numPartitions": 1, **({"stateSchemaFilePaths": list(paths)} if paths else {})}]
    return "v2\n" + json.dumps({"operatorInfo": {"operatorId": 0}, "stateStoreInfo": stores, **more}, separators=(",", ":"))


def test_schemas_that_were_written_elsewhere_are_named_where_they_are_now() -> None:
    text = metadata("file:/disk1/state/0/_stateSchema/default/0_a", "file:/disk1/state/0/_stateSchema/default/1_b")
    here = f"file:{OPERATOR}/_stateSchema/default"
    assert relocated(text, OPERATOR) == metadata(f"{here}/0_a", f"{here}/1_b")


@pytest.mark.parametrize("text", [metadata(), metadata(f"file:{OPERATOR}/_stateSchema/default/0_a"), metadata("hdfs:/schemas/0_a")])
def test_other_paths_are_left_unchanged(text: str) -> None:
    assert relocated(text, OPERATOR) == text


def test_a_directory_in_a_directory_of_schemas_is_known_by_the_last_of_the_name() -> None:
    text = metadata("file:/x/_stateSchema/y/state/0/_stateSchema/default/0_a")
    assert relocated(text, OPERATOR) == metadata(f"file:{OPERATOR}/_stateSchema/default/0_a")


def store(root: Path, text: str) -> tuple[Checkpoints, Path]:
    stores = Checkpoints(root, "job")
    directory = stores.prepare("Partition 0", "totals", LINEAGE, None)
    file = directory / "state" / "0" / "_metadata" / "v2" / "3"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    file.with_name(".3.crc").write_text("of the former text")
    return stores, file


def test_a_store_that_is_made_ready_names_its_own_files_and_has_no_checksums_of_others(tmp_path: Path) -> None:
    stores, file = store(tmp_path, metadata("file:/disk1/state/0/_stateSchema/default/0_a"))
    for _ in range(2):
        stores.prepare("Partition 0", "totals", LINEAGE, None)
        assert file.read_text() == metadata(f"file:{file.parents[2]}/_stateSchema/default/0_a")
        assert [each.name for each in file.parent.iterdir()] == ["3"]


def test_a_checkpoint_that_names_its_own_files_is_left_unchanged(tmp_path: Path) -> None:
    _, file = store(tmp_path, "")
    file.write_text(metadata(f"file:{file.parents[2]}/_stateSchema/default/0_a"))
    before = file.stat().st_mtime_ns
    relocate(file.parents[4])
    assert (file.stat().st_mtime_ns, file.with_name(".3.crc").exists()) == (before, True)


@pytest.mark.parametrize("text", ["", "v3\n{}", "v2\nnonsense", "v2\n{}", "v2\n[]", 'v2\n{"stateStoreInfo": [3]}'])
def test_invalid_metadata_is_an_error_and_stays(tmp_path: Path, text: str) -> None:
    stores, file = store(tmp_path, text)
    with pytest.raises(CheckpointUnreadable, match="v2/3 is not the metadata of an operator"):
        stores.prepare("Partition 0", "totals", LINEAGE, None)
    assert file.read_text() == text
