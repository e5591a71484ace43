"""An input that grows, is left out by a version and is read again by a later one: the keys of each partition return to their state."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Record, Writer, partition_of
from tests.processes.stage import Stage, stage
from tests.support.processes import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow]

RB_ALONE = """
from sluice import Job

job = Job("toy")
rb = job.input("rb")
once_rb = job.output("once-rb")


@job.stage(reads=rb, writes=once_rb)
def of_rb(task):
    keys = task.read(rb).selectExpr("cast(value as string) v")
    return task.write(keys.dropDuplicates(["v"]), once_rb, key="v")
"""

BOTH = (
    RB_ALONE
    + """

ra, once_ra = job.input("ra"), job.output("once-ra")


@job.stage(reads=ra, writes=once_ra)
def of_ra(task):
    keys = task.read(ra).selectExpr("cast(value as string) v")
    return task.write(keys.dropDuplicates(["v"]), once_ra, key="v")
"""
)


class Versions:
    """Runs of the job, each with a container of its own. `sent`: all keys so far."""

    def __init__(self, scene: Stage) -> None:
        self._scene = scene
        self._version = 0
        self.sent: set[str] = set()

    def run(self, job_text: str, **keys: int) -> None:
        """Deploy the job, and send the keys 0 to n - 1 of each stream, of which some were sent before, and last a new key to each of its
        partitions. Stop the run when these have been written."""
        scene = self._scene
        self._version += 1
        scene.job_file.write_text(job_text)
        scene.deploy()
        _, agent = scene.start_container(SLUICE_TRIGGER_SECONDS="0.3")
        last = {key for stream, count in keys.items() for key in self._send(stream, count)}
        wait_for("the last keys", lambda: last <= self.written().keys(), 600)
        scene.http.post(f"/runs/{scene.run_id}/stop").raise_for_status()
        assert agent.wait(600) == 0

    def _send(self, stream: str, count: int) -> set[str]:
        log = self._scene.log
        partitions = log.partitions(stream)
        keys = [f"{stream} {number}" for number in range(count)]
        records = [Record(key.encode(), key.encode(), partition_of(key.encode(), partitions, 0)) for key in keys]
        last = {f"{stream} last of version {self._version} in {partition}": partition for partition in range(partitions)}
        records += [Record(key.encode(), key.encode(), partition) for key, partition in last.items()]
        assert log.append(stream, records, writer=Writer(Lineage("feeder"), "feeder", Generation(1)), batch=self._version, now_micros=1)
        self.sent |= {*keys, *last}
        return set(last)

    def written(self) -> Counter[str]:
        log = self._scene.log
        rows = (row for stream in ("once-ra", "once-rb") for rows in log.read(stream, 0, 0, 10**9) for row in rows)
        return Counter(json.loads(row[3] or b"")["v"] for row in rows)


@pytest.mark.long  # as test_growth.py and tests/integration/api/test_returning_streams.py
def test_each_key_of_an_input_that_grew_and_was_left_out_for_a_while_is_written_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    root: Path = tmp_path_factory.mktemp("returning")
    with stage(root, BOTH) as scene:
        for stream in ("ra", "rb"):
            scene.log.create(stream, 2)
        scene.start_coordinator()
        versions = Versions(scene)
        versions.run(BOTH, ra=30, rb=30)
        scene.log.grow("ra", 4)
        versions.run(BOTH, ra=50, rb=40)
        versions.run(RB_ALONE, rb=48)
        versions.run(BOTH, ra=64, rb=58)
        assert versions.written() == Counter(versions.sent)
        assert len(versions.sent) == 140
