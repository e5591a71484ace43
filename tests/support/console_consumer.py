"""Kafka's own `kafka-console-consumer`, a consumer that is neither aiokafka nor librdkafka."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from containers.errors import JarsUnavailable
from containers.jars import BROKER, Artefact, JarSet, broker_jars, check_java, ensure_jars
from tests.support.processes import WAIT_SECONDS
from tests.support.servers import NotInstalled

_CLASS = "org.apache.kafka.tools.consumer.ConsoleConsumer"


def committed_values(bootstrap: str, topic: str, count: int) -> Sequence[str]:
    """The first `count` committed values of a topic of one partition, from its beginning. Waits until there are so many."""
    try:
        tools = JarSet("kafka-tools", (Artefact("org.apache.kafka", "kafka-tools", BROKER.artefacts[0].revision, alone=True),))
        jars = [*ensure_jars(tools, os.environ), *broker_jars()]
    except JarsUnavailable as error:
        raise NotInstalled(f"Kafka ({error})") from error
    command = [
        check_java(os.environ),
        "-Xmx128m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-cp",
        os.pathsep.join(map(str, jars)),
        _CLASS,
    ]
    options = ["--bootstrap-server", bootstrap, "--topic", topic, "--from-beginning", "--isolation-level", "read_committed"]
    done = subprocess.run(
        [*command, *options, "--max-messages", str(count)],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
    return done.stdout.splitlines()
