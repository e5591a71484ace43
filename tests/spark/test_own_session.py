"""Sessions in a process of their own: their JVM starts with the class archive, gets secrets in a file, and is closed with the fork server.

One session shows all that needs no other one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from containers.errors import ClassArchiveUnavailable
from containers.spark.start.cds import ClassArchive, ensure_archive
from tests.support.processes import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SHORT = 6000
"""Bytes. With each of Spark's jars on the command line it would be 50,000."""
CANARY = "hunter2 \\=:#é\U0001f99c'\"$(x)"
SECRET = "spark.hadoop.fs.s3a.secret.key"

SESSION = """
import json
import os
import sys
from pathlib import Path

import psutil

from containers.errors import SparkNotStarted
from containers.spark.session import Session, start_session
from containers.spark.start.cds import ClassArchive

archive, class_path, secret = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
root, sockets = map(Path, sys.argv[4:])
canary = os.environ.pop("CANARY")


def servers():
    forking = [each for each in psutil.Process().children() if "containers.spark.start.fork_server" in each.cmdline()]
    return len(forking), len([*sockets.glob("fork-*")])


options = {
    "spark.driver.defaultJavaOptions": f"-Xlog:class+load:file={root}/seen -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "3",
    secret: canary,
}
try:
    spark = start_session(
        "own", "local[1]", root / "spark", options, sockets, ClassArchive(archive, class_path), secret=[secret]
    )
except SparkNotStarted:
    print(json.dumps({"servers": servers()}))
    sys.exit()
session = Session(spark)
java = psutil.Process(spark.sparkContext._gateway.proc.pid)
assert java.name() == "java"
found = spark._jvm.Thread.currentThread().getContextClassLoader().getResources("META-INF/MANIFEST.MF")
manifests = []
while found.hasMoreElements():
    manifests.append(found.nextElement().toString())
core = spark._jvm.java.lang.Class.forName("org.apache.spark.SparkContext").getProtectionDomain().getCodeSource().getLocation()
seen = {
    "count": spark.range(5).count(),
    "command_line": java.cmdline(),
    "leaks": [each.pid for each in psutil.process_iter(["cmdline"]) if canary[:7] in " ".join(each.info["cmdline"] or ())],
    "secret": spark.sparkContext._jsc.hadoopConfiguration().get(secret.removeprefix("spark.hadoop.")),
    "files of secrets": [str(each) for each in (root / "spark").glob("secret-*")],
    "printed": spark.sparkContext._conf.toDebugString(),
    "conf": {name: spark.conf.get(name) for name in ("spark.sql.shuffle.partitions", "spark.sql.ansi.enabled")},
    "manifests": manifests,
    "core": core.toString(),
    "servers while it runs": servers(),
}
session.close()
print(json.dumps({**seen, "servers": servers()}))
"""


@dataclass(frozen=True, slots=True)
class Seen:
    """Classes that a session loaded from the archive, and others; the jars of its class path, by name; and what it reported."""

    archived: int
    others: int
    jars: list[str]
    report: dict[str, Any]
    printed: str


