"""Real servers for tests: started on loopback, ended by whoever started them.

Where a server is not installed its tests are skipped, and say so; with REQUIRE_SERVERS=1, as in CI, they fail.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import httpx
import pyspark
import pytest

from containers.jars import broker_jars
from containers.kafkabroker import Broker
from coordinator.core.errors import JarsUnavailable


def missing(what: str) -> None:
    """Skip the test, or fail it where every server is required."""
    if os.environ.get("REQUIRE_SERVERS") == "1":
        pytest.fail(f"{what} is not installed, and REQUIRE_SERVERS=1")
    pytest.skip(f"{what} is not installed")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _postgres_programs() -> Path | None:
    """Debian keeps the server's programs out of the path."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    found = debian[-1] if debian else shutil.which("initdb")
    return Path(found).parent if found else None


@dataclass(frozen=True, slots=True)
class Postgres:
    """A PostgreSQL of its own, which can be stopped and started again. `url` is its server's: a database's name is to be added."""

    url: str
    programs: Path
    directory: Path
    port: int

    def start(self) -> None:
        options = f"-h 127.0.0.1 -p {self.port} -k {self.directory} -c fsync=off"
        self._control("-w", "-l", str(self.directory / "log"), "-o", options, "start")

    @property
    def running(self) -> bool:
        return (self.directory / "data" / "postmaster.pid").exists()

    def stop(self) -> None:
        """At once, as a crash does: sessions end without a word."""
        self._control("-m", "immediate", "stop")

    def new_database(self) -> str:
        """The URL of an empty database."""
        name = f"test_{uuid4().hex}"
        where = ["-h", "127.0.0.1", "-p", str(self.port), "-U", "sluice"]
        _run([str(self.programs / "createdb"), *where, name], self.directory)
        return f"{self.url}/{name}"

    def _control(self, *arguments: str) -> None:
        _run([*_as_owner(), str(self.programs / "pg_ctl"), "-D", str(self.directory / "data"), *arguments], self.directory)


def _as_owner() -> list[str]:
    """The server refuses to run as root."""
    return ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL, running, in a directory of its own: pytest closes its own to other users, and the server is one where we are root."""
    programs = _postgres_programs()
    if programs is None:
        missing("PostgreSQL")
        raise AssertionError
    with TemporaryDirectory(prefix="sluice-postgres-") as made:
        directory, port = Path(made), free_port()
        if _as_owner():
            shutil.chown(directory, "postgres")
        data = str(directory / "data")
        _run([*_as_owner(), str(programs / "initdb"), "-D", data, "-U", "sluice", "-A", "trust", "--no-sync", "-E", "UTF8"], directory)
        server = Postgres(f"postgresql+asyncpg://sluice@127.0.0.1:{port}", programs, directory, port)
        server.start()
        try:
            yield server
        finally:
            if server.running:
                server.stop()


def _run(command: list[str], directory: Path) -> None:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"


def needs_kafka() -> None:
    try:
        broker_jars()
    except JarsUnavailable as error:
        missing(f"Kafka ({error})")


def kafka_jars() -> None:
    """Fetch what a Kafka broker needs, where nobody has yet."""
    try:
        broker_jars()
    except JarsUnavailable as error:
        missing(f"Kafka ({error})")


@contextmanager
def kafka(directory: Path) -> Iterator[str]:
    """A Kafka broker of its own in `directory`; its bootstrap server. It makes no topic unasked."""
    kafka_jars()
    broker = Broker(directory)
    process = asyncio.run(broker.up())
    try:
        yield process.bootstrap
    finally:
        asyncio.run(broker.down())


@contextmanager
def prometheus(directory: Path, config: Path) -> Iterator[str]:
    """A Prometheus of its own with that configuration, ready, its data in `directory`; the URL of its API."""
    program = shutil.which("prometheus")
    if program is None:
        missing("Prometheus")
        raise AssertionError
    address = f"127.0.0.1:{free_port()}"
    command = [program, f"--config.file={config}", f"--storage.tsdb.path={directory / 'data'}", f"--web.listen-address={address}"]
    with (directory / "prometheus.log").open("wb") as out:
        process = subprocess.Popen(command, cwd=directory, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        await_ready(process, f"http://{address}/-/ready", directory / "prometheus.log")
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(30)


def await_ready(process: subprocess.Popen[bytes], url: str, log: Path, authority: Path | None = None) -> None:
    """Wait until the server answers; it may have a certificate of that authority."""
    trust = ssl.create_default_context(cafile=authority) if authority else True
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        with suppress(httpx.HTTPError):
            if httpx.get(url, verify=trust).status_code == 200:
                return
        time.sleep(0.1)
    raise AssertionError(f"{url} does not answer: {log.read_text(errors='replace')[-2000:]}")


@contextmanager
def spark_cluster(directory: Path) -> Iterator[str]:
    """A standalone Spark master with one worker (2 cores, 2 GB); the master's URL."""
    with spark_master(directory) as master, spark_worker(directory, master):
        yield master


@contextmanager
def spark_master(directory: Path) -> Iterator[str]:
    address = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    with _spark_daemon(directory, "master.Master", address, r"Starting Spark master at (spark://\S+)") as url:
        yield url


@contextmanager
def spark_worker(directory: Path, master: str, hidden: Path | None = None) -> Iterator[None]:
    """A worker for the master. Instead of the directory `hidden` it, and its executors, see an empty one: that takes root."""
    name = "worker" if hidden is None else "blind-worker"
    size = ["--cores", "2", "--memory", "2g", "--work-dir", str(directory / name)]
    arguments = ["--host", "127.0.0.1", "--webui-port", "0", *size, master]
    with _spark_daemon(directory, "worker.Worker", arguments, r"(Successfully registered) with master", name, _without(hidden)):
        yield


def _without(hidden: Path | None) -> list[str]:
    """What makes a command blind to a directory: a mount namespace of its own."""
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
    """A daemon of the pyspark package, up: what its log told when it was. spark-class becomes the JVM, so the process is that."""
    home = Path(pyspark.__file__).parent
    options = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false"}
    environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", **options}
    command = [*prefix, str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{program}", *arguments]
    log = directory / f"spark-{name}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=directory, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment)
    try:
        yield _await_word(process, log, ready)
    finally:
        process.terminate()
        process.wait(60)


def _await_word(process: subprocess.Popen[bytes], log: Path, word: str) -> str:
    end = time.monotonic() + 120
    while time.monotonic() < end and process.poll() is None:
        if found := re.search(word, log.read_text(errors="replace")):
            return found[1]
        time.sleep(0.1)
    raise AssertionError(f"{log.name} does not say {word}: {log.read_text(errors='replace')[-2000:]}")
