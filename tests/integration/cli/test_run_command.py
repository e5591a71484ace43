"""`sluice run` as a process, up to the errors that end it before Spark starts."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.support.coordinators import running
from tests.support.processes import SLUICE, completed, ending, wait_for

JOB = """
from sluice import Job

job = Job("words")

@job.stage(reads=job.input("lines"), writes=job.output("counts"))
def count(task): ...
"""


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which something listens, so that `sluice run` ends after it has created the directory of its logs."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def run(directory: Path, *options: str, **variables: str) -> CompletedProcess[str]:
    (directory / "job.py").write_text(JOB)
    environment: Mapping[str, str] = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
    command = [sys.executable, "-P", "-m", "sluice", "run", "job.py", *options]
    return completed(command, environment={**environment, **variables}, cwd=directory)


def test_the_home_is_that_of_the_environment_unless_an_option_names_one(tmp_path: Path, taken: int) -> None:
    run(tmp_path, "--port", str(taken), SLUICE_HOME=str(tmp_path / "home"))
    assert (tmp_path / "home" / "logs").is_dir()
    assert not (tmp_path / ".sluice").exists()
    run(tmp_path, "--port", str(taken), "--home", "other", SLUICE_HOME=str(tmp_path / "home"))
    assert (tmp_path / "other" / "logs").is_dir()


def test_the_home_is_that_of_the_settings_file_if_nothing_else_names_one(tmp_path: Path, taken: int) -> None:
    (tmp_path / "sluice.toml").write_text(f'home = "{tmp_path / "named"}"\n')
    run(tmp_path, "--port", str(taken), SLUICE_CONFIG=str(tmp_path / "sluice.toml"))
    assert (tmp_path / "named" / "logs").is_dir()
    assert not (tmp_path / ".sluice").exists()


@pytest.mark.parametrize(("variable", "value"), [("SLUICE_MAX_ROWS", "lots"), ("SLUICE_SPARK_CONF", "[]")])
def test_a_bad_setting_of_the_containers_is_named_before_any_process_starts(tmp_path: Path, variable: str, value: str) -> None:
    done = run(tmp_path, "--port", "0", **{variable: value})
    assert done.returncode == 1
    assert done.stdout == ""
    assert variable in done.stderr
    assert not (tmp_path / ".sluice").exists()


def test_settings_that_the_command_gives_its_containers_itself_are_not_checked(tmp_path: Path, taken: int) -> None:
    given = {"SLUICE_RUN_ID": "", "SLUICE_PROCESSOR_ID": "", "EXECUTION_ENV_CONTAINER_ID": "a b", "SLUICE_COORDINATOR_URL": "nowhere"}
    shown = run(tmp_path, "--port", str(taken), **given).stderr
    assert f"port {taken} is in use" in shown
    assert "remedy: Correct the option or argument that the message names." in shown


def test_the_error_of_a_coordinator_that_does_not_start_is_shown_with_its_remedy(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with running(home):
        done = run(tmp_path, "--port", "0", "--home", str(home))
    error, log, remedy = done.stderr.splitlines()
    assert error.startswith("sluice: The coordinator did not start. Another coordinator uses this database.")
    assert f"{home / 'coordinator.db'} is in use by another coordinator" in error
    assert log == f"log: {home / 'logs' / 'coordinator.log'}"
    assert remedy == "remedy: Stop the other coordinator, or choose another database."


def test_ctrl_c_is_acknowledged_at_once_and_needs_no_coordinator(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    log, errors = tmp_path / ".sluice" / "logs" / "coordinator.log", tmp_path / "errors"
    with errors.open("w") as err:
        process = subprocess.Popen([*SLUICE, "run", "job.py", "--port", "0"], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=err)
    with ending(process):
        wait_for("the start of the coordinator", log.exists)
        process.send_signal(signal.SIGINT)
        wait_for("a line", lambda: "stopping between two batches; a second Ctrl-C interrupts them\n" in errors.read_text(), 10)
        assert process.wait(600) == 0
