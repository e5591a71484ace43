"""Caps of watermarks over HTTP: the answers to containers that report the progress of their stages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Log, Record, Writer
from sluice.streams.port import Offsets
from tests.support.api import Caller, Json, calling, chained_body
from tests.support.fakes import FakeClock

NOON = "2026-03-01T12:00:00Z"


class Fleet:
    """A job of two tasks on two containers, each with ten records to read: flights -> route -> by-carrier -> hourly -> delays."""

    def __init__(self, caller: Caller, clock: FakeClock, run_id: str) -> None:
        self.caller = caller
        self.clock = clock
        self.run_id = run_id
        self.generations: dict[int, int] = {}
        self.lineages: dict[tuple[int, str], str] = {}
        self.containers: dict[int, tuple[str, int]] = {}

    async def start(self, partition: int, name: str = "", epoch: int = 1) -> None:
        name = name or f"c{partition}"
        await self.caller.registered(self.run_id, name, slot=str(partition))
        self.containers[partition] = (name, epoch)
        acquired = await self.caller.acquired(self.run_id, name, epoch, task=f"Partition {partition}")
        self.generations[partition] = acquired["generation"]
        self.lineages |= {(partition, each["stage"]): each["lineage"] for each in acquired["stages"]}

    async def let_pass(self, seconds: int) -> None:
        """Advance the clock, less than a lease at a time. The containers renew their leases meanwhile."""
        for passed in range(0, seconds, 10):
            for name, epoch in self.containers.values():
                assert await self.caller.alive(name, epoch)
            self.clock.advance(min(10, seconds - passed))

    def stage(self, partition: int, name: str, minute: int | None = None, **more: Any) -> Json:
        at = None if minute is None else f"2013-01-01T12:{minute:02}:00Z"
        source = None if minute is None else "column"
        return {
            "task": f"Partition {partition}",
            "generation": self.generations.get(partition, 1),
            "stage": name,
            "eventTime": at,
            "source": source,
            **more,
        }

    async def say(self, *stages: Json) -> Json:
        self.clock.advance(2)
        answer = await self.caller.http.post(f"/runs/{self.run_id}/watermarks", json={"stages": stages})
        assert answer.status_code == 200, answer.text
        return answer.json()  # type: ignore[no-any-return]

    async def at(self, partition: int, minute: int | None = None, **more: Any) -> Any:
        """The answer to the container of that partition's reader, which reports both stages: the steps, and the tasks that hold them."""
        reply = await self.say(self.stage(partition, "route", minute, **more), self.stage(partition, "hourly"))
        (hourly,) = reply["stages"]
        assert (hourly["task"], hourly["stage"]) == (f"Partition {partition}", "hourly")
        (stream,) = hourly["streams"]
        assert stream["stream"] == "by-carrier"
        ends = [
            (step["eventTime"] and step["eventTime"][14:16], {each["partition"]: each["offset"] for each in step["ends"]})
            for step in stream["steps"]
        ]
        return ends, stream["heldBy"]

    async def batch(
        self, partition: int, offset: int, number: int = 0, stage: str = "route", stream: str = "flights", metrics: Json | None = None
    ) -> None:
        body = {
            "generation": self.generations[partition],
            "stage": stage,
            "lineage": self.lineages[partition, stage],
            "batchId": number,
            "offsets": [{"system": "log", "stream": stream, "partition": partition, "offset": offset}],
            "metrics": metrics,
        }
        answer = await self.caller.http.post(f"/runs/{self.run_id}/tasks/Partition {partition}/progress", json=body)
        assert answer.status_code == 204, answer.text

    async def drops(self, rows: int, number: int) -> None:
        """With that batch, the reader of partition 0 has dropped that many rows as late since it started."""
        metrics = {"rows": 0, "rowsPerSecond": 0, "batchMillis": 1, "at": NOON, "lateRows": rows, "lateRowsAt": NOON}
        await self.batch(0, 0, number, stage="hourly", stream="by-carrier", metrics=metrics)

    def write(self, partition: int, count: int, batch: int) -> None:
        """Records of the stage `route` of that task, half of them in each partition of by-carrier."""
        records = [Record(b"x", partition=n % 2) for n in range(count)]
        self.caller.log.append(
            "by-carrier", records, writer=Writer(Lineage(f"r{partition}"), f"r{partition}", Generation(1)), batch=batch, now_micros=1
        )


