"""The file system that sets permissions of local files without starting a process. Otherwise it behaves as Hadoop's does."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from containers.spark.local_files import CLASS, install

pytestmark = pytest.mark.spark


class Files:
    """Hadoop's file system of local paths, and types of its package."""

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark._jvm
        self.types = jvm.org.apache.hadoop.fs
        self.permission = jvm.org.apache.hadoop.fs.permission.FsPermission
        new_configuration = jvm.org.apache.hadoop.conf.Configuration(False)
        self.system = self.types.FileSystem.get(jvm.java.net.URI.create("file:///"), new_configuration)

    def path(self, path: Path) -> Any:
        return self.types.Path(path.as_uri())

    def create(self, path: Path, text: str = "") -> None:
        stream = self.system.create(self.path(path))
        stream.write(bytearray(text.encode()))
        stream.close()


@pytest.fixture
def files(spark: SparkSession) -> Files:
    return Files(spark)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_it_is_the_local_file_system_and_installing_it_again_changes_nothing(spark: SparkSession, files: Files, tmp_path: Path) -> None:
    assert files.system.getRaw().getClass().getName() == CLASS
    assert install(spark)
    again = Files(spark)
    assert again.system.getRaw().getClass().getName() == CLASS
    again.create(tmp_path / "a", "text")
    assert (tmp_path / "a").read_text() == "text"


def test_files_and_directories_get_the_same_permissions_as_with_hadoop(files: Files, tmp_path: Path) -> None:
    files.create(tmp_path / "file")
    assert files.system.mkdirs(files.path(tmp_path / "directory" / "below"))
    assert [mode(tmp_path / each) for each in ("file", "directory", "directory/below")] == [0o644, 0o755, 0o755]
    for wanted in (0o600, 0o640, 0o777, 0o000, 0o1777):
        files.system.setPermission(files.path(tmp_path / "directory"), files.permission(f"{wanted:04o}"))
        assert mode(tmp_path / "directory") == wanted


def test_a_rename_has_the_same_result_as_with_hadoop(files: Files, tmp_path: Path) -> None:
    """Renaming to a new name and to the name of another file has the same results, without checksum files."""
    hadoops = files.types.RawLocalFileSystem()
    hadoops.initialize(files.system.getUri(), files.system.getConf())
    results = []
    for number, system in enumerate((files.system.getRaw(), hadoops)):
        directory = tmp_path / str(number)
        files.create(directory / ".first", "new")
        assert system.rename(files.path(directory / ".first"), files.path(directory / "file"))
        files.create(directory / ".second", "newer")
        done = system.rename(files.path(directory / ".second"), files.path(directory / "file"))
        results.append((done, {each.name: each.read_text() for each in directory.iterdir()}))
    assert results[0] == results[1]
    assert results[0] == (True, {"file": "newer"})


def test_a_missing_file_is_an_error(files: Files, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="NoSuchFileException"):
        files.system.setPermission(files.path(tmp_path / "missing"), files.permission("644"))
