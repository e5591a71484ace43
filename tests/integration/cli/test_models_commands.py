"""`sluice plan`, `scale` and `models`, against a coordinator process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from sluice.cli import models
from sluice.client import Refused, user_name
from sluice.core.errors import BadSettings, UnknownJob
from sluice.streams.log import Log
from tests.support.api import run_body
from tests.support.coordinators import Running, running

app = typer.Typer()
app.command("plan")(models.plan)
app.command("scale")(models.scale)
app.add_typer(models.app, name="models")


class Job:
    """A run of four tasks on two slots without containers."""

    def __init__(self, coordinator: Running, log: Log) -> None:
        self.http = coordinator.http
        self.log = log
        self.url = str(self.http.base_url).rstrip("/")
        answer = self.http.post("/runs", json=run_body(containers=2))
        assert answer.is_success, answer.text
        self.run_id = str(answer.json()["runId"])

    def sluice(self, *words: str, code: int = 0) -> str:
        """The output of the command without a terminal."""
        done = self._invoke(*words)
        assert done.exit_code == code, done.output
        return done.stdout

    def error(self, *words: str) -> BaseException | None:
        return self._invoke(*words).exception

    def _invoke(self, *words: str) -> Result:
        return CliRunner().invoke(app, [*words, "--coordinator", self.url])

    @property
    def version(self) -> int:
        return int(self.http.get(f"/runs/{self.run_id}").json()["jobModelVersion"])


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    log = Log(tmp_path / "home" / "log")
    log.create("flights", 4)
    with running(tmp_path / "home") as coordinator:
        yield Job(coordinator, log)


def test_a_plan_is_printed_for_people_and_as_json_and_changes_nothing(job: Job) -> None:
    output = job.sluice("plan", "--stream", "flights", "--partitions", "8", "--containers", "3").splitlines()
    assert output[:2] == [
        f"run {job.run_id} of job flight-delays, version 1: the change would be safe",
        "log.flights grew from 4 to 8 partitions",
    ]
    assert "STREAM       PARTITION  READ BY" in output
    assert "log.flights          4  Partition 0" in output
    assert output[-1] == "4 new partitions, 4 tasks restart their queries, 0 new tasks, 1 moves"
    assert [line.split() for line in output if line.startswith("partitions per task")] == [
        ["partitions", "per", "task", "1", "(1)", "2", "(2)"]
    ]
    found = json.loads(job.sluice("plan", "flight-delays", "--stream", "flights", "--partitions", "8", "--json"))
    assert (found["verdict"], len(found["partitions"])) == ("SAFE", 4)
    assert job.sluice("plan").splitlines()[0].endswith("nothing would change")
    assert job.version == 1


def test_a_plan_that_would_be_refused_is_printed_with_its_own_exit_code(job: Job) -> None:
    output = job.sluice("plan", "--stream", "flights", "--partitions", "6", code=2).splitlines()
    assert output[0].endswith("the change would be refused, and the job would continue unchanged")
    assert "not a multiple of 4" in output[1]
    assert "9 containers for 4 tasks" in job.sluice("plan", "--containers", "9", code=2)


def test_a_plan_whose_streams_and_counts_do_not_match_is_refused(job: Job) -> None:
    for words in (["--stream", "flights"], ["--partitions", "8"], ["--stream", "flights", "--partitions", "8"] * 2):
        assert isinstance(job.error("plan", *words), BadSettings)
    assert isinstance(job.error("plan", "--stream", "lost", "--partitions", "8"), Refused)
    assert isinstance(job.error("plan", "lost"), Refused)


def test_a_job_is_scaled_and_its_history_shows_the_user_and_the_reason(job: Job) -> None:
    output = job.sluice("scale", "flight-delays", "3", "--why", "more to do", "--if-version", "1").splitlines()
    assert output[0] == f"run {job.run_id} of job flight-delays changed from version 1 to version 2, with 3 containers"
    assert "TASK         FROM SLOT  TO SLOT" in output
    refused = job.error("scale", "flight-delays", "4", "--if-version", "1")
    assert isinstance(refused, Refused)
    assert refused.refused_as == "version-conflict"
    assert isinstance(job.error("scale", "flight-delays", "5"), Refused)
    assert isinstance(job.error("scale", "lost", "2"), UnknownJob)
    assert "nothing to change" in job.sluice("scale", "flight-delays", "3")
    (newest, first) = json.loads(job.sluice("models", "ls", "--json"))["models"]
    assert (newest["actor"], newest["why"]) == (user_name(), "scaled from 2 to 3 containers; more to do")
    listed = job.sluice("models", "ls", "flight-delays").splitlines()
    assert listed[0].split() == ["VERSION", "IN", "FORCE", "CREATED", "BY", "RUN", "CONTENT", "WHY"]
    assert listed[1].split()[:2] == ["2", "yes"]
    assert listed[2].split()[0] == "1"
    assert first["contentHash"][:12] in listed[2]
    assert "for older entries: --before 2" in job.sluice("models", "ls", "--limit", "1")


def test_a_version_is_shown_and_compared_with_another(job: Job) -> None:
    job.log.grow("flights", 8)
    grown = job.sluice("models", "grow", "flight-delays", "--why", "now").splitlines()
    assert grown[0].endswith("changed from version 1 to version 2, with 2 containers")
    shown = job.sluice("models", "show", "flight-delays", "2").splitlines()
    assert shown[0].startswith("version 2, which is in force; created ")
    assert shown[3].split(maxsplit=3) == ["0", "Partition", "0", "log.flights 0, 4"]
    output = job.sluice("models", "diff", "flight-delays", "1", "2").splitlines()
    assert output[0] == "changes from version 1 to version 2 of job flight-delays:"
    assert output[-1] == "4 new partitions, 4 tasks restart their queries, 0 new tasks, 0 moves"
    assert json.loads(job.sluice("models", "show", "flight-delays", "1", "--json"))["model"]["config"]["job.name"] == "flight-delays"
    assert isinstance(job.error("models", "show", "flight-delays", "9"), Refused)


def test_growth_is_rolled_back_until_a_container_has_adopted_it(job: Job) -> None:
    job.log.grow("flights", 8)
    job.sluice("models", "grow", "flight-delays")
    output = job.sluice("models", "rollback", "flight-delays", "1", "--why", "too soon", "--if-version", "2").splitlines()
    assert output[0].endswith("changed from version 2 to version 3, with 2 containers")
    job.sluice("models", "grow", "flight-delays")
    answer = job.http.post(f"/runs/{job.run_id}/containers", json={"processorId": "0", "executionContainerId": "c1"})
    assert answer.json()["jobModelVersion"] == 4
    refused = job.error("models", "rollback", "flight-delays", "3")
    assert isinstance(refused, Refused)
    assert refused.refused_as == "version-adopted"
