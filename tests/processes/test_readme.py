"""The README's job and its commands, copied into an empty folder and run unchanged, the last one on a terminal."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.streams.log import Log
from tests.support.deployed import ROOT
from tests.support.processes import wait_for
from tests.support.terminal import SHOW_CURSOR, at_terminal

pytestmark = [pytest.mark.spark, pytest.mark.slow]

README = (ROOT / "README.md").read_text()
GENEROUS = 600.0
COLUMNS = 80


def blocks(language: str) -> list[str]:
    """The fenced code blocks of a language in the README, in order."""
    return [text for of, text in re.findall(r"^```(\w*)\n(.*?)^```$", README, re.M | re.S) if of == language]


def test_the_job_of_the_readme_runs_in_an_empty_folder_and_a_table_of_it_is_updated_in_place_until_ctrl_c(tmp_path: Path) -> None:
    job, _ = blocks("python")
    (commands,) = (block.splitlines() for block in blocks("") if "sluice run job.py" in block)
    *preparations, run = commands
    (tmp_path / "job.py").write_text(job)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_") or name == "SLUICE_SPARK_CONF"}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**kept, "PATH": path, "SLUICE_SPARK_MASTER": "local[1]"}
    for command in preparations:
        subprocess.run(command, shell=True, cwd=tmp_path, env=environment, check=True, timeout=GENEROUS)

    log = Log(tmp_path / ".sluice" / "log")
    changed = ["env", "--ignore-environment", f"--chdir={tmp_path}", *(f"{name}={value}" for name, value in environment.items())]
    with at_terminal([*changed, "TERM=xterm-256color", *shlex.split(run), "--port", "0"], columns=COLUMNS) as terminal:
        terminal.until("container-0")
        terminal.until("1/1")

        def counted() -> bool:
            terminal.read()
            return (log.directory / "counts.db").exists() and sum(log.latest("counts").values()) == 4

        wait_for("the counts", counted, GENEROUS)
        terminal.press_ctrl_c()
        assert "STOPPED" in terminal.until(SHOW_CURSOR)
        assert terminal.process.wait(GENEROUS) == 0
    lines = terminal.text.splitlines()
    assert any(re.fullmatch(r"coordinator http://127\.0\.0\.1:\d+", line) for line in lines)
    assert any(re.fullmatch(r"run word-count-\S+", line) for line in lines)
    assert any(re.fullmatch(r"pages http://127\.0\.0\.1:\d+/ui/jobs/word-count", line) for line in lines)
    assert any(line.split()[:2] == ["PROCESS", "STATE"] for line in lines)
    assert not [line for line in lines if len(line.removesuffix("^C")) > COLUMNS]  # the terminal echoes it
    assert "Traceback" not in terminal.text

    (cat,) = re.findall(r"`(sluice \w+ cat counts)`", README)
    printed = subprocess.run(shlex.split(cat), cwd=tmp_path, env=environment, check=True, capture_output=True, text=True).stdout
    assert sorted(printed.splitlines()) == [
        '{"word":"be","count":2}',
        '{"word":"not","count":1}',
        '{"word":"or","count":1}',
        '{"word":"to","count":2}',
    ]