async def new_fleet(caller: Caller, clock: FakeClock) -> Fleet:
    """Only the first container has started, and owns its task."""
    records = [Record(b"x", partition=n % 2) for n in range(20)]
    caller.log.create("flights", 2)
    caller.log.append("flights", records, writer=Writer(Lineage("f"), "f", Generation(1)), batch=0, now_micros=1)
    run_id = str((await caller.deploy(chained_body(partitions=2, containers=2, start="earliest")))["runId"])
    made = Fleet(caller, clock, run_id)
    await made.start(0)
    return made


@pytest.fixture
async def fleet(tmp_path: Path, clock: FakeClock) -> AsyncIterator[Fleet]:
    async with calling(tmp_path, clock) as caller:
        yield await new_fleet(caller, clock)


async def test_the_watermark_stays_while_a_container_with_something_to_read_has_not_started(fleet: Fleet) -> None:
    assert await fleet.at(0, 30) == ([], ["Partition 1/route"])
    await fleet.start(1)
    assert await fleet.at(0, 30) == ([], ["Partition 1/route"]), "its container is there, and was not heard"
    assert await fleet.at(1) == ([], ["Partition 1/route"]), "it was heard, and has not committed a batch"


async def test_the_least_progress_applies_from_the_ends_of_the_stream_at_that_time(fleet: Fleet) -> None:
    await fleet.start(1)
    fleet.write(0, 6, batch=0)
    await fleet.at(0, 30)
    assert await fleet.at(1, 10) == ([("10", {1: 3})], [])
    fleet.write(1, 4, batch=0)
    assert await fleet.at(1, 20) == ([("10", {1: 3}), ("20", {1: 5})], [])
    assert await fleet.at(0, 30) == ([("10", {0: 3}), ("20", {0: 5})], []), "each reader has the ends of its own partitions"


async def test_steps_that_every_reader_has_passed_are_removed(fleet: Fleet) -> None:
    await fleet.start(1)
    await fleet.at(0, 30)
    fleet.write(0, 6, batch=0)
    await fleet.at(1, 10)
    fleet.write(1, 4, batch=0)
    await fleet.at(1, 20)
    for partition in (0, 1):
        await fleet.batch(partition, 5, stage="hourly", stream="by-carrier")
    assert (await fleet.at(0, 30))[0] == [("20", {0: 5})]


async def test_a_task_that_has_read_everything_does_not_hold_the_watermark(fleet: Fleet) -> None:
    await fleet.start(1)
    await fleet.at(1, 10)
    await fleet.batch(1, 10)
    assert (await fleet.at(0, 30))[0] == [("30", {0: 0})]
    await fleet.batch(0, 10)
    assert (await fleet.at(0, 40))[0] == [("40", {0: 0})], "and when all have, the newest counts"


async def test_a_task_with_open_windows_holds_the_watermark_although_it_has_read_everything(fleet: Fleet) -> None:
    await fleet.start(1)
    await fleet.at(1, 10, source="watermark", delaySeconds=60, pending=True)
    await fleet.batch(1, 10)
    assert (await fleet.at(0, 30))[0] == [("10", {0: 0})]


async def test_the_progress_of_a_task_that_does_not_read_its_new_partitions_yet_does_not_count(fleet: Fleet) -> None:
    await fleet.start(1)
    await fleet.at(1, 30, partitions=1)
    await fleet.at(0, 30, partitions=1)
    fleet.caller.log.grow("flights", 4)
    answer = await fleet.caller.http.patch(f"/runs/{fleet.run_id}", json={"grow": True})
    assert answer.status_code == 200, answer.text
    records = [Record(b"x", partition=partition) for partition in range(4)]
    fleet.caller.log.append("flights", records, writer=Writer(Lineage("f"), "f", Generation(1)), batch=1, now_micros=1)
    await fleet.at(0, 40, partitions=2)
    assert await fleet.at(1, 50, partitions=1) == ([("30", {1: 0})], ["Partition 1/route"]), "its query does not read Partition 3 yet"
    assert await fleet.at(1, None, partitions=2) == ([("30", {1: 0})], ["Partition 1/route"])
    assert await fleet.at(1, 35, partitions=2) == ([("35", {1: 0})], [])


class Behind:
    """A stream system whose metadata does not list the partitions beyond the first two yet, as that of a Kafka broker after growth."""

    def __init__(self, log: Log) -> None:
        self._log = log

    async def latest(self, stream: str) -> Offsets:
        return {partition: end for partition, end in self._log.latest(stream).items() if partition < 2}

    async def close(self) -> None:
        """Nothing to close."""


