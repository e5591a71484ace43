"""Python processes of a real session that the fork server forks. test_own_session.py has its end."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest
from pyspark.sql import SparkSession

from containers.spark.query import await_initialised
from containers.spark.start import fork_client, fork_server
from tests.spark.conftest import SOON, Bench
from tests.spark.drainworld import Drained, windowed

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
