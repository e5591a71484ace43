"""Log files of the processes that `sluice run` starts: rotated while several processes write to one open file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from containers.local import logs
from containers.local.logs import RotationSettings, read_rotation_settings
from sluice.core.errors import BadSettings

SMALL = RotationSettings(log_max_bytes=100, log_backups=2)

WRITER = """
import os, sys
for line in sys.stdin:
    os.write(1, line.encode())
    os.write(2, b"written\\n")
"""


def contents(directory: Path) -> dict[str, str]:
    return {each.name: each.read_text() for each in sorted(directory.iterdir())}


def test_processes_that_have_inherited_a_log_continue_at_its_beginning_after_it_was_rotated(tmp_path: Path) -> None:
    file = tmp_path / "c.log"
    pipe = subprocess.PIPE
    with file.open("ab") as log:
        writers = [subprocess.Popen([sys.executable, "-c", WRITER], stdin=pipe, stdout=log, stderr=pipe, text=True) for _ in range(2)]

    def write(number: int, line: str) -> None:
        given, written = writers[number].stdin, writers[number].stderr
        assert given is not None
        assert written is not None
        given.write(line + "\n")
        given.flush()
        written.readline()

    write(0, "a" * 99)
    write(1, "b" * 99)
    assert logs.rotate(file, SMALL)
    write(1, "c")
    write(0, "d")
    for each in writers:
        each.communicate()
    assert contents(tmp_path) == {"c.log": "c\nd\n", "c.log.1": "a" * 99 + "\n" + "b" * 99 + "\n"}


def test_a_log_is_rotated_when_it_is_larger_than_the_limit_and_so_many_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "c.log"
    file.write_text("0" * 100)
    assert not logs.rotate(file, SMALL)
    for each in "1234":
        file.write_text(each * 101)
        assert logs.rotate(file, SMALL)
    assert contents(tmp_path) == {"c.log": "", "c.log.1": "4" * 101, "c.log.2": "3" * 101}


@pytest.mark.parametrize(("size", "left"), [(0, "1" * 101), (10, "")])
def test_no_limit_and_no_rotated_files_are_settings_too(tmp_path: Path, size: int, left: str) -> None:
    file = tmp_path / "c.log"
    file.write_text("1" * 101)
    assert logs.rotate(file, RotationSettings(log_max_bytes=size, log_backups=0)) == (size > 0)
    assert contents(tmp_path) == {"c.log": left}


def test_fewer_rotated_files_than_before_are_kept_from_the_next_rotation_on(tmp_path: Path) -> None:
    file = tmp_path / "c.log"
    for each in range(1, 6):
        (tmp_path / f"c.log.{each}").write_text(str(each))
    file.write_text("0" * 101)
    assert logs.rotate(file, SMALL)
    assert contents(tmp_path) == {"c.log": "", "c.log.1": "0" * 101, "c.log.2": "1"}


def test_without_space_for_a_copy_old_logs_are_deleted_and_the_log_is_emptied_last(tmp_path: Path) -> None:
    file = tmp_path / "c.log"
    (tmp_path / "c.log.1").write_text("old")
    (tmp_path / "c.log.copy").symlink_to("/dev/full")
    file.write_text("0" * 101)
    assert not logs.rotate(file, SMALL)
    assert contents(tmp_path) == {"c.log": "0" * 101}
    (tmp_path / "c.log.copy").symlink_to("/dev/full")
    assert logs.rotate(file, SMALL)
    assert contents(tmp_path) == {"c.log": ""}


def test_a_log_that_is_not_there_is_not_rotated(tmp_path: Path) -> None:
    assert not logs.rotate(tmp_path / "none.log", SMALL)


def test_the_last_line_of_a_long_log_is_read_from_its_end(tmp_path: Path) -> None:
    file = tmp_path / "c.log"
    file.write_text("x" * 1_000_000 + "\nthe last\n\n")
    assert logs.last_line(file) == "the last"
    file.write_text("\n")
    assert logs.last_line(file) == ""


def test_of_a_final_error_the_line_before_its_remedy_is_read(tmp_path: Path) -> None:
    file = tmp_path / "c.log"
    file.write_text("before\nsluice: The settings cannot be used. SLUICE_MAX_ROWS: lots\nremedy: Correct the setting.\n")
    assert logs.last_line(file) == "The settings cannot be used. SLUICE_MAX_ROWS: lots"
    file.write_text("remedy: of nothing\n")
    assert logs.last_line(file) == "remedy: of nothing"


def test_logs_of_the_runs_that_were_written_last_are_kept(tmp_path: Path) -> None:
    for number, name in enumerate(["r-3", "r-1", "r-2"]):
        (tmp_path / name).mkdir()
        (tmp_path / name / "container-0.log").write_text("")
        for each in (tmp_path / name / "container-0.log", tmp_path / name):
            os.utime(each, (1000 + number, 1000 + number))
    (tmp_path / "coordinator.log").write_text("")
    os.utime(tmp_path / "r-3" / "container-0.log", (5000, 5000))  # still written
    logs.delete_old_runs(tmp_path, 2)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["coordinator.log", "r-2", "r-3"]


@pytest.mark.parametrize(("variable", "value"), [("SLUICE_LOG_MAX_BYTES", "many"), ("SLUICE_LOG_BACKUPS", "-1")])
def test_a_bad_setting_is_named(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(BadSettings, match=variable):
        read_rotation_settings()
