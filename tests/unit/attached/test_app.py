"""`sluice.attach` before it reaches Spark."""

from __future__ import annotations

import gc
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

import sluice
from containers.attached.app import MAX_REASONS, App, with_unlisted
from containers.attached.attachable import CannotAttach, check_deploy_mode, check_session, is_observed
from containers.attached.checkpoints.directories import DrainUnfinished
from containers.attached.port import Beginning, NotGranted
from sluice.core.errors import BadName, BadSettings
from sluice.core.ids import JobName
from sluice.script import checked_timeout
from sluice.wire.agents import MAX_QUERIES, QueryBody
from tests.support.fakes import FakeClock
from tests.support.script_peers import LONG, AgentPeer


def session(version: str = "4.2.0", **conf: str) -> Any:
    conf_of_session = {name.replace("_", "."): value for name, value in conf.items()}
    return SimpleNamespace(_jsparkSession=None, version=version, sparkContext=SimpleNamespace(getConf=lambda: conf_of_session))


def test_a_session_of_spark_connect_cannot_be_attached() -> None:
    connect: Any = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(CannotAttach, match="Spark Connect"):
        sluice.attach(connect, job="orders")


@pytest.mark.parametrize(("given", "kind"), [(None, "NoneType"), ("spark", "str")])
def test_what_is_no_session_cannot_be_attached(given: Any, kind: str) -> None:
    with pytest.raises(CannotAttach, match=f"`spark` must be a SparkSession, not {kind}$"):
        sluice.attach(given, job="orders")


@pytest.mark.parametrize("given", [0, -1, timedelta(0), float("nan"), 1e300, "long", None, True])
def test_a_stop_timeout_that_is_no_time_is_refused(given: Any) -> None:
    with pytest.raises(BadSettings, match="`stop_timeout` must be a timedelta or a number of seconds, more than 0, not "):
        sluice.attach(session(), job="orders", stop_timeout=given)


@pytest.mark.parametrize("given", [120, 120.0, timedelta(minutes=2)])
def test_a_stop_timeout_is_a_number_of_seconds_or_a_timedelta(given: timedelta | float) -> None:
    assert checked_timeout(given) == timedelta(seconds=120)


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        ("SLUICE_COORDINATOR_URL", "foo", "SLUICE_COORDINATOR_URL: .*'foo' is not the URL of a coordinator"),
        ("SLUICE_LOG_LEVEL", "LOUD", "SLUICE_LOG_LEVEL: .*'LOUD'"),
        ("SLUICE_COMMIT_INTERVAL_SECONDS", "often", "SLUICE_COMMIT_INTERVAL_SECONDS: .*number"),
    ],
)
def test_a_wrong_setting_is_refused_in_the_script(monkeypatch: pytest.MonkeyPatch, variable: str, value: str, named: str) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(BadSettings, match=named):
        sluice.attach(session(), job="orders")


def test_a_session_whose_threads_are_not_pinned_cannot_be_attached(monkeypatch: pytest.MonkeyPatch) -> None:
    unpinned = session()
    unpinned.sparkContext._gateway = type("JavaGateway", (), {"__module__": "py4j.java_gateway"})()
    check_session(unpinned)  # a platform's own gateway
    monkeypatch.setenv("PYSPARK_PIN_THREAD", "false")
    with pytest.raises(CannotAttach, match="PYSPARK_PIN_THREAD is false"):
        sluice.attach(unpinned, job="orders")
    unpinned.sparkContext._gateway = type("ClientServer", (), {"__module__": "py4j.clientserver"})()
    check_session(unpinned)


@pytest.mark.parametrize("version", ["3.4.4", "4.4.0", "5.0.0-preview1"])
def test_a_spark_that_was_not_tried_cannot_be_attached(version: str) -> None:
    with pytest.raises(CannotAttach, match=rf"this is Spark {version}, and sluice\.attach works with Spark 3\.5 to 4\.3"):
        sluice.attach(session(version), job="orders")


@pytest.mark.parametrize("version", ["3.5.0", "3.5.4-amzn-0", "4.0.1", "4.2.0", "4.3.0-SNAPSHOT"])
def test_the_versions_of_the_matrix_can_be_attached(version: str) -> None:
    check_session(session(version))


def test_a_driver_that_the_cluster_has_started_can_only_be_observed() -> None:
    with pytest.raises(CannotAttach, match="deploy mode client"):
        sluice.attach(session(spark_submit_deployMode="cluster"), job="orders")
    check_deploy_mode("cluster", observed=True)
    check_deploy_mode("client", observed=False)


