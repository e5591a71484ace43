"""The producer: replays the sales into the Kafka topic `sales`, a day at a time.

Each sale is in the topic once, also if the producer is killed and started again: the replay sends the sales of a partition in their order,
and continues after those that the topic has.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from examples.pizza.data import DAY, PARTITIONS, SALES, Sale, SalesMissing, encode, load_sales, partition_of_sale, time_text
from sluice.core.errors import BadSettings
from sluice.streams.kafka_properties import KafkaProperties

TIMEOUT = 60.0
"""Seconds for answers of the brokers."""


def ends(brokers: Mapping[str, str]) -> list[int]:
    """The number of records in each partition of the topic. Raises KafkaException, for example if there is no such topic."""
    consumer = Consumer({**brokers, "group.id": "pizza-replay"})
    try:
        return [consumer.get_watermark_offsets(TopicPartition(SALES, each), TIMEOUT)[1] for each in range(PARTITIONS)]
    finally:
        consumer.close()


def unsent(sales: Sequence[Sale], sent: Sequence[int]) -> list[Sale]:
    """The sales after the first `sent[p]` ones of each partition p."""
    left, found = list(sent), []
    for sale in sales:
        partition = partition_of_sale(sale)
        if left[partition]:
            left[partition] -= 1
        else:
            found.append(sale)
    return found


def replay(brokers: Mapping[str, str], sales: Sequence[Sale], seconds_per_day: float) -> int:
    """Send the sales that are not in the topic. Returns their number. `brokers`: properties of librdkafka that reach them. Raises
    KafkaException."""
    producer = Producer({**brokers, "enable.idempotence": True, "linger.ms": 5})
    missing = unsent(sales, ends(brokers))
    due = time.monotonic()
    for _, day in groupby(missing, lambda sale: sale.at // DAY):
        time.sleep(max(0.0, due - time.monotonic()))
        for sale in day:
            producer.produce(SALES, encode(sale), partition=partition_of_sale(sale))
        if producer.flush(TIMEOUT):
            raise KafkaException(f"the brokers did not take all sales within {TIMEOUT:g} s")
        due += seconds_per_day
    return len(missing)


def main(
    bootstrap: Annotated[str, typer.Option(metavar="HOST:PORT[,...]", envvar="SLUICE_KAFKA_BOOTSTRAP")] = "127.0.0.1:9092",
    days: Annotated[int, typer.Option(min=1, max=365, help="Replay only the first N days.")] = 365,
    seconds_per_day: Annotated[float, typer.Option(min=0, help="0 = as fast as the brokers allow.")] = 1.0,
    properties: Annotated[
        Path | None, typer.Option(envvar="SLUICE_KAFKA_PROPERTIES", help="A client.properties file with security.protocol, sasl.*, ssl.*.")
    ] = None,
) -> None:
    """Replay the sales of 2015 into the topic `sales`."""
    try:
        sales = load_sales(days)
        brokers = {"bootstrap.servers": bootstrap, **KafkaProperties.read(properties).librdkafka_properties()}
        sent = replay(brokers, sales, seconds_per_day)
    except (BadSettings, SalesMissing, KafkaException) as error:
        typer.echo(f"replay: {error}", err=True)
        raise SystemExit(1) from None
    typer.echo(f"{sent:,} of {len(sales):,} sales sent, up to {time_text(sales[-1].at)}")


if __name__ == "__main__":
    typer.run(main)
