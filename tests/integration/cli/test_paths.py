"""Directories whose names are not UTF-8: refused before anything is written, with what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from containers.settings import read_container_settings
from coordinator.settings import read_settings
from sluice.blobs.locations import open_blob_store
from sluice.clock import SystemClock
from sluice.core.errors import BadSettings

NOT_UTF8 = os.fsdecode(b"h\xff")


@pytest.mark.parametrize("variable", ["SLUICE_HOME", "SLUICE_STATE_DIR"])
def test_a_container_refuses_a_directory_that_is_not_utf8(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv("SLUICE_RUN_ID", "r")
    monkeypatch.setenv(variable, f"/tmp/{NOT_UTF8}")
    with pytest.raises(BadSettings, match=rf"{variable}: .*h\\udcff' is not UTF-8: rename the directory, or choose another one"):
        read_container_settings()


@pytest.mark.parametrize("setting", ["home", "log_dir"])
def test_the_coordinator_refuses_a_directory_that_is_not_utf8(setting: str) -> None:
    with pytest.raises(BadSettings, match=rf"{setting}: .* is not UTF-8: rename"):
        read_settings(**{setting: Path(NOT_UTF8)})


def test_a_blob_store_in_a_directory_that_is_not_utf8_is_refused_and_not_created_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="is not UTF-8"):
        open_blob_store((tmp_path / NOT_UTF8).as_uri(), SystemClock())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command", [["streams", "create", "s", "--home"], ["coordinator", "--port", "0", "--home"], ["run", "job.py", "--home"]], ids=" ".join
)
def test_commands_refuse_a_directory_that_is_not_utf8_in_one_line_and_write_nothing(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "job.py").write_text(
        'from sluice import Job\njob = Job("j")\n\n\n@job.stage(reads=job.input("a"), writes=job.output("b"))\ndef s(task): ...\n'
    )
    done = subprocess.run(
        [sys.executable, "-P", "-m", "sluice", *command, NOT_UTF8], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode != 0
    assert "is not UTF-8: rename the directory, or choose another one" in done.stderr
    assert "Traceback" not in done.stderr
    assert [each.name for each in tmp_path.iterdir() if each.suffix != ".py" and each.name != "__pycache__"] == []


def test_a_relative_home_in_a_directory_that_is_not_utf8_is_refused_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / NOT_UTF8).mkdir()
    monkeypatch.chdir(tmp_path / NOT_UTF8)
    with pytest.raises(BadSettings, match=r"home: .* is not UTF-8"):
        read_settings()
