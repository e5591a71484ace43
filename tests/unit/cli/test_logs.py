from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from containers.cli.logs import Followed, run_directory
from sluice.cli.main import app
from sluice.core.errors import BadSettings

OLD, NEW = "orders-20261124T000000-aaaaaa", "orders-20261124T010000-bbbbbb"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for seconds, run in enumerate((NEW, OLD, "late-orders-20261124T000000-cccccc")):
        directory = tmp_path / "logs" / run
        directory.mkdir(parents=True)
        for slot in (0, 1):
            (directory / f"container-{slot}.log").write_text(f"{run} {slot} one\n{run} {slot} two\n")
        for each in (*directory.iterdir(), directory):
            os.utime(each, (1000 - seconds, 1000 - seconds))
    (tmp_path / "logs" / "coordinator.log").write_text("started\n")
    return tmp_path


def test_the_logs_of_the_newest_run_are_printed_with_the_names_of_their_files(home: Path) -> None:
    done = CliRunner().invoke(app, ["logs", "--home", str(home), "--lines", "1"])
    assert done.output.splitlines() == [f"container-0: {NEW} 0 two", f"container-1: {NEW} 1 two"]


def test_a_run_a_job_a_slot_or_the_coordinator_can_be_named(home: Path) -> None:
    def printed(*arguments: str) -> str:
        return CliRunner().invoke(app, ["logs", "--home", str(home), *arguments]).output

    assert printed(OLD, "--slot", "1") == f"{OLD} 1 one\n{OLD} 1 two\n"
    assert run_directory(home / "logs", "orders").name == NEW
    assert printed("--coordinator") == "started\n"


def test_the_error_about_a_missing_log_lists_the_existing_ones(home: Path, tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match=f"no logs of flights; runs that have logs: .*{NEW}"):
        run_directory(home / "logs", "flights")
    with pytest.raises(BadSettings, match="runs that have logs: none"):
        run_directory(tmp_path / "elsewhere", None)


def test_new_lines_are_found_also_after_a_rotation_and_an_unfinished_one_when_it_is_finished(tmp_path: Path) -> None:
    file = tmp_path / "container-0.log"
    file.write_text("one\ntwo\nthr")
    followed = Followed(file)
    assert followed.last(1) == ["two\n"]
    assert followed.new() == []
    with file.open("a") as log:
        log.write("ee\nfour\n")
    assert followed.new() == ["three\n", "four\n"]
    os.truncate(file, 0)
    file.write_text("five\n")
    assert followed.new() == ["five\n"]
    file.unlink()
    assert followed.new() == []