def seen_with(archive: ClassArchive, root: Path, **environment: str) -> Seen:
    """Start and close a session with a directory of settings, which the JVM that wrote the archive did not have."""
    (root / "conf").mkdir()
    (root / "conf" / "spark-defaults.conf").write_text("spark.ui.enabled false\nspark.sql.ansi.enabled false\n")
    with TemporaryDirectory() as sockets:
        done = subprocess.run(
            [sys.executable, "-c", SESSION, str(archive.file), archive.class_path, SECRET, str(root), sockets],
            cwd=ROOT,
            env={**os.environ, "CANARY": CANARY, "SPARK_CONF_DIR": str(root / "conf"), **environment},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert "[cds" not in done.stdout + done.stderr
    lines = (root / "seen").read_text().splitlines() if (root / "seen").exists() else []
    archived = sum("shared objects file (top)" in line for line in lines)
    report = json.loads(done.stdout.splitlines()[-1])
    jars = [url.partition("!")[0].rpartition("/")[2] for url in report.get("manifests", ()) if url.startswith("jar:file:")]
    return Seen(archived, len(lines) - archived, jars, report, done.stderr)


@pytest.fixture(scope="module")
def archive() -> ClassArchive:
    return ensure_archive(os.environ)


@pytest.fixture(scope="module")
def seen(archive: ClassArchive, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    root = tmp_path_factory.mktemp("session")
    (root / "a b.jsa").symlink_to(archive.file)
    return seen_with(ClassArchive(root / "a b.jsa", archive.class_path), root)


def command_line(seen: Seen) -> int:
    """Its bytes."""
    return sum(len(os.fsencode(each)) + 1 for each in seen.report["command_line"])


def test_a_session_loads_most_of_spark_s_classes_from_the_archive_with_a_short_command_line_and_another_collector_too(seen: Seen) -> None:
    assert seen.report["count"] == 5
    assert seen.archived > 5000
    assert seen.archived > seen.others
    assert command_line(seen) < SHORT
    assert len(seen.jars) > 200
    assert len(set(seen.jars)) == len(seen.jars)
    assert seen.report["core"].rpartition("/")[2] in seen.jars


def test_a_secret_of_the_config_is_not_an_argument_of_a_process(seen: Seen) -> None:
    report = seen.report
    assert (report["secret"], report["leaks"], report["files of secrets"]) == (CANARY, [], [])
    assert any("--properties-file" in each for each in report["command_line"])
    assert report["conf"] == {"spark.sql.shuffle.partitions": "3", "spark.sql.ansi.enabled": "false"}, "also conf/spark-defaults.conf"
    assert CANARY[:7] not in report["printed"] + seen.printed


def test_the_server_and_its_socket_are_gone_when_the_session_is_closed(seen: Seen) -> None:
    assert (seen.report["servers while it runs"], seen.report["servers"]) == ([1, 1], [0, 0])


def test_the_server_and_its_socket_are_gone_when_spark_has_not_started(archive: ClassArchive, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\nexit 1\n")
    java.chmod(0o755)
    assert seen_with(archive, tmp_path, JAVA_HOME=str(tmp_path)).report == {"servers": [0, 0]}


@pytest.mark.long  # test_cds.py shows when an archive is not used; here the JVM itself ignores it
def test_a_session_starts_without_an_archive_that_cannot_be_read(archive: ClassArchive, tmp_path: Path) -> None:
    (tmp_path / "none.jsa").write_bytes(b"not an archive")
    assert seen_with(ClassArchive(tmp_path / "none.jsa", archive.class_path), tmp_path).archived == 0


@pytest.mark.long
def test_a_session_starts_without_its_archive_when_the_jar_has_been_deleted(archive: ClassArchive, tmp_path: Path) -> None:
    seen = seen_with(ClassArchive(archive.file, str(tmp_path / "gone.jar")), tmp_path)
    assert seen.archived == 0
    assert len(seen.jars) > 200


@pytest.mark.long
def test_an_archive_is_used_in_a_directory_of_any_name_and_with_other_modification_times(tmp_path: Path) -> None:
    archive = ensure_archive({**os.environ, "SLUICE_JARS_DIR": str(tmp_path / "spä ce" / "jars")})
    for file in (archive.file, Path(archive.class_path)):
        file.touch()
    seen = seen_with(archive, tmp_path)
    assert seen.archived > 5000
    assert command_line(seen) < SHORT


@pytest.mark.long
def test_the_error_of_an_archive_that_cannot_be_made_has_the_message_of_the_jvm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-XX:MaxHeapFreeRatio=500")
    with pytest.raises(ClassArchiveUnavailable, match="MaxHeapFreeRatio=500 is outside the allowed range"):
        ensure_archive({**os.environ, "SLUICE_JARS_DIR": str(tmp_path)})
