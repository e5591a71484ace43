from __future__ import annotations

from pathlib import Path

import pytest

from containers.errors import CheckpointUnreadable
from containers.state.checkpoint import inspect
from containers.state.recovery.power_loss import checked, damaged_file


def test_metadata_that_cannot_be_read_is_reported_with_its_own_reason(tmp_path: Path) -> None:
    (tmp_path / "stage" / "metadata").mkdir(parents=True)
    assert damaged_file(tmp_path / "stage") is None
    with pytest.raises(CheckpointUnreadable, match="Is a directory"):
        inspect(tmp_path / "stage")


def test_the_state_is_listed_once_in_each_boot_and_temporary_files_do_not_count(tmp_path: Path) -> None:
    directory = tmp_path / "stage"
    partition = directory / "state" / "0" / "0"
    partition.mkdir(parents=True)
    (partition / ".1.delta.tmp").touch()
    assert damaged_file(directory) is None
    (partition / "1.delta").touch()
    assert damaged_file(directory) == partition / "1.delta"
    checked(directory)
    assert damaged_file(directory) is None
