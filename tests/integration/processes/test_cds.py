from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from containers.errors import ClassArchiveUnavailable
from containers.spark.start.cds import ClassArchive, ensure_archive, find_archive, installation


class Training:
    """A job whose JVM writes an archive, or does not."""

    def __init__(self, code: int = 0, *, writes: bool = True) -> None:
        self.code, self.writes = code, writes
        self.trained: list[ClassArchive] = []
        self.class_paths: list[bytes] = []

    def __call__(self, archive: ClassArchive, _lock: int) -> tuple[int, str]:
        self.trained.append(archive)
        self.class_paths.append(Path(archive.class_path).read_bytes() if ":" not in archive.class_path else b"")
        if self.writes:
            archive.file.write_bytes(b"classes")
        return self.code, "one line\nthe last line"


@pytest.fixture
def environment(tmp_path: Path) -> Mapping[str, str]:
    program = tmp_path / "jdk" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return {"JAVA_HOME": str(tmp_path / "jdk"), "SLUICE_JARS_DIR": str(tmp_path / "cache" / "jars")}


def kept(environment: Mapping[str, str]) -> list[str]:
    return sorted(file.name for file in Path(environment["SLUICE_JARS_DIR"]).glob("classes-*"))


def names(archive: ClassArchive) -> list[str]:
    """An archive and its class path."""
    return sorted([archive.file.name, Path(archive.class_path).name])


def test_an_archive_is_created_once_and_readable_for_all_users(environment: Mapping[str, str]) -> None:
    training = Training()
    assert find_archive(environment) is None
    first, second = ensure_archive(environment, training), ensure_archive(environment, training)
    assert first == second == find_archive(environment)
    assert len(training.trained) == 1
    assert [file.stat().st_mode & 0o777 for file in (first.file, Path(first.class_path))] == [0o644, 0o644]
    assert kept(environment) == names(first)


def test_the_class_path_is_one_jar_beside_the_archive_and_is_created_before_it(environment: Mapping[str, str]) -> None:
    installed = installation(environment)
    assert installed is not None
    training = Training()
    archive = ensure_archive(environment, training)
    assert (
        archive.class_path == training.trained[0].class_path == str(archive.file.parent / f"classes-{installed.where}-{installed.what}.jar")
    )
    assert training.class_paths == [installed.pathing]
    with zipfile.ZipFile(archive.class_path) as jar:
        manifest = jar.read("META-INF/MANIFEST.MF").replace(b"\r\n ", b"").decode()
    named = manifest.split("Class-Path: ")[1].split()
    assert [(archive.file.parent / name).resolve() for name in named] == [jar.resolve() for jar in installed.jars]


@pytest.mark.parametrize(
    ("harm", "expected"), [("missing", "is missing"), ("truncated", "was changed since it was made"), ("other", "was changed since it")]
)
def test_an_archive_whose_jar_is_missing_or_damaged_is_not_used_and_is_created_again(
    harm: str, expected: str, environment: Mapping[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    archive = ensure_archive(environment, Training())
    jar = Path(archive.class_path)
    before = jar.read_bytes()
    jar.unlink()
    if harm != "missing":
        jar.write_bytes(before[:-1] if harm == "truncated" else before.replace(b"Class-Path", b"Class-path"))
    assert find_archive(environment) is None
    assert f"{jar} {expected}" in caplog.text
    again = Training()
    assert ensure_archive(environment, again) == archive == find_archive(environment)
    assert len(again.trained) == 1
    assert jar.read_bytes() == before


def test_an_archive_of_a_release_without_jars_is_deleted_when_another_one_is_created(environment: Mapping[str, str]) -> None:
    installed = installation(environment)
    assert installed is not None
    installed.directory.mkdir(parents=True)
    former = installed.directory / f"classes-{installed.where}-0123456789ab-7.jsa"
    former.write_bytes(b"classes")
    assert find_archive(environment) is None
    archive = ensure_archive(environment, Training())
    assert kept(environment) == names(archive)


KILLED = """
import os, signal, sys
from containers.spark.start.cds import ensure_archive

def train(archive, lock):
    if sys.argv[1] == "after":
        archive.file.write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)

ensure_archive(os.environ, train)
"""


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_process_that_is_killed_leaves_a_jar_without_an_archive_and_the_next_one_begins_again(
    moment: str, environment: Mapping[str, str]
) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, moment], env={**os.environ, **environment}, check=False, timeout=600)
    assert done.returncode == -9
    assert [Path(name).suffix for name in kept(environment)] == [".jar"]
    assert find_archive(environment) is None
    archive = ensure_archive(environment, Training())
    assert kept(environment) == names(archive)
    assert {each.name for each in archive.file.parent.iterdir()} == {"lock", *names(archive)}


