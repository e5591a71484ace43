"""Requests that a command cannot build, because an argument is not valid: one line, as for a refusal by the coordinator."""

from __future__ import annotations

import json
import sqlite3
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.support.processes import SLUICE, completed
from tests.support.upgrades import JOB

NOBODY = ("--coordinator", "http://127.0.0.1:9")


def called(*words: str) -> CompletedProcess[str]:
    return completed([*SLUICE, *words, *NOBODY])


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (["snapshots", "pin", "word-count", "--task", "Partition 9", "--stage", "count", "--checkpoint", "nope"], "checkpoint_id"),
        (["snapshots", "pin", "j", "--hours", "99999999999999"], "expires_seconds"),
        (["snapshots", "pin", "j", "--stage", "a b"], "stage"),
        (["token", "create", "", "--role", "viewer"], "name"),
    ],
    ids=lambda value: " ".join(value[:4]) if isinstance(value, list) else value,
)
def test_an_argument_that_a_request_cannot_have_is_named(words: list[str], field: str) -> None:
    done = called(*words)
    assert done.returncode == 1
    error, remedy = done.stderr.splitlines()
    assert error.startswith(f"sluice: The request cannot be carried out. {field}: ")
    assert remedy == "remedy: Correct the request as the message says."


def test_with_json_it_is_a_problem() -> None:
    assert json.loads(called("snapshots", "pin", "j", "--hours", "1e300", "--json").stderr)["type"] == "urn:sluice:bad-request"


@pytest.mark.parametrize(
    "words", [("scale", "j", "99999999999"), ("scale", "j", "0"), ("plan", "j", "--containers", "100001")], ids=" ".join
)
def test_a_number_of_containers_out_of_range_is_refused_as_an_argument(words: tuple[str, ...]) -> None:
    done = called(*words)
    assert done.returncode == 2
    assert "Invalid value for" in done.stderr


@pytest.mark.parametrize(
    ("words", "error", "remedy"),
    [
        (["run", "nofile.py"], "There is no such job file. there is no file nofile.py", "Give the path of an existing Python file"),
        (["db", "backup", "/nonexistent/x", "--home"], "there is no directory /nonexistent", "Correct the option or argument"),
        (["exec", "--no-wait", "--job", "j", *NOBODY, "--", "true"], "The coordinator does not answer.", "Check `SLUICE_COORDINATOR_URL`"),
        (["exec", "--job", "a b", *NOBODY, "--", "true"], "invalid job name 'a b'", "Use letters, digits"),
        (["init", "there"], "job.py: is there already", "Correct the option or argument"),
        (["deploy", "job.py", "--start", "yesterday"], "--start takes checkpoint", "Correct the option or argument"),
        (["deploy", "job.py", "--bind", "foo"], "--bind takes NAME=SYSTEM", "Correct the option or argument"),
    ],
    ids=lambda value: " ".join(value[:4]) if isinstance(value, list) else "",
)
def test_the_remedy_fits_the_error(tmp_path: Path, words: list[str], error: str, remedy: str) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "job.py").touch()
    (tmp_path / "job.py").write_text(JOB)
    if words[-1] == "--home":
        sqlite3.connect(tmp_path / "coordinator.db").close()
        words = [*words, str(tmp_path)]
    done = completed([sys.executable, "-P", "-m", "sluice", *words], cwd=tmp_path)
    assert done.returncode == 1
    shown, advice = done.stderr.splitlines()[-2:]
    assert error in shown
    assert advice.startswith(f"remedy: {remedy}")
