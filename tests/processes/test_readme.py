"""The README's job and its commands, copied into an empty folder and run unchanged."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from sluice.streams.log import Log
from tests.support.deployed import ROOT
from tests.support.processes import kill_whole, wait_for

README = (ROOT / "README.md").read_text()
GENEROUS = 120.0


def blocks(language: str) -> list[str]:
    """The fenced code blocks of a language in the README, in order."""
    return [text for of, text in re.findall(r"^```(\w*)\n(.*?)^```$", README, re.M | re.S) if of == language]


def test_the_job_of_the_readme_runs_in_an_empty_folder(tmp_path: Path) -> None:
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
    with (tmp_path / "run.log").open("wb") as out:
        running = subprocess.Popen(
            [*shlex.split(run), "--port", "0"], cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
    try:
        wait_for("the counts", lambda: (log.directory / "counts.db").exists() and sum(log.latest("counts").values()) == 4, GENEROUS)
        running.send_signal(signal.SIGINT)
        assert running.wait(GENEROUS) == 0
    finally:
        kill_whole(running)

    (cat,) = re.findall(r"`(sluice \w+ cat counts)`", README)
    printed = subprocess.run(shlex.split(cat), cwd=tmp_path, env=environment, check=True, capture_output=True, text=True).stdout
    assert sorted(printed.splitlines()) == [
        '{"word":"be","count":2}',
        '{"word":"not","count":1}',
        '{"word":"or","count":1}',
        '{"word":"to","count":2}',
    ]
