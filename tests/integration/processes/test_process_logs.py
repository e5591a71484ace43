"""What real processes write to standard error with SLUICE_LOG_FORMAT=json: one JSON object per line in every case."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import SLUICE, completed, free_port

SECRET = "hunter2"
JOB = """
from sluice import Job
job = Job("delays")
read, out = job.input("in"), job.output("out")
@job.stage(reads=read, writes=out)
def copy(task): ...
"""
TALKS = """
import logging, threading, warnings
from sluice import logconfig
logconfig.configure(logconfig.read_log_settings())
for library in ("httpx", "py4j.clientserver", "sqlalchemy.engine", "botocore.auth", "uvicorn.access"):
    logging.getLogger(library).info("it holds %s", "hunter2")
logging.getLogger("sluice.own").debug("ours")
logging.getLogger("uvicorn.error").error("a server's\\ntrouble")
warnings.warn("old\\nthing")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
raise ValueError("of two\\nlines")
"""


def records(*command: str, code: int, **variables: str) -> list[dict[str, Any]]:
    """What the process wrote to standard error, each line one record."""
    done = completed([sys.executable, *command], environment={**os.environ, "SLUICE_LOG_FORMAT": "json", **variables})
    assert done.returncode == code, done.stderr
    return [json.loads(line) for line in done.stderr.splitlines()]


def test_warnings_uncaught_exceptions_and_other_libraries_are_records_too_without_debug_messages_of_libraries() -> None:
    found = records("-c", TALKS, code=1, SLUICE_LOG_LEVEL="debug")
    assert [(each["logger"], each["level"]) for each in found] == [
        ("sluice.own", "DEBUG"),
        ("uvicorn.error", "ERROR"),
        ("py.warnings", "WARNING"),
        ("sluice", "CRITICAL"),
        ("sluice", "CRITICAL"),
    ]
    assert found[1]["message"] == "a server's\ntrouble"
    assert found[3]["exception"].endswith("ZeroDivisionError: division by zero")
    assert found[4]["exception"].endswith("ValueError: of two\nlines")
    assert SECRET not in json.dumps(found)


def test_all_output_of_a_coordinator_is_records(tmp_path: Path) -> None:
    """It stops as soon as it has started, because its standard input is closed."""
    found = records("-m", "sluice", "coordinator", "--home", str(tmp_path), "--port", "0", "--stop-with-stdin", code=0)
    assert [each["logger"] for each in found if each["message"].startswith("coordinator on http://127.0.0.1:")] == ["coordinator.server"]


def test_a_coordinator_that_cannot_start_writes_the_reason_as_a_record(tmp_path: Path) -> None:
    url = f"postgresql+asyncpg://sluice:{SECRET}@127.0.0.1:{free_port()}/sluice"
    found = records("-m", "sluice", "coordinator", "--home", str(tmp_path), "--database-url", url, "--port", "0", code=1)
    assert found[-1]["level"] == "ERROR"
    assert "database" in found[-1]["message"]
    assert SECRET not in json.dumps(found)


@pytest.mark.parametrize("command", [["coordinator"], ["container", "job.py"]])
def test_a_bad_format_is_refused_with_a_remedy(tmp_path: Path, command: list[str]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd()), "SLUICE_LOG_FORMAT": "xml", "SLUICE_RUN_ID": "r1"}
    done = completed([*SLUICE, *command], environment=environment, cwd=tmp_path)
    assert done.returncode == 1
    line, remedy = done.stderr.splitlines()
    assert line.startswith("sluice: The settings cannot be used. SLUICE_LOG_FORMAT: ")
    assert remedy.startswith("remedy: ")


def test_every_record_of_a_container_names_job_run_processor_and_container(tmp_path: Path) -> None:
    """The agent and its driver, which end because there is no coordinator."""
    (tmp_path / "job.py").write_text(JOB)
    found = records(
        *("-m", "sluice", "container", str(tmp_path / "job.py")),
        code=1,
        SLUICE_RUN_ID="r1",
        SLUICE_PROCESSOR_ID="3",
        SLUICE_HOME=str(tmp_path),
        SLUICE_COORDINATOR_URL=f"http://127.0.0.1:{free_port()}",
        SLUICE_CONNECT_TIMEOUT_SECONDS="0",
        EXECUTION_ENV_CONTAINER_ID="c-7",
    )
    assert found
    for each in found:
        assert (each["job"], each["run"], each["processor"], each["container"]) == ("delays", "r1", "3", "c-7")


@pytest.mark.parametrize(("text", "error"), [("1 / 0", "ZeroDivisionError"), ("raise KeyboardInterrupt", "KeyboardInterrupt")])
def test_a_job_file_that_cannot_be_imported_is_logged_before_the_job_is_known(tmp_path: Path, text: str, error: str) -> None:
    (tmp_path / "job.py").write_text(f"{text}\n")
    (record,) = records(
        *("-m", "sluice", "container", str(tmp_path / "job.py")),
        code=1,
        SLUICE_RUN_ID="r1",
        SLUICE_HOME=str(tmp_path),
        SLUICE_COORDINATOR_URL=f"http://127.0.0.1:{free_port()}",
        EXECUTION_ENV_CONTAINER_ID="c-7",
    )
    assert error in record["message"]
    assert (record["run"], record["container"]) == ("r1", "c-7")
