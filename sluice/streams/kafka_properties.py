"""Security settings of Kafka clients, from a standard client.properties file.

The same file serves both kinds of clients: containers pass each property on to Spark's connector, and the coordinator derives the arguments
of its own client. The values are secret: they appear neither in `repr`, nor in answers of the API, nor in errors.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import javaproperties

from sluice.core.errors import BadSettings
from sluice.streams.kafka_access import INSTEAD

_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_SAME_IN_LIBRDKAFKA = frozenset({
    "security.protocol", "sasl.mechanism", "ssl.key.password", "ssl.cipher.suites",
    "client.id", "client.dns.lookup", "client.rack", "compression.type", "linger.ms", "batch.size", "metadata.max.age.ms",
    "connections.max.idle.ms", "reconnect.backoff.ms", "retry.backoff.ms", "retry.backoff.max.ms", "socket.connection.setup.timeout.ms",
    "request.timeout.ms", "transaction.timeout.ms",
})  # fmt: skip
_OTHER_IN_LIBRDKAFKA: Mapping[str, str] = {
    "reconnect.backoff.max.ms": "reconnect.backoff.max.ms",
    "max.request.size": "message.max.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "ssl.truststore.location": "ssl.ca.location",
}
_WITHOUT_EFFECT = re.compile(r"(fetch|max\.poll|max\.partition|auto|enable\.auto|exclude|group|heartbeat|session|key|value|partition)\..*|"
                             r"acks|retries|enable\.idempotence|isolation\.level|bootstrap\.servers|buffer\.memory|delivery\.timeout\.ms|"
                             r"max\.in\.flight\.requests\.per\.connection|default\.api\.timeout\.ms|check\.crcs|interceptor\.classes|"
                             r"metric.*|max\.block\.ms|ssl\.(truststore|keystore)\.type|ssl\.protocol|ssl\.enabled\.protocols")  # fmt: skip
"""Properties of consumers, and of producers where the transaction decides."""

_JAAS = re.compile(r'\b(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')


class KafkaProperties(Mapping[str, str]):
    """Property -> value. Raises BadSettings, with the name of the property but not its value, for what the coordinator's client does not
    support."""

    def __init__(self, properties: Mapping[str, str], source: str = "the Kafka properties") -> None:
        self._properties = dict(properties)
        self._source = source
        self._check()

    @staticmethod
    def read(file: Path | None) -> KafkaProperties:
        """Read a client.properties file; no properties without a file. Raises BadSettings."""
        if file is None:
            return KafkaProperties({})
        try:
            with file.open("rb") as found:
                return KafkaProperties(javaproperties.load(found), str(file))
        except OSError as error:
            raise BadSettings(f"SLUICE_KAFKA_PROPERTIES: {file} cannot be read ({error.strerror})") from error
        except ValueError as error:
            raise BadSettings(f"SLUICE_KAFKA_PROPERTIES: {file} is not a Java properties file") from error

    def __getitem__(self, name: str) -> str:
        return self._properties[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._properties)

    def __len__(self) -> int:
        return len(self._properties)

    def __repr__(self) -> str:
        return f"KafkaProperties({', '.join(sorted(self))}: not shown)"

    @property
    def protocol(self) -> str:
        return self.get("security.protocol", "PLAINTEXT").upper()

    def _check(self) -> None:
        if self.protocol not in _PROTOCOLS:
            raise BadSettings(f"{self._source}: security.protocol must be one of {', '.join(_PROTOCOLS)}")
        if self.protocol.startswith("SASL"):
            if self.get("sasl.mechanism") not in _MECHANISMS:
                raise BadSettings(f"{self._source}: sasl.mechanism must be one of {', '.join(_MECHANISMS)}")
            if {"username", "password"} - self._credentials().keys():
                raise BadSettings(f'{self._source}: sasl.jaas.config needs username="..." and password="..."')
        for store in ("truststore", "keystore"):
            if f"ssl.{store}.location" in self and self.get(f"ssl.{store}.type", "JKS").upper() != "PEM":
                raise BadSettings(
                    f"{self._source}: ssl.{store}.type must be PEM, which Java and Python can read: convert the store with keytool and "
                    "openssl, or omit it to trust the authorities of the system"
                )

    def _credentials(self) -> dict[str, str]:
        found = _JAAS.findall(self.get("sasl.jaas.config", ""))
        return {name: re.sub(r"\\(.)", r"\1", value) for name, value in found}

    def client_arguments(self) -> dict[str, Any]:
        """Keyword arguments for the clients of aiokafka. Raises BadSettings when a certificate cannot be read."""
        arguments: dict[str, Any] = {"security_protocol": self.protocol}
        if self.protocol.startswith("SASL"):
            credentials = self._credentials()
            arguments |= {
                "sasl_mechanism": self["sasl.mechanism"],
                "sasl_plain_username": credentials["username"],
                "sasl_plain_password": credentials["password"],
            }
        if self.protocol.endswith("SSL"):
            arguments["ssl_context"] = self._ssl_context()
        return arguments

    def _ssl_context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.get("ssl.truststore.location"))
            if "ssl.keystore.location" in self:
                context.load_cert_chain(self["ssl.keystore.location"], password=self.get("ssl.key.password"))
        except (OSError, ssl.SSLError) as error:
            raise BadSettings(f"{self._source}: the certificates cannot be used ({error.strerror or error})") from error
        if self.get("ssl.endpoint.identification.algorithm", "https") == "":
            context.check_hostname = False
        return context

    def librdkafka_properties(self) -> dict[str, str]:
        """Properties for clients of librdkafka, which write transactions. Raises BadSettings for one that has no equivalent there."""
        found: dict[str, str] = {}
        if self.protocol.startswith("SASL"):
            credentials = self._credentials()
            found |= {"sasl.username": credentials["username"], "sasl.password": credentials["password"]}
        for name, value in self.items():
            if name in _SAME_IN_LIBRDKAFKA:
                found[name] = value
            elif name in _OTHER_IN_LIBRDKAFKA:
                found[_OTHER_IN_LIBRDKAFKA[name]] = value
            elif name == "ssl.keystore.location":
                found |= {"ssl.certificate.location": value, "ssl.key.location": value}
            elif name == "ssl.endpoint.identification.algorithm":
                found[name] = value or "none"
            elif name != "sasl.jaas.config" and not _WITHOUT_EFFECT.fullmatch(name):
                raise BadSettings(
                    f"{self._source}: {name} has no equivalent in librdkafka, which writes exactly-once: remove it, or {INSTEAD}"
                )
        return found

    def connector_options(self) -> dict[str, str]:
        """Options for Spark's Kafka source and sink."""
        return {f"kafka.{name}": value for name, value in self.items()}
