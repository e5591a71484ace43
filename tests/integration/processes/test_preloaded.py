"""Commands that tests start as forks behave as if they were started by themselves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.preloaded import Forked, Preloaded
from tests.support.processes import ROOT, SLUICE, await_line

COORDINATOR = [*SLUICE, "coordinator", "--port", "0"]


@pytest.fixture(scope="module")
def starter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Preloaded]:
    made = Preloaded(tmp_path_factory.mktemp("preloaded") / "log")
    yield made
    made.close()


def forked(starter: Preloaded, words: list[str], place: Path, **environment: str) -> tuple[Forked, Path, Path]:
    outputs = place / "out", place / "err"
    with outputs[0].open("w") as out, outputs[1].open("w") as err:
        made = starter.start([*SLUICE, *words], out.fileno(), err.fileno(), place, {**os.environ, **environment}, new_session=True)
    return made, *outputs


@pytest.mark.parametrize("words", [["--version"], ["status", "--help"], ["nonsense"], ["status", "--coordinator", "http://127.0.0.1:1"]])
def test_a_fork_prints_and_exits_as_a_new_process(starter: Preloaded, words: list[str], tmp_path: Path) -> None:
    new = subprocess.run([*SLUICE, *words], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, timeout=600, cwd=ROOT)
    process, out, err = forked(starter, words, tmp_path)
    assert (process.wait(600), out.read_text(), err.read_text()) == (new.returncode, new.stdout, new.stderr)


def test_a_fork_has_its_own_environment_directory_and_session(starter: Preloaded, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("import os\nraise SystemError(os.environ['ONLY_HERE'], os.getcwd(), os.getsid(0) == os.getpid())")
    process, _, err = forked(starter, ["deploy", "job.py", "--coordinator", "http://127.0.0.1:1"], tmp_path, ONLY_HERE="here")
    assert process.wait(600) == 1
    assert f"('here', '{tmp_path}', True)" in err.read_text()


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_fork_receives_signals(starter: Preloaded, sent: signal.Signals, code: int, tmp_path: Path) -> None:
    process, _, err = forked(starter, [*COORDINATOR[3:], "--home", str(tmp_path / "home")], tmp_path)
    await_line(process, err, r"coordinator on ([^,\s]+)")
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.0)
    process.send_signal(sent)
    assert process.wait(600) == code
    process.send_signal(sent)  # does nothing, as with Popen


def test_commands_that_are_not_sluice_or_have_other_settings_of_python_are_not_forks(starter: Preloaded) -> None:
    ours = dict(os.environ)
    assert starter.can_start(SLUICE, ours)
    assert not starter.can_start([sys.executable, "-m", "pytest"], ours)
    assert not starter.can_start(["another-python", "-m", "sluice"], ours)
    assert not starter.can_start(SLUICE, {**ours, "PYTHONPATH": "/elsewhere"})
