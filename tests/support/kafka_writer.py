"""A process that writes batches to Kafka as a stage does, on commands, so that a test can kill or suspend it at any request.

    python -m tests.support.kafka_writer BOOTSTRAP

Each line of standard input is a command, as JSON, and is answered by a line: {"done": value}, or {"failed": the name of the error, "text":
its text}. `confirm`, by which a writer asks the coordinator for the current generation, reads it from a file.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from containers.spark.systems.kafka_transactions import ProducerFenced, TransactionalWriter
from sluice.core.errors import LeaseLost
from sluice.core.ids import Generation, Lineage
from tests.support.processes import ROOT, kill_whole

LINEAGE = Lineage("6f0c9a52-3f5b-4e58-9c53-0d8e7a1f3b01")


def new_writer(bootstrap: str, name: str, topic: str, generation: int, current: Path) -> TransactionalWriter:
    """`current`: the file with the generation that the coordinator confirms."""

    def confirm() -> None:
        if int(current.read_text()) != generation:
            raise LeaseLost(f"generation {generation} no longer owns the task")

    return TransactionalWriter({"bootstrap.servers": bootstrap}, name, topic, LINEAGE, Generation(generation), confirm)


def write_numbers(writer: TransactionalWriter, batch: int, numbers: Sequence[int], sent: Callable[[], None] = lambda: None) -> None:
    """Write a batch. `sent` is called when its records are sent, before the commit."""

    def produce(send: Callable[[pa.RecordBatch, list[tuple[str, bytes]]], None]) -> int:
        texts = [str(number).encode() for number in numbers]
        columns = [pa.array(texts, pa.binary()), pa.array(texts, pa.binary())]
        send(pa.RecordBatch.from_arrays(columns, names=["key", "value"]), [])
        sent()
        return len(numbers)

    writer.write(batch, produce)


class Commands:
    """The commands of the process."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._writer: TransactionalWriter | None = None

    def open(self, name: str, topic: str, generation: int, current: str) -> int:
        self.close()
        self._writer = new_writer(self._bootstrap, name, topic, generation, Path(current))
        return self._writer.open()

    def write(self, batch: int, first: int, end: int) -> None:
        assert self._writer is not None
        write_numbers(self._writer, batch, range(first, end))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def execute(self, command: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"done": getattr(self, command.pop("do"))(**command)}
        except Exception as error:
            return {"failed": type(error).__name__, "text": str(error)}


FENCED = {LeaseLost.__name__, ProducerFenced.__name__}
"""The errors after which a former owner writes nothing more."""


@dataclass
class WriterProcess:
    """The process, for the test that controls it."""

    process: subprocess.Popen[bytes]
    _answers: queue.Queue[bytes]

    def tell(self, do: str, **arguments: object) -> None:
        """Send a command without waiting for its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self, seconds: float = 180) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._answers.get(timeout=seconds))
        return found

    def suspend(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def writer_process(bootstrap: str) -> Iterator[WriterProcess]:
    command = [sys.executable, "-m", "tests.support.kafka_writer", bootstrap]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    answers: queue.Queue[bytes] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            answers.put(line)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield WriterProcess(process, answers)
    finally:
        kill_whole(process)
        reader.join()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def main(bootstrap: str) -> None:
    commands = Commands(bootstrap)
    for line in sys.stdin:
        print(json.dumps(commands.execute(json.loads(line))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
