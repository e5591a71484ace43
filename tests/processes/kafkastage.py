"""A stage whose streams are topics of a Kafka broker of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from examples.playing.topics import Topics
from tests.processes.stage import TOY, Stage, stage
from tests.servers import kafka, needs_kafka


@contextmanager
def stage_on_kafka(root: Path, job_text: str = TOY, numbers: int = 2) -> Iterator[tuple[Stage, Topics]]:
    """With the topics `numbers`, of so many partitions, and `out`, of one."""
    needs_kafka()
    with kafka(root / "broker") as bootstrap, stage(root, job_text) as made:
        made.system = "kafka"
        made.environment = {"SLUICE_KAFKA_BOOTSTRAP": bootstrap}
        topics = Topics(bootstrap)
        try:
            topics.create("numbers", numbers)
            topics.create("out", 1)
            yield made, topics
        finally:
            topics.close()