async def test_a_partition_whose_end_is_unknown_counts_as_unread(fleet: Fleet) -> None:
    await fleet.start(1)
    await fleet.at(1, 30, partitions=1)
    await fleet.at(0, 30, partitions=1)
    for partition in (0, 1):
        await fleet.batch(partition, 10)
    fleet.caller.log.grow("flights", 4)
    assert (await fleet.caller.http.patch(f"/runs/{fleet.run_id}", json={"grow": True})).status_code == 200
    records = [Record(b"x", partition=partition) for partition in (2, 3)]
    fleet.caller.log.append("flights", records, writer=Writer(Lineage("f"), "f", Generation(1)), batch=1, now_micros=1)
    fleet.caller.coordinator.api.state.parts.systems["log"] = Behind(fleet.caller.log)
    await fleet.at(0, 50, partitions=2)
    assert await fleet.at(0, 50, partitions=2) == ([("30", {0: 0})], ["Partition 1/route"])


async def test_the_cap_does_not_change_when_a_container_ends_until_its_successor_reports(fleet: Fleet) -> None:
    await fleet.start(1)
    await fleet.at(0, 30)
    await fleet.at(1, 10)
    await fleet.caller.exited("c1")
    assert await fleet.at(0, 30) == ([("10", {0: 0})], ["Partition 1/route"])
    await fleet.start(1, "c1-again", epoch=2)
    assert await fleet.at(0, 40) == ([("10", {0: 0})], ["Partition 1/route"])
    await fleet.at(1, 12)
    assert (await fleet.at(0, 40))[0][-1] == ("12", {0: 0})


async def test_a_stage_that_was_reported_by_a_former_owner_is_refused(fleet: Fleet) -> None:
    await fleet.start(1)
    await fleet.caller.exited("c1")
    await fleet.start(1, "c1-again", epoch=2)
    await fleet.at(0, 30)
    old = fleet.stage(1, "route", 50) | {"generation": 1}
    reply = await fleet.say(old)
    assert reply == {"stages": [], "refused": [{"task": "Partition 1", "stage": "route", "generation": 1}]}
    assert (await fleet.at(0, 30))[1] == ["Partition 1/route"]


async def test_after_a_stage_without_event_time_the_watermark_waits_for_old_unread_records(fleet: Fleet) -> None:
    await fleet.start(1)
    for partition in (0, 1):
        await fleet.at(partition, source="none")
    assert await fleet.at(0, source="none") == ([], ["Partition 0/route", "Partition 1/route"])
    await fleet.batch(0, 10)
    await fleet.let_pass(30)
    await fleet.at(0, source="none")
    assert await fleet.at(0, source="none") == ([], ["Partition 1/route"])
    await fleet.batch(1, 10)
    steps, held_by = await fleet.at(0, source="none")
    assert (steps, held_by) == ([(None, {0: 0})], [])


async def test_after_a_restart_of_the_coordinator_there_is_no_step_until_all_tasks_have_reported(tmp_path: Path, clock: FakeClock) -> None:
    async with calling(tmp_path, clock) as caller:
        fleet = await new_fleet(caller, clock)
        await fleet.start(1)
        await fleet.at(0, 30)
        assert (await fleet.at(1, 10))[0] == [("10", {1: 0})]
    async with calling(tmp_path, clock) as caller:
        fleet.caller = caller
        assert await fleet.at(0, 31) == ([], ["Partition 1/route"])
        assert (await fleet.at(1, 11))[0] == [("11", {1: 0})]


async def test_reports_of_an_unknown_run_and_of_unknown_stages_change_nothing(fleet: Fleet) -> None:
    answer = await fleet.caller.http.post("/runs/lost/watermarks", json={"stages": []})
    assert answer.status_code == 404
    reply = await fleet.say(fleet.stage(0, "lost"), {**fleet.stage(0, "route"), "task": "Partition 9"})
    assert {(each["task"], each["stage"]) for each in reply["refused"]} == {("Partition 0", "lost"), ("Partition 9", "route")}


async def test_a_run_shows_which_task_holds_the_watermark_and_why(fleet: Fleet) -> None:
    await fleet.at(0, 30)
    assert await watermark_of(fleet) == (None, None, ["Partition 1/route: no container owns it"])
    await fleet.start(1)
    await fleet.at(0, 30)
    assert (await watermark_of(fleet))[2] == ["Partition 1/route: its container has not reported it yet"]
    await fleet.at(1)
    assert (await watermark_of(fleet))[2] == ["Partition 1/route: it has records to read, and has committed no batch since it started"]
    await fleet.at(1, 10)
    assert await watermark_of(fleet) == ("10", 1200.0, ["Partition 1/route: it is at 2013-01-01 12:10:00"])
    series = (await fleet.caller.http.get("/metrics")).text
    await fleet.caller.coordinator.api.state.parts.lag.run_once()
    series = (await fleet.caller.http.get("/metrics")).text
    labels = '{holder="Partition 1/route",sluice_job="flight-delays",stream="log.by-carrier"}'
    assert f"sluice_watermark_lag_seconds{labels} 1200.0" in series
    assert f"sluice_watermark_held_seconds{labels} 0.0" in series
    await fleet.at(0, 40)
    (found,) = (await fleet.caller.run(fleet.run_id))["watermarks"]
    assert found["heldSeconds"] == 2.0


