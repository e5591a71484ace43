"""Real servers on loopback; the caller ends them. NotInstalled is raised if a server is not installed: its tests are then skipped (see
`tests/conftest.py`).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import javaproperties
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from containers.errors import JarsUnavailable
from containers.jars import broker_jars, check_java
from containers.local.kafka import Broker, Process
from containers.local.ports import LOOPBACK
from tests.support.kafka_releases import broker_with_zookeeper, chosen, jars_of, needs_zookeeper
from tests.support.processes import ProcessFailed, free_port, kill_whole, must_run, serving, start, tail, wait_for

_SOURCES: Mapping[str, str] = {
    "chromium": "apt install chromium",
    "prometheus": "apt install prometheus",
    "rclone": "apt install rclone",
    "restic": "apt install restic",
    "toxiproxy-server": "go install github.com/Shopify/toxiproxy/v2/cmd/server@latest, and call the program `server` toxiproxy-server",
    "versitygw": "go install github.com/versity/versitygw/cmd/versitygw@latest",
}


class NotInstalled(ProcessFailed):
    """A program is not installed on this machine."""

    def __init__(self, what: str, source: str = "") -> None:
        super().__init__(what, source)

    def __str__(self) -> str:
        what, source = self.args
        return f"{what} is not installed" + (f": {source}" if source else "")


def program(name: str) -> str:
    """The path of a program: from PATH, or from the directory of `go install`. Raises NotInstalled, which says how to install it."""
    go_programs = os.environ.get("GOBIN") or Path(os.environ.get("GOPATH") or Path.home() / "go") / "bin"
    found = shutil.which(name) or shutil.which(name, path=str(go_programs))
    if found is None:
        raise NotInstalled(name, _SOURCES[name])
    return found


def _postgres_programs() -> Path:
    """Debian does not put the server's programs on PATH."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    found = debian[-1] if debian else shutil.which("initdb")
    if found is None:
        raise NotInstalled("PostgreSQL")
    return Path(found).parent


@dataclass(frozen=True, slots=True)
class Postgres:
    """A PostgreSQL server that can be stopped and started again. `url` is the server's; append the name of a database."""

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
        """Stop immediately, as in a crash."""
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
    """A running PostgreSQL. Its directory is not pytest's, which other users cannot read: as root, the server runs as another user."""
    programs = _postgres_programs()
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


KAFKA_USER = {"alice": "open-sesame"}
"""Name and password of a user whose access can be denied by ACLs."""


def kafka_jars() -> None:
    """Download the jars of a Kafka broker if they are missing."""
    try:
        jars_of(chosen())
    except JarsUnavailable as error:
        raise NotInstalled(f"Kafka ({error})") from error


@contextmanager
def kafka(directory: Path) -> Iterator[str]:
    """A Kafka broker in `directory`. Yields its bootstrap server. It does not create topics automatically."""
    with _running(directory, {}) as process:
        yield process.bootstrap


@contextmanager
def kafka_with_users(directory: Path) -> Iterator[Process]:
    """As `kafka`, with a second listener for KAFKA_USER."""
    with _running(directory, KAFKA_USER) as process:
        yield process


@contextmanager
def _running(directory: Path, users: Mapping[str, str]) -> Iterator[Process]:
    kafka_jars()
    if needs_zookeeper(release := chosen()):
        with broker_with_zookeeper(directory, release, users) as process:
            yield process
        return
    broker = Broker(directory, sasl=users, jars=lambda: jars_of(release))
    process = asyncio.run(broker.up())
    try:
        yield process
    finally:
        asyncio.run(broker.down())


@contextmanager
def second_broker(first: Path) -> Iterator[Callable[[], None]]:
    """A second broker, node 2, in the cluster of the running broker in the directory `first`, which stays the controller. Yields a function
    that kills it."""
    directory, port = first.with_name(f"{first.name}-2"), free_port()
    directory.mkdir()
    properties = javaproperties.loads((first / "server.properties").read_text())
    own = {
        "process.roles": "broker",
        "node.id": "2",
        "listeners": f"PLAINTEXT://{LOOPBACK}:{port}",
        "log.dirs": str(directory / "data"),
    }
    file, log, cluster = directory / "server.properties", directory / "server.log", (first / "cluster-id").read_text().strip()
    file.write_text(javaproperties.dumps({**properties, **own}))
    java_command = [check_java(os.environ), "-cp", os.pathsep.join(map(str, broker_jars())), *_SMALL]
    java_command.append(f"-Dlog4j2.configurationFile={(first / 'log4j2.properties').as_uri()}")
    _run([*java_command, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(file)], directory)
    process = start([*java_command, "kafka.Kafka", str(file)], log)
    try:
        admin = AdminClient({"bootstrap.servers": f"{LOOPBACK}:{port}"})

        def joined() -> bool:
            must_run(process, log)
            with suppress(KafkaException):
                return set(admin.list_topics(timeout=5).brokers) == {1, 2}
            return False

        wait_for("the second broker", joined, details=lambda: tail(log))
        yield lambda: kill_whole(process)
    finally:
        kill_whole(process)


_SMALL = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


@contextmanager
def prometheus(directory: Path, config: Path) -> Iterator[str]:
    """A Prometheus server with this configuration and its data in `directory`. Yields the URL of its API when it is ready."""
    address = f"127.0.0.1:{free_port()}"
    command = [f"--config.file={config}", f"--storage.tsdb.path={directory / 'data'}", f"--web.listen-address={address}"]
    with serving([program("prometheus"), *command], f"http://{address}/-/ready", directory / "prometheus.log", cwd=directory):
        yield f"http://{address}"
