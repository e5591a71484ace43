"""Brokers of other releases of Kafka: SLUICE_TEST_KAFKA_VERSION chooses one for all tests that use `tests.support.servers.kafka`
(`make matrix-kafka`). Releases before 3.3 run with ZooKeeper, whose jars they bring along.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import javaproperties
import psutil
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from containers.jars import BROKER, JarSet, check_java, ensure_jars
from containers.local.kafka import Process
from containers.local.kafka_config import LOG4J, Secured, server_properties
from containers.local.ports import LOOPBACK
from tests.support.processes import free_port, kill_whole, must_run, start, tail, wait_for

VARIABLE = "SLUICE_TEST_KAFKA_VERSION"
_SMALL = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_ACLS = {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"}


def chosen() -> str:
    """The release that was chosen; "" for the usual one."""
    return os.environ.get(VARIABLE, "")


def jars_of(release: str) -> Sequence[Path]:
    """The class path of a broker of a release, "" for the usual one. Raises JarsUnavailable."""
    kafka, logging = BROKER.artefacts
    return ensure_jars(JarSet("broker", (replace(kafka, revision=release or kafka.revision), logging)), os.environ)


def needs_zookeeper(release: str) -> bool:
    """Whether brokers of the release cannot do without ZooKeeper all that the tests need."""
    return bool(release) and tuple(map(int, release.split(".")[:2])) < (3, 3)


@contextmanager
def broker_with_zookeeper(directory: Path, release: str, users: Mapping[str, str]) -> Iterator[Process]:
    """A broker of an old release and its ZooKeeper, which end with the context. `users`: as `sasl` of `Broker`."""
    directory.mkdir(parents=True, exist_ok=True)
    port, secured_port, zookeeper_port = free_port(), free_port(), free_port()
    logging = directory / "log4j2.properties"
    logging.write_text(LOG4J)
    java = [check_java(os.environ), "-cp", os.pathsep.join(map(str, jars_of(release))), f"-Dlog4j2.configurationFile={logging.as_uri()}"]
    zoo, properties = directory / "zoo.cfg", directory / "server.properties"
    zoo.write_text(
        f"dataDir={directory / 'zookeeper'}\nclientPort={zookeeper_port}\nclientPortAddress={LOOPBACK}\nadmin.enableServer=false\n"
    )
    secured = Secured(secured_port, users) if users else None
    properties.write_text(with_zookeeper(server_properties(directory / "data", port, 0, secured), zookeeper_port))
    with ExitStack() as ending:

        def run(*arguments: str, log: Path) -> subprocess.Popen[bytes]:
            process = start([*java, *_SMALL, *arguments], log)
            ending.callback(kill_whole, process)
            return process

        run("org.apache.zookeeper.server.quorum.QuorumPeerMain", str(zoo), log=directory / "zookeeper.log")
        log = directory / "server.log"
        broker = run("kafka.Kafka", str(properties), log=log)
        made = Process(broker.pid, psutil.Process(broker.pid).create_time() - psutil.boot_time(), port, secured_port if users else None)
        admin = AdminClient({"bootstrap.servers": made.bootstrap})

        def answers() -> bool:
            must_run(broker, log)
            with suppress(KafkaException):
                return bool(admin.list_topics(timeout=5).brokers)
            return False

        wait_for(f"Kafka {release}", answers, 120, details=lambda: tail(log))
        yield made


def with_zookeeper(text: str, port: int) -> str:
    """The text of server.properties for a broker that uses the ZooKeeper at this port, instead of a controller of its own."""
    properties = javaproperties.loads(text)
    for name in ("process.roles", "node.id", "controller.quorum.voters", "controller.listener.names"):
        del properties[name]
    for name in ("listeners", "listener.security.protocol.map"):
        properties[name] = ",".join(each for each in properties[name].split(",") if not each.startswith("CONTROLLER"))
    acls = _ACLS if "authorizer.class.name" in properties else {}
    made: str = javaproperties.dumps({**properties, "broker.id": "1", "zookeeper.connect": f"{LOOPBACK}:{port}", **acls}, timestamp=False)
    return made
