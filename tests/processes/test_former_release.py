"""Release 0.1, and the commit f0c0f2cc, together with the present release, as during an upgrade: containers of either release with a
coordinator of the other, with real processes and real Spark. Settings, routes and bodies have the names of release 0.1.
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
from tests.support.former_release import TODAY, Release, commit_f0c0f2cc, release_0_1
from tests.support.processes import await_answer, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

JOB = WINDOWS.replace("from sluice import", "from containers import")
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

    def grow(self, partitions: int) -> None:
        """Grow the input, and wait until the partition monitor has found it and the container has adopted it."""
        self.log.grow("numbers", partitions)

        def adopted() -> bool:
            run = self.get(f"/runs/{self.run_id}")
            return run["adoption"]["version"] == 2 and run["adoption"]["allOn"] == 2 and all(task["holder"] for task in run["tasks"])

        wait_for("the adoption of the grown model", adopted, 600)

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


@pytest.fixture(scope="module")
def former(tmp_path_factory: pytest.TempPathFactory) -> Release:
    return release_0_1(tmp_path_factory.mktemp("release-0.1"))


def test_a_job_of_the_former_release_continues_when_its_coordinator_is_upgraded_and_containers_of_both_releases_alternate(
    tmp_path_factory: pytest.TempPathFactory, former: Release
) -> None:
    with mixed(tmp_path_factory.mktemp("upgraded")) as scene:
        scene.start_coordinator_of(former)
        scene.deploy_with(former)
        container = scene.start_container_of(former)
        scene.feed_and_await(200)
        scene.upgrade_coordinator(TODAY)
        refused = scene.http.post("/drain", json={"runId": scene.run_id, "drainMode": "KEEP_STATE"})
        assert (refused.status_code, refused.json()["type"]) == (409, "urn:sluice:outdated-containers")
        scene.grow(4)
        scene.feed_and_await(200)
        scene.kill_and_lose_disk(container)
        container = scene.start_container_of(TODAY)  # restores the backup of a container of the former release
        scene.feed_and_await(100)
        scene.kill_and_lose_disk(container)
        container = scene.start_container_of(former)  # and the reverse
        scene.feed_and_await(100)
        scene.drain(container)
        assert counted(scene) == by_hour(600)
        scene.deploy_with(former)
        assert scene.get(f"/runs/{scene.run_id}")["state"] == "CREATED"


def test_containers_of_this_release_work_for_a_coordinator_of_the_former_one(
    tmp_path_factory: pytest.TempPathFactory, former: Release
) -> None:
    with mixed(tmp_path_factory.mktemp("behind")) as scene:
        scene.start_coordinator_of(former)
        scene.deploy_with(TODAY)
        container = scene.start_container_of(TODAY)
        scene.feed_and_await(200)
        scene.grow(4)
        scene.feed_and_await(200)
        scene.kill_and_lose_disk(container)
        container = scene.start_container_of(TODAY)
        scene.feed_and_await(100)
        scene.drain(container)
        assert counted(scene) == by_hour(500)


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
