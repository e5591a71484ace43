"""Agents that adopt versions of their run's job model, with a real coordinator and real blob stores, and a fake engine."""

from __future__ import annotations

import itertools
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from containers.supervision.exit_report import EXIT_FAILED, EXIT_OK
from sluice import Job
from sluice.core.ids import RunId, TaskName
from tests.support.agents import Incarnation, Place, acting, counting, place
from tests.support.backups import BACKED_UP, NEVER, disk_of, stopped
from tests.support.engines import DiskEngine, FakeQuery, soon
from tests.support.virtual_time import Gate

HERE: dict[str, Any] = {**BACKED_UP, "failover_after_seconds": 0}


def joining() -> Job:
    """A stage that reads both inputs, and one that reads its output."""
    job = Job("delays")
    both, mid, out = [job.input("in"), job.input("other")], job.intermediate("mid", partitions=2), job.output("out")
    job.stage(reads=both, writes=mid, name="join")(lambda task: None)  # type: ignore[arg-type, return-value]
    job.stage(reads=mid, writes=out, name="total")(lambda task: None)  # type: ignore[arg-type, return-value]
    return job


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Place]:
    async with place(tmp_path / "home", **HERE) as made:
        made.log.create("other", 2)
        yield made


def start(there: Place, run_id: RunId, name: str, slot: str = "0", job: Job | None = None, **settings: Any) -> Incarnation:
    """Start a container whose disk belongs to its slot."""
    root = there.home.parent / f"disk{slot}"
    return there.start(run_id, name, slot, engine=DiskEngine(root=root), job=job or counting(), state_dir=root, **{**NEVER, **settings})


async def patched(there: Place, run_id: RunId, **body: Any) -> int:
    """Change the run's job model. Returns its new version."""
    async with httpx.AsyncClient(transport=there.app, base_url="http://c") as http:
        answer = await http.patch(f"/runs/{run_id}", json=body)
        assert answer.status_code == 200, answer.text
        return int(answer.json()["version"])


async def grown(there: Place, run_id: RunId, **partitions: int) -> int:
    for stream, count in partitions.items():
        there.log.grow(stream, count)
    return await patched(there, run_id, grow=True)


async def all_on(there: Place, run_id: RunId) -> int | None:
    adoption = (await there.run(run_id)).adoption
    assert adoption is not None
    return adoption.all_on


def reads(query: FakeQuery) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for ssp in sorted(query.start.starts):
        found.setdefault(ssp.stream, []).append(ssp.partition)
    return found


# --- growth ----------------------------------------------------------------------------------------------------------


async def test_new_partitions_are_read_by_the_tasks_that_have_their_keys_and_the_stores_of_these_tasks_continue(there: Place) -> None:
    run_id = await there.deploy(job=counting())
    container = start(there, run_id, "c1")
    disk, first = disk_of(container), await acting(container.engine, 2)
    zero = first["Partition 0/hourly"]
    await disk.runs(zero, 0, {0: 5})
    for version, count in ((2, 4), (3, 8)):
        assert await grown(there, run_id, **{"in": count}) == version
        queries = await acting(container.engine, 2)
        for task in (0, 1):
            query = queries[f"Partition {task}/hourly"]
            assert reads(query) == {"in": list(range(task, count, 2))}
            assert query.start.generation == first[f"Partition {task}/hourly"].start.generation
            assert query.start.lineage == first[f"Partition {task}/hourly"].start.lineage
        zero = queries["Partition 0/hourly"]
        await disk.runs(zero, version - 1, dict.fromkeys(range(0, count, 2), 5 + version))
        await container.wire.after("adopted", version - 1)
        assert await all_on(there, run_id) == version
    assert [batch for batch, _ in disk.outputs["Partition 0/hourly"]] == [0, 1, 2]
    assert len(container.engine.acting) == 2
    await stopped(container)
    stages = {task.task: task.stages[0] for task in (await there.run(run_id)).tasks}
    assert {each.partition: each.offset for each in stages["Partition 0"].offsets} == {0: 8, 2: 8, 4: 8, 6: 8}


async def test_new_partitions_are_read_from_where_they_began_when_the_version_was_made(there: Place) -> None:
    run_id = await there.deploy(job=counting())
    container = start(there, run_id, "c1")
    await acting(container.engine, 2)
    there.log.grow("in", 4)
    there.log.trim("in", {2: 0})
    await grown(there, run_id)
    again = await acting(container.engine, 2)
    assert {ssp.partition: offset for ssp, offset in again["Partition 0/hourly"].start.starts.items()} == {0: 0, 2: 0}


