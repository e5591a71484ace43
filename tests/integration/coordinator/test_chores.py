"""The chores, each run once by the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, timedelta
from pathlib import Path

import pytest

from coordinator.chores import ChoreScheduler
from coordinator.fleet.expiry import FlushLastSeen
from coordinator.runs.trim import TrimStreams
from coordinator.snapshots.cleanup import CleanUp
from sluice.core.errors import IllegalTransition, StoreUnavailable
from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Record, Writer
from tests.support.api import Caller, Json, calling, chained_body, report_body, turn
from tests.support.api import report as report_snapshot
from tests.support.fakes import FakeClock


def trimming(caller: Caller, clock: FakeClock, keep: float = 60) -> TrimStreams:
    parts = caller.coordinator.api.state.parts
    return TrimStreams(parts.health.store, parts.systems, clock, timedelta(seconds=keep), parts.models.decoded)


def fill(caller: Caller, clock: FakeClock, stream: str, records: int) -> None:
    writer = Writer(Lineage(f"producer of {stream}"), "producer", Generation(1))
    micros = int(clock.now().astimezone(UTC).timestamp() * 1_000_000)
    caller.log.append(stream, [Record(b"x", partition=0)] * records, writer=writer, batch=int(clock.elapsed()), now_micros=micros)


async def report(caller: Caller, run_id: str, stages: Mapping[str, tuple[str, int]], container: str = "c1") -> None:
    """Report for each stage of "Partition 0" which stream it read, and up to which offset."""
    held = await caller.acquired(run_id, container)
    for stage in held["stages"]:
        if stage["stage"] in stages:
            stream, offset = stages[stage["stage"]]
            read = [{"system": "log", "stream": stream, "partition": 0, "offset": offset}]
            body = {"generation": held["generation"], "stage": stage["stage"], "lineage": stage["lineage"], "batchId": 1, "offsets": read}
            answer = await caller.http.post(f"/runs/{run_id}/tasks/Partition 0/progress", json=body)
            assert answer.status_code == 204


async def deployed(caller: Caller, clock: FakeClock, body: Json, container: str = "c1") -> str:
    """A run with a container, and ten old records in its intermediate stream and its input."""
    run_id = str((await caller.deploy(body))["runId"])
    await caller.registered(run_id, container)
    for stream in ("by-carrier", "flights"):
        fill(caller, clock, stream, 10)
    return run_id


async def test_records_that_every_reader_of_an_intermediate_stream_has_committed_are_trimmed_once(caller: Caller, clock: FakeClock) -> None:
    run_id = await deployed(caller, clock, chained_body(2))
    await report(caller, run_id, {"route": ("flights", 10), "hourly": ("by-carrier", 7)})
    clock.advance(3600)
    chore = trimming(caller, clock)
    assert [await chore.run_once(), await chore.run_once()] == [{"trimmed": 7}, {}]
    assert caller.log.earliest("by-carrier")[0] == 7
    assert caller.log.earliest("flights")[0] == 0


async def test_records_that_a_retained_snapshot_needs_are_kept_regardless_of_its_age(caller: Caller, clock: FakeClock) -> None:
    run_id = await deployed(caller, clock, chained_body(2))
    held = await caller.acquired(run_id, "c1")
    (lineage,) = (stage["lineage"] for stage in held["stages"] if stage["stage"] == "hourly")
    read = [{"system": "log", "stream": "by-carrier", "partition": 0, "offset": 4}]
    answer = await report_snapshot(caller, run_id, report_body(1, lineage, batchId=0) | {"offsets": read})
    assert answer.status_code == 200, answer.text
    await report(caller, run_id, {"route": ("flights", 10), "hourly": ("by-carrier", 7)})
    clock.advance(90 * 86_400)
    assert await trimming(caller, clock).run_once() == {"trimmed": 4}


async def kept_records(caller: Caller) -> float:
    """The metric about the intermediate stream."""
    series = 'sluice_stream_kept_records{sluice_job="flight-delays",stream="by-carrier",system="log"} '
    (line,) = [each for each in (await caller.http.get("/metrics")).text.splitlines() if each.startswith(series)]
    return float(line.removeprefix(series))


async def test_records_that_a_pin_without_an_end_keeps_are_shown_and_trimmed_when_it_is_removed(home: Path, clock: FakeClock) -> None:
    async with calling(home, clock, keep_last=1) as caller:
        caller.log.create("flights", 2)
        run_id = await deployed(caller, clock, chained_body(2))
        held = await caller.acquired(run_id, "c1")
        (lineage,) = (stage["lineage"] for stage in held["stages"] if stage["stage"] == "hourly")
        for number, offset in ((1, 4), (2, 7)):
            read = [{"system": "log", "stream": "by-carrier", "partition": 0, "offset": offset}]
            answer = await report_snapshot(caller, run_id, report_body(number, lineage, number - 1 or None, batchId=number, offsets=read))
            assert answer.status_code == 200, answer.text
            if number == 1:
                pin = (await caller.http.post("/jobs/flight-delays/pins", json={"stage": "hourly", "task": "Partition 0"})).json()
        assert pin["expiresAt"] is None
        clock.advance(90 * 86_400)
        await turn(caller, CleanUp)
        await turn(caller, TrimStreams)
        assert (caller.log.earliest("by-carrier")[0], await kept_records(caller)) == (4, 3)
        assert (await caller.http.delete(f"/jobs/flight-delays/pins/{pin['pinId']}")).status_code == 204
        await turn(caller, CleanUp)
        await turn(caller, TrimStreams)
        assert (caller.log.earliest("by-carrier")[0], await kept_records(caller)) == (7, 0)


async def test_no_record_that_a_backed_up_stage_has_read_is_trimmed_before_its_first_snapshot(caller: Caller, clock: FakeClock) -> None:
    run_id = await deployed(caller, clock, chained_body(2))
    held = await caller.acquired(run_id, "c1")
    await report(caller, run_id, {"route": ("flights", 10), "hourly": ("by-carrier", 7)})
    clock.advance(3600)
    chore = replace(trimming(caller, clock), backs_up=lambda run: True)
    assert await chore.run_once() == {}
    (lineage,) = (stage["lineage"] for stage in held["stages"] if stage["stage"] == "hourly")
    read = [{"system": "log", "stream": "by-carrier", "partition": 0, "offset": 7}]
    await report_snapshot(caller, run_id, report_body(1, lineage, batchId=0) | {"offsets": read})
    assert await chore.run_once() == {"trimmed": 7}


async def test_recent_records_are_kept(caller: Caller, clock: FakeClock) -> None:
    run_id = await deployed(caller, clock, chained_body(2))
    await report(caller, run_id, {"hourly": ("by-carrier", 7)})
    assert await trimming(caller, clock).run_once() == {}


async def test_partitions_of_a_stage_that_has_not_reported_are_not_trimmed(caller: Caller, clock: FakeClock) -> None:
    await deployed(caller, clock, chained_body(2))
    clock.advance(3600)
    assert await trimming(caller, clock).run_once() == {}


async def test_a_report_beyond_the_end_trims_nothing_until_an_end_confirms_it(caller: Caller, clock: FakeClock) -> None:
    run_id = await deployed(caller, clock, chained_body(2))
    await report(caller, run_id, {"hourly": ("by-carrier", 12)})
    clock.advance(3600)
    assert await trimming(caller, clock).run_once() == {}
    fill(caller, clock, "by-carrier", 5)
    clock.advance(3600)
    assert await trimming(caller, clock).run_once() == {"trimmed": 12}


async def test_the_report_of_a_removed_stage_does_not_count_for_a_new_one(caller: Caller, clock: FakeClock) -> None:
    run_id = await deployed(caller, clock, chained_body(2))
    await report(caller, run_id, {"hourly": ("by-carrier", 7)})
    await caller.exited("c1")
    body = chained_body(2)
    body["stages"][1]["name"] = "daily"
    await caller.deploy(body)
    clock.advance(3600)
    assert await trimming(caller, clock).run_once() == {}


async def test_the_streams_of_an_ended_run_are_not_trimmed(caller: Caller, clock: FakeClock) -> None:
    run_id = await deployed(caller, clock, chained_body(2))
    await report(caller, run_id, {"hourly": ("by-carrier", 7)})
    await caller.exited("c1")
    await caller.stop(run_id)
    clock.advance(3600)
    assert await trimming(caller, clock).run_once() == {}


def renamed(body: Json, job: str) -> Json:
    """The same job under another name, with an intermediate stream of its own."""
    text = json.dumps(body).replace("by-carrier", f"of-{job}")
    return {**json.loads(text), "job": job}


@pytest.mark.parametrize("trouble", ["deleted", "unreadable"])
async def test_a_stream_that_cannot_be_trimmed_does_not_stop_the_trim_of_other_jobs(
    caller: Caller, clock: FakeClock, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    chore = trimming(caller, clock)
    for job, container in (("a", "c1"), ("z", "c2")):
        run_id = str((await caller.deploy(renamed(chained_body(2), job)))["runId"])
        await caller.registered(run_id, container)
    run_id = await deployed(caller, clock, chained_body(2), "c3")
    await report(caller, run_id, {"route": ("flights", 10), "hourly": ("by-carrier", 7)}, "c3")
    clock.advance(3600)
    for job in ("a", "z"):
        file = caller.log.directory / f"of-{job}.db"
        file.unlink() if trouble == "deleted" else file.write_bytes(b"not a database" * 1000)
    assert [await chore.run_once() for _ in range(2)] == [{"trimmed": 7, "untrimmed": 2}, {"untrimmed": 2}]
    assert sum("cannot trim" in each.message for each in caplog.records) == 2  # once for each stream


async def test_the_time_at_which_a_container_was_last_seen_is_written_once(caller: Caller, clock: FakeClock) -> None:
    run_id = str((await caller.deploy())["runId"])
    await caller.registered(run_id, "c1")
    parts = caller.coordinator.api.state.parts
    chore = FlushLastSeen(parts.health.store, parts.leases, clock)
    clock.advance(10)
    await caller.beat("c1", 1)
    assert [await chore.run_once(), await chore.run_once()] == [{"flushed": 1}, {}]
    (container,) = (await caller.run(run_id))["incarnations"]
    assert container["lastSeenAt"] == clock.now().isoformat().replace("+00:00", "Z")


@dataclass
class FailingChore:
    """A chore that fails in its first runs, each time with another error."""

    name: str = "stumbling"
    every: timedelta = timedelta(0)
    failures: list[Exception] = field(default_factory=lambda: [StoreUnavailable("gone"), ZeroDivisionError()])
    well: asyncio.Event = field(default_factory=asyncio.Event)

    async def run_once(self) -> Mapping[str, int]:
        if self.failures:
            raise self.failures.pop()
        self.well.set()
        return {"done": 1}


@pytest.mark.filterwarnings("ignore")
async def test_a_chore_that_fails_is_counted_and_runs_again() -> None:
    chore = FailingChore()
    async with ChoreScheduler([chore], FakeClock()) as maintenance:
        await chore.well.wait()
        assert maintenance.done["stumbling", "failed"] == 2
        assert maintenance.dead == []
    assert maintenance.dead == ["stumbling"]


@pytest.mark.parametrize(("error", "traceback"), [(IllegalTransition("from here to there"), True), (StoreUnavailable("full"), False)])
async def test_a_bug_in_a_chore_is_logged_with_its_traceback(error: Exception, traceback: bool, caplog: pytest.LogCaptureFixture) -> None:
    chore = FailingChore(failures=[error])
    async with ChoreScheduler([chore], FakeClock()):
        await chore.well.wait()
    (logged,) = (record for record in caplog.records if record.name == "coordinator.chores")
    assert bool(logged.exc_info) is traceback


async def test_a_chore_shows_its_failures_in_succession_its_interval_and_the_time_since_its_last_run() -> None:
    clock, chore = FakeClock(), FailingChore(every=timedelta(hours=1))
    async with ChoreScheduler([chore], clock) as maintenance:
        while not maintenance.turns["stumbling"]:  # noqa: ASYNC110 – nothing is notified when a run ends
            await asyncio.sleep(0)
        clock.advance(90)
        assert (maintenance.failures["stumbling"], maintenance.intervals, maintenance.since_last_run) == (
            1,
            {"stumbling": 3600},
            {"stumbling": 90},
        )
    chore.failures.clear()
    async with ChoreScheduler([chore], clock, pace=2) as maintenance:
        await chore.well.wait()
        while not maintenance.turns["stumbling"]:  # noqa: ASYNC110 – nothing is notified when a run ends
            await asyncio.sleep(0)
        assert (maintenance.failures["stumbling"], maintenance.intervals) == (0, {"stumbling": 7200})
