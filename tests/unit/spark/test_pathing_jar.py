from __future__ import annotations

import zipfile
from io import BytesIO
from pathlib import Path

import pytest

from containers.spark.start.pathing_jar import LONGEST_LINE, MANIFEST, manifest, pathing_jar


def class_path(text: bytes) -> list[str]:
    """Parse a manifest as the JAR specification says."""
    lines = text.replace(b"\r\n", b"\n").replace(b"\n ", b"").decode().splitlines()
    assert lines[0] == "Manifest-Version: 1.0"
    (found,) = [line.removeprefix("Class-Path: ") for line in lines if line.startswith("Class-Path: ")]
    return found.split()


def names_in(jar: bytes) -> list[str]:
    with zipfile.ZipFile(BytesIO(jar)) as file:
        assert file.namelist() == [MANIFEST]
        return class_path(file.read(MANIFEST))


@pytest.mark.parametrize("length", [1, 59, 60, 61, 130, 131, 132, 201, 202, 203, 5000])
def test_a_long_line_is_continued_by_lines_that_begin_with_a_space(length: int) -> None:
    """The first line has 60 bytes after "Class-Path: ", each further line 71."""
    name = "".join(chr(ord("a") + n % 26) for n in range(length))
    text = manifest([name])
    lines = text.split(b"\r\n")
    assert lines[-2:] == [b"", b""]  # an empty line ends the section
    assert max(map(len, lines)) <= LONGEST_LINE
    assert [len(line) for line in lines[1:-3]] == [LONGEST_LINE] * (len(lines) - 4)
    assert all(line.startswith(b" ") for line in lines[2:-2])
    assert len(lines[1:-2]) == 1 + max(0, -(-(length - 60) // 71))
    assert class_path(text) == [name]


@pytest.mark.parametrize("length", [58, 59, 60, 61])
def test_a_space_between_two_names_survives_at_the_end_and_at_the_beginning_of_a_line(length: int) -> None:
    assert class_path(manifest(["a" * length, "b.jar"])) == ["a" * length, "b.jar"]


def test_a_jar_names_others_in_their_order_and_relative_to_itself(tmp_path: Path) -> None:
    jars = [tmp_path / "spark" / "b.jar", tmp_path / "spark" / "a-1.0_2.13+x~y@z.jar", tmp_path / "cache" / "c.jar"]
    found = pathing_jar(tmp_path / "cache", jars)
    assert found is not None
    assert names_in(found) == ["../spark/b.jar", "../spark/a-1.0_2.13+x~y@z.jar", "c.jar"]


def test_the_same_names_make_the_same_bytes(tmp_path: Path) -> None:
    jars = [tmp_path / f"{n}.jar" for n in range(300)]
    assert pathing_jar(tmp_path / "a", jars) == pathing_jar(tmp_path / "b", jars)
    assert pathing_jar(tmp_path / "a", jars) != pathing_jar(tmp_path / "a", jars[::-1])


def test_names_are_those_that_links_lead_to(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "x.jar").touch()
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "a.jar").symlink_to(tmp_path / "store" / "x.jar")
    (tmp_path / "deep" / "cache").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "cache")
    found = pathing_jar(tmp_path / "link", [tmp_path / "jars" / "a.jar"])
    assert found is not None
    (name,) = names_in(found)
    assert name == "../../store/x.jar"
    assert (tmp_path / "link" / name).samefile(tmp_path / "store" / "x.jar")


@pytest.mark.parametrize("directory", ["a b", "spärk", "a%20b", "a:b", "a=b", "a#b", "a\nb", "a\udcffb"])
def test_a_name_that_a_url_would_escape_cannot_be_written(directory: str, tmp_path: Path) -> None:
    assert pathing_jar(tmp_path / "cache", [tmp_path / "plain.jar", tmp_path / directory / "a.jar"]) is None


def test_a_directory_that_the_jar_and_the_others_are_both_in_may_have_any_name(tmp_path: Path) -> None:
    common = tmp_path / "a b ä"
    found = pathing_jar(common / "cäche", [common / "jars" / "a.jar"])
    assert found is not None
    assert names_in(found) == ["../jars/a.jar"]
