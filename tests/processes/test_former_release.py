"""The commit f0c0f2cc together with the present release, as during an upgrade: its containers with the present coordinator, with real
processes and real Spark.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.processes.drains import WINDOWS, by_hour, counted
from tests.processes.stage import Stage
from tests.support.former_release import TODAY, Release, commit_f0c0f2cc
from tests.support.processes import await_answer, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

JOB = WINDOWS
"""A window stays open until the drain: a total is exact only if its state survived everything before."""

COORDINATOR = {"SLUICE_PARTITION_MONITOR_SECONDS": "1", "SLUICE_LEASE_SECONDS": "120"}

CONTAINER = {
    "SLUICE_PROCESSOR_ID": "0",
    "SLUICE_SPARK_MASTER": "local[1]",
    "SLUICE_TRIGGER_SECONDS": "0.2",
    "SLUICE_COMMIT_INTERVAL_SECONDS": "1",
}


class MixedReleases(Stage):
    """A job whose coordinator and containers may be of different releases."""

    def start_coordinator_of(self, release: Release) -> None:
        command = [*release.command, "coordinator", "--home", str(self.home), "--port", str(self.port)]
        self.coordinator = self.launch_in(release.directory, "coordinator", command, {**release.environment, **COORDINATOR})
        await_answer(self.coordinator, f"{self.url}/readyz", self.log_file("coordinator"))

    def upgrade_coordinator(self, release: Release) -> None:
        """Stop the coordinator and start one of that release on the same database and log."""
        assert self.coordinator is not None
        self.coordinator.send_signal(signal.SIGTERM)
        assert self.coordinator.wait(600) == 0
        self.start_coordinator_of(release)

    def deploy_with(self, release: Release) -> None:
        self.run_id = release.run("deploy", str(self.job_file), SLUICE_COORDINATOR_URL=self.url)

    def start_container_of(self, release: Release) -> subprocess.Popen[bytes]:
        execution_id = f"test-{uuid4().hex[:12]}"
        own = {
            "SLUICE_COORDINATOR_URL": self.url,
            "SLUICE_RUN_ID": self.run_id,
            "SLUICE_HOME": str(self.home),
            "EXECUTION_ENV_CONTAINER_ID": execution_id,
        }
        command = [*release.command, "container", str(self.job_file)]
        return self.launch_in(release.directory, f"container-{execution_id}", command, {**release.environment, **CONTAINER, **own})

    def get(self, path: str) -> Any:
        answer = self.http.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def feed_and_await(self, count: int) -> None:
        """Feed numbers, and wait until the container's first stage has written all that were fed, each once."""
        self.feed(count)
        fed = sum(self.log.latest("numbers").values())
        wait_for(f"{fed} records in the middle", lambda: sum(self.log.latest("middle").values()) == fed, 600)

    def kill_and_lose_disk(self, container: subprocess.Popen[bytes]) -> None:
        """Wait until the windows of all numbers are backed up; then kill the container and delete its disk."""

        def backed_up() -> bool:
            snapshots = self.get("/jobs/toy/snapshots?stage=by_hour")["snapshots"]
            read = sum(each["offset"] for snapshot in snapshots if snapshot["head"] for each in snapshot["offsets"])
            return bool(read == sum(self.log.latest("middle").values()))

        wait_for("a snapshot of all windows", backed_up, 600)
        self.driver_of(container).kill()
        assert container.wait(600) == 1
        self.lose_disk()

    def drain(self, container: subprocess.Popen[bytes]) -> None:
        answer = self.http.post("/drain", json={"runId": self.run_id, "drainMode": "DEFAULT"})
        assert answer.status_code == 202, answer.text
        assert container.wait(600) == 0
        assert self.get(f"/drain/{answer.json()['uuid']}")["phase"] == "DRAINED"
        assert self.get(f"/runs/{self.run_id}")["state"] == "DRAINED"


@contextmanager
def mixed(root: Path) -> Iterator[MixedReleases]:
    scene = MixedReleases(root, JOB)
    try:
        scene.log.create("numbers", 2)
        yield scene
    except BaseException:
        print(scene.log_tails())
        raise
    finally:
        scene.close()


def test_a_container_of_f0c0f2cc_runs_is_restored_and_drained_by_the_present_coordinator(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    former = commit_f0c0f2cc(tmp_path_factory.mktemp("f0c0f2cc"))
    with mixed(tmp_path_factory.mktemp("upgraded")) as scene:
        scene.start_coordinator_of(former)
        scene.deploy_with(former)
        container = scene.start_container_of(former)
        scene.feed_and_await(200)
        scene.upgrade_coordinator(TODAY)
        scene.kill_and_lose_disk(container)
        container = scene.start_container_of(former)
        scene.feed_and_await(100)
        scene.kill_and_lose_disk(container)
        container = scene.start_container_of(TODAY)
        scene.feed_and_await(100)
        scene.kill_and_lose_disk(container)
        container = scene.start_container_of(former)
        scene.feed_and_await(100)
        scene.drain(container)
        assert counted(scene) == by_hour(500)
