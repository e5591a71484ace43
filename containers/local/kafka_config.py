"""Configuration of the development broker: one small node, controller and broker, on loopback, without retention."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import javaproperties

from containers.local.ports import LOOPBACK
from sluice.core.errors import BadOption

_NODE = 1
_USER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %p %c: %m%n
"""
"""Logs to standard output, which goes to the same file as the messages of the Java runtime."""

_SIZES: Mapping[str, str] = {
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "2",
    "num.recovery.threads.per.data.dir": "1",
    "log.segment.bytes": str(64 << 20),
    "log.index.size.max.bytes": str(1 << 20),
    "log.cleaner.dedupe.buffer.size": str(8 << 20),
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
}
_ONE_NODE: Mapping[str, str] = {
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}
_BEHAVIOUR: Mapping[str, str] = {
    "auto.create.topics.enable": "false",
    "log.retention.ms": "-1",  # retention uses the timestamps of records: a replayed year would be deleted within minutes
}
_ACLS: Mapping[str, str] = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "super.users": "User:ANONYMOUS",  # the clients of the listener without authentication, the broker itself among them
}
"""With users there can be ACLs for them."""


@dataclass(frozen=True, slots=True)
class KeyStore:
    """A PKCS12 file with the broker's key and certificate."""

    file: Path
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Secured:
    """A second listener with authentication (`users`: name -> password), encryption (`keys`), or both. Raises BadOption."""

    port: int
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    keys: KeyStore | None = None

    def __post_init__(self) -> None:
        for user in self.users:
            if not _USER.fullmatch(user):
                raise BadOption(f"{user[:80]!r} cannot be the name of a user: use letters, digits, '.', '_' and '-'")

    @property
    def protocol(self) -> str:
        encrypted = self.keys is not None
        if self.users:
            return "SASL_SSL" if encrypted else "SASL_PLAINTEXT"
        return "SSL" if encrypted else "PLAINTEXT"

    def properties(self, name: str) -> dict[str, str]:
        """The properties of the listener of that name."""
        own = f"listener.name.{name.lower()}"
        properties = {}
        if self.users:
            users = " ".join(f"user_{user}={_quoted(password)}" for user, password in self.users.items())
            properties["sasl.enabled.mechanisms"] = "PLAIN"
            properties |= _ACLS
            properties[f"{own}.plain.sasl.jaas.config"] = f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
        if self.keys is not None:
            properties[f"{own}.ssl.keystore.type"] = "PKCS12"
            properties[f"{own}.ssl.keystore.location"] = str(self.keys.file)
            properties[f"{own}.ssl.keystore.password"] = self.keys.password
        return properties


def _quoted(text: str) -> str:
    """Quoted for a JAAS configuration."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def server_properties(data: Path, port: int, controller_port: int, secured: Secured | None) -> str:
    """The text of server.properties (the names: "Broker Configs" in Kafka's documentation)."""
    listeners = {"PLAINTEXT": ("PLAINTEXT", port), "CONTROLLER": ("PLAINTEXT", controller_port)}
    if secured is not None:
        listeners["SECURED"] = (secured.protocol, secured.port)
    properties = {
        "process.roles": "broker,controller",
        "node.id": str(_NODE),
        "controller.quorum.voters": f"{_NODE}@{LOOPBACK}:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listeners": ",".join(f"{name}://{LOOPBACK}:{port}" for name, (_, port) in listeners.items()),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, (protocol, _) in listeners.items()),
        "log.dirs": str(data),
        **_SIZES,
        **_ONE_NODE,
        **_BEHAVIOUR,
        **(secured.properties("SECURED") if secured is not None else {}),
    }
    text: str = javaproperties.dumps(properties, timestamp=False)
    return text
