"""User code that takes all memory, blocks, or ends processes that it does not own. Each case is one container; they share a run, one
after the other, which also shows that each leaves its task free.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from containers.scratch import session_members
from containers.state.checkpoint import Checkpoints, inspect
from sluice.core.remedies import OF_USER_CODE, REMEDIES, plain
from tests.processes.stage import Stage, stage
from tests.support.processes import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

LEASE_SECONDS, HEARTBEAT_SECONDS = 12, 2

JOB = """
import os
import resource
import time
from pathlib import Path

from sluice import Job

job = Job("rude")
numbers = job.input("numbers")
here = Path(__file__).parent


def takes_the_heap(batch, batch_id):
    gateway = batch.sparkSession.sparkContext._gateway
    gateway.new_array(gateway.jvm.byte, 700_000_000)


def takes_the_memory(batch, batch_id):
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 500_000_000, resource.getrlimit(resource.RLIMIT_AS)[1]))
    bytearray(2_000_000_000)


def ends_the_process(batch, batch_id):
    os._exit(0)


def ends_the_interpreter(batch, batch_id):
    raise SystemExit("enough")


def blocks(batch, batch_id):
    (here / "blocks").touch()
    time.sleep(600)


@job.stage(reads=numbers)
def only(task):
    case = os.environ["CASE"]
    if case == "does_not_begin":
        raise LookupError("nothing to begin with")
    if case == "takes_the_heap":
        assert task.spark._jvm.System.getProperty("owner") == "me"
    return task.read(numbers).writeStream.foreachBatch(globals()[case])
