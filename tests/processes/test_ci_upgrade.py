"""deploy/ci/upgrade.sh against a job under load: with its own token, its own id for the drain, and a new version that fails."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import yaml

from tests.processes.stage import Stage, stage
from tests.support.processes import ROOT, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCRIPT = ROOT / "deploy" / "ci" / "upgrade.sh"
WORKFLOW = ROOT / "deploy" / "ci" / "workflow.yml"
GENEROUS = 600.0

COPIES = """
from sluice import Job

job = Job("toy")
numbers, out = job.input("numbers"), job.output("out")


@job.stage(reads=numbers, writes=out)
def copy(task):
    rows = task.read(numbers).selectExpr("cast(cast(value as string) as bigint) + {added} n")
    return task.write(rows.selectExpr("string(n) v"), out, value="v")
"""
"""Number n is written as n + added."""

MILLION = 1_000_000


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Stage]:
    """A job of two tasks, one container, and a coordinator that requires tokens."""
    with stage(tmp_path, COPIES.format(added=0)) as made:
        token_file = tmp_path / "admin-token"
        made.environment |= {"SLUICE_AUTHENTICATION": "true", "SLUICE_FIRST_TOKEN_FILE": str(token_file)}
        made.start_coordinator()
        made.http.headers["Authorization"] = f"Bearer {token_file.read_text().strip()}"
        made.environment["SLUICE_TOKEN"] = token_of(made, "agent", "launcher")
        made.log.create("numbers", 2)
        made.log.create("out", 1)
        yield made


def token_of(scene: Stage, *roles: str) -> str:
    made = scene.http.post("/tokens", json={"name": "-".join(roles), "roles": list(roles), "jobs": ["toy"]})
    assert made.is_success, made.text
    return str(made.json()["token"])


class Pipeline:
    """A run of CI that upgrades the job. `asks` gets a line for each run whose containers the platform is to start."""

    def __init__(self, scene: Stage, job_file: Path, uuid: str) -> None:
        self.asks = scene.root / f"asks-{uuid}"
        self.log = scene.root / f"pipeline-{uuid}.log"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
        environment = {
            **kept,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "SLUICE_COORDINATOR_URL": f"http://127.0.0.1:9,{scene.url}",  # the first one does not answer
            "SLUICE_TOKEN": token_of(scene, "deployer", "operator"),
            "DRAIN_UUID": uuid,
            "WATCH_SECONDS": "580",
            "START_CONTAINERS": f'echo "$VERSION $SLUICE_RUN_ID" >>"{self.asks}"',
        }
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [str(SCRIPT), "toy", str(job_file)], env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=scene.root
            )

    def asked(self, version: str) -> str:
        """Wait until the containers of this version are to be started. Returns its run."""

        def look() -> str | None:
            assert self.process.poll() is None or self.asks.exists(), self.text()
            lines = self.asks.read_text().splitlines() if self.asks.exists() else []
            return next((line.split()[1] for line in lines if line.startswith(f"{version} ") and len(line.split()) == 2), None)

        return str(wait_for(f"containers of the {version} version", look, GENEROUS, details=self.text))

    def ends(self) -> int:
        return self.process.wait(GENEROUS)

    def text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


class Load:
    """Feeds numbers until it is ended."""

    def __init__(self, scene: Stage) -> None:
        self._scene = scene
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._feed)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _feed(self) -> None:
        while not self._over.wait(0.2):
            self._scene.feed(10)


@pytest.mark.long  # as test_upgrade.py, with `sluice upgrade` instead of the script
def test_a_job_under_load_is_upgraded_and_a_version_that_fails_is_rolled_back(scene: Stage) -> None:
    scene.deploy()
    old = scene.start_container()
    with Load(scene):
        wait_for("output of the old version", lambda: scene.written() > 0, GENEROUS, details=scene.log_tails)
        new_file = scene.root / "new.py"
        new_file.write_text(COPIES.format(added=MILLION))
        uuid = str(uuid4())
        pipeline = Pipeline(scene, new_file, uuid)
        drained_run = scene.run_id
        scene.run_id = pipeline.asked("new")
        assert old.process.wait(GENEROUS) == 0
        scene.job_file = new_file
        new = scene.start_container()
        assert pipeline.ends() == 0, pipeline.text()
        wait_for("output of the new version", lambda: any(value >= MILLION for value in scene.values()), GENEROUS, details=scene.log_tails)
        assert scene.http.get(f"/drain/{uuid}").json()["runId"] == drained_run

        broken = scene.root / "broken.py"
        broken.write_text(COPIES.format(added=2 * MILLION))
        failing = Pipeline(scene, broken, str(uuid4()))
        run = failing.asked("new")
        assert new.process.wait(GENEROUS) == 0
        fail(scene, run)
        back = failing.asked("old")
        assert failing.ends() == 4, failing.text()
    assert scene.http.get(f"/runs/{run}").json()["state"] == "FAILED"
    request = scene.http.get(f"/runs/{back}/request").json()
    assert (request["start"], request["job"]) == ("drained", "toy")

    written = sorted(value % MILLION for value in scene.values())
    for partition in (0, 1):  # each was read up to some number, without a gap and without a repetition
        of_partition = [number for number in written if number % 2 == partition]
        assert of_partition == list(range(partition, 2 * len(of_partition), 2))
    assert scene.http.get(f"/runs/{back}").json()["state"] == "CREATED"


def fail(scene: Stage, run: str) -> None:
    """A container of the run registers, and ends with an error of the job."""
    body = {"processorId": "0", "executionContainerId": "fails", "host": "host-1", "drainModes": ["DEFAULT"]}
    headers = {"Authorization": f"Bearer {scene.environment['SLUICE_TOKEN']}"}
    registered = scene.http.post(f"/runs/{run}/containers", json=body, headers=headers)
    assert registered.is_success, registered.text
    exited = {"exitCode": 4, "reason": "job.py, line 9: KeyError: 'v'", "terminated": True}
    ended = scene.http.post("/containers/fails/exit", json=exited, headers=headers)
    assert ended.is_success, ended.text


def test_a_drain_that_is_refused_changes_nothing(scene: Stage) -> None:
    pipeline = Pipeline(scene, scene.job_file, str(uuid4()))
    assert pipeline.ends() == 1
    assert "there is no job toy" in pipeline.text()


def test_the_workflow_passes_all_required_variables_to_the_script() -> None:
    workflow = yaml.safe_load(WORKFLOW.read_text())
    (job,) = workflow["jobs"].values()
    assert workflow["concurrency"]["cancel-in-progress"] is False
    (step,) = [each for each in job["steps"] if "upgrade.sh" in each.get("run", "")]
    documented = set(re.findall(r"^#   (\w+) ", SCRIPT.read_text(), re.M))
    assert {"SLUICE_COORDINATOR_URL", "SLUICE_TOKEN", "START_CONTAINERS", "DRAIN_MODE"} <= set(step["env"]) <= documented
    assert "DRAIN_UUID=" in "".join(each.get("run", "") for each in job["steps"])
