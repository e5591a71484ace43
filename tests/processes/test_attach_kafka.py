"""Scripts that write to Kafka, killed and suspended in a commit: with `app.kafka_writer` each row is in the topic once.

With SLUICE_TEST_KAFKA_STEPS=all the same script runs also with the sink of Spark, and its duplicates are printed beside ours.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from containers.jars import connector_jars
from examples.harness.topics import Topics
from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Record, Writer
from tests.processes.test_attach import BUSY_SECONDS, OPTIONS, descendants, is_gone
from tests.support.console_consumer import committed_values
from tests.support.coordinators import Running, running
from tests.support.deployed import ROOT
from tests.support.kafkaproxy import Hold, KafkaProxy, Request, kafka_proxy
from tests.support.processes import kill_whole, must_run, start, tail, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow]

BATCH = 20
LAST = Writer(Lineage("last"), "last", Generation(1))

SCRIPT = """
import sys

from pyspark.sql import SparkSession

import sluice

topic, job, sink = sys.argv[1:]
spark = SparkSession.builder.appName(job).getOrCreate()
app = sluice.attach(spark, job=job)
rows = spark.readStream.text("in")
if sink == "sluice":
    writer = app.kafka_writer(rows, topic)
else:
    options = {"kafka.bootstrap.servers": sink, "topic": topic}
    writer = rows.writeStream.format("kafka").options(**options)
query = writer.option("checkpointLocation", "checkpoint").start()
query.awaitTermination()
"""


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("attach") / "home", "--lease-seconds", "20", "--heartbeat-seconds", "1") as found:
        yield found


@dataclass
class Script:
    """Starts of one script in a folder of its own, which reach the broker through a proxy."""

    coordinator: Running
    topics: Topics
    proxy: KafkaProxy
    root: Path
    ours: bool
    job: str = field(default_factory=lambda: f"orders-{uuid4().hex[:8]}")
    fed: int = 0
    started: list[tuple[subprocess.Popen[bytes], Path]] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.root / "in").mkdir(parents=True)
        (self.root / "orders.py").write_text(SCRIPT)
        self.topics.create(self.job, 1)

    def start(self) -> subprocess.Popen[bytes]:
        jars = [] if self.ours else ["--jars", ",".join(map(str, connector_jars()))]
        environment = {
            "SLUICE_COORDINATOR_URL": str(self.coordinator.http.base_url),
            "SLUICE_KAFKA_BOOTSTRAP": self.proxy.bootstrap,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": " ".join([*OPTIONS, *jars, "pyspark-shell"]),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        }
        log = self.root / f"start-{len(self.started)}.log"
        command = [sys.executable, "orders.py", self.job, self.job, "sluice" if self.ours else self.proxy.bootstrap]
        process = start(command, log, cwd=self.root, environment=environment, new_session=True)
        self.started.append((process, log))
        return process

    def feed(self) -> None:
        part = self.root / "in" / f".{self.fed}"
        part.write_text("".join(f"{n}\n" for n in range(self.fed, self.fed + BATCH)))
        part.rename(part.with_name(str(self.fed)))
        self.fed += BATCH

    def feed_and_hold(self, executed: bool) -> Hold:
        """Feed a batch, and wait until its commit, or with the sink of Spark its records, are held before or after the broker has executed
        the request."""
        hold = self.proxy.hold(Request.END_TXN if self.ours else Request.PRODUCE, executed=executed, about=self.job)
        self.feed()
        hold.await_reached(BUSY_SECONDS)
        return hold

    def written(self) -> Counter[int]:
        end = sum(self.topics.latest(self.job).values())
        return Counter(int(row[3] or b"") for rows in self.topics.read(self.job, 0, 0, end) for row in rows)

    def await_all(self) -> None:
        process, log = self.started[-1]

        def complete() -> bool:
            must_run(process, log)
            return self.written().keys() >= set(range(self.fed))

        wait_for(f"{self.fed} rows", complete, BUSY_SECONDS, details=lambda: tail(log))

    @property
    def duplicates(self) -> int:
        found = self.written()
        return found.total() - len(found)

    def check_with_other_consumers(self) -> None:
        """librdkafka and Kafka's own console consumer read each row once, and then a last record."""
        self.topics.append(self.job, [Record(b"-1", partition=0)], writer=LAST, batch=0, now_micros=1)
        assert self.topics.confirmed(self.job) == self.fed + 1
        values = committed_values(self.topics.bootstrap, self.job, self.fed + 1)
        assert (sorted(map(int, values[:-1])), values[-1]) == (list(range(self.fed)), "-1")

    def end(self) -> None:
        for process, _ in self.started:
            with suppress(psutil.NoSuchProcess):
                for each, _ in descendants(process.pid):
                    with suppress(psutil.NoSuchProcess):
                        each.kill()
            kill_whole(process)


@pytest.fixture
def proxied(kafka_server: str) -> Iterator[tuple[Topics, KafkaProxy]]:
    topics = Topics(kafka_server)
    with kafka_proxy(kafka_server) as proxy:
        yield topics, proxy
    topics.close()


def killed_and_suspended(script: Script) -> int:
    """The duplicates after two faults: the driver is killed when the broker has written a batch and before the commit log, and its next
    start is suspended in a commit, with all its processes, like a frozen machine, until another one has taken over."""
    first = script.start()
    script.feed()
    script.await_all()
    hold = script.feed_and_hold(executed=True)
    first.kill()
    first.wait(BUSY_SECONDS)
    hold.drop()
    second = script.start()
    script.feed()
    script.await_all()
    hold = script.feed_and_hold(executed=False)
    whole = [psutil.Process(second.pid), *(each for each, _ in descendants(second.pid))]
    for each in whole:
        each.suspend()
    script.start()
    script.await_all()
    hold.release()
    for each in reversed(whole):
        with suppress(psutil.NoSuchProcess):
            each.resume()
    second.wait(BUSY_SECONDS)
    for each in whole[1:]:
        wait_for("the end of the suspended driver", lambda each=each: is_gone(each), BUSY_SECONDS)  # type: ignore[misc]
    script.feed()
    script.await_all()
    third, log = script.started[-1]
    third.send_signal(signal.SIGTERM)
    assert third.wait(BUSY_SECONDS) == 0, tail(log)
    return script.duplicates


@pytest.mark.long  # as tests/attached/test_kafka_writer.py, and the kill in test_script_life.py
def test_a_script_that_is_killed_after_its_transaction_and_suspended_in_the_next_one_has_each_row_once(
    coordinator: Running, proxied: tuple[Topics, KafkaProxy], tmp_path: Path
) -> None:
    with_spark = os.environ.get("SLUICE_TEST_KAFKA_STEPS") == "all"
    found = {}
    for ours in (True, False) if with_spark else (True,):
        script = Script(coordinator, *proxied, tmp_path / ("ours" if ours else "spark"), ours)
        try:
            found["app.kafka_writer" if ours else "the sink of Spark"] = killed_and_suspended(script)
            if ours:
                script.check_with_other_consumers()
        finally:
            script.end()
    print(f"duplicates of {5 * BATCH} rows: {found}")
    assert found["app.kafka_writer"] == 0
    assert not with_spark or found["the sink of Spark"] > 0, "the faults have no effect, so that the test shows nothing"