async def watermark_of(fleet: Fleet) -> tuple[str | None, float | None, list[str]]:
    """The minute, the lag, and the task that holds it."""
    (found,) = (await fleet.caller.run(fleet.run_id))["watermarks"]
    holders = [f"{each['task']}/{each['stage']}: {each['why']}" for each in found["heldBy"]]
    return found["eventTime"] and found["eventTime"][14:16], found["lagSeconds"], holders


async def test_status_and_plan_name_a_stage_without_event_time(fleet: Fleet) -> None:
    await fleet.at(0, source="none")
    (reply,) = (await fleet.caller.run(fleet.run_id))["missingEventTimes"]
    assert reply.startswith("stage route writes by-carrier without a watermark or an event-time column: ")
    plan = (await fleet.caller.http.post("/jobModel/plan", json={"job": "flight-delays"})).json()
    assert reply in plan["warnings"]


async def test_dropped_rows_are_added_up_and_those_of_a_task_that_was_given_up_are_counted_separately(
    tmp_path: Path, clock: FakeClock
) -> None:
    async with calling(tmp_path, clock, idle_feeder_seconds=60) as caller:
        fleet = await new_fleet(caller, clock)
        await fleet.start(1)
        await fleet.at(1, 10)
        await fleet.at(0, 30)
        await fleet.drops(3, number=0)
        assert await late_rows_of(fleet) == (3, 0)
        await fleet.let_pass(61)
        await fleet.at(0, 40)
        assert (await watermark_of(fleet))[0] == "40", "the other is waited for no longer"
        await fleet.drops(10, number=1)
        await fleet.drops(10, number=1)
        assert await late_rows_of(fleet) == (10, 7)


async def test_a_task_whose_windows_stay_open_is_also_given_up(tmp_path: Path, clock: FakeClock) -> None:
    async with calling(tmp_path, clock, idle_feeder_seconds=60) as caller:
        fleet = await new_fleet(caller, clock)
        await fleet.start(1)
        open_windows = {"source": "watermark", "pending": True}
        await fleet.at(1, 10, **open_windows)
        await fleet.batch(1, 10)
        await fleet.at(0, 30)
        assert (await watermark_of(fleet))[0] == "10"
        await fleet.let_pass(61)
        await fleet.at(1, 10, **open_windows)
        await fleet.at(0, 40)
        assert (await watermark_of(fleet))[0] == "40", "it has read everything, and nothing will close its windows"
        await fleet.drops(5, number=0)
        assert await late_rows_of(fleet) == (5, 5)


async def test_dropped_rows_including_those_of_former_owners_are_known_after_a_restart_of_the_coordinator(
    tmp_path: Path, clock: FakeClock
) -> None:
    async with calling(tmp_path, clock, idle_feeder_seconds=60) as caller:
        fleet = await new_fleet(caller, clock)
        await fleet.start(1)
        await fleet.at(1, 10)
        await fleet.drops(3, number=0)
        await fleet.caller.exited("c0")
        await fleet.start(0, "c0-again", epoch=2)
        await fleet.let_pass(61)
        await fleet.at(0, 40)
        await fleet.drops(2, number=1)
        assert await late_rows_of(fleet) == (5, 2)
    async with calling(tmp_path, clock) as caller:
        fleet.caller = caller
        await caller.coordinator.api.state.parts.lag.run_once()
        assert await late_rows_of(fleet) == (5, 2)
        await fleet.drops(2, number=1)
        assert await late_rows_of(fleet) == (5, 2), "it was counted before"
        await fleet.drops(4, number=2)
        assert await late_rows_of(fleet) == (7, 4)
    async with calling(tmp_path, clock) as caller:
        fleet.caller = caller
        await fleet.drops(5, number=3)
        assert await late_rows_of(fleet) == (8, 5), "a report came first"


async def late_rows_of(fleet: Fleet) -> tuple[int, int]:
    stages = (await fleet.caller.run(fleet.run_id))["tasks"][0]["stages"]
    (hourly,) = [each for each in stages if each["stage"] == "hourly"]
    return hourly["lateRows"], hourly["lateRowsGivenUp"]
