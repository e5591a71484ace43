"""`--start drained`, when the records of an intermediate stream at the drained offsets have been trimmed: the run that followed the drain
has read them, and `log_retention_seconds` have passed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from containers.spark.systems.log_source import LogStreamReader
from coordinator.runs.trim import TrimStreams
from tests.integration.coordinator.test_chores import fill
from tests.support.api import UNSAVED, Caller, Drained, chained_body, offsets_json, offsets_of, turn
from tests.support.fakes import FakeClock


@pytest.mark.parametrize("mode", ["DEFAULT", "KEEP_STATE"])
async def test_a_job_returns_to_the_drained_offsets_after_its_next_version_has_run_for_hours(
    caller: Caller, clock: FakeClock, home: Path, mode: str
) -> None:
    body = chained_body(2, **UNSAVED)
    run = Drained(caller, str((await caller.deploy(body))["runId"]))
    await caller.registered(run.run_id, "c1", drainModes=["DEFAULT", "KEEP_STATE"])
    for task in (0, 1):
        await caller.acquired(run.run_id, "c1", task=f"Partition {task}")
    await run.requested(drainMode=mode)
    # no task has run a batch yet, so that all state is empty in both modes
    for step in ("stopped", "flushed", "committed"):
        for stage, stream in (("route", "flights"), ("hourly", "by-carrier")):
            for task in (0, 1):
                phase = await run.phase_after(step, task, stage, batchId=None, offsets=offsets_json({(stream, task): 0}))
    assert phase == "DRAINED"
    await caller.exited("c1")

    # the next version runs for two hours, and writes and reads 10 records
    after = str((await caller.deploy(body))["runId"])
    epoch = (await caller.registered(after, "d1", drainModes=["DEFAULT", "KEEP_STATE"]))["epoch"]
    fill(caller, clock, "by-carrier", 10)
    held = await caller.acquired(after, "d1", epoch)
    (lineage,) = (each["lineage"] for each in held["stages"] if each["stage"] == "hourly")
    answer = await caller.progress(after, held["generation"], lineage, 1, [("by-carrier", 0, 10)])
    assert answer.status_code == 204, answer.text
    clock.advance(2 * 3600)
    await turn(caller, TrimStreams)
    await caller.stop(after)
    await caller.exited("d1")

    again = str((await caller.deploy(body | {"start": "drained"}))["runId"])  # docs/operating.md: `sluice deploy OLDFILE --start drained`
    epoch = (await caller.registered(again, "e1", drainModes=["DEFAULT", "KEEP_STATE"]))["epoch"]
    (stage,) = (each for each in (await caller.acquired(again, "e1", epoch))["stages"] if each["stage"] == "hourly")
    assert stage["batchId"] is None
    assert caller.log.earliest("by-carrier")[0] == 10
    starts = offsets_of(stage["starts"])["by-carrier", 0]
    reader = LogStreamReader({"path": str(home / "log"), "stream": "by-carrier", "starts": json.dumps({"0": starts})})
    assert reader.partitions(reader.initialOffset(), reader.reportLatestOffset()) is not None
    assert starts >= caller.log.earliest("by-carrier")[0]