"""


def line(text: str) -> int:
    """The number of the line of the job file that has this text."""
    return [each.strip() for each in JOB.splitlines()].index(text) + 1


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("rude"), JOB) as made:
        made.log.create("numbers", 1)
        made.start_coordinator(lease_seconds=LEASE_SECONDS, heartbeat_seconds=HEARTBEAT_SECONDS, margin_seconds=2, grace_seconds=2)
        made.deploy()
        made.feed(10)
        yield made


def reason_of(scene: Stage, case: str, exit_code: int = 1, **settings: str) -> str:
    """Start a container with this case and wait for its end; check that nothing is left and its task is free. Returns the reason in the
    API. A failing stage is tried twice.
    """
    few: dict[str, Any] = {"SLUICE_MAX_RESTARTS": "1", "SLUICE_RESTART_DELAY_SECONDS": "0.1"}
    execution_id, watchdog = scene.start_container(CASE=case, **{**few, **settings})
    driver = scene.driver_of(watchdog)
    assert watchdog.wait(180) == exit_code
    assert session_members(driver.pid) == []
    gone = scene.incarnation(execution_id)
    assert (gone.state, gone.exit_code) == ("EXITED", exit_code)
    assert [task.holder for task in scene.detail().tasks] == [None]
    return gone.reason


def heartbeats(scene: Stage) -> float:
    (line,) = (
        each for each in scene.http.get("/metrics").text.splitlines() if each.startswith("sluice_heartbeats_total") and "alive" in each
    )
    return float(line.split()[-1])


def test_a_jvm_that_is_out_of_memory_ends_its_container_and_the_reason_names_the_heap(scene: Stage) -> None:
    conf = {"spark.driver.memory": "512m", "spark.driver.extraJavaOptions": "-Downer=me"}
    reason = reason_of(scene, "takes_the_heap", SLUICE_SPARK_CONF=json.dumps(conf))
    assert reason.splitlines()[0] == "Spark's JVM ended with exit code 3: it was out of memory (spark.driver.memory is its heap)"


def test_a_memory_error_in_the_driver_fails_the_query_and_then_the_container(scene: Stage) -> None:
    reason = reason_of(scene, "takes_the_memory", 4)
    assert reason.startswith(f"{scene.job_file}:{line('bytearray(2_000_000_000)')} in takes_the_memory: MemoryError")
    assert "only failed 2 times in a row with this error" in reason


def test_user_code_that_ends_the_process_is_a_failure_even_with_exit_code_0(scene: Stage) -> None:
    assert reason_of(scene, "ends_the_process").startswith("its driver exited with code 0 without a reason: user code ended the process")


def test_the_error_of_a_stage_that_does_not_start_names_the_line_of_the_job_file(scene: Stage) -> None:
    reason = reason_of(scene, "does_not_begin", 4)
    begin = line('raise LookupError("nothing to begin with")')
    assert reason.startswith(f"{scene.job_file}:{begin} in only: LookupError: nothing to begin with\n")


def test_a_batch_may_block_for_longer_than_a_lease_and_a_stop_interrupts_it_after_its_timeout(
    scene: Stage,
) -> None:
    execution_id, watchdog = scene.start_container(CASE="blocks", SLUICE_STOP_TIMEOUT_SECONDS="2")
    wait_for("a batch that blocks", (scene.root / "blocks").exists)
    beats = heartbeats(scene)
    wait_for("heartbeats for more than a lease", lambda: heartbeats(scene) > beats + LEASE_SECONDS / HEARTBEAT_SECONDS + 2)
    assert scene.incarnation(execution_id).state == "LIVE"
    driver = scene.driver_of(watchdog)
    watchdog.send_signal(signal.SIGTERM)
    assert watchdog.wait(180) == 0
    assert session_members(driver.pid) == []
    gone = scene.incarnation(execution_id)
    assert (gone.state, gone.exit_code, gone.reason) == ("EXITED", 0, "stop requested")
    (task,) = scene.detail().tasks
    assert task.holder is None
    store = inspect(Checkpoints(scene.root / "home" / "state", "rude").directory("Partition 0", "only"))
    assert store is not None
    assert (store.planned, store.committed) == (0, -1)


def test_sluice_run_shows_the_line_of_user_code_that_failed_and_ends_after_three_failures_with_the_same_error(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with stage(tmp_path_factory.mktemp("run"), JOB) as scene:
        scene.log.create("numbers", 1)
        scene.feed(10)
        command = ["run", str(scene.job_file), "--home", str(scene.root / "home"), "--port", str(scene.port)]
        ended = subprocess.run(
            [sys.executable, "-m", "sluice", *command],
            env={**os.environ, "CASE": "ends_the_interpreter", "SLUICE_RESTART_DELAY_SECONDS": "0.1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert ended.returncode == 1
        raised = line('raise SystemExit("enough")')
        error = f"{scene.job_file}:{raised} in ends_the_interpreter: SystemExit: enough"
        run_id = next(line.split()[1] for line in ended.stdout.splitlines() if line.startswith("run "))
        log_file = scene.root / "home" / "logs" / run_id / "container-0.log"
        assert f"! {error} (stage only of Partition 0)" in ended.stdout
        assert ended.stderr.splitlines() == [
            f"sluice: {error}",
            "Partition 0/only failed 3 times in a row with this error",
            f"log: {log_file}",
            "container-0 ended once (exit 4)",
            f"remedy: {OF_USER_CODE}",
        ]
        assert log_file.read_text().count(" failed (") == 2
        assert " ERROR org.apache.spark." in log_file.with_name("jvm-0.log").read_text()
        assert " ERROR MicroBatchExecution" not in log_file.read_text()
        shown = subprocess.run(
            [sys.executable, "-m", "sluice", "logs", "--jvm", "--home", str(scene.root / "home")],
            capture_output=True,
            text=True,
            check=True,
        )
        assert " ERROR org.apache.spark." in shown.stdout
        scene.start_coordinator()
        scene.run_id = run_id
        run = scene.detail()
        assert run.state == "FAILED"
        assert run.reason.startswith(error)
        assert [each.exit_code for each in run.incarnations] == [4]
        assert run.incarnations[0].reason.startswith(error)


def test_without_java_a_container_ends_at_once_and_sluice_run_names_java_the_remedy_and_the_log(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with stage(tmp_path_factory.mktemp("java"), JOB) as scene:
        scene.log.create("numbers", 1)
        home = scene.root / "home"
        ended = subprocess.run(
            [sys.executable, "-m", "sluice", "run", str(scene.job_file), "--home", str(home), "--port", str(scene.port)],
            env={**os.environ, "CASE": "blocks", "JAVA_HOME": "/nowhere"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ended.returncode == 1
        run_id = next(line.split()[1] for line in ended.stdout.splitlines() if line.startswith("run "))
        assert ended.stderr.splitlines() == [
            "sluice: Java was not found. There is no program 'java' in JAVA_HOME (/nowhere): "
            "install Java 17 or 21, or set JAVA_HOME to its directory",
            f"log: {home / 'logs' / run_id / 'container-0.log'}",
            "container-0 ended once (exit 4)",
            f"remedy: {plain(REMEDIES['JavaMissing'])}",
        ]
