from __future__ import annotations

import gc
from pathlib import Path

import pytest

from containers.errors import CheckpointUnreadable
from containers.state.files import LocalFiles


def test_a_listing_is_sorted_and_leaves_the_garbage_collector_as_it_was(tmp_path: Path) -> None:
    for name in ("b", "a", "d/c"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(name)
    found = LocalFiles().listing(tmp_path)
    assert [(each.name, each.metadata.size) for each in found.files] == [("a", 1), ("b", 1)]
    assert [(each.name, [file.name for file in each.files]) for each in found.dirs] == [("d", ["c"])]
    assert gc.isenabled()
    gc.disable()
    try:
        LocalFiles().listing(tmp_path)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_listing_that_fails_leaves_the_garbage_collector_enabled(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LocalFiles().listing(tmp_path / "lost")
    (tmp_path / "link").symlink_to("elsewhere")
    with pytest.raises(CheckpointUnreadable, match="link is a link or a special file"):
        LocalFiles().listing(tmp_path)
    assert gc.isenabled()
