from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from containers.classarchive import ClassArchive, installation, made, present
from coordinator.core.errors import ClassArchiveNotMade


class Training:
    """A job whose JVM writes an archive, or does not."""

    def __init__(self, code: int = 0, *, writes: bool = True) -> None:
        self.code, self.writes = code, writes
        self.trained: list[ClassArchive] = []

    def __call__(self, archive: ClassArchive, _lock: int) -> tuple[int, str]:
        self.trained.append(archive)
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


def test_an_archive_is_made_once_and_readable_for_all(environment: Mapping[str, str]) -> None:
    training = Training()
    assert present(environment) is None
    first, second = made(environment, training), made(environment, training)
    assert first == second == present(environment)
    assert len(training.trained) == 1
    assert first.file.stat().st_mode & 0o777 == 0o644
    assert kept(environment) == [first.file.name]


def test_what_was_killed_while_it_was_made_is_no_archive_and_goes(environment: Mapping[str, str]) -> None:
    ours = installation(environment)
    assert ours is not None
    left = ours.directory / "building-x"
    left.mkdir(parents=True)
    (left / "classes.jsa").write_bytes(b"half")
    assert present(environment) is None
    whole = made(environment, Training())
    assert {each.name for each in ours.directory.iterdir()} == {"lock", whole.file.name}


def test_a_jvm_that_writes_after_its_making_was_given_up_leaves_nothing(environment: Mapping[str, str]) -> None:
    """As after Ctrl-C: it ends, and then writes, when nobody holds the lock any more."""
    interrupted = Training(1, writes=False)
    with pytest.raises(ClassArchiveNotMade):
        made(environment, interrupted)
    (late,) = interrupted.trained
    with pytest.raises(FileNotFoundError):
        late.file.write_bytes(b"late")
    again = Training()
    made(environment, again)
    assert again.trained[0].file != late.file


def test_one_that_has_lost_its_end_is_not_used_and_is_made_again(environment: Mapping[str, str]) -> None:
    whole = made(environment, Training()).file
    whole.write_bytes(whole.read_bytes()[:-1])
    assert present(environment) is None
    assert made(environment, Training()) == present(environment)
    assert whole.read_bytes() == b"classes"


def test_another_java_at_the_same_place_needs_another_archive_and_the_former_goes(environment: Mapping[str, str]) -> None:
    before = made(environment, Training())
    (Path(environment["JAVA_HOME"]) / "bin" / "java").write_text("#!/bin/sh\n# an upgrade\n")
    assert present(environment) is None
    assert kept(environment) == [before.file.name]
    after = made(environment, Training())
    assert kept(environment) == [after.file.name]


def test_an_installation_elsewhere_keeps_its_own(environment: Mapping[str, str], tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "jdk").rename(elsewhere)
    theirs = made({**environment, "JAVA_HOME": str(elsewhere)}, Training())
    elsewhere.rename(tmp_path / "jdk")
    ours = made(environment, Training())
    assert kept(environment) == sorted([theirs.file.name, ours.file.name])


@pytest.mark.parametrize("training", [Training(1), Training(0, writes=False)])
def test_where_the_job_fails_nothing_is_left_and_its_last_words_are_told(environment: Mapping[str, str], training: Training) -> None:
    with pytest.raises(ClassArchiveNotMade, match="the last line"):
        made(environment, training)
    assert kept(environment) == []


def test_without_java_there_is_none_and_none_can_be_made(tmp_path: Path) -> None:
    environment = {"PATH": "", "SLUICE_JARS_DIR": str(tmp_path)}
    assert present(environment) is None
    with pytest.raises(ClassArchiveNotMade, match="install Java"):
        made(environment)


def test_a_directory_that_cannot_be_used_is_named(environment: Mapping[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ClassArchiveNotMade, match="name another by SLUICE_JARS_DIR"):
        made({**environment, "SLUICE_JARS_DIR": str(tmp_path / "file" / "jars")}, Training())


def test_a_spark_home_has_jars_and_an_archive_of_its_own(environment: Mapping[str, str], tmp_path: Path) -> None:
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    (tmp_path / "spark" / "jars" / "spark-core.jar").touch()
    elsewhere = {**environment, "SPARK_HOME": str(tmp_path / "spark")}
    theirs = made(elsewhere, Training())
    assert theirs.class_path == str(tmp_path / "spark" / "jars" / "spark-core.jar")
    assert present(environment) is None
    assert present(elsewhere) == theirs


def test_where_spark_s_defaults_have_a_class_path_no_archive_is_used(environment: Mapping[str, str], tmp_path: Path) -> None:
    settings = {**environment, "SPARK_CONF_DIR": str(tmp_path / "conf")}
    archive = made(settings, Training())
    (tmp_path / "conf").mkdir()
    defaults = tmp_path / "conf" / "spark-defaults.conf"
    defaults.write_text("# spark.driver.extraClassPath /no\nspark.ui.enabled false\n")
    assert present(settings) == archive
    defaults.write_text(" spark.driver.extraClassPath=/mine.jar\n")
    assert present(settings) is None


def test_the_class_path_is_in_the_order_of_names_and_whole() -> None:
    ours = installation(os.environ)
    assert ours is not None
    assert list(ours.jars) == sorted(ours.jars)
    assert {jar.name.rsplit("-", 1)[0] for jar in ours.jars} >= {"spark-core_2.13", "spark-sql_2.13", "rocksdbjni"}
