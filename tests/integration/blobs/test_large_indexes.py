"""An index as large as a store can become."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.core.snapshots.indexjson import decoded, encoded
from sluice.core.snapshots.snapshot import DirIndex
from tests.support.indexes import BLOB, file, index


@pytest.mark.long
def test_a_hundred_thousand_files_are_written_and_read() -> None:
    many = replace(index(), root=DirIndex("", tuple(file(f"{number:06}.sst") for number in range(100_000))))
    assert decoded(encoded(many), BLOB) == many
