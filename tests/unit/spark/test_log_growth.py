"""An intermediate stream of the embedded log grows while a batch waits until its offset-log entry is durable."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from containers.spark.systems.log import LogTaskSystem
from containers.spark.systems.port import Grant
from sluice.core.errors import LeaseLost
from sluice.core.ids import Generation, JobName, Lineage, RunId, StageName, TaskName
from sluice.streams.log import Log
from tests.support.fakes import FakeClock


def fail(lost: LeaseLost) -> None:
    raise lost


def test_a_stream_that_grows_while_a_batch_waits_for_its_offset_log_entry_is_written_only_where_tasks_read(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.create("mid", 2)
    system = LogTaskSystem(None, tmp_path, FakeClock(), fail)  # type: ignore[arg-type]
    keys = [str(number).encode() for number in range(100)]
    rows: Any = SimpleNamespace(toArrow=lambda: pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(keys, pa.binary())}))
    grant = Grant(JobName("j"), TaskName("Partition 0"), StageName("s"), Generation(1), Lineage("l"), RunId("r"), {})
    system.append(grant, rows, 0, "mid", {}, partitions=2)
    before = log.latest("mid")
    system.append(grant, rows, 1, "mid", {}, ready=lambda: log.grow("mid", 4), partitions=2)  # `sluice streams grow mid --partitions 4`
    assert log.latest("mid") == {0: 2 * before[0], 1: 2 * before[1], 2: 0, 3: 0}