async def test_the_report_of_a_version_that_the_database_has_lost_is_sent_again(there: Place) -> None:
    """As after the restore of an older copy, or a fail-over to a replica that had not received the last commits."""
    run_id = await there.deploy(job=counting())
    container = start(there, run_id, "c1")
    await acting(container.engine, 2)
    await grown(there, run_id, **{"in": 4})
    await container.wire.after("adopted")
    async with there.parts.health.store.engine.begin() as connection:
        await connection.exec_driver_sql("UPDATE containers SET model_version = 1")
    assert await all_on(there, run_id) == 1
    await there.parts.registrations.resynchronise()
    await container.wire.after("adopted", 2)
    assert await all_on(there, run_id) == 2


async def test_only_the_stages_that_read_the_stream_start_again(there: Place) -> None:
    run_id = await there.deploy(job=counting(2))
    container = start(there, run_id, "c1", job=counting(2))
    first = await acting(container.engine, 4)
    await grown(there, run_id, other=4)
    again = await acting(container.engine, 2)
    assert {query: reads(each) for query, each in again.items()} == {
        "Partition 0/daily": {"other": [0, 2]},
        "Partition 1/daily": {"other": [1, 3]},
    }
    await container.wire.after("adopted")
    assert [name for name, query in sorted(first.items()) if query.stopped] == ["Partition 0/daily", "Partition 1/daily"]


async def test_a_stage_that_joins_two_streams_gets_a_longer_list_of_each(there: Place) -> None:
    run_id = await there.deploy(job=joining())
    container = start(there, run_id, "c1", job=joining())
    first = await acting(container.engine, 4)
    await grown(there, run_id, **{"in": 4, "other": 4})
    again = await acting(container.engine, 2)
    assert reads(again["Partition 1/join"]) == {"in": [1, 3], "other": [1, 3]}
    await container.wire.after("adopted")
    assert not first["Partition 1/total"].stopped
    assert await all_on(there, run_id) == 2


async def test_a_version_without_a_notice_is_noticed_by_heartbeats(there: Place) -> None:
    run_id = await there.deploy(job=counting())
    deaf = there.new_wire()
    deaf.hold("/notices")
    root = there.home.parent / "disk0"
    container = there.start(run_id, "c1", engine=DiskEngine(root=root), job=counting(), state_dir=root, wire=deaf)
    await acting(container.engine, 2)
    await grown(there, run_id, **{"in": 4})
    assert reads((await acting(container.engine, 2))["Partition 0/hourly"]) == {"in": [0, 2]}


async def test_a_version_that_is_created_while_another_one_is_adopted_is_adopted_next(there: Place) -> None:
    run_id = await there.deploy(job=counting())
    container = start(there, run_id, "c1")
    await acting(container.engine, 2)
    held = container.wire.hold("/acquire")
    await grown(there, run_id, **{"in": 4})
    await soon(container.wire.held.wait())
    await grown(there, run_id, **{"in": 8})
    held.set()
    last: dict[str, list[int]] = {}
    while last != {"in": list(range(0, 8, 2))}:
        query = await container.engine.started()
        last = reads(query) if query.start.task == "Partition 0" else last
    await container.wire.after("adopted", 2)
    assert await all_on(there, run_id) == 3
    assert len(container.engine.acting) == 2


async def test_a_container_that_gets_a_version_late_starts_with_the_one_after_it_and_logs_that(there: Place) -> None:
    run_id = await there.deploy(job=counting())
    wire = there.new_wire()
    held = wire.hold("/containers")
    root = there.home.parent / "disk0"
    container = there.start(run_id, "c1", engine=DiskEngine(root=root), job=counting(), state_dir=root, wire=wire)
    await soon(wire.held.wait())
    await grown(there, run_id, **{"in": 4})
    held.set()
    assert reads((await acting(container.engine, 2))["Partition 1/hourly"]) == {"in": [1, 3]}
    await wire.after("adopted")
    assert await all_on(there, run_id) == 2


# --- moves -----------------------------------------------------------------------------------------------------------


async def four_tasks(there: Place, containers: int = 1) -> RunId:
    there.log.grow("in", 4)
    return await there.deploy(containers, job=counting())


