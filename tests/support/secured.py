"""The services of deploy/compose/secure.yaml as processes on loopback: the settings of the file, with other addresses and directories."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from containers.jars import broker_jars, check_java
from sluice.streams.kafka_properties import KafkaProperties
from tests.support.deployed import ROOT, secured
from tests.support.processes import WAIT_SECONDS, await_answer, await_line, free_port, kill_whole, must_run, serving, start, tail, wait_for
from tests.support.s3servers import S3Server
from tests.support.servers import Postgres, postgres, program

COMPOSE = ROOT / "deploy" / "compose"
_SMALL_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_KAFKA_TOOL = re.compile(r"--(topic|group|transactional-id|operation|allow-principal|resource-pattern-type) (\S+)|--(add|force)")


@dataclass
class Place:
    """Where the services are. `secrets`: what the service `certificate` makes, a directory for each volume. `directories`
    and `addresses`: those of the Compose file -> those here."""

    directory: Path
    secrets: Path
    directories: dict[str, Path] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)

    def here(self, service: str, value: str) -> str:
        """A value of that service, with this machine's addresses and directories."""
        directories = dict(self.directories)
        for each in secured()["services"][service].get("volumes", []):
            source, target = each.split(":")[:2]
            if source in _volumes():
                directories[target] = self.secrets / _volumes()[source]
            elif source.startswith("./"):
                directories[target] = ROOT / source
        paths = "|".join(map(re.escape, sorted(directories, key=len, reverse=True)))
        if paths:
            value = re.sub(rf"(?<![\w/.-])({paths})(?![\w-])", lambda found: str(directories[found[1]]), value)
        for before, after in self.addresses.items():
            value = value.replace(before, after)
        return value

    def environment(self, service: str) -> dict[str, str]:
        return {name: self.here(service, str(value)) for name, value in secured()["services"][service]["environment"].items()}

    def kafka_properties(self, volume: str) -> KafkaProperties:
        """Those of the user whose volume this is."""
        file = self.secrets / volume / ("client.properties" if volume == "kafka" else "kafka.properties")
        text = file.read_text().replace("/var/lib/sluice/identity/", f"{file.parent}/").replace("/mnt/shared/config/", f"{file.parent}/")
        file.write_text(text)
        return KafkaProperties.read(file)


def _volumes() -> dict[str, str]:
    """Volume -> its directory among the secrets."""
    mounted = [each.split(":") for each in secured()["services"]["certificate"]["volumes"] if not each.startswith(".")]
    return {source: Path(target).name for source, target in mounted if target.startswith("/secrets/")}


def run(command: Sequence[str | Path], **environment: str) -> str:
    """Run a program to its end. Returns its output. Fails with its output."""
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@contextmanager
def secured_kafka(place: Place) -> Iterator[str]:
    """Kafka, configured by the program of its image, with the ACLs of the script kafka-acls. Yields the bootstrap server."""
    ports = {name: free_port() for name in ("9092", "9093", "9094")}
    bootstrap = f"127.0.0.1:{ports['9092']}"
    defaults, final, log = place.directory / "defaults", place.directory / "config", place.directory / "kafka.log"
    for each in (defaults, final):
        each.mkdir()
    properties = place.kafka_properties("kafka")
    environment = place.environment("kafka")
    environment["KAFKA_LISTENERS"] = environment["KAFKA_LISTENERS"].replace("://:", "://127.0.0.1:")
    for name in ("KAFKA_LISTENERS", "KAFKA_ADVERTISED_LISTENERS", "KAFKA_CONTROLLER_QUORUM_VOTERS"):
        addressed = environment[name].replace("kafka:", "127.0.0.1:").replace("MACHINE://127.0.0.1:9092", "MACHINE://127.0.0.1:9094")
        environment[name] = re.sub(r":(909\d)\b", lambda found: f":{ports[found[1]]}", addressed)
    environment["KAFKA_LOG_DIRS"] = str(place.directory / "kafka")
    environment |= {"KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": "1", "KAFKA_TRANSACTION_STATE_LOG_NUM_PARTITIONS": "1"}
    java = [check_java(os.environ), *_SMALL_JVM]
    environment["CLASSPATH"] = os.pathsep.join(map(str, broker_jars()))
    for name in ("server.properties", "log4j2.yaml", "tools-log4j2.yaml"):
        (defaults / name).write_text("")
    directories = {"default": defaults, "mounted": place.secrets / "kafka", "final": final}
    options = [word for name, each in directories.items() for word in (f"--{name}-configs-dir", each)]
    run([*java, "kafka.docker.KafkaDockerWrapper", "setup", *options], **environment)
    process = start([*java, "kafka.Kafka", str(final / "server.properties")], log, environment={"CLASSPATH": environment["CLASSPATH"]})
    try:

        def listens() -> bool:
            must_run(process, log)
            with suppress(OSError), socket.create_connection(("127.0.0.1", ports["9092"]), timeout=1):
                return True
            return False

        wait_for("Kafka", listens, details=lambda: tail(log))
        admin = AdminClient({"bootstrap.servers": bootstrap, **properties.librdkafka_properties()})
        create_acls(place, admin)
        place.addresses["kafka:9092"] = bootstrap
        yield bootstrap
    finally:
        kill_whole(process)