def test_an_archive_is_deleted_before_its_jar(environment: Mapping[str, str]) -> None:
    """The jar is replaced by a directory, which cannot be deleted like a file."""
    before = ensure_archive(environment, Training())
    (Path(environment["JAVA_HOME"]) / "bin" / "java").write_text("#!/bin/sh\n# an upgrade\n")
    jar = Path(before.class_path)
    jar.unlink()
    jar.mkdir()
    with pytest.raises(ClassArchiveUnavailable):
        ensure_archive(environment, Training())
    assert kept(environment) == [jar.name]


def test_an_archive_is_used_where_nothing_can_be_written(environment: Mapping[str, str]) -> None:
    archive = ensure_archive(environment, Training())
    directory = archive.file.parent
    directory.chmod(0o555)
    try:
        before = directory.stat().st_mtime_ns
        assert ensure_archive(environment, Training()) == find_archive(environment) == archive
        assert directory.stat().st_mtime_ns == before
    finally:
        directory.chmod(0o755)


def test_an_archive_that_was_moved_is_not_used(environment: Mapping[str, str], tmp_path: Path) -> None:
    """A JVM looks for the jar at its former path."""
    ensure_archive(environment, Training())
    (tmp_path / "cache").rename(tmp_path / "moved")
    moved = {**environment, "SLUICE_JARS_DIR": str(tmp_path / "moved" / "jars")}
    assert find_archive(moved) is None
    archive = ensure_archive(moved, Training())
    assert kept(moved) == names(archive)


def test_a_link_to_the_directory_is_the_same_directory(environment: Mapping[str, str], tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "cache")
    linked = {**environment, "SLUICE_JARS_DIR": str(tmp_path / "link" / "jars")}
    assert ensure_archive(environment, Training()) == find_archive(linked)


def test_the_directory_may_have_any_name(environment: Mapping[str, str], tmp_path: Path) -> None:
    named = {**environment, "SLUICE_JARS_DIR": os.fsdecode(os.fsencode(tmp_path / "spä ce%20") + b"\xff")}
    archive = ensure_archive(named, Training())
    assert archive.class_path == str(archive.file.parent / Path(archive.class_path).name)
    assert find_archive(named) == archive


def test_an_archive_is_used_after_its_file_times_were_lost(environment: Mapping[str, str]) -> None:
    archive = ensure_archive(environment, Training())
    assert Path(archive.class_path).stat().st_mtime == 0
    Path(archive.class_path).touch()
    assert find_archive(environment) == archive


def test_a_partly_written_archive_is_not_used_and_is_deleted(environment: Mapping[str, str]) -> None:
    installed = installation(environment)
    assert installed is not None
    left = installed.directory / "building-x"
    left.mkdir(parents=True)
    (left / "classes.jsa").write_bytes(b"half")
    assert find_archive(environment) is None
    whole = ensure_archive(environment, Training())
    assert {each.name for each in installed.directory.iterdir()} == {"lock", *names(whole)}


def test_a_jvm_that_writes_after_the_creation_was_given_up_leaves_nothing(environment: Mapping[str, str]) -> None:
    """As after Ctrl-C: Sluice has ended, and the JVM writes later, when the lock is free again."""
    interrupted = Training(1, writes=False)
    with pytest.raises(ClassArchiveUnavailable):
        ensure_archive(environment, interrupted)
    (late,) = interrupted.trained
    with pytest.raises(FileNotFoundError):
        late.file.write_bytes(b"late")
    again = Training()
    ensure_archive(environment, again)
    assert again.trained[0].file != late.file


def test_a_truncated_archive_is_not_used_and_is_created_again(environment: Mapping[str, str]) -> None:
    whole = ensure_archive(environment, Training()).file
    whole.write_bytes(whole.read_bytes()[:-1])
    assert find_archive(environment) is None
    assert ensure_archive(environment, Training()) == find_archive(environment)
    assert whole.read_bytes() == b"classes"