async def test_tasks_move_with_their_state_when_a_run_is_scaled_up_and_down(there: Place) -> None:
    run_id = await four_tasks(there)
    zero = start(there, run_id, "c0")
    queries = await acting(zero.engine, 4)
    for number, query in enumerate(queries.values()):
        for batch in range(number + 1):
            await disk_of(zero).runs(query, batch, {number: batch + 1})
    state = {name: disk_of(zero).state(query.start) for name, query in queries.items()}

    assert await patched(there, run_id, containers=3) == 2
    others = [start(there, run_id, "c1", "1"), start(there, run_id, "c2", "2")]
    moved = {**await acting(others[0].engine, 1), **await acting(others[1].engine, 1)}
    await zero.wire.after("adopted")
    assert await all_on(there, run_id) == 2
    assert len(zero.engine.acting) == 2
    for container in others:
        for name in container.engine.acting:
            assert disk_of(container).state(moved[name].start) == state[name]
            assert moved[name].start.generation == 2
            assert disk_of(container).outputs == {}
    for name, query in moved.items():
        await disk_of(others[0] if name in others[0].engine.acting else others[1]).runs(query, len(state[name]), {0: 100})

    (name,) = others[1].engine.acting
    remaining = (zero, others[0])
    assert await patched(there, run_id, containers=2) == 3
    assert (await others[1].ending()).reason == "the slot no longer exists: the run has 2 containers"
    assert (await others[1].ending()).exit_code == EXIT_OK
    for container in remaining:
        await container.wire.after("adopted", 2 if container is zero else 1)
    assert await all_on(there, run_id) == 3
    slot, _ = (await there.client.job_model("delays")).model.task(TaskName(name.partition("/")[0])) or ("", None)
    taker = remaining[int(slot)]
    query = await taker.engine.started()
    assert query.start.query == name
    assert query.start.generation == 3
    assert sorted(disk_of(taker).state(query.start)) == list(range(len(state[name]) + 1))
    assert await all_on(there, run_id) == 3


async def test_a_task_that_moves_within_a_host_continues_with_its_disk(there: Place) -> None:
    run_id = await four_tasks(there)
    zero = start(there, run_id, "c0")
    for query in (await acting(zero.engine, 4)).values():
        await disk_of(zero).runs(query, 0, {0: 1})
    await patched(there, run_id, containers=2)
    root = disk_of(zero).root
    one = there.start(run_id, "c1", "1", engine=DiskEngine(root=root), job=counting(), state_dir=root)
    for query in (await acting(one.engine, 2)).values():
        assert list(disk_of(one).state(query.start)) == [0]
        assert query.start.replay == {}
    restored = [meter.restore for meter in one.agent._backups.meters.values()]
    assert [each.done_files for each in restored] == [0, 0]
    await zero.wire.after("adopted")
    assert {task for task, _ in zero.agent._backups.meters} == {"Partition 0", "Partition 1"}


async def test_no_query_of_a_task_starts_before_its_former_container_has_stopped_and_committed_it(there: Place) -> None:
    run_id = await four_tasks(there)
    go_on = Gate()
    zero = start(there, run_id, "c0")
    queries = await acting(zero.engine, 4)
    zero.engine.on_stop = lambda query, forced: go_on.wait()
    await patched(there, run_id, containers=2)
    one = start(there, run_id, "c1", "1")
    await one.wire.after("acquire", 2)
    assert one.engine.queries == []
    adoption = (await there.run(run_id)).adoption
    assert adoption is not None
    assert [each.execution_container_id for each in adoption.outdated] == ["c0"]
    mover = queries[next(each for each in zero.engine.acting if each.startswith("Partition 3"))]
    await disk_of(zero).runs(mover, 0, {3: 7})  # the batch for which the stop waits
    go_on.open()
    taken = await acting(one.engine, 2)
    assert disk_of(one).state(taken[mover.start.query].start) == disk_of(zero).state(mover.start)
    await zero.wire.after("adopted")
    assert await all_on(there, run_id) == 2


async def test_a_release_whose_answer_is_lost_ends_no_container_although_the_next_owner_has_the_task(there: Place) -> None:
    run_id = await four_tasks(there)
    zero = start(there, run_id, "c0")
    await acting(zero.engine, 4)
    broken = zero.wire.break_after("/release")
    await patched(there, run_id, containers=2)
    one = start(there, run_id, "c1", "1")
    await acting(one.engine, 2)
    broken.set()
    await zero.wire.after("adopted")
    assert await all_on(there, run_id) == 2
    assert (zero.lost, len(zero.engine.acting), len(one.engine.acting)) == ([], 2, 2)