def create_acls(place: Place, admin: AdminClient) -> None:
    """Run the script kafka-acls with a program that prints its options, and create the ACLs of which these speak."""
    printer = place.directory / "printer"
    printer.write_text('#!/bin/sh\necho "$@" >&3\n')
    printer.chmod(0o700)
    printed = run(["sh", "-c", 'exec "$1" "$2" 3>&1', "sh", str(COMPOSE / "kafka-acls"), str(printer)])
    wanted: list[AclBinding] = []
    for line in printed.splitlines():
        assert _KAFKA_TOOL.sub("", line).strip() == "", line
        options: dict[str, list[str]] = {}
        for name, value, switch in _KAFKA_TOOL.findall(line):
            options.setdefault(name or switch, []).append(value)
        [principal] = options["allow-principal"]
        [pattern] = options.get("resource-pattern-type", ["literal"])
        assert "add" in options
        for kind in ("topic", "group", "transactional-id"):
            for resource in options.get(kind, []):
                wanted += [_acl(kind, resource, pattern, principal, operation) for operation in options["operation"]]
    for created in admin.create_acls(wanted).values():
        created.result(60)


def _acl(kind: str, name: str, pattern: str, principal: str, operation: str) -> AclBinding:
    kinds = {"topic": ResourceType.TOPIC, "group": ResourceType.GROUP, "transactional-id": ResourceType.TRANSACTIONAL_ID}
    which = ResourcePatternType[pattern.upper()]
    return AclBinding(kinds[kind], name, which, principal, "*", AclOperation[operation.upper()], AclPermissionType.ALLOW)


@contextmanager
def secured_postgres(place: Place) -> Iterator[Postgres]:
    """PostgreSQL with the options of the file, its client authentication, and its script for the new database."""
    options = [each for each in secured()["services"]["postgres"]["command"] if "=" in each]
    with postgres() as server:
        data = server.directory / "data"
        owner, group = data.owner(), data.group()
        place.addresses["@postgres/"] = f"@127.0.0.1:{server.port}/"
        psql = [str(server.programs / "psql"), "-h", str(server.directory), "-p", str(server.port), "-U", "sluice", "-v", "ON_ERROR_STOP=1"]
        run([*psql, "-d", "postgres", "-c", "CREATE DATABASE sluice"])
        environment = {"COORDINATOR_PASSWORD_FILE": str(place.secrets / "postgres/coordinator")}
        run([*psql, "-d", "sluice", "-f", str(COMPOSE / "database.sql")], **environment)
        for name in ("server.crt", "server.key"):
            shutil.copy(place.secrets / "postgres" / name, data / name)
            shutil.chown(data / name, owner, group)
        # The administrator of the test's server is not the user `postgres` of the system.
        text = (COMPOSE / "pg_hba.conf").read_text()
        (data / "secure_hba.conf").write_text(re.sub(r"(?m)^local .*$", "local all all trust", text))
        with (data / "postgresql.conf").open("a") as settings:
            for each in options:
                name, value = each.split("=", 1)
                value = value.replace("/run/sluice/", f"{data}/").replace("/etc/sluice/pg_hba.conf", f"{data}/secure_hba.conf")
                settings.write(f"\n{name} = '{value}'\n")
        server.stop()
        server.start()
        yield server


@contextmanager
def secured_s3(place: Place) -> Iterator[S3Server]:
    """The S3 server with the users and the policy of the file."""
    services, address = secured()["services"], f"127.0.0.1:{free_port()}"
    keys = place.secrets / "s3" / "root.env"
    with_keys = [str(COMPOSE / "with-s3-keys"), str(keys), "sh", "-ec"]
    bin_directory, data, users = place.directory / "bin", place.directory / "s3", place.directory / "s3-users"
    for each in (bin_directory, data, users):
        each.mkdir()
    (bin_directory / "versitygw").symlink_to(program("versitygw"))
    (bin_directory / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (bin_directory / "python").chmod(0o700)
    path = f"{bin_directory}:{os.environ['PATH']}"
    place.addresses["https://s3:7070"] = f"https://{address}"
    place.directories |= {"/users": users, "/data": data}
    authority = place.secrets / "s3" / "ca.crt"

    def script(service: str) -> str:
        [text] = services[service]["command"]
        return place.here(service, text.replace("$$", "$"))

    environment = {**place.environment("s3"), "VGW_PORT": address, "PATH": path}
    with serving(
        [*with_keys, script("s3")], f"https://{address}/health", place.directory / "s3.log", environment=environment, authority=authority
    ):
        run([*with_keys, script("s3-users")], **{**place.environment("s3-users"), "PATH": path})
        entry = [place.here("bucket", each) for each in services["bucket"]["entrypoint"]]
        run(
            [*entry, *(place.here("bucket", each) for each in services["bucket"]["command"])],
            **{**place.environment("bucket"), "PATH": path},
        )
        yield S3Server(f"https://{address}")


@contextmanager
def secured_coordinator(place: Place, command: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """The coordinator with the settings of the file. `command`: that starts `sluice`. Yields its URL and its log."""
    service, log = secured()["services"]["coordinator"], place.directory / "coordinator.log"
    entry = [place.here("coordinator", each) for each in service["entrypoint"] if each != "sluice"]
    words = [place.here("coordinator", each) for each in service["command"]]
    place.directories["/var/lib/sluice"] = place.directory / "home"
    environment: Mapping[str, str] = place.environment("coordinator")
    wrapper = entry[entry.index("--") + 1 :]  # tini is in the image only
    process = start([*wrapper, *command, *words, "--home", str(place.directory / "home"), "--port", "0"], log, environment=environment)
    try:
        port = await_line(process, log, r"coordinator on https://[^,\s]+:(\d+)")
        url = f"https://localhost:{port}"
        await_answer(process, f"{url}/livez", log, place.secrets / "identity/ca.crt")
        place.addresses["https://coordinator:8180"] = url
        yield url, log
    finally:
        kill_whole(process)
