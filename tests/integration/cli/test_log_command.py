from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coordinator.cli.log import app
from sluice.core.errors import StreamConflict, UnknownStream
from sluice.streams.log import Log


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def sluice_log(home: Path, *words: str, typed: str = "") -> str:
    done = CliRunner().invoke(app, [*words, "--home", str(home)], input=typed, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_what_is_typed_can_be_read_back(home: Path) -> None:
    sluice_log(home, "create", "words", "--partitions", "2")
    assert "3 records appended" in sluice_log(home, "append", "words", typed="a\nb\nc\n")
    assert sorted(sluice_log(home, "cat", "words").split()) == ["a", "b", "c"]
    assert sluice_log(home, "ls") == "words\t2 partitions\t3 records\n"


def test_lines_with_equal_keys_go_to_one_partition(home: Path) -> None:
    sluice_log(home, "create", "words", "--partitions", "4")
    sluice_log(home, "append", "words", "--key-separator", "=", typed="".join(f"same={n}\n" for n in range(20)))
    assert sorted(Log(home / "log").latest("words").values()) == [0, 0, 0, 20]


def test_the_same_lines_may_be_appended_again(home: Path) -> None:
    sluice_log(home, "create", "words")
    for _ in range(2):
        sluice_log(home, "append", "words", typed="a\n")
    assert sluice_log(home, "cat", "words").split() == ["a", "a"]


def test_a_record_can_be_shown_whole(home: Path) -> None:
    sluice_log(home, "create", "words")
    sluice_log(home, "append", "words", "--key-separator", ":", typed="k:v\nno key\n")
    first, second = (json.loads(line) for line in sluice_log(home, "cat", "words", "--json").splitlines())
    assert (first["key"], first["value"], first["offset"]) == ("k", "v", 0)
    assert (second["key"], second["value"], second["partition"]) == (None, "no key", 0)


def test_a_part_can_be_shown(home: Path) -> None:
    sluice_log(home, "create", "words")
    sluice_log(home, "append", "words", typed="a\nb\nc\nd\n")
    assert sluice_log(home, "cat", "words", "--offset", "1", "--limit", "2", "--partition", "0").split() == ["b", "c"]


def test_a_stream_that_is_not_there_is_named_with_the_command_that_makes_it(home: Path) -> None:
    (home / "log").mkdir(parents=True)
    with pytest.raises(UnknownStream, match="sluice log create nowhere"):
        sluice_log(home, "append", "nowhere", typed="a\n")


def test_a_partition_that_is_not_there_is_refused(home: Path) -> None:
    sluice_log(home, "create", "words")
    with pytest.raises(UnknownStream, match="no 7"):
        sluice_log(home, "cat", "words", "--partition", "7")


def test_another_count_is_refused(home: Path) -> None:
    sluice_log(home, "create", "words")
    with pytest.raises(StreamConflict):
        sluice_log(home, "create", "words", "--partitions", "3")


def test_a_stream_grows_and_never_shrinks(home: Path) -> None:
    sluice_log(home, "create", "words", "--partitions", "2")
    sluice_log(home, "grow", "words", "--partitions", "4")
    assert len(Log(home / "log").latest("words")) == 4
    with pytest.raises(StreamConflict, match="cannot shrink"):
        sluice_log(home, "grow", "words", "--partitions", "3")