async def test_an_adoption_is_reported_after_an_outage_of_the_coordinator(there: Place) -> None:
    run_id = await four_tasks(there)
    zero = start(there, run_id, "c0")
    await acting(zero.engine, 4)

    def stop(query: FakeQuery, forced: threading.Event) -> bool:
        zero.wire.cut = True
        return True

    zero.engine.on_stop = stop
    await patched(there, run_id, containers=2)
    await zero.wire.after("unreachable", 2)
    assert set((await there.holders(run_id)).values()) == {"c0"}
    zero.wire.cut = False
    await zero.wire.after("adopted")
    assert sorted((await there.holders(run_id)).items())[0] == ("Partition 0", "c0")
    assert await all_on(there, run_id) == 2


async def test_a_container_whose_query_does_not_stop_ends_so_that_its_tasks_can_move(there: Place) -> None:
    run_id = await four_tasks(there)
    zero = start(there, run_id, "c0")
    await acting(zero.engine, 4)

    def stop(query: FakeQuery, forced: threading.Event) -> bool:
        if not query.start.query.startswith("Partition 3"):
            return True
        raise RuntimeError("Py4J has gone mad")

    zero.engine.on_stop = stop
    await patched(there, run_id, containers=2)
    ending = await zero.ending()
    assert ending.exit_code == EXIT_FAILED
    assert "Partition 3/hourly did not stop within" in ending.reason
    assert (await there.holders(run_id))["Partition 3"] == "c0"  # until its process is known to have ended


async def test_the_successor_of_a_container_killed_between_its_stop_and_its_release_runs_the_new_version(there: Place) -> None:
    run_id = await four_tasks(there)
    zero = start(there, run_id, "c0")
    queries = await acting(zero.engine, 4)
    for query in queries.values():
        await disk_of(zero).runs(query, 0, {0: 1})
    held = zero.wire.hold("/snapshots")
    await patched(there, run_id, containers=2)
    await soon(zero.wire.held.wait())
    zero.life.cancel()
    held.set()
    one = start(there, run_id, "c1", "1")
    again = start(there, run_id, "c0b")
    there.clock.advance(60)
    assert len(await acting(again.engine, 2)) == 2
    taken = await acting(one.engine, 2)
    for name, query in taken.items():
        assert disk_of(one).state(query.start) == disk_of(zero).state(queries[name].start)
    assert sorted([*again.engine.acting, *one.engine.acting]) == sorted(queries)


async def test_a_task_that_moves_again_before_it_was_acquired_is_released(there: Place) -> None:
    run_id = await four_tasks(there)
    zero = start(there, run_id, "c0")
    await acting(zero.engine, 4)
    go_on = Gate()
    zero.engine.on_stop = lambda query, forced: go_on.wait()
    await patched(there, run_id, containers=2)
    one = start(there, run_id, "c1", "1")
    await one.wire.after("acquire", 2)
    await patched(there, run_id, containers=1)
    go_on.open()
    assert (await one.ending()).exit_code == EXIT_OK
    assert one.engine.queries == []
    for reports in itertools.count(1):
        await zero.wire.after("adopted", reports)
        if await all_on(there, run_id) == 3:  # version 2 may be adopted before
            break
    while len(zero.engine.acting) < 4:
        await zero.engine.started()
    assert set((await there.holders(run_id)).values()) == {"c0"}


async def test_a_model_that_changes_before_a_task_is_acquired_is_read_again(there: Place) -> None:
    run_id = await four_tasks(there, containers=2)
    wire = there.new_wire()
    held = wire.hold("/jobModel")
    root = there.home.parent / "disk0"
    zero = there.start(run_id, "c0", engine=DiskEngine(root=root), job=counting(), state_dir=root, wire=wire)
    await soon(wire.held.wait())
    await patched(there, run_id, containers=1)
    held.set()
    await acting(zero.engine, 4)
    assert set((await there.holders(run_id)).values()) == {"c0"}