def test_a_job_needs_a_name_that_can_be_stored() -> None:
    with pytest.raises(BadName):
        sluice.attach(session(), job="orders of today")


@pytest.mark.parametrize(
    "variable",
    [
        "DATABRICKS_RUNTIME_VERSION=18.0",
        "GLUE_VERSION=5.0",
        "DATAPROC_CLUSTER_NAME=orders",
        "LIVY_SPARK_MAJOR_VERSION=3",
        "AZURE_SERVICE=Microsoft.ProjectArcadia",
    ],
)
def test_drivers_of_hosted_platforms_are_only_observed(variable: str) -> None:
    name, value = variable.split("=")
    assert is_observed({name: value}, {}, interactive=False)


def test_notebooks_and_interpreters_are_only_observed() -> None:
    assert is_observed({}, {}, interactive=True)
    assert is_observed({}, {"ipykernel": object()}, interactive=False)
    assert is_observed({}, {}, interactive=False, program="/tmp/1700000000000-0/zeppelin_python.py")


def test_scripts_are_not_only_observed() -> None:
    variables = {"HOME": "/root", "AZURE_SERVICE": "other", "ZEPPELIN_HOME": "/opt/zeppelin"}
    assert not is_observed(variables, {"json": object()}, interactive=False, program="/srv/orders.py")


def waiting() -> tuple[App, socket.socket, AgentPeer]:
    """A script that waits for its lease, its end of the connection, and its agent."""
    ours, theirs = socket.socketpair()
    return App(session(), JobName("orders"), (), FakeClock(), timedelta(seconds=60)), ours, AgentPeer(theirs)


def test_ctrl_c_while_a_script_waits_for_its_lease_ends_its_connection() -> None:
    """Otherwise the process at the other end would take the lease later, and the next call would wait for it. The garbage of other tests is
    collected before: in a finalizer the interruption would be lost."""
    app, ours, agent = waiting()
    gc.collect()
    gc.disable()

    def interrupt() -> None:
        agent.next("attach")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    interrupting = Thread(target=interrupt)
    interrupting.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            app.start(ours, ends_script=True)
    finally:
        gc.enable()
    interrupting.join()
    assert agent.ended.wait(LONG)
    agent.close()


def test_a_script_that_is_attached_as_another_job_than_its_command_ends_its_connection() -> None:
    app, ours, agent = waiting()
    app.job = JobName("invoices")
    agent.may_run()
    with pytest.raises(NotGranted, match="another job than invoices"):
        app.start(ours, ends_script=True)
    assert agent.ended.wait(LONG)
    agent.close()


def test_a_script_with_more_queries_than_are_reported_cannot_be_drained() -> None:
    running: Any = [{"stage": "ended", "active": False, "undrainable": []}]
    running += [{"stage": f"q{number}", "active": True, "undrainable": [f"reason {number}"] * MAX_REASONS} for number in range(2)]
    assert with_unlisted(running, MAX_QUERIES) == running
    ended, first, second = with_unlisted(running, MAX_QUERIES + 1)
    assert (ended, second) == (running[0], running[2])
    assert first["undrainable"][:2] == [
        "the script runs 51 queries, of which only 50 are reported: no drain can wait for the others",
        "reason 0",
    ]
    QueryBody.model_validate({**first, "checkpoint": "s3a://states/q0", "queryId": "1"})
    assert with_unlisted(running[:1], MAX_QUERIES + 1) == running[:1]


def test_two_threads_that_ask_for_the_same_checkpoint_ask_one_after_the_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Here the answer is that a drain has failed."""
    monkeypatch.setenv("SLUICE_STATE_DIR", str(tmp_path))
    at_once, most = [0], [0]

    def beginning(stage: str) -> Beginning:
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        threading.Event().wait(0.05)
        at_once[0] -= 1
        return Beginning(2, "", {}, "the disk is full")

    ours, theirs = socket.socketpair()
    app = App(session(), JobName("orders"), (), FakeClock(), timedelta(seconds=60))
    agent = AgentPeer(theirs, beginning=beginning)
    agent.may_run()
    app.start(ours, ends_script=False)

    def ask() -> str:
        with pytest.raises(DrainUnfinished) as refused:
            app.checkpoint("counts")
        return str(refused.value)

    with ThreadPoolExecutor() as threads:
        for each in [threads.submit(ask) for _ in range(2)]:
            assert "the disk is full" in each.result()
    assert most == [1]
    app.close()
    agent.close()
