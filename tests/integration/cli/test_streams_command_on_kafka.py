"""`sluice streams --system kafka` on a real broker; test_streams_command.py has the same for the embedded log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from uuid import uuid4

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from typer.testing import CliRunner

from sluice.cli.main import app
from sluice.core.errors import BadSettings, StreamConflict, StreamUnavailable, UnknownStream
from sluice.streams.kafka import KafkaSystem
from sluice.streams.kafka_properties import KafkaProperties
from tests.support.processes import free_port

Topics = Callable[..., str]


@pytest.fixture
def topics(kafka_server: str) -> Topics:
    def call(*words: str, typed: str = "", bootstrap: str = kafka_server) -> str:
        done = CliRunner().invoke(
            app, ["streams", *words, "--system", "kafka", "--bootstrap", bootstrap], input=typed, catch_exceptions=False
        )
        assert done.exit_code == 0, done.output
        return done.output

    return call


@pytest.fixture
def words() -> str:
    """The name of a topic that does not exist."""
    return f"words-{uuid4().hex}"


def test_lines_from_standard_input_can_be_read_back(topics: Topics, words: str) -> None:
    topics("create", words, "--partitions", "2")
    assert "3 records appended" in topics("append", words, typed="a\nb\nc\n")
    assert sorted(topics("cat", words).split()) == ["a", "b", "c"]
    assert f"{words}\t2 partitions\t3 offsets" in topics("ls").splitlines()


def test_the_topics_of_kafka_itself_are_not_listed(topics: Topics, kafka_server: str, words: str) -> None:
    topics("create", words)

    async def remember_an_offset() -> None:
        async with AIOKafkaConsumer(bootstrap_servers=kafka_server, group_id="group") as consumer:
            consumer.assign([TopicPartition(words, 0)])
            await consumer.commit({TopicPartition(words, 0): 0})

    asyncio.run(remember_an_offset())
    assert not [line for line in topics("ls").splitlines() if line.startswith("__")]


def test_lines_with_equal_keys_go_to_one_partition(topics: Topics, words: str) -> None:
    topics("create", words, "--partitions", "4")
    topics("append", words, "--key-separator", "=", typed="".join(f"same={n}\n" for n in range(20)))
    output = [json.loads(line) for line in topics("cat", words, "--json").splitlines()]
    assert len({each["partition"] for each in output}) == 1
    assert [each["value"] for each in output] == [str(n) for n in range(20)]


def test_a_record_can_be_printed_with_all_its_fields(topics: Topics, kafka_server: str, words: str) -> None:
    topics("create", words)
    topics("append", words, "--key-separator", ":", typed="k:v\nno key\n")

    async def append_with_header() -> None:
        async with AIOKafkaProducer(bootstrap_servers=kafka_server) as producer:
            await producer.send_and_wait(words, b"\xff", headers=[("from", b"here")], timestamp_ms=1_500)

    asyncio.run(append_with_header())
    first, second, third = (json.loads(line) for line in topics("cat", words, "--json").splitlines())
    assert (first["key"], first["value"], first["offset"], first["headers"]) == ("k", "v", 0, {})
    assert (second["key"], second["value"], second["partition"]) == (None, "no key", 0)
    assert (third["value"], third["headers"], third["timestamp"]) == ("\\xff", {"from": "here"}, "1970-01-01T00:00:01.500000+00:00")


def test_a_part_of_a_stream_can_be_printed(topics: Topics, words: str) -> None:
    topics("create", words)
    topics("append", words, typed="a\nb\nc\nd\n")
    assert topics("cat", words, "--offset", "1", "--limit", "2", "--partition", "0").split() == ["b", "c"]
    assert topics("cat", words, "--offset", "9") == ""
    assert topics("cat", words, "--limit", "0") == ""


def test_reading_ends_at_the_end_of_the_topic_although_the_last_offset_has_no_record(topics: Topics, kafka_server: str, words: str) -> None:
    """The end of a transaction takes an offset of its own."""
    topics("create", words)

    async def append_in_a_transaction() -> None:
        async with AIOKafkaProducer(bootstrap_servers=kafka_server, transactional_id=words) as producer, producer.transaction():
            await producer.send_and_wait(words, b"a")
        kafka = KafkaSystem(kafka_server, KafkaProperties({}))
        await kafka.settled_ends(words)  # the brokers confirm a commit before its end is in the topic
        await kafka.close()

    asyncio.run(append_in_a_transaction())
    assert topics("cat", words).split() == ["a"]


def test_the_error_about_a_missing_topic_names_it_and_it_is_not_created(topics: Topics, words: str) -> None:
    for command in ("append", "cat"):
        with pytest.raises(UnknownStream, match=words):
            topics(command, words, typed="a\n")
    assert words not in topics("ls")


def test_a_missing_partition_is_refused(topics: Topics, words: str) -> None:
    topics("create", words)
    with pytest.raises(UnknownStream, match="no 7"):
        topics("cat", words, "--partition", "7")


def test_a_topic_grows_and_never_shrinks(topics: Topics, words: str) -> None:
    topics("create", words, "--partitions", "2")
    topics("grow", words, "--partitions", "4")
    assert f"{words}\t4 partitions" in topics("ls")
    for command in ("grow", "create"):
        with pytest.raises(StreamConflict):
            topics(command, words, "--partitions", "3")


def test_the_error_about_an_unreachable_kafka_has_its_address(topics: Topics) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    with pytest.raises(StreamUnavailable, match=nowhere):
        topics("ls", bootstrap=nowhere)


def test_credentials_are_read_from_a_properties_file(topics: Topics, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("properties") / "client.properties"
    file.write_text("security.protocol=CARRIER_PIGEON\n")
    with pytest.raises(BadSettings, match=r"client\.properties"):
        topics("ls", "--properties", str(file))
