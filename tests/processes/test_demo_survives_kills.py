"""kill -9 of a container and of the coordinator in the middle of the demo, in which one container starts late: the totals are still
exact."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import psutil
import pytest

from containers.local.kafka import Broker
from examples.flights.data import BY_CARRIER, PARTITIONS
from examples.harness.topics import Topics
from sluice.core.errors import StreamUnavailable, UnknownStream
from sluice.streams.log import Log
from tests.support.processes import WAIT_SECONDS, kill_whole, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]  # as test_weather.py and test_kafka.py

MONTHS = 3
FLIGHTS = 80_789
"""Of January to March 2013."""

FLIGHTS_OF_JANUARY = 27_004


@contextmanager
def demo(home: Path, months: int = MONTHS, system: str = "log", *more: str) -> Iterator[subprocess.Popen[str]]:
    arguments = ["--month-limit", str(months), "--seconds-per-month", "12", "--home", str(home), "--keep", "--system", system, *more]
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.flights.demo", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield process
    finally:
        kill_whole(process)


def member(process: subprocess.Popen[str], *words: str) -> psutil.Process | None:
    """A descendant process of the demo whose command line contains all these arguments."""
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            line = child.cmdline()
        except psutil.Error:
            continue
        if set(words) <= set(line):
            return child
    return None


def routed(log: Log) -> int:
    try:
        return sum(log.latest(BY_CARRIER).values())
    except (UnknownStream, StreamUnavailable):
        return 0


def test_kill_9_of_a_container_and_of_the_coordinator_changes_no_total(tmp_path: Path) -> None:
    home = tmp_path / "demo"
    log = Log(home / "log")
    with demo(home, MONTHS, "log", "--late", "15") as process:
        wait_for("a month of flights", lambda: routed(log) > FLIGHTS // 4 or process.poll() is not None)
        driver = wait_for("a driver", lambda: member(process, "containers.driver"))
        driver.kill()
        seen = routed(log)
        wait_for("more flights", lambda: routed(log) > seen + 1000 or process.poll() is not None)
        coordinator = wait_for("the coordinator", lambda: member(process, "sluice", "coordinator"))
        coordinator.kill()
        output, _ = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 0, output
    assert f"{FLIGHTS:,}" in output
    assert sum(log.latest("flights").values()) == FLIGHTS
    assert len(log.latest("flights")) == PARTITIONS


def test_on_kafka_kill_9_of_containers_and_of_the_coordinator_changes_no_total(tmp_path: Path) -> None:
    home, broker = tmp_path / "demo", Broker(tmp_path / "demo" / "kafka")
    with ExitStack() as stack:
        process = stack.enter_context(demo(home, 1, "kafka"))
        running = wait_for("the broker", lambda: broker.running() if process.poll() is None else None)
        topics = stack.enter_context(closing(Topics(running.bootstrap)))

        def written() -> int:
            try:
                return sum(topics.latest(BY_CARRIER).values())
            except (UnknownStream, StreamUnavailable):
                return 0

        for least in (FLIGHTS_OF_JANUARY // 8, FLIGHTS_OF_JANUARY // 4):
            wait_for("flights", lambda least=least: written() > least or process.poll() is not None)  # type: ignore[misc]
            wait_for("a driver", lambda: member(process, "containers.driver")).kill()
        wait_for("the coordinator", lambda: member(process, "sluice", "coordinator")).kill()
        output, _ = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 0, output
    assert f"{FLIGHTS_OF_JANUARY:,} records in {BY_CARRIER}" in output