async def passing(there: Place, seconds: int, *alive: Incarnation) -> None:
    """Advance the clock while these containers send heartbeats."""
    for _ in range(seconds // 10):
        beats = [each.wire.answered["containerHeartbeat"] for each in alive]
        there.clock.advance(10)
        for each, before in zip(alive, beats, strict=True):
            await each.wire.after("containerHeartbeat", before + 2)


async def test_tasks_of_a_lost_container_are_taken_over_and_given_back_when_its_slot_has_a_container_again(tmp_path: Path) -> None:
    async with place(tmp_path / "home", **{**BACKED_UP, "failover_after_seconds": 60}) as there:
        run_id = await four_tasks(there, containers=2)
        zero, one = start(there, run_id, "c0"), start(there, run_id, "c1", "1", commit_interval_seconds=0)
        await acting(zero.engine, 2)
        lost = await acting(one.engine, 2)
        for name, query in lost.items():
            await disk_of(one).runs(query, 0, {int(name[10]): 3})
        one.life.cancel()
        while len(zero.engine.acting) < 4:  # the coordinator checks once a second
            await passing(there, 10, zero)
        taken = await acting(zero.engine, 2)
        assert taken.keys() == lost.keys()
        for name, query in taken.items():
            assert disk_of(zero).state(query.start) == disk_of(one).state(lost[name].start)
        await zero.wire.after("adopted")

        back = start(there, run_id, "c1b", "1")
        await back.wire.after("containerHeartbeat", 2)
        assert back.engine.queries == []
        while len(back.engine.acting) < 2:
            await passing(there, 10, zero, back)
        assert (await acting(back.engine, 2)).keys() == lost.keys()
        assert all(query.stopped for query in taken.values())
        await back.wire.after("adopted")
        assert len(set((await there.holders(run_id)).values())) == 2


# --- during drains and stops -----------------------------------------------------------------------------------------


async def request(there: Place, method: str, path: str, **body: Any) -> dict[str, Any]:
    async with httpx.AsyncClient(transport=there.app, base_url="http://c") as http:
        answer = await http.request(method, path, json=body or None)
        assert answer.status_code < 300, answer.text
        found: dict[str, Any] = answer.json() if answer.content else {}
        return found


async def test_a_drain_that_begins_before_a_version_was_adopted_is_completed_with_the_tasks_as_they_are(there: Place) -> None:
    run_id = await four_tasks(there)
    zero = start(there, run_id, "c0")
    for query in (await acting(zero.engine, 4)).values():
        await disk_of(zero).runs(query, 0, {0: 1})
    held = zero.wire.hold("/jobModel")
    await patched(there, run_id, containers=2)
    await soon(zero.wire.held.wait())
    one = start(there, run_id, "c1", "1")
    await one.wire.after("acquire")
    uuid = (await request(there, "POST", "/drain", runId=run_id, drainMode="DEFAULT"))["uuid"]
    await zero.wire.after("drain")
    held.set()
    assert (await zero.ending()).exit_code == EXIT_OK
    assert (await one.ending()).exit_code == EXIT_OK
    assert await there.state(run_id) == "DRAINED"
    assert (await request(there, "GET", f"/drain/{uuid}"))["phase"] == "DRAINED"


async def test_a_version_is_adopted_when_the_drain_that_delayed_it_is_cancelled(there: Place) -> None:
    run_id = await there.deploy(containers=2, job=counting())
    zero = start(there, run_id, "c0")  # slot 1 has no container, so the drain does not advance
    await acting(zero.engine, 1)
    model = zero.wire.hold("/jobModel")
    await grown(there, run_id, **{"in": 4})
    await soon(zero.wire.held.wait())
    uuid = (await request(there, "POST", "/drain", runId=run_id, drainMode="DEFAULT"))["uuid"]
    await zero.wire.after("drain")
    model.set()
    await zero.wire.after("jobModel", 2)
    await request(there, "DELETE", f"/drain/{uuid}")
    assert reads(await zero.engine.resumed()) == {"in": [0]}
    assert reads(await zero.engine.started()) == {"in": [0, 2]}
    await zero.wire.after("adopted")
    assert await all_on(there, run_id) == 2
    assert len(zero.engine.acting) == 1


async def test_a_stop_in_the_middle_of_an_adoption_ends_the_container_normally(there: Place) -> None:
    run_id = await there.deploy(job=counting())
    zero = start(there, run_id, "c0")
    await acting(zero.engine, 2)
    held = zero.wire.hold("/acquire")
    await grown(there, run_id, **{"in": 4})
    await soon(zero.wire.held.wait())
    zero.agent.stop_requested()
    held.set()
    assert (await zero.ending()).exit_code == EXIT_OK
    assert zero.engine.acting == []
    assert zero.wire.answered["release"] == 2
    again = start(there, run_id, "c0b")
    assert reads((await acting(again.engine, 2))["Partition 0/hourly"]) == {"in": [0, 2]}
