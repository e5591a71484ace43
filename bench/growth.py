"""The time from the growth of a Kafka topic to the first record of a new partition, and the adoption of a job-model version by 200
containers.

* growing: a job of two tasks on `local[1]` counts keys of a topic with two partitions, which become 4, 8 and 16. A record is appended to
  each new partition as soon as it exists. The coordinator checks the partitions every 0.2 s. Measured is the time from the broker's answer
  to `CreatePartitions` until the record of a new partition is in a committed batch. The peer is the same pipeline as one plain Spark query
  that subscribes to the topic; it reads new partitions with its next batch. It has no tasks, so nothing must be planned, put in force or
  restarted.
* adopting: 200 simulated containers hold long polls for notices, and a PATCH lets their run grow. Measured is the time until each has
  fetched and acknowledged the model (`bench/adopters.py`).
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median

from bench.adopters import Adopted, adopted
from bench.crew import crew
from bench.deployment import STREAM, deploy, make_stream
from bench.growth_job import FIRST
from bench.harness import Result, coordinator, note, peer, running
from coordinator.settings import read_settings
from examples.harness.topics import Topics
from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Log, Record, Writer
from sluice.wire import runs as wire_runs
from tests.support.processes import ROOT, free_port, wait_for
from tests.support.servers import kafka

NAME = "growth"
COUNTS = (4, 8, 16)
CONTAINERS = 200
MOST_SECONDS = 10.0
MOST_TO_ADOPT = 2.0
PATIENCE = 180.0
LOOK_SECONDS = 0.05
JOB = ROOT / "bench" / "growth_job.py"
WRITER = Writer(Lineage("bench"), "bench", Generation(1))

Read = dict[int, int]
"""Partition -> the next offset."""


def run() -> Result:
    """Raises BenchFailed."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as made:
        plain = median(through_plain(Path(made)))
    note(f"a plain query reads new partitions after {plain:.2f} s")
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as made:
        mine = median(through_sluice(Path(made)))
    note(f"the job does after {mine:.2f} s")
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as made:
        adoption = adopting(Path(made))
    return judged(plain, mine, adoption)


def judged(plain: float, mine: float, adoption: Adopted) -> Result:
    """`ratio`: the time relative to the plain query."""
    return Result(
        name=NAME,
        figures={
            "first_record_s": round(mine, 2),
            "plain_first_record_s": round(plain, 2),
            "containers": CONTAINERS,
            "version_made_s": round(adoption.answered, 3),
            "adopted_everywhere_s": round(adoption.everywhere, 3),
        },
        ratio=round(mine / plain, 2),
        target=f"the first record of a new partition within {MOST_SECONDS:g} s; {CONTAINERS} containers adopt a version within "
        f"{MOST_TO_ADOPT:g} s",
        met=mine <= MOST_SECONDS and adoption.everywhere <= MOST_TO_ADOPT,
    )


# --- growing ---------------------------------------------------------------------------------------------------------


@contextmanager
def broker(place: Path) -> Iterator[Topics]:
    """A broker with the job's topics."""
    with kafka(place / "broker") as bootstrap, closing(Topics(bootstrap)) as topics:
        topics.create("events", FIRST)
        topics.create("counts", 1)
        send(topics, range(FIRST))
        yield topics


def send(topics: Topics, partitions: range) -> None:
    """Append a record to each partition."""
    records = [Record(b"", key=f"key-{partition}".encode(), partition=partition) for partition in partitions]
    topics.append("events", records, writer=WRITER, batch=0, now_micros=time.time_ns() // 1000)


def growths(topics: Topics, read: Callable[[], Read]) -> Iterator[float]:
    """For each growth, the seconds until a record of a new partition was read."""
    await_read("the first records", read, range(FIRST))
    before = FIRST
    for count in COUNTS:
        time.sleep(3)  # wait until the last growth has settled
        topics.grow("events", count)
        began = time.monotonic()
        send(topics, range(before, count))
        await_read(f"a record of partitions {before} to {count - 1}", read, range(before, count), any)
        yield time.monotonic() - began
        await_read(f"the records of partitions {before} to {count - 1}", read, range(before, count))
        before = count


def await_read(what: str, read: Callable[[], Read], partitions: range, which: Callable[[Iterator[bool]], bool] = all) -> None:
    def is_read() -> bool:
        found = read()
        return which(found.get(partition, 0) > 0 for partition in partitions)

    wait_for(what, is_read, PATIENCE, every=LOOK_SECONDS)


def through_sluice(place: Path) -> list[float]:
    with broker(place) as topics:
        environment = {
            "SLUICE_KAFKA_BOOTSTRAP": topics.bootstrap,
            "SLUICE_PARTITION_MONITOR_SECONDS": "0.2",
            "SLUICE_REPORT_SECONDS": "0.1",
        }
        with crew(place, JOB, environment) as here:
            here.system = "kafka"
            here.deploy(start="earliest")
            here.start_container()
            return list(growths(topics, lambda: positions(here.detail())))


def positions(detail: wire_runs.RunDetail) -> Read:
    return {at.partition: at.offset for task in detail.tasks for stage in task.stages for at in stage.offsets}


def through_plain(place: Path) -> list[float]:
    read: Read = {}

    def on_line(positions: Sequence[str]) -> None:
        for source in positions:
            read.update({int(partition): offset for partition, offset in json.loads(source)["events"].items()})

    with broker(place) as topics, peer(["bench.growth_plain", topics.bootstrap, str(place)], place / "stderr", on_line=on_line) as query:

        def now() -> Read:
            query.must_run()
            return dict(read)

        return list(growths(topics, now))


# --- adopting --------------------------------------------------------------------------------------------------------


def adopting(home: Path) -> Adopted:
    port = free_port()
    with running(coordinator(home, port), port, {"SLUICE_PARTITION_MONITOR_SECONDS": "3600"}) as server:
        make_stream(home, CONTAINERS)
        run_id, _ = deploy(server.url, CONTAINERS)
        Log(read_settings(home=home).log_directory).grow(STREAM, 2 * CONTAINERS)
        found = asyncio.run(adopted(server.url, run_id, CONTAINERS))
    note(f"{CONTAINERS} containers adopted a version in {found.everywhere:.2f} s, of which it took {found.answered:.2f} s to make it")
    return found
