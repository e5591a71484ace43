"""Python processes of a real session that the fork server forks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest
from pyspark.sql import SparkSession

from containers.spark.query import await_initialised
from containers.spark.start import fork_client, fork_server
from tests.spark.conftest import SOON, Bench
from tests.spark.drainworld import Drained, windowed
from tests.support.processes import ROOT

pytestmark = [pytest.mark.spark]

SOURCE = "pyspark.sql.streaming.python_streaming_source_runner"


def test_python_processes_of_a_local_session_are_forked(spark: SparkSession) -> None:
    """A worker's parent is PySpark's daemon, whose parent is the server."""
    words = spark.sparkContext.parallelize([1], 1).mapPartitions(lambda _: psutil.Process().parents()[1].cmdline()).collect()
    assert "containers.spark.start.fork_server" in words


def sources() -> Iterator[list[str]]:
    """The command lines of the processes that Spark has started for sources. A forked process has that of the server, which names all
    modules."""
    for each in psutil.Process().children(recursive=True):
        try:
            if SOURCE in (words := each.cmdline()) and fork_server.__name__ not in words:
                yield words
        except psutil.Error:
            continue


def test_the_process_of_a_source_of_the_log_is_forked(bench: Bench) -> None:
    """Spark starts a client of the server for it. A client that the server refuses becomes plain Python. So does one that waits for too
    long on a busy machine, so there are some attempts."""
    (server,) = (each for each in psutil.Process().children() if fork_server.__name__ in each.cmdline())
    before = {*server.children()}
    found: list[list[str]] = []
    for _ in range(4):
        query = bench.start(Drained(bench, windowed).grant, windowed)
        await_initialised(query, SOON)
        (started,) = sources()
        made = {*server.children()} - before
        assert bench.stop(query)
        if fork_client.__file__ in started and made:
            return
        found.append(started)
    pytest.fail(f"no process of a source was forked: {found}")


SESSION = """
import sys
from pathlib import Path

import psutil

from containers.errors import SparkNotStarted
from containers.spark.session import Session, start_session

home, sockets = map(Path, sys.argv[1:])

def servers():
    forking = [each for each in psutil.Process().children() if "containers.spark.start.fork_server" in each.cmdline()]
    return len(forking), len([*sockets.glob("fork-*")])

try:
    session = Session(start_session("closed", "local[1]", home, {}, sockets))
except SparkNotStarted:
    print("not started")
else:
    print(*servers())
    session.close()
print(*servers())
"""


def printed(tmp_path: Path, **environment: str) -> str:
    with TemporaryDirectory() as sockets:
        done = subprocess.run(
            [sys.executable, "-c", SESSION, str(tmp_path / "spark"), sockets],
            cwd=ROOT,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_server_and_its_socket_are_gone_when_the_session_is_closed(tmp_path: Path) -> None:
    assert printed(tmp_path) == "1 1\n0 0\n"


@pytest.mark.slow
def test_the_server_and_its_socket_are_gone_when_spark_has_not_started(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\nexit 1\n")
    java.chmod(0o755)
    assert printed(tmp_path, JAVA_HOME=str(tmp_path)) == "not started\n0 0\n"
