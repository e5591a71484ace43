"""User code that takes all memory or blocks, and a JVM that hangs. Each case is a container of its own.

`make test` shows the parts: tests/spark/test_misbehaving_code.py (the JVM exits when it is out of memory, and the reason),
tests/crash/test_agent_trouble.py (a JVM that hangs, a second stop), tests/unit/agent/test_liveness.py (a suspended machine), and
test_life_of_a_slot.py (containers that end with real Spark).
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator

import pytest

from containers.state.checkpoint import Checkpoints, inspect
from containers.supervision.scratch import session_members
from tests.processes.gates import GATED, Gate, jvm_of, pause, resume
from tests.processes.stage import Stage, stage
from tests.support.processes import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

GENEROUS = 600.0
LEASE_SECONDS, HEARTBEAT_SECONDS = 20, 2
SPARK_TIMEOUT_SECONDS = 10
SUSPENDED_SECONDS = 12

JOB = """
import os
import time
from pathlib import Path

from sluice import Job

job = Job("rude")
numbers = job.input("numbers")
here = Path(__file__).parent


def takes_the_heap(batch, batch_id):
    gateway = batch.sparkSession.sparkContext._gateway
    gateway.new_array(gateway.jvm.byte, 700_000_000)


def blocks(batch, batch_id):
    (here / "blocks").touch()
    time.sleep(3600)


@job.stage(reads=numbers)
def only(task):
    case = os.environ["CASE"]
    if case == "takes_the_heap":
        assert task.spark._jvm.System.getProperty("owner") == "me"
    return task.read(numbers).writeStream.foreachBatch(globals()[case])
"""


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("rude"), JOB) as made:
        made.log.create("numbers", 1)
        made.start_coordinator(lease_seconds=LEASE_SECONDS, heartbeat_seconds=HEARTBEAT_SECONDS, margin_seconds=2, grace_seconds=2)
        made.deploy()
        made.feed(10)
        yield made


def heartbeats(scene: Stage) -> float:
    (line,) = (
        each for each in scene.http.get("/metrics").text.splitlines() if each.startswith("sluice_heartbeats_total") and "alive" in each
    )
    return float(line.split()[-1])


def test_a_jvm_that_is_out_of_memory_ends_its_container_and_the_reason_names_the_heap(scene: Stage) -> None:
    conf = {"spark.driver.memory": "512m", "spark.driver.extraJavaOptions": "-Downer=me"}
    execution_id, agent = scene.start_container(CASE="takes_the_heap", SLUICE_SPARK_CONF=json.dumps(conf))
    driver = scene.driver_of(agent)
    assert agent.wait(GENEROUS) == 1
    assert session_members(driver.pid) == []
    gone = scene.incarnation(execution_id)
    assert (gone.state, gone.exit_code) == ("EXITED", 1)
    assert [task.holder for task in scene.detail().tasks] == [None]
    assert gone.reason.splitlines()[0] == "Spark's JVM ended with exit code 3: it was out of memory (spark.driver.memory is its heap)"


def test_a_batch_may_block_for_longer_than_a_lease_and_a_stop_interrupts_it_after_its_timeout(scene: Stage) -> None:
    execution_id, agent = scene.start_container(CASE="blocks", SLUICE_STOP_TIMEOUT_SECONDS="2")
    wait_for("a batch that blocks", (scene.root / "blocks").exists, GENEROUS)
    beats = heartbeats(scene)
    wait_for("heartbeats for more than a lease", lambda: heartbeats(scene) > beats + LEASE_SECONDS / HEARTBEAT_SECONDS + 2, GENEROUS)
    assert scene.incarnation(execution_id).state == "LIVE"
    driver = scene.driver_of(agent)
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(GENEROUS) == 0
    assert session_members(driver.pid) == []
    gone = scene.incarnation(execution_id)
    assert (gone.state, gone.exit_code, gone.reason) == ("EXITED", 0, "stop requested")
    (task,) = scene.detail().tasks
    assert task.holder is None
    store = inspect(Checkpoints(scene.root / "home" / "state", "rude").directory("Partition 0", "only"))
    assert store is not None
    assert (store.planned, store.committed) == (0, -1)


def test_a_hanging_jvm_ends_its_container_but_a_long_batch_or_a_suspended_machine_does_not(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with stage(tmp_path_factory.mktemp("hangs"), GATED) as scene:
        scene.log.create("numbers", 1)
        scene.start_coordinator()
        scene.deploy()
        scene.feed(100)
        execution_id, agent = scene.start_container(SLUICE_SPARK_TIMEOUT_SECONDS=str(SPARK_TIMEOUT_SECONDS))
        gate = Gate(scene, execution_id)
        gate.await_batch()
        driver = scene.driver_of(agent)
        pause(agent)
        time.sleep(SUSPENDED_SECONDS)  # the machine is suspended in the middle of a batch that is longer than the time-out
        resume(agent)
        gate.open()
        scene.await_all_written(GENEROUS)
        assert agent.poll() is None
        assert scene.incarnation(execution_id).state == "LIVE"

        jvm = jvm_of(driver)
        jvm.suspend()
        assert agent.wait(GENEROUS) == 3
        assert session_members(driver.pid) == []
        gone = wait_for(
            "word of its end", lambda: scene.incarnation(execution_id) if scene.incarnation(execution_id).reason else None, GENEROUS
        )
        assert (gone.state, gone.exit_code) == ("EXITED", 3)
        assert gone.reason == f"the lease expired: not sent: process {jvm.pid} (java) of the driver is stopped"
        assert [task.holder for task in scene.detail().tasks] == [None]
