"""Real JVMs that start with the class archive."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from containers.errors import ClassArchiveUnavailable
from containers.spark.start.cds import ClassArchive, ensure_archive

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SHORT = 6000
"""Bytes. With each of Spark's jars on the command line it would be 50,000."""

SESSION = """
import json
import os
import sys
from pathlib import Path

import psutil

from containers.spark.start.cds import ClassArchive
from containers.spark.session import start_session

file, class_path, root = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
options = {"spark.driver.defaultJavaOptions": f"-Xlog:class+load:file={root}/seen -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
spark = start_session("archived", "local[1]", root / "spark", options, None, ClassArchive(file, class_path))
assert spark.range(5).count() == 5
java = psutil.Process(spark.sparkContext._gateway.proc.pid)
assert java.name() == "java"
found = spark._jvm.Thread.currentThread().getContextClassLoader().getResources("META-INF/MANIFEST.MF")
manifests = []
while found.hasMoreElements():
    manifests.append(found.nextElement().toString())
core = spark._jvm.java.lang.Class.forName("org.apache.spark.SparkContext").getProtectionDomain().getCodeSource().getLocation()
seen = {"command_line": sum(len(os.fsencode(each)) + 1 for each in java.cmdline()), "manifests": manifests, "core": core.toString()}
(root / "seen.json").write_text(json.dumps(seen))
spark.stop()
"""


@dataclass(frozen=True, slots=True)
class Seen:
    """Classes that a session loaded from the archive, and others; bytes of its JVM's command line; the jars of its class path, by name;
    and the location of Spark's own classes.
    """

    archived: int
    others: int
    command_line: int
    jars: list[str]
    core: str


def seen_with(archive: ClassArchive, root: Path) -> Seen:
    """Start a session with a directory of settings, which the JVM that wrote the archive did not have."""
    (root / "conf").mkdir()
    (root / "conf" / "spark-defaults.conf").write_text("spark.ui.enabled false\n")
    done = subprocess.run(
        [sys.executable, "-c", SESSION, str(archive.file), archive.class_path, str(root)],
        env={**os.environ, "SPARK_CONF_DIR": str(root / "conf")},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "[cds" not in done.stdout + done.stderr
    lines = (root / "seen").read_text().splitlines()
    archived = sum("shared objects file (top)" in line for line in lines)
    reply = json.loads((root / "seen.json").read_text())
    jars = [url.partition("!")[0].rpartition("/")[2] for url in reply["manifests"] if url.startswith("jar:file:")]
    return Seen(archived, len(lines) - archived, reply["command_line"], jars, reply["core"])


@pytest.fixture(scope="module")
def archive() -> ClassArchive:
    return ensure_archive(os.environ)


def test_a_session_loads_most_of_spark_s_classes_from_the_archive_with_a_short_command_line_and_another_collector_too(
    archive: ClassArchive, tmp_path: Path
) -> None:
    (tmp_path / "a b.jsa").symlink_to(archive.file)
    seen = seen_with(ClassArchive(tmp_path / "a b.jsa", archive.class_path), tmp_path)
    assert seen.archived > 5000
    assert seen.archived > seen.others
    assert seen.command_line < SHORT
    assert len(seen.jars) > 200
    assert len(set(seen.jars)) == len(seen.jars)
    assert seen.core.rpartition("/")[2] in seen.jars


@pytest.mark.long
def test_an_archive_is_used_in_a_directory_of_any_name_and_with_other_modification_times(tmp_path: Path) -> None:
    archive = ensure_archive({**os.environ, "SLUICE_JARS_DIR": str(tmp_path / "spä ce" / "jars")})
    for file in (archive.file, Path(archive.class_path)):
        file.touch()
    seen = seen_with(archive, tmp_path)
    assert seen.archived > 5000
    assert seen.command_line < SHORT


def test_the_error_of_an_archive_that_cannot_be_made_has_the_message_of_the_jvm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-XX:MaxHeapFreeRatio=500")
    with pytest.raises(ClassArchiveUnavailable, match="MaxHeapFreeRatio=500 is outside the allowed range"):
        ensure_archive({**os.environ, "SLUICE_JARS_DIR": str(tmp_path)})


def test_a_session_starts_without_an_archive_that_cannot_be_read(archive: ClassArchive, tmp_path: Path) -> None:
    (tmp_path / "none.jsa").write_bytes(b"not an archive")
    assert seen_with(ClassArchive(tmp_path / "none.jsa", archive.class_path), tmp_path).archived == 0


@pytest.mark.long
def test_a_session_starts_without_its_archive_when_the_jar_has_been_deleted(archive: ClassArchive, tmp_path: Path) -> None:
    seen = seen_with(ClassArchive(archive.file, str(tmp_path / "gone.jar")), tmp_path)
    assert seen.archived == 0
    assert len(seen.jars) > 200