def test_another_java_at_the_same_path_needs_another_archive_and_the_former_one_is_deleted(environment: Mapping[str, str]) -> None:
    before = ensure_archive(environment, Training())
    (Path(environment["JAVA_HOME"]) / "bin" / "java").write_text("#!/bin/sh\n# an upgrade\n")
    assert find_archive(environment) is None
    assert kept(environment) == names(before)
    after = ensure_archive(environment, Training())
    assert kept(environment) == names(after)


def test_an_installation_at_another_path_keeps_its_own_archive(environment: Mapping[str, str], tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "jdk").rename(elsewhere)
    theirs = ensure_archive({**environment, "JAVA_HOME": str(elsewhere)}, Training())
    elsewhere.rename(tmp_path / "jdk")
    installed = ensure_archive(environment, Training())
    assert kept(environment) == sorted(names(theirs) + names(installed))


@pytest.mark.parametrize("training", [Training(1), Training(0, writes=False)])
def test_when_the_training_job_fails_nothing_is_left_and_its_last_output_is_logged(
    environment: Mapping[str, str], training: Training
) -> None:
    with pytest.raises(ClassArchiveUnavailable, match="the last line"):
        ensure_archive(environment, training)
    assert kept(environment) == []


def test_without_java_there_is_no_archive_and_none_can_be_created(tmp_path: Path) -> None:
    environment = {"PATH": "", "SLUICE_JARS_DIR": str(tmp_path)}
    assert find_archive(environment) is None
    with pytest.raises(ClassArchiveUnavailable, match="install Java"):
        ensure_archive(environment)


def test_the_error_about_a_directory_that_cannot_be_used_names_it(environment: Mapping[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ClassArchiveUnavailable, match="set SLUICE_JARS_DIR to another directory"):
        ensure_archive({**environment, "SLUICE_JARS_DIR": str(tmp_path / "file" / "jars")}, Training())


def spark_in(home: Path, environment: Mapping[str, str]) -> Mapping[str, str]:
    (home / "jars").mkdir(parents=True)
    (home / "jars" / "spark-core.jar").touch()
    return {**environment, "SPARK_HOME": str(home)}


def test_a_spark_home_has_its_own_jars_and_its_own_archive(environment: Mapping[str, str], tmp_path: Path) -> None:
    elsewhere = spark_in(tmp_path / "spark", environment)
    training = Training()
    theirs = ensure_archive(elsewhere, training)
    assert b"Class-Path: ../../spark/jars/spark-core.jar\r\n" in training.class_paths[0]
    assert find_archive(environment) is None
    assert find_archive(elsewhere) == theirs


def test_jars_whose_paths_a_manifest_cannot_contain_are_listed_in_the_class_path(environment: Mapping[str, str], tmp_path: Path) -> None:
    elsewhere = spark_in(tmp_path / "a spark", environment)
    jars = tmp_path / "a spark" / "jars"
    (jars / "another.jar").touch()
    archive = ensure_archive(elsewhere, Training())
    assert archive.class_path == f"{jars}/another.jar:{jars}/spark-core.jar"
    assert find_archive(elsewhere) == archive
    assert kept(elsewhere) == [archive.file.name]


def test_no_archive_is_used_if_the_defaults_of_spark_set_a_class_path(environment: Mapping[str, str], tmp_path: Path) -> None:
    settings = {**environment, "SPARK_CONF_DIR": str(tmp_path / "conf")}
    archive = ensure_archive(settings, Training())
    (tmp_path / "conf").mkdir()
    defaults = tmp_path / "conf" / "spark-defaults.conf"
    defaults.write_text("# spark.driver.extraClassPath /no\nspark.ui.enabled false\n")
    assert find_archive(settings) == archive
    defaults.write_text(" spark.driver.extraClassPath=/mine.jar\n")
    assert find_archive(settings) is None


def test_the_class_path_is_complete_and_ordered_by_name() -> None:
    installed = installation(os.environ)
    assert installed is not None
    assert list(installed.jars) == sorted(installed.jars)
    assert {jar.name.rsplit("-", 1)[0] for jar in installed.jars} >= {"spark-core_2.13", "spark-sql_2.13", "rocksdbjni"}
