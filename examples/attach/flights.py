"""The flights demo as a plain script: one query over Spark's own Kafka source and sink. Two lines make it a job.

spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 examples/attach/flights.py BROKERS CHECKPOINT
"""

from __future__ import annotations

import sys

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

import sluice

FLIGHT = """
    id long, scheduled timestamp, carrier string, flight int, tailnum string, origin string, dest string, dep_delay long, arr_delay long
"""


def parse(records: DataFrame) -> DataFrame:
    """The flights in the values of records."""
    parsed = F.from_json(F.col("value").cast("string"), FLIGHT, {"mode": "FAILFAST"})
    return records.select(parsed.alias("parsed")).select("parsed.*")


def count_by_hour(flights: DataFrame) -> DataFrame:
    """Count flights and sum up their delays by hour and carrier."""
    hours = flights.groupBy(F.window("scheduled", "1 hour").alias("window"), "carrier").agg(
        F.count("*").alias("flights"), *delay_totals("dep_delay", "departed"), *delay_totals("arr_delay", "arrived")
    )
    return hours.withColumn("hour", F.col("window.start")).drop("window")


def delay_totals(delay: str, counted: str) -> list[Column]:
    return [
        F.count(delay).alias(counted),
        F.coalesce(F.sum(delay), F.lit(0)).alias(f"{delay}_sum"),
        F.avg(delay).alias(f"{delay}_avg"),
    ]


def main(brokers: str, checkpoint: str) -> None:
    spark = SparkSession.builder.appName("flight-delays").getOrCreate()
    sluice.attach(spark, job="flight-delays")
    kafka = spark.readStream.format("kafka").option("kafka.bootstrap.servers", brokers)
    records = kafka.option("subscribe", "flights").option("startingOffsets", "earliest").load()
    hours = count_by_hour(parse(records).withWatermark("scheduled", "30 days"))
    rows = hours.select(F.col("carrier").alias("key"), F.to_json(F.struct("*")).alias("value"))
    writer = rows.writeStream.format("kafka").option("kafka.bootstrap.servers", brokers).option("topic", "delays")
    writer.option("checkpointLocation", checkpoint).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
