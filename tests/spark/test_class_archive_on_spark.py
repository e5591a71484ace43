"""Real JVMs that begin with the archive of classes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from containers.classarchive import ClassArchive, made

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SESSION = """
import sys
from pathlib import Path
from containers.classarchive import ClassArchive, made
from containers.spark import start_session
import os

file, seen, root = map(Path, sys.argv[1:])
ours = made(os.environ)
options = {"spark.driver.defaultJavaOptions": f"-Xlog:class+load:file={seen} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
spark = start_session("archived", "local[1]", root, options, None, ClassArchive(file, ours.jars))
assert spark.range(5).count() == 5
spark.stop()
"""


def classes_of(archive: Path, root: Path) -> tuple[int, int]:
    """How many classes a session had from the archive, and how many not; with a directory of settings, which an archive's JVM had not."""
    (root / "conf").mkdir()
    (root / "conf" / "spark-defaults.conf").write_text("spark.ui.enabled false\n")
    seen = root / "seen"
    done = subprocess.run(
        [sys.executable, "-c", SESSION, str(archive), str(seen), str(root / "spark")],
        env={**os.environ, "SPARK_CONF_DIR": str(root / "conf")},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "[cds" not in done.stdout + done.stderr
    lines = seen.read_text().splitlines()
    ours = sum("shared objects file (top)" in line for line in lines)
    return ours, len(lines) - ours


@pytest.fixture
def archive() -> ClassArchive:
    return made(os.environ)


def test_a_session_has_most_of_spark_s_classes_from_the_archive_under_another_collector_too(archive: ClassArchive, tmp_path: Path) -> None:
    (tmp_path / "a b.jsa").symlink_to(archive.file)
    archived, others = classes_of(tmp_path / "a b.jsa", tmp_path)
    assert archived > 5000
    assert archived > others


def test_an_archive_of_another_kind_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "none.jsa").write_bytes(b"not an archive")
    assert classes_of(tmp_path / "none.jsa", tmp_path)[0] == 0
