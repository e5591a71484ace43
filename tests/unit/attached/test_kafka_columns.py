"""Which rows a script can write to Kafka, and with which options."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from containers.attached.kafka_columns import CannotWrite, record_columns
from containers.attached.kafka_writer import KafkaWriters, is_continued, kafka_settings
from sluice.core.errors import BadSettings
from sluice.core.ids import JobName
from tests.support.fakes import FakeClock

HEADERS = "array<struct<key:string,value:binary>>"


def test_columns_are_those_of_the_sink_of_spark_in_one_order() -> None:
    both = ["CAST(key AS BINARY) AS key", "CAST(value AS BINARY) AS value"]
    assert record_columns([("value", "string"), ("key", "binary")]) == both
    assert record_columns([("partition", "int"), ("headers", HEADERS), ("key", "string"), ("value", "binary")]) == [
        *both,
        "headers",
        "partition",
    ]


def test_keys_are_null_without_a_column_of_keys() -> None:
    assert record_columns([("value", "string")]) == ["CAST(NULL AS BINARY) AS key", "CAST(value AS BINARY) AS value"]


@pytest.mark.parametrize(
    ("dtypes", "why"),
    [
        ([("key", "string")], "needs the column value"),
        ([("value", "string"), ("price", "double"), ("at", "timestamp")], "does not write the columns price, at: select key, value"),
        ([("value", "string"), ("topic", "string")], "column topic: .* rows of another topic need a writer of their own"),
        ([("value", "int")], "column value has the type int: kafka_writer needs string or binary"),
        ([("value", "string"), ("partition", "bigint")], "column partition has the type bigint: kafka_writer needs int"),
        ([("value", "string"), ("headers", "string")], "column headers has the type string"),
    ],
)
def test_other_columns_are_refused(dtypes: Sequence[tuple[str, str]], why: str) -> None:
    with pytest.raises(CannotWrite, match=why):
        record_columns(dtypes)


def test_rows_must_be_a_data_frame() -> None:
    unused: Any = None
    writers = KafkaWriters(unused, JobName("orders"), FakeClock(), unused, unused, {})
    with pytest.raises(CannotWrite, match="`rows` must be a DataFrame, not NoneType"):
        writers.writer(unused, "orders", {})


def test_options_have_the_prefix_of_the_sink_of_spark_and_precede_the_variables_of_containers(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("linger.ms=5\nclient.id=jobs\n")
    environment = {"SLUICE_KAFKA_BOOTSTRAP": "jobs:9092", "SLUICE_KAFKA_PROPERTIES": str(file)}
    assert kafka_settings({}, environment)[0] == "jobs:9092"
    bootstrap, properties = kafka_settings({"kafka.bootstrap.servers": "orders:9092", "kafka.client.id": "orders"}, environment)
    assert bootstrap == "orders:9092"
    assert dict(properties) == {"linger.ms": "5", "client.id": "orders"}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "needs the brokers"),
        ({"kafka.bootstrap.servers": "b:1", "topic": "orders"}, "no option 'topic'"),
        ({"bootstrap.servers": "b:1"}, "no option 'bootstrap.servers'"),
    ],
)
def test_other_options_are_refused(options: dict[str, str], why: str) -> None:
    with pytest.raises(CannotWrite, match=why):
        kafka_settings(options, {})


def test_options_that_the_clients_cannot_use_are_refused_by_name() -> None:
    _, properties = kafka_settings({"kafka.bootstrap.servers": "b:1", "kafka.sasl.login.class": "Login"}, {})
    with pytest.raises(BadSettings, match=r"the options of kafka_writer: sasl.login.class has no equivalent"):
        properties.librdkafka_properties()


@pytest.mark.parametrize(
    ("checkpoint", "name", "root", "expected"),
    [
        ("file:/state/orders", "", "", True),
        ("file:/tmp/temporary-5d54b1f9-45c5-4c0e-8b9a-6f0c9a520d8e", "", "", False),
        ("file:/tmp/temporary-5d54b1f9-45c5-4c0e-8b9a-6f0c9a520d8e", "orders", "", False),
        ("s3a://state/5d54b1f9-45c5-4c0e-8b9a-6f0c9a520d8e", "", "s3a://state/", False),
        ("file:/state/5d54b1f9-45c5-4c0e-8b9a-6f0c9a520d8e", "", "/state", False),
        ("file:/state/orders", "orders", "/state", True),
        ("file:/elsewhere/5d54b1f9-45c5-4c0e-8b9a-6f0c9a520d8e", "", "/state", True),
    ],
)
def test_a_query_continues_only_from_a_checkpoint_that_has_a_name(checkpoint: str, name: str, root: str, expected: bool) -> None:
    assert is_continued(checkpoint, name, root) is expected
