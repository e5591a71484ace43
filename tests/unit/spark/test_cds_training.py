"""The options of the JVM that writes an archive of classes."""

from __future__ import annotations

import pytest

from containers.spark.start.cds_training import without_archive


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ("-Xmx1g -XX:SharedArchiveFile=/a/b.jsa -Da=b", ["-Xmx1g", "-Da=b"]),
        ('"-XX:SharedArchiveFile=/a b/c.jsa" -Da="b c"', ['-Da="b', 'c"']),
        ('-XX:SharedArchiveFile="/a b/c.jsa"', []),
        ("-XX:SharedArchiveFile=/base.jsa:/top.jsa", []),
        ("-XX:ArchiveClassesAtExit=/a.jsa", ["-XX:ArchiveClassesAtExit=/a.jsa"]),
    ],
)
def test_an_archive_with_which_the_jvm_would_start_is_left_out(options: str, left: list[str]) -> None:
    assert without_archive(options).split() == left
