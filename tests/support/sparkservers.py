"""Spark's standalone master and workers as processes."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from tests.support.processes import await_line, ending, start

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of a JVM that lives for seconds: the optimising compiler would take a quarter of its CPU time."""


@contextmanager
def spark_master(directory: Path) -> Iterator[str]:
    address = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    with _spark_daemon(directory, "master.Master", address, r"Starting Spark master at (spark://\S+)") as url:
        yield url


@contextmanager
def spark_worker(directory: Path, master: str, hidden: Path | None = None) -> Iterator[None]:
    """A worker of the master (2 cores, 2 GB). It and its executors see an empty directory in place of `hidden`, which requires root."""
    name = "worker" if hidden is None else "blind-worker"
    size = ["--cores", "2", "--memory", "2g", "--work-dir", str(directory / name)]
    arguments = ["--host", "127.0.0.1", "--webui-port", "0", *size, master]
    with _spark_daemon(directory, "worker.Worker", arguments, r"(Successfully registered) with master", name, _without(hidden)):
        yield


def _without(hidden: Path | None) -> list[str]:
    """The command prefix that hides a directory, in a mount namespace of its own."""
    if hidden is None:
        return []
    blind = ["unshare", "--mount", "sh", "-ec", 'mount -t tmpfs none "$0"; exec "$@"', str(hidden)]
    if shutil.which("unshare") is None or subprocess.run([*blind, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("the right to mount is missing (unshare --mount, as root)")
    return blind


@contextmanager
def _spark_daemon(
    directory: Path, program: str, arguments: list[str], ready: str, name: str = "master", prefix: Sequence[str] = ()
) -> Iterator[str]:
    """A running daemon of the pyspark package; yields the text of its log that matched `ready`. `spark-class` execs the JVM, so the
    process is the JVM.
    """
    home = Path(pyspark.__file__).parent
    options = {
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED,
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
    }
    environment = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", **options}
    command = [*prefix, str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{program}", *arguments]
    log = directory / f"spark-{name}.log"
    process = start(command, log, cwd=directory, environment=environment)
    with ending(process, waits=(60,)):
        yield await_line(process, log, ready, 120)
