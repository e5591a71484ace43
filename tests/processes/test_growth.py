"""Real processes and real Spark under load, while streams grow, containers start and stop, and some are killed: the state of every key
stays with its key, and every total is exact.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Log, Record, Writer, partition_of
from tests.processes.feeding import beside
from tests.processes.gates import pause, resume
from tests.processes.stage import Stage, stage
from tests.support.processes import WAIT_SECONDS, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TOTALS = """
from sluice import Job
from pyspark.sql import functions as F

job = Job("toy")
numbers = job.input("numbers")
out = job.output("out")


@job.stage(reads=numbers, writes=out)
def totals(task):
    counts = task.read(numbers).selectExpr("cast(key as string) k").groupBy("k").count()
    return task.write(counts.selectExpr("k", "count as n", f"'{task.name}' as task"), out, key="k").outputMode("update")
"""

KEYS = [f"key {number}" for number in range(40)]
SETTINGS: dict[str, Any] = {"SLUICE_TRIGGER_SECONDS": "0.3", "SLUICE_COMMIT_INTERVAL_SECONDS": "1", "SLUICE_MAX_ROWS": "400"}


class Load:
    """Produces keyed records all the time; the system's own partitioner places them over the current partitions."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._over = threading.Event()
        self.fed: Counter[str] = Counter()

    def _feed(self) -> None:
        batch = 0
        while not self._over.wait(0.2):
            keys = [KEYS[(batch * 7 + number) % len(KEYS)] for number in range(25)]
            writer = Writer(Lineage("load"), "load", Generation(1))
            partitions = self._log.partitions("numbers")
            records = [Record(b"", key.encode(), partition_of(key.encode(), partitions, 0)) for key in keys]
            assert self._log.append("numbers", records, writer=writer, batch=batch, now_micros=time.time_ns() // 1000)
            self.fed.update(keys)
            batch += 1

    @contextmanager
    def on(self) -> Iterator[None]:
        with beside(self._feed, self._over):
            yield


@contextmanager
def played(root: Path, partitions: int, containers: int = 1, failover_after: float = 0, **flags: float) -> Iterator[Stage]:
    with stage(root, TOTALS) as made:
        made.environment["SLUICE_FAILOVER_AFTER_SECONDS"] = str(failover_after)
        made.log.create("numbers", partitions)
        made.start_coordinator(**flags)
        made.deploy(containers)
        yield made


def container(scene: Stage, slot: int = 0) -> tuple[str, subprocess.Popen[bytes]]:
    """Start a container with the disk of its slot, so that a task that moves needs a snapshot."""
    return scene.start_container(slot, SLUICE_STATE_DIR=str(scene.root / f"disk{slot}"), **SETTINGS)


class Output:
    """The counts in the output, by key in order: the task that counted, and its count."""

    def __init__(self, scene: Stage) -> None:
        self._scene = scene
        self._read = 0
        self._found: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)

    def updates(self) -> dict[str, list[tuple[str, int]]]:
        end = sum(self._scene.log.latest("out").values())
        for rows in self._scene.log.read("out", 0, self._read, end):
            for row in rows:
                value = json.loads(row[3] or b"")
                self._found[value["k"]].append((value["task"], value["n"]))
        self._read = end
        return self._found

    def totals(self) -> Counter[str]:
        return Counter({key: max(count for _, count in reported) for key, reported in self.updates().items()})

    def by_task(self) -> Counter[str]:
        return Counter(reported[-1][0] for reported in self.updates().values() for _ in reported)

    def check_exact(self, fed: Counter[str]) -> None:
        """Check that each key was counted by one task, up to everything that was fed, without gaps or repetitions."""
        wait_for("all totals", lambda: self.totals().total() >= fed.total())
        assert self.totals() == fed
        for key, reported in self.updates().items():
            assert len({task for task, _ in reported}) == 1, key
            counts = [count for _, count in reported]
            assert counts == sorted(set(counts)), key

    def more(self) -> None:
        """Wait until each task has counted more."""
        before, tasks = Counter(self.by_task()), [task.task for task in self._scene.detail().tasks]
        wait_for("more from each task", lambda: all(self.by_task()[task] > before[task] for task in tasks))


