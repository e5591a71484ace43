"""Which batch of `app.kafka_writer` was planned and cannot be in the topic, because its producer was never opened.

Spark plans a batch before its sink is called. So if the first open fails, or the driver is killed in it, a batch is planned and there is no
marker, as if Kafka had deleted it. A file in the checkpoint distinguishes the two. It is there from before an open until after it, and a
batch writes only when it is deleted.
"""

from __future__ import annotations

import json
from typing import Any

from containers.attached.batch_context import BatchContext


class Opening:
    """The file of one query and topic. `checkpoint`: the query's `ScriptCheckpoint`, whose methods raise CheckpointUnreadable."""

    def __init__(self, checkpoint: Any, topic: str) -> None:
        self._checkpoint = checkpoint
        self._name = f".kafka-writer-{topic}.sluice"  # a hidden file of Sluice: it is in no snapshot

    def begin(self, context: BatchContext) -> None:
        """The batch was planned for this sink, and nothing of it was written."""
        text = json.dumps({"lineage": context.lineage, "batch": context.batch, "generation": context.generation})
        self._checkpoint.write(self._name, text.encode())

    def end(self) -> None:
        """The producer is open, so that there is a marker."""
        self._checkpoint.delete(self._name)

    def left(self, context: BatchContext) -> bool:
        """Whether the former start has left the file in this batch. After a start in between, which may have used another sink, it does not
        count."""
        found = self._checkpoint.read(self._name)
        try:
            read: Any = {} if found is None else json.loads(found)
            is_same = (read.get("lineage"), read.get("batch")) == (context.lineage, context.batch)
            return is_same and int(read["generation"]) >= context.generation - 1
        except (ValueError, AttributeError, TypeError, KeyError):  # the driver was killed while it wrote the file
            return False
