"""An attached script and its supervisor, which is this test: what the script reports, and what it does after a request to stop."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from containers.attached import messages
from containers.attached.app import App, NotGranted
from sluice.clock import SystemClock
from sluice.core.ids import JobName
from tests.spark.test_active_queries import Script, nothing, script
from tests.support.processes import wait_for

pytestmark = pytest.mark.spark


class Supervisor:
    """The other end of an app's connection."""

    def __init__(self, spark: SparkSession) -> None:
        self.app = App(spark, JobName("orders"), (), SystemClock(), timedelta(seconds=60))
        self.theirs, self.ours = socket.socketpair()
        self.ours.settimeout(120)
        self.lines = self.ours.makefile("rb")

    def say(self, kind: str, **fields: object) -> None:
        self.ours.sendall(messages.encode(kind, **fields))

    def grant(self, job: str = "orders") -> None:
        self.say("granted", job=job, run="run-1", generation=3)
        self.app.start(self.theirs, ends_script=False)

    def next(self, kind: str) -> messages.Message:
        while (found := messages.decode(self.lines.readline()))["kind"] != kind:
            pass
        return found

    def stage(self, root: Path, **expected: object) -> dict[str, Any]:
        """The first reported query under this directory that is as expected."""
        while True:
            for each in self.next("queries")["queries"]:
                if str(root) in each["checkpoint"] and expected.items() <= each.items():
                    return dict(each)


@pytest.fixture
def supervisor(spark: SparkSession) -> Iterator[Supervisor]:
    made = Supervisor(spark)
    yield made
    made.app.close()
    made.ours.close()


@pytest.fixture
def orders(spark: SparkSession, tmp_path: Path) -> Iterator[Script]:
    with script(spark, tmp_path) as made:
        yield made


def test_queries_are_reported_and_stopped_also_those_that_start_later(supervisor: Supervisor, orders: Script) -> None:
    supervisor.grant()
    assert supervisor.app.run == "run-1"
    orders.feed("one")
    query = orders.start("counts", nothing)
    reported = supervisor.stage(orders.root, batchId=0)
    assert (reported["stage"], reported["queryId"], reported["active"], reported["metrics"]["rows"]) == ("counts", query.id, True, 3)
    supervisor.say("stop", seconds=60)
    assert supervisor.next("stopped")["interrupted"] == []
    assert not query.isActive
    again = orders.start("counts", nothing)
    wait_for("the end of the restarted query", lambda: not again.isActive)
    assert orders.batches("counts", "offsets") == orders.batches("counts", "commits")


def test_a_query_whose_checkpoint_another_job_uses_is_stopped(supervisor: Supervisor, orders: Script) -> None:
    supervisor.grant()
    orders.feed("one")
    query = orders.start("counts", nothing)
    other = orders.start("other", nothing)
    supervisor.stage(orders.root, stage="counts")
    supervisor.say("refuse", stage="counts", why="job copies uses the checkpoint")
    refused = supervisor.stage(orders.root, stage="counts", active=False)
    assert refused["error"] == "job copies uses the checkpoint"
    assert not query.isActive
    assert other.isActive


@pytest.mark.parametrize("answer", ["refused", "granted to another job", "the end"])
def test_a_script_that_may_not_run_gets_the_reason(supervisor: Supervisor, answer: str) -> None:
    if answer == "refused":
        supervisor.say("refused", why="job orders is running")
        expected = "job orders is running"
    elif answer == "the end":
        supervisor.ours.shutdown(socket.SHUT_RDWR)
        expected = "the supervisor has ended"
    else:
        supervisor.say("granted", job="invoices", run="run-1", generation=3)
        expected = "as job invoices"
    with pytest.raises(NotGranted, match=expected):
        supervisor.app.start(supervisor.theirs, ends_script=False)


def test_an_observed_script_continues_without_its_supervisor(supervisor: Supervisor, caplog: pytest.LogCaptureFixture) -> None:
    supervisor.grant()
    supervisor.say("lost", why="another one has replaced it")
    supervisor.ours.shutdown(socket.SHUT_RDWR)
    wait_for("the message", lambda: "this script is not protected any more" in caplog.text)
    assert os.getpid()
