"""`sluice doctor`: each cause of a problem is named, with what to do."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sluice.cli.doctor import Finding, Level, examine
from sluice.cli.main import app
from sluice.streams.log import Log
from tests.support.coordinators import running
from tests.support.processes import free_port

JOB = """
from sluice import Job

job = Job("words")
lines = job.input("lines")


@job.stage(reads=lines)
def count(task):
    return task.read(lines).writeStream
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("SLUICE_COORDINATOR_URL", "SLUICE_KAFKA_BOOTSTRAP", "SLUICE_TOKEN", "SLUICE_TOKEN_FILE", "SLUICE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def nowhere() -> str:
    return f"http://127.0.0.1:{free_port()}"


def problems(findings: Sequence[Finding]) -> list[str]:
    return [f"{each.check}: {each.text}" for each in findings if each.level is Level.PROBLEM]


async def test_a_new_user_has_no_problem_and_sees_what_is_not_set_up_yet(nowhere: str, home: Path) -> None:
    found = await examine(nowhere)
    assert problems(found) == []
    assert {each.check for each in found if each.level is Level.NOTE} >= {"coordinator", "kafka"}
    assert all(each.remedy for each in found if each.level is Level.NOTE)
    assert not (await asyncio.to_thread(home.exists)), "it changes nothing"


@pytest.mark.parametrize(("mode", "noted"), [(0o755, True), (0o700, False)])
async def test_a_home_that_other_users_may_read_is_a_note(nowhere: str, home: Path, mode: int, noted: bool) -> None:
    await asyncio.to_thread(home.mkdir, mode)
    notes = [each.text for each in await examine(nowhere) if each.check == "home" and each.level is Level.NOTE]
    assert notes == ([f"other users of this machine may read {home}"] if noted else [])


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("JAVA_HOME", "/nowhere", "java: .*There is no program 'java' in JAVA_HOME"),
        ("SLUICE_LEASE_SECONDS", "soon", "settings: .*lease_seconds"),
        ("SLUICE_DATABASE_URL", "postgresql://u@h/x", r"settings: .*database_url: .*postgresql\+asyncpg"),
        ("SLUICE_MAX_ROWS", "0", "settings: those of a container: SLUICE_MAX_ROWS"),
        ("SLUICE_KAFKA_BOOTSTRAP", "127.0.0.1:1", "kafka: "),
        ("SLUICE_BLOB_STORES", '{"s3": "s3://bucket/x?endpoint=http://127.0.0.1:1&region=eu"}', "blob stores: s3"),
        ("SLUICE_CA_FILE", "/nowhere/ca.crt", "coordinator: .*SLUICE_CA_FILE"),
    ],
)
async def test_the_cause_of_a_problem_is_named(
    nowhere: str, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, reason: str
) -> None:
    monkeypatch.setenv(variable, value)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    findings = await examine(nowhere)
    assert all(each.remedy for each in findings if each.level is not Level.GOOD)
    found = "\n".join(problems(findings))
    assert re.search(reason, found), found
    assert "hunter2" not in found


async def test_a_job_is_checked_with_its_inputs(nowhere: str, home: Path, tmp_path: Path) -> None:
    file = tmp_path / "job.py"
    file.write_text(JOB)
    (problem,) = problems(await examine(nowhere, file))
    assert "input lines" in problem
    Log(home / "log").create("lines", 2)
    found = await examine(nowhere, file)
    assert problems(found) == []
    assert "input lines: 2 partitions" in {each.text for each in found}
    file.write_text("job = 1 +")
    assert "SyntaxError" in "\n".join(problems(await examine(nowhere, file)))


def test_a_token_that_the_coordinator_refuses_and_the_checks_that_fail_there_are_problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "coordinator.toml"
    config.write_text("authentication = true\n")
    with running(tmp_path / "secured", SLUICE_CONFIG=str(config)) as coordinator:
        url = str(coordinator.http.base_url)
        done = CliRunner().invoke(app, ["doctor", "--json", "--coordinator", url])
        assert done.exit_code == 1
        found = [each for each in json.loads(done.output)["findings"] if each["check"] == "coordinator"]
        assert [each["level"] for each in found] == ["ok", "problem"]
        assert "SLUICE_TOKEN" in found[1]["remedy"]
    with running(tmp_path / "open") as coordinator:
        done = CliRunner().invoke(app, ["doctor", "--coordinator", str(coordinator.http.base_url)])
        assert done.exit_code == 0, done.output
        assert "answers, and its clock differs by" in done.output


async def test_a_variable_that_nothing_reads_is_a_note(nowhere: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_LEASE_SECOND", "40")
    found = [each for each in await examine(nowhere) if "SLUICE_LEASE_SECOND" in each.text]
    assert [(each.check, each.level, bool(each.remedy)) for each in found] == [("settings", Level.NOTE, True)]
    done = CliRunner().invoke(app, ["config", "show", "client"])
    assert "sluice: no program reads SLUICE_LEASE_SECOND: did you mean SLUICE_LEASE_SECONDS?" in done.stderr
