"""`sluice streams` on the embedded log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coordinator.settings import Settings
from sluice.cli.main import app
from sluice.core.errors import BadSettings, StreamConflict, UnknownStream
from sluice.streams.log import Log
from sluice.streams.settings import StreamSettings


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def streams(home: Path, *words: str, typed: str = "") -> str:
    done = CliRunner().invoke(app, ["streams", *words, "--home", str(home)], input=typed, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_lines_from_standard_input_can_be_read_back(home: Path) -> None:
    streams(home, "create", "words", "--partitions", "2")
    assert "3 records appended" in streams(home, "append", "words", typed="a\nb\nc\n")
    assert sorted(streams(home, "cat", "words").split()) == ["a", "b", "c"]
    assert streams(home, "ls") == "words\t2 partitions\t3 records\n"


def test_lines_with_equal_keys_go_to_one_partition(home: Path) -> None:
    streams(home, "create", "words", "--partitions", "4")
    streams(home, "append", "words", "--key-separator", "=", typed="".join(f"same={n}\n" for n in range(20)))
    assert sorted(Log(home / "log").latest("words").values()) == [0, 0, 0, 20]


def test_the_same_lines_may_be_appended_twice(home: Path) -> None:
    streams(home, "create", "words")
    for _ in range(2):
        streams(home, "append", "words", typed="a\n")
    assert streams(home, "cat", "words").split() == ["a", "a"]


def test_a_record_can_be_printed_with_all_its_fields(home: Path) -> None:
    streams(home, "create", "words")
    streams(home, "append", "words", "--key-separator", ":", typed="k:v\nno key\n")
    first, second = (json.loads(line) for line in streams(home, "cat", "words", "--json").splitlines())
    assert (first["key"], first["value"], first["offset"]) == ("k", "v", 0)
    assert (second["key"], second["value"], second["partition"]) == (None, "no key", 0)


def test_a_part_of_a_stream_can_be_printed(home: Path) -> None:
    streams(home, "create", "words")
    streams(home, "append", "words", typed="a\nb\nc\nd\n")
    assert streams(home, "cat", "words", "--offset", "1", "--limit", "2", "--partition", "0").split() == ["b", "c"]


def test_the_error_about_a_missing_stream_names_the_command_that_creates_it(home: Path) -> None:
    (home / "log").mkdir(parents=True)
    with pytest.raises(UnknownStream, match="sluice streams create nowhere"):
        streams(home, "append", "nowhere", typed="a\n")


def test_a_missing_partition_is_refused(home: Path) -> None:
    streams(home, "create", "words")
    with pytest.raises(UnknownStream, match="no 7"):
        streams(home, "cat", "words", "--partition", "7")


def test_creating_a_stream_again_with_another_count_is_refused(home: Path) -> None:
    streams(home, "create", "words")
    with pytest.raises(StreamConflict):
        streams(home, "create", "words", "--partitions", "3")


def test_a_stream_grows_and_never_shrinks(home: Path) -> None:
    streams(home, "create", "words", "--partitions", "2")
    streams(home, "grow", "words", "--partitions", "4")
    assert len(Log(home / "log").latest("words")) == 4
    with pytest.raises(StreamConflict, match="cannot shrink"):
        streams(home, "grow", "words", "--partitions", "3")


def test_a_stream_longer_than_a_chunk_is_printed_completely_and_in_order(home: Path) -> None:
    streams(home, "create", "words")
    lines = [str(n) for n in range(25_000)]
    streams(home, "append", "words", typed="\n".join(lines))
    assert streams(home, "cat", "words").split() == lines


def test_the_directory_of_the_log_is_taken_from_the_settings_of_the_coordinator(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "sluice.toml"
    config.write_text(f'log_dir = "{tmp_path / "elsewhere"}"\ngrace_seconds = 9\n')
    monkeypatch.setenv("SLUICE_CONFIG", str(config))
    streams(home, "create", "words")
    assert Log(tmp_path / "elsewhere").streams() == ["words"]
    monkeypatch.setenv("SLUICE_LOG_DIR", str(tmp_path / "third"))
    streams(home, "create", "more")
    assert Log(tmp_path / "third").streams() == ["more"]
    monkeypatch.setenv("SLUICE_CONFIG", str(tmp_path / "lost.toml"))
    with pytest.raises(BadSettings, match="SLUICE_CONFIG names"):
        streams(home, "ls")


@pytest.mark.parametrize("name", StreamSettings.model_fields)
def test_the_settings_are_defined_as_the_coordinator_defines_them(name: str) -> None:
    ours, theirs = StreamSettings.model_fields[name], Settings.model_fields[name]
    assert (ours.annotation, ours.default) == (theirs.annotation, theirs.default)
