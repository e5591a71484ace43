"""Scripts that were not written for a test, unchanged under `sluice exec`: the streaming examples of Spark's distribution, and the flights
demo as a script."""

from __future__ import annotations

import json
import os
import socketserver
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pyspark
import pytest

from containers.jars import connector_jars
from examples.flights.data import Flight, encode
from examples.harness.topics import Topics
from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Record, Writer
from tests.processes.conftest import SHORT_LIVED
from tests.processes.test_attach import BUSY_SECONDS, OPTIONS, descendants
from tests.support.coordinators import Running, running
from tests.support.deployed import ROOT
from tests.support.processes import SLUICE, await_line, kill_whole, must_run, start, tail, wait_for
from tests.support.servers import kafka

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SPARK_HOME = Path(pyspark.__file__).parent
EXAMPLES = SPARK_HOME / "examples" / "src" / "main" / "python" / "sql" / "streaming"
FLIGHTS_SCRIPT = ROOT / "examples" / "attach" / "flights.py"


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("examples") / "home") as found:
        yield found


class Starts:
    """Starts of `sluice exec` for one job."""

    def __init__(self, coordinator: Running, job: str, root: Path) -> None:
        self.coordinator = coordinator
        self.job = job
        self._root = root
        self._started: list[subprocess.Popen[bytes]] = []
        self._environment = {
            "SLUICE_COORDINATOR_URL": str(coordinator.http.base_url),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        }

    def start(self, options: Sequence[str], script: Path, *arguments: str) -> tuple[subprocess.Popen[bytes], Path]:
        submit = [
            str(SPARK_HOME / "bin" / "spark-submit"),
            *OPTIONS,
            "--driver-java-options",
            SHORT_LIVED,
            *options,
            str(script),
            *arguments,
        ]
        log = self._root / f"start-{len(self._started)}.log"
        command = [*SLUICE, "exec", "--job", self.job, "--", *submit]
        process = start(command, log, cwd=self._root, environment=self._environment, new_session=True)
        self._started.append(process)
        return process, log

    def sluice(self, *arguments: str) -> None:
        command = [*SLUICE, *arguments]
        subprocess.run(command, env={**os.environ, **self._environment}, check=True, capture_output=True, timeout=BUSY_SECONDS)

    def detail(self) -> dict[str, Any]:
        (run,) = self.coordinator.http.get("/runs", params={"job": self.job, "limit": 1}).json()["runs"]
        found: dict[str, Any] = self.coordinator.http.get(f"/runs/{run['runId']}").json()
        return found

    def stages(self) -> list[dict[str, Any]]:
        return [stage for task in self.detail()["tasks"] for stage in task["stages"]]

    def end(self) -> None:
        for each in self._started:
            kill_whole(each)


@contextmanager
def starts(coordinator: Running, job: str, root: Path) -> Iterator[Starts]:
    made = Starts(coordinator, job, root)
    try:
        yield made
    finally:
        made.end()


class Lines(socketserver.ThreadingTCPServer):
    """Sends the same line to each client, and keeps the connection open. `clients`: how many have connected."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Line)
        self.clients = 0
        self.over = Event()

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class Line(socketserver.BaseRequestHandler):
    server: Lines

    def handle(self) -> None:
        self.server.clients += 1
        self.request.sendall(b"book pen book\n")
        self.server.over.wait()


@pytest.fixture
def lines() -> Iterator[Lines]:
    with Lines() as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.over.set()
        server.shutdown()


@pytest.mark.long  # as test_attach.py, and tests/integration/processes/test_exec.py for the second copy
def test_an_example_of_spark_has_a_lease_makes_a_second_copy_wait_and_is_stopped(
    coordinator: Running, tmp_path: Path, lines: Lines
) -> None:
    example = EXAMPLES / "structured_network_wordcount.py"
    where = ("127.0.0.1", str(lines.port))
    with starts(coordinator, example.stem, tmp_path) as job:
        first, log = job.start((), example, *where)
        await_line(first, log, r"(\|book\| +2\|)")
        second, second_log = job.start((), example, *where)
        await_line(second, second_log, r"waiting: (job .* is running)")
        assert [each["state"] for each in job.detail()["incarnations"]] == ["LIVE"]
        job.sluice("stop", job.job)
        assert first.wait(BUSY_SECONDS) == 143, tail(log)
        await_line(second, second_log, r"(sluice start)")
        must_run(second, second_log)
        assert lines.clients == 1


HOUR = 1_357_034_400
"""2013-01-01 10:00 UTC."""

DAY = 86_400


def departure(number: int, scheduled: int, delay: int | None) -> Flight:
    return Flight(number, scheduled, "UA", 1545, None, "EWR", "IAH", delay, None)


@pytest.mark.long  # as test_script_life.py
def test_the_flights_script_has_exact_totals_after_a_kill_and_another_start(coordinator: Running, tmp_path: Path) -> None:
    def feed(batch: int, *flights: Flight) -> None:
        records = [Record(encode(each), partition=each.id % 2) for each in flights]
        writer = Writer(Lineage("flights"), "flights", Generation(1))
        topics.append("flights", records, writer=writer, batch=batch, now_micros=HOUR * 1_000_000)

    def totals() -> set[tuple[str, int, int, int]]:
        found = [
            json.loads(value) for rows in topics.read("delays", 0, 0, topics.latest("delays")[0]) for _, _, _, value, _ in rows if value
        ]
        return {(each["carrier"], each["flights"], each["departed"], each["dep_delay_sum"]) for each in found}

    def have_arrived(process: subprocess.Popen[bytes], log: Path) -> bool:
        must_run(process, log)
        return totals() != set()

    def committed(batch: int, process: subprocess.Popen[bytes], log: Path) -> bool:
        must_run(process, log)
        return (tmp_path / "checkpoint" / "commits" / str(batch)).exists()

    with kafka(tmp_path / "broker") as broker, closing(Topics(broker)) as topics, starts(coordinator, "flight-delays", tmp_path) as job:
        topics.create("flights", 2)
        topics.create("delays", 1)
        feed(0, departure(1, HOUR, 2), departure(2, HOUR + 60, None))
        options = ("--jars", ",".join(map(str, connector_jars())))
        arguments = (broker, str(tmp_path / "checkpoint"))
        first, log = job.start(options, FLIGHTS_SCRIPT, *arguments)
        wait_for("the first batch", lambda: committed(0, first, log), BUSY_SECONDS, details=lambda: tail(log))
        wait_for("the report of the query", lambda: [each["stage"] for each in job.stages()] == ["checkpoint"], BUSY_SECONDS)
        (jvm,) = (each for each, command in descendants(first.pid) if Path(command[0]).name == "java")
        jvm.kill()
        assert first.wait(BUSY_SECONDS) == 137, tail(log)
        assert totals() == set()
        feed(1, departure(3, HOUR + 120, 10), departure(4, HOUR + 40 * DAY, 1))
        second, log = job.start(options, FLIGHTS_SCRIPT, *arguments)
        wait_for("the totals", lambda: have_arrived(second, log), BUSY_SECONDS, details=lambda: tail(log))
        assert totals() == {("UA", 3, 2, 12)}