def change(scene: Stage, **body: object) -> int:
    answer = scene.http.patch(f"/runs/{scene.run_id}", json=body)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["version"])


def grow(scene: Stage, partitions: int) -> int:
    scene.log.grow("numbers", partitions)
    return change(scene, grow=True)


def reported_partitions(scene: Stage) -> set[int]:
    """The partitions on which containers have reported progress. The output of a batch comes before its report."""
    return {each.partition for task in scene.detail().tasks for each in task.stages[0].offsets}


def await_adopted(scene: Stage, version: int, containers: int = 1) -> None:
    """Wait until the run has that many containers, and these own all tasks."""

    def everywhere() -> bool:
        run = scene.detail()
        live = [each.execution_container_id for each in run.incarnations if each.state == "LIVE"]
        held = all(task.holder in live for task in run.tasks)
        return run.adoption is not None and run.adoption.all_on == version and len(live) == containers and held

    wait_for(f"version {version} in {containers} containers", everywhere)


@pytest.mark.long  # as test_kafka.py
def test_a_stateful_job_whose_input_grows_twice_under_load_while_its_container_is_killed_has_exact_totals(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with played(tmp_path_factory.mktemp("growth"), 2) as scene:
        load, reported = Load(scene.log), Output(scene)
        with load.on():
            _, agent = container(scene)
            reported.more()
            await_adopted(scene, grow(scene, 4))
            reported.more()
            version = grow(scene, 8)
            scene.driver_of(agent).kill()  # during the adoption, or just after it
            agent.wait(WAIT_SECONDS)
            _, agent = container(scene)
            await_adopted(scene, version)
            reported.more()
        reported.check_exact(load.fed)
        wait_for("progress on all partitions", lambda: reported_partitions(scene) == set(range(8)))
        assert scene.http.post(f"/runs/{scene.run_id}/stop").status_code == 202
        assert agent.wait(WAIT_SECONDS) == 0


@pytest.mark.long  # as tests/integration/api/test_scaling.py
def test_a_stateful_job_that_is_scaled_up_and_down_under_load_while_a_container_is_killed_has_exact_totals(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with played(tmp_path_factory.mktemp("scale"), 4) as scene:
        load, reported = Load(scene.log), Output(scene)
        with load.on():
            _, zero = container(scene)
            reported.more()
            version = change(scene, containers=3)
            (_, one), (_, two) = container(scene, 1), container(scene, 2)
            await_adopted(scene, version, 3)
            reported.more()
            version = change(scene, containers=2)
            scene.driver_of(one).kill()
            one.wait(WAIT_SECONDS)
            _, one = container(scene, 1)
            assert two.wait(WAIT_SECONDS) == 0
            await_adopted(scene, version, 2)
            reported.more()
        reported.check_exact(load.fed)
        assert scene.http.post(f"/runs/{scene.run_id}/stop").status_code == 202
        assert (zero.wait(WAIT_SECONDS), one.wait(WAIT_SECONDS)) == (0, 0)


@pytest.mark.long  # as test_kafka.py
def test_a_container_that_is_suspended_until_its_tasks_have_moved_adds_nothing_and_exits_with_code_3(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with played(tmp_path_factory.mktemp("still"), 4, 2, failover_after=5, lease_seconds=20) as scene:
        load, reported = Load(scene.log), Output(scene)
        with load.on():
            (execution_id, zero), (_, one) = container(scene), container(scene, 1)
            reported.more()
            pause(one)
            wait_for("all tasks in one container", lambda: scene.holds_all(execution_id))
            reported.more()
            resume(one)
            assert one.wait(WAIT_SECONDS) == 3
            reported.more()
        reported.check_exact(load.fed)
        assert scene.http.post(f"/runs/{scene.run_id}/stop").status_code == 202
        assert zero.wait(WAIT_SECONDS) == 0
