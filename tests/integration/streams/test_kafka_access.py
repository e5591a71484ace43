"""Brokers that deny a container something: the error names the missing ACL, before the first batch."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from containers.local.kafka import Process
from containers.spark.systems.kafka_transactions import TransactionalWriter
from examples.harness.topics import Topics
from sluice.core.errors import BadSettings
from sluice.core.ids import Generation, Lineage
from sluice.streams.kafka import KafkaSystem, transactional_id
from sluice.streams.kafka_access import denied, unsupported
from sluice.streams.kafka_properties import KafkaProperties
from tests.support.kafkaproxy import Request, kafka_proxy
from tests.support.processes import wait_for
from tests.support.servers import KAFKA_USER

((USER, PASSWORD),) = KAFKA_USER.items()
LOGIN = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="{USER}" password="{PASSWORD}";'
PROPERTIES = KafkaProperties({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": LOGIN})


class Denials:
    """A topic, and ACLs that deny the user something."""

    def __init__(self, broker: Process) -> None:
        self.secured = str(broker.secured)
        self.topic = uuid4().hex
        self.name = transactional_id("job", "stage", self.topic, "Partition 0")
        self._admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        self._made: list[AclBinding] = []

    def deny(self, kind: ResourceType, name: str, operation: AclOperation) -> None:
        """All else on the resource stays allowed. Without the second ACL Kafka would deny it, because the resource has one."""
        wanted = [(operation, AclPermissionType.DENY), (AclOperation.ALL, AclPermissionType.ALLOW)]
        acls = [AclBinding(kind, name, ResourcePatternType.LITERAL, f"User:{USER}", "*", what, how) for what, how in wanted]
        for created in self._admin.create_acls(acls).values():
            created.result(60)
        self._made += acls
        for acl in acls:
            wait_for("the ACL", lambda acl=acl: acl in self._admin.describe_acls(_filter(acl)).result(60))  # type: ignore[misc]

    def writer(self) -> TransactionalWriter:
        clients = {"bootstrap.servers": self.secured, **PROPERTIES.librdkafka_properties()}
        return TransactionalWriter(clients, self.name, self.topic, Lineage("lineage"), Generation(1), lambda: None)

    def check(self, bootstrap: str = "", properties: KafkaProperties = PROPERTIES) -> None:
        async def check() -> None:
            system = KafkaSystem(bootstrap or self.secured, properties)
            try:
                await system.check_transactions(self.topic)
            finally:
                await system.close()

        asyncio.run(check())

    def remove(self) -> None:
        filters = [_filter(made) for made in self._made]
        for removed in self._admin.delete_acls(filters).values() if filters else ():
            removed.result(60)


def _filter(acl: AclBinding) -> AclBindingFilter:
    return AclBindingFilter(acl.restype, acl.name, acl.resource_pattern_type, acl.principal, acl.host, acl.operation, acl.permission_type)


@pytest.fixture
def denials(kafka_broker: Process) -> Iterator[Denials]:
    made, topics = Denials(kafka_broker), Topics(kafka_broker.bootstrap)
    topics.create(made.topic, 1)
    yield made
    made.remove()
    topics.close()


def test_a_user_with_a_password_and_without_denials_may_write(denials: Denials) -> None:
    denials.check()
    writer = denials.writer()
    assert writer.open() == -1
    writer.close()


@pytest.mark.parametrize("operation", [AclOperation.WRITE, AclOperation.READ, AclOperation.DESCRIBE])
def test_a_missing_acl_on_the_topic_is_named_before_the_first_batch(denials: Denials, operation: AclOperation) -> None:
    denials.deny(ResourceType.TOPIC, denials.topic, operation)
    with pytest.raises(BadSettings, match=rf"{operation.name.capitalize()}.* on the topic '{denials.topic}'.*at-least-once"):
        denials.check()


@pytest.mark.parametrize(
    ("kind", "operation", "named"),
    [
        (ResourceType.TRANSACTIONAL_ID, AclOperation.WRITE, "Write and Describe on the TransactionalId"),
        (ResourceType.GROUP, AclOperation.READ, "Read on the Group"),
    ],
)
def test_a_missing_acl_on_the_transactional_id_or_the_group_is_named(
    denials: Denials, kind: ResourceType, operation: AclOperation, named: str
) -> None:
    denials.deny(kind, denials.name, operation)
    with pytest.raises(BadSettings, match=named):
        denials.writer().open()


def test_brokers_that_are_too_old_are_recognized_by_the_versions_that_they_support() -> None:
    newest = [(9, 1, 10), (22, 0, 6), (24, 0, 5), (25, 0, 4), (26, 0, 5), (28, 0, 5)]
    kafka_2_4 = [(9, 0, 6), (22, 0, 2), (24, 0, 1), (25, 0, 1), (26, 0, 1), (28, 0, 2)]
    assert unsupported(newest) == []
    assert unsupported(kafka_2_4) == ["OffsetFetch 7"]
    assert unsupported([(9, 0, 2)]) == [
        "InitProducerId 0",
        "AddPartitionsToTxn 0",
        "AddOffsetsToTxn 0",
        "EndTxn 0",
        "TxnOffsetCommit 0",
        "OffsetFetch 7",
    ]


def test_brokers_that_are_too_old_are_refused_with_the_release_that_is_needed(denials: Denials, kafka_server: str) -> None:
    """Their answer says that their last version of OffsetFetch is 6, as that of Kafka 2.4 does."""

    def of_kafka_2_4(request: int, answer: bytes) -> bytes:
        if request != Request.API_VERSIONS:
            return answer
        entry = re.compile(rb"(\x00\x09\x00[\x00-\x06]\x00)[\x07-\x20]")  # key, lowest and highest version
        assert entry.search(answer)
        return entry.sub(lambda found: found[1] + b"\x06", answer, count=1)

    with kafka_proxy(kafka_server, of_kafka_2_4) as proxy:
        message = (
            r"exactly-once needs Kafka 2\.5 or newer: the brokers at 127.* do not support OffsetFetch 7; update them, or .*at-least-once"
        )
        with pytest.raises(BadSettings, match=message):
            denials.check(proxy.bootstrap, KafkaProperties({}))


def test_operations_that_the_broker_does_not_list_are_not_treated_as_denied() -> None:
    assert denied(-(1 << 31)) == []
    assert denied(1 << 3 | 1 << 8) == ["Write"]
