"""A stage with topics of its own Kafka broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from examples.harness.topics import Topics
from tests.processes.stage import TOY, Stage, stage
from tests.support.servers import kafka


@contextmanager
def stage_on_kafka(root: Path, job_text: str = TOY, numbers: int = 2) -> Iterator[tuple[Stage, Topics]]:
    """With the topics `numbers`, of that many partitions, and `out`, of one."""
    with kafka(root / "broker") as bootstrap, stage(root, job_text) as made:
        made.system = "kafka"
        made.environment = {"SLUICE_KAFKA_BOOTSTRAP": bootstrap}
        with closing(Topics(bootstrap)) as topics:
            topics.create("numbers", numbers)
            topics.create("out", 1)
            yield made, topics
