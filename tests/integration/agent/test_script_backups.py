"""Checkpoints of a script: backed up and restored by its agent, with a real coordinator and real blob stores. The queries are this
test, which writes what Spark writes."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
from collections.abc import AsyncIterator, Callable
from concurrent import futures
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from containers.agent.lifecycle import ContainerLifecycle
from containers.agent.notices import events
from containers.attached.checkpoints.backups import ScriptBackups
from containers.attached.claim import Claim, attached_request
from containers.attached.driver_link import DriverLink, follow
from containers.attached.port import Flushed, Made, Wanted
from containers.attached.script_drains import ScriptDrains, last_drain_of
from containers.engine import Position
from containers.errors import StateNotLocal
from containers.rpc.socket_link import SocketLink
from containers.state.checkpoint import DRAIN_MARKER, inspect
from coordinator.snapshots.audit import Audits
from coordinator.snapshots.operations import Progress
from sluice.blobs.locations import open_blob_store
from sluice.client import OperatorClient
from sluice.client.agents import AgentClient
from sluice.core.drain import Phase
from sluice.core.errors import LeaseLost
from sluice.core.ids import Epoch, ExecutionContainerId, Generation, JobName, RunId, StageKey, StageName
from sluice.core.jobmodels.spec import ATTACHED_TASK
from sluice.wire import agents as wire_agents
from sluice.wire import drains as wire_drains
from tests.integration.agent.test_backups import rebuilt
from tests.support.agents import Place, Wire, place
from tests.support.backups import BACKED_UP
from tests.support.engines import soon
from tests.support.faults import Fault, FaultyBlobs, every, healthy
from tests.support.script_peers import DriverPeer
from tests.support.virtual_time import LoopClock

JOB, COUNTS = JobName("orders"), StageName("counts")
SOON = timedelta(seconds=30)


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Place]:
    async with place(tmp_path / "home", **BACKED_UP) as made:
        yield made


@dataclass
class Machine:
    """A disk on which a script runs."""

    state: Path
    backups: ScriptBackups
    client: AgentClient
    claim: Claim
    wire: Wire
    code: str = "code"
    adopts: bool = False
    folder: str = "drain-0"
    made: Made = field(default_factory=Made)

    @property
    def directory(self) -> Path:
        return self.state / JOB / self.folder / COUNTS

    async def checkpoint(self) -> Made:
        wanted = Wanted(COUNTS, self.state, self.folder, self.code, replays=1_000, adopts=self.adopts)
        self.made = await soon(self.backups.prepare(wanted))
        return self.made

    def plans(self, batch: int) -> None:
        self._write(f"offsets/{batch}", plan(batch))

    def commits(self, batch: int) -> None:
        """The state after the batch is written before the commit."""
        self._write(f"state/0/0/{batch + 1}.delta", f"state after {batch}")
        self._write("state/0/_metadata/v2/0", metadata(self.directory / "state/0"))
        self._write(f"commits/{batch}", 'v1\n{"nextBatchWatermarkMs":0}')

    def runs(self, *batches: int) -> None:
        for batch in batches:
            self.plans(batch)
            self.commits(batch)

    def _write(self, name: str, text: str) -> None:
        file = self.directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.with_name(f".{file.name}.tmp").write_text(text)
        file.with_name(f".{file.name}.tmp").rename(file)

    @property
    def batches(self) -> tuple[int, int]:
        found = inspect(self.directory)
        assert found is not None
        assert found.lineage == self.made.lineage
        return found.committed, found.planned


def plan(batch: int) -> str:
    return f'v1\n{{"batchWatermarkMs":0,"batchTimestampMs":{batch}}}\n{{"orders":{{"0":{batch}}}}}'


def metadata(operator: Path) -> str:
    stores = [{"storeName": "default", "stateSchemaFilePaths": [f"file:{operator}/_stateSchema/default/0_1"]}]
    return "v2\n" + json.dumps({"operatorInfo": {}, "stateStoreInfo": stores})


@asynccontextmanager
async def script(there: Place, disk: Path, name: str, open_blobs: Any = None) -> AsyncIterator[Machine]:
    """A start of the script as that container."""
    client = AgentClient("http://c", wire := Wire(there.app))
    run = RunId((await client.deploy(attached_request(JOB))).run_id)
    body = wire_agents.RegisterRequest(processor_id="0", execution_container_id=name, host=name)
    registered = await client.register(run, body)
    if registered.token is not None:
        client.act_as(registered.token)
    epoch = Epoch(registered.epoch)
    acquired = await client.acquire(run, ATTACHED_TASK, ExecutionContainerId(name), epoch)
    assert isinstance(acquired, wire_agents.AcquireReply)
    ends: Any = asyncio.create_task(asyncio.sleep(3600))
    claim = Claim(run, epoch, Generation(acquired.generation), ends, continuation=acquired.continuation)
    backups = ScriptBackups(JOB, claim, client, LoopClock(), open_blobs)
    try:
        yield Machine(disk, backups, client, claim, wire)
    finally:
        await backups.close()
        ends.cancel()
        with suppress(LeaseLost):
            await client.release(run, ATTACHED_TASK, claim.generation)
        await client.close()


async def until(found: Callable[[], bool]) -> None:
    for _ in range(1_000):
        if found():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it has not happened")


async def until_backed_up(there: Place, batch: int) -> None:
    for _ in range(1_000):
        if any(each["batchId"] == batch for each in await there.snapshots(JOB)):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"batch {batch} was not backed up")


async def test_a_script_on_an_empty_disk_continues_at_the_last_snapshot_under_another_id(there: Place, tmp_path: Path) -> None:
    async with script(there, tmp_path / "one", "c1") as first:
        made = await first.checkpoint()
        assert (made.restored, made.new_lineage) == (None, False)
        first.runs(0, 1, 2)
        first.plans(3)
        await first.backups.finish(SOON)
    (snapshot,) = await there.snapshots(JOB)
    assert (snapshot["task"], snapshot["stage"], snapshot["batchId"], snapshot["lineage"]) == ("Driver", "counts", 2, made.lineage)
    async with script(there, tmp_path / "two", "c2") as second:
        again = await second.checkpoint()
        assert (again.restored, again.new_lineage, again.replay) == (2, True, {})
        assert again.lineage != made.lineage
        (event,) = [each for each in await there.events(JOB) if each["kind"] == "lineage"]
        assert event["what"] == "stage counts of task Driver began again after batch 2, under a new lineage"
        assert (event["subject"], "may have been written" in event["detail"]) == (again.lineage, True)
        assert second.batches == (2, 2)
        assert (second.directory / "state/0/0/3.delta").read_text() == "state after 2"
        moved = (second.directory / "state/0/_metadata/v2/0").read_text()
        assert json.loads(moved.partition("\n")[2]) == json.loads(metadata(second.directory / "state/0").partition("\n")[2])
        second.runs(3, 4)
        await second.backups.finish(SOON)
    assert [(each["batchId"], each["lineage"]) for each in await there.snapshots(JOB)] == [(4, again.lineage), (2, made.lineage)]


async def test_after_a_report_that_is_not_answered_for_too_long_the_backup_continues_from_what_the_coordinator_has(
    there: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, seconds in {"INTERVAL": "0.1", "MAX_DELAY": "0.1", "TIMEOUT": "0.2"}.items():
        monkeypatch.setenv(f"SLUICE_COMMIT_{name}_SECONDS", seconds)
    async with script(there, tmp_path / "one", "c1") as machine:
        await machine.checkpoint()
        machine.wire.hold("/snapshots")
        machine.runs(0)
        await until(lambda: "it begins again after the newest snapshot" in caplog.text)
        machine.wire.holding.clear()
        machine.runs(1)
        await until_backed_up(there, 1)
    assert [each["batchId"] for each in await there.snapshots(JOB)] == [1, 0]


async def test_a_checkpoint_is_backed_up_while_the_script_runs(there: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_COMMIT_INTERVAL_SECONDS", "0.1")
    async with script(there, tmp_path / "one", "c1") as machine:
        await machine.checkpoint()
        for batch in range(3):
            machine.runs(batch)
            await until_backed_up(there, batch)


async def test_a_script_that_returns_to_its_disk_uses_what_is_there(there: Place, tmp_path: Path) -> None:
    async with script(there, tmp_path / "one", "c1") as first:
        made = await first.checkpoint()
        first.runs(0, 1)
        await first.backups.finish(SOON)
        first.runs(2)  # after the last snapshot
        first.plans(3)
    async with script(there, tmp_path / "one", "c2") as second:
        assert (await second.checkpoint()) == Made(made.lineage)
        assert second.batches == (2, 3)
        await second.backups.finish(SOON)
    assert [each["batchId"] for each in await there.snapshots(JOB)] == [2, 1]


async def test_a_disk_that_is_older_than_the_newest_snapshot_is_not_used(there: Place, tmp_path: Path) -> None:
    async with script(there, tmp_path / "one", "c1") as first:
        await first.checkpoint()
        first.runs(0, 1)
        await first.backups.finish(SOON)
    async with script(there, tmp_path / "two", "c2") as second:
        await second.checkpoint()
        second.runs(2, 3)
        await second.backups.finish(SOON)
    async with script(there, tmp_path / "one", "c3") as third:
        assert (await third.checkpoint()).restored == 3
        assert third.batches == (3, 3)


async def test_batches_whose_plans_were_kept_run_again_under_the_id_of_the_query(there: Place, tmp_path: Path) -> None:
    async with script(there, tmp_path / "one", "c1") as first:
        made = await first.checkpoint()
        for batch in range(5):
            first.plans(batch)
            assert await first.backups.keep_plan(COUNTS, batch) == ""
            if batch < 4:  # the last one is interrupted
                first.commits(batch)
            if batch == 1:
                await first.backups.finish(SOON)
    async with script(there, tmp_path / "two", "c2") as second:
        again = await second.checkpoint()
        assert again == Made(made.lineage, restored=1, replay={3: plan(3), 4: plan(4)})
        assert second.batches == (1, 2)
        assert (second.directory / "offsets/2").read_text() == plan(2)


async def test_a_batch_that_another_start_has_planned_with_other_records_is_not_written(there: Place, tmp_path: Path) -> None:
    async with script(there, tmp_path / "one", "c1") as first:
        await first.checkpoint()
        first.plans(0)
        assert await first.backups.keep_plan(COUNTS, 0) == ""
        (first.directory / "offsets/0").write_text(plan(17))
        assert "was planned by generation" in await first.backups.keep_plan(COUNTS, 0)


@asynccontextmanager
async def two_stores(tmp_path: Path) -> AsyncIterator[Place]:
    """With the blob stores `old`, which is used, and `new`."""
    stores = {name: (tmp_path / name).as_uri() for name in ("old", "new")}
    async with place(tmp_path / "home", blob_stores=stores, backup_stores=("old",), restore_from=("old",)) as made:
        yield made


async def use_store(there: Place, run: RunId, store: str) -> None:
    async with httpx.AsyncClient(transport=there.app, base_url="http://c") as http:
        answer = await http.put(f"/runs/{run}/backup", json={"stores": [store], "restoreFrom": [store]})
    assert answer.status_code == 200


async def until_in_store(there: Place, store: str) -> None:
    for _ in range(1_000):
        if (found := await there.snapshots(JOB)) and store in found[0]["markers"]:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"nothing was backed up to {store}")


async def test_a_batch_that_runs_while_the_blob_store_changes_runs_again_as_it_was_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_COMMIT_INTERVAL_SECONDS", "0.1")
    async with two_stores(tmp_path) as there:
        async with script(there, tmp_path / "one", "c1") as first:
            made = await first.checkpoint()
            first.runs(0)
            await until_backed_up(there, 0)
            first.plans(1)
            assert await first.backups.keep_plan(COUNTS, 1) == ""
            await use_store(there, first.claim.run, "new")
            first.backups.adopt_stores()
            await until_in_store(there, "new")
        async with script(there, tmp_path / "two", "c2") as second:
            assert await second.checkpoint() == Made(made.lineage, restored=0)
            assert second.batches == (0, 1)
            assert (second.directory / "offsets/1").read_text() == plan(1)


async def test_a_new_blob_store_is_used_although_the_coordinator_was_away_when_it_was_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_COMMIT_INTERVAL_SECONDS", "0.1")
    async with two_stores(tmp_path) as there, script(there, tmp_path / "one", "c1") as machine:
        await machine.checkpoint()
        machine.runs(0)
        await until_backed_up(there, 0)
        await use_store(there, machine.claim.run, "new")
        machine.wire.cut = True
        machine.backups.adopt_stores()
        await machine.wire.after("unreachable")
        machine.wire.cut = False
        machine.runs(1)
        await until_in_store(there, "new")


def lose_data(there: Place) -> None:
    """Delete the data blobs of the blob store without Sluice."""
    found = [file for file in there.home.rglob("*") if file.is_file() and "/counts/data/" in str(file) and "/ttl/" not in str(file)]
    assert found
    for each in found:
        each.unlink()


async def wholly_verified(there: Place) -> None:
    """Every retained snapshot can be read."""
    audits = Audits(there.parts.lost_blobs.store, there.parts.lost_blobs.blob_stores)
    for snapshot in await there.snapshots(JOB):
        result = await audits.verify(StageKey(JOB, ATTACHED_TASK, COUNTS), snapshot["checkpointId"], None, Progress("bytes"))
        assert result["whole"], result


@asynccontextmanager
async def following_notices(machine: Machine, backups: ScriptBackups | DriverLink) -> AsyncIterator[None]:
    """Pass the events of the run on, as an agent does."""
    if isinstance(backups, DriverLink):
        following = asyncio.create_task(backups.follow_events())
    else:
        found = events(machine.client, machine.claim.run, LoopClock())
        following = asyncio.create_task(follow(found, lambda: None, lambda: backups))
    try:
        yield
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_lost_blobs_of_a_script_are_uploaded_again_for_all_snapshots_although_no_batch_runs(
    there: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_COMMIT_INTERVAL_SECONDS", "0.1")
    async with script(there, tmp_path / "one", "c1") as first, following_notices(first, first.backups):
        await first.checkpoint()
        for batch in range(2):
            first.runs(batch)
            await until_backed_up(there, batch)
        before = await there.snapshots(JOB)
        lose_data(there)
        await there.parts.lost_blobs.run_once()
        await first.wire.after("index", 2)
        assert await there.parts.lost_blobs.run_once() == {}
        await wholly_verified(there)
        assert [each["checkpointId"] for each in await there.snapshots(JOB)] == [each["checkpointId"] for each in before]
        first.runs(2)
        await until_backed_up(there, 2)
        await wholly_verified(there)
    async with script(there, tmp_path / "two", "c2") as second:
        assert (await second.checkpoint()).restored == 2
        assert (second.directory / "state/0/0/1.delta").read_text() == "state after 0"


async def test_a_repair_that_is_requested_while_a_report_has_no_answer_is_made_when_the_backup_has_begun_again(
    there: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, seconds in {"INTERVAL": "0.1", "MAX_DELAY": "0.1", "TIMEOUT": "0.2"}.items():
        monkeypatch.setenv(f"SLUICE_COMMIT_{name}_SECONDS", seconds)
    async with script(there, tmp_path / "one", "c1") as machine, following_notices(machine, machine.backups):
        await machine.checkpoint()
        machine.runs(0)
        await until_backed_up(there, 0)
        lose_data(there)
        machine.wire.hold("/snapshots")
        machine.runs(1)
        await until_backed_up(there, 1)
        await there.parts.lost_blobs.run_once()
        await until(lambda: "is repaired" in caplog.text)
        await until(lambda: "it begins again after the newest snapshot" in caplog.text)
        machine.wire.holding.clear()
        await machine.wire.after("index", 2)
        assert await there.parts.lost_blobs.run_once() == {}
        await wholly_verified(there)


@pytest.mark.real_time
async def test_an_agent_repairs_the_checkpoints_that_its_driver_has_asked_for(
    there: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_COMMIT_INTERVAL_SECONDS", "0.1")
    async with script(there, tmp_path / "one", "c1") as machine:
        link = DriverLink(JOB, machine.client)
        link.granted(machine.claim)
        ours, theirs = socket.socketpair()
        link.connect(SocketLink(theirs))
        driver = DriverPeer(ours)
        wanted = Wanted(COUNTS, machine.state, machine.folder)
        machine.made = await asyncio.to_thread(driver.connection.call, "prepare", wanted)
        machine.runs(0)
        await until_backed_up(there, 0)
        lose_data(there)
        async with following_notices(machine, link):
            await there.parts.lost_blobs.run_once()
            await machine.wire.after("index")
        assert await there.parts.lost_blobs.run_once() == {}
        await wholly_verified(there)
        await link.close()
        driver.connection.close()


async def test_a_script_that_has_changed_gets_another_id_after_a_lost_disk(there: Place, tmp_path: Path) -> None:
    async with script(there, tmp_path / "one", "c1") as first:
        await first.checkpoint()
        first.plans(0)
        await first.backups.keep_plan(COUNTS, 0)
        first.commits(0)
        await first.backups.finish(SOON)
        first.plans(1)
        await first.backups.keep_plan(COUNTS, 1)
    async with script(there, tmp_path / "two", "c2") as second:
        second.code = "another"
        assert (await second.checkpoint()).new_lineage
        assert second.batches == (0, 0)


async def test_a_checkpoint_that_is_lost_before_its_first_snapshot_begins_empty_under_another_id(there: Place, tmp_path: Path) -> None:
    async with script(there, tmp_path / "one", "c1") as first:
        made = await first.checkpoint()
    async with script(there, tmp_path / "two", "c2") as second:
        again = await second.checkpoint()
        assert (again.new_lineage, again.restored) == (True, None)
        assert again.lineage != made.lineage
        assert second.batches == (-1, -1)


@pytest.mark.parametrize("backed_up", [False, True])
async def test_a_given_up_checkpoint_whose_deletion_was_interrupted_is_deleted_by_the_next_start(tmp_path: Path, backed_up: bool) -> None:
    async with place(tmp_path / "home", **(BACKED_UP if backed_up else {})) as there:
        async with script(there, tmp_path / "one", "c1") as first:
            made = await first.checkpoint()
            first.runs(0)
            await first.backups.finish(SOON)
            given_up = first.directory.parent / ".given-up" / COUNTS / "state"
            given_up.mkdir(parents=True)
            (given_up / "1.delta").touch()
        async with script(there, tmp_path / "one", "c2") as second:
            assert await second.checkpoint() == Made(made.lineage)
            assert not given_up.parent.exists()


async def test_a_checkpoint_from_before_backups_keeps_its_id(there: Place, tmp_path: Path) -> None:
    async with script(there, tmp_path / "one", "c1") as machine:
        machine.runs(0, 1)
        (machine.directory / "metadata").write_text('{"id":"q-of-spark"}')
        assert (await machine.checkpoint()).lineage == "q-of-spark"
        await machine.backups.finish(SOON)
    assert [(each["batchId"], each["lineage"]) for each in await there.snapshots(JOB)] == [(1, "q-of-spark")]


async def test_a_checkpoint_is_adopted_only_if_the_job_never_had_it(there: Place, tmp_path: Path) -> None:
    async with script(there, tmp_path / "one", "c1") as first:
        first.adopts = True
        assert (await first.checkpoint()).adopt
        first.runs(0, 1)  # the copy
        (first.directory / "metadata").write_text('{"id":"q-of-spark"}')
        first.adopts = False
        assert (await first.checkpoint()).lineage == "q-of-spark"
        await first.backups.finish(SOON)
    async with script(there, tmp_path / "two", "c2") as second:
        second.adopts = True
        again = await second.checkpoint()
        assert (again.adopt, again.restored) == (False, 1)


async def test_without_a_blob_store_a_checkpoint_stays_on_its_machine(tmp_path: Path) -> None:
    async with place(tmp_path / "home") as there, script(there, tmp_path / "one", "c1") as machine:
        made = await machine.checkpoint()
        machine.runs(0)
        assert await machine.backups.keep_plan(COUNTS, 0) == ""
        await machine.backups.finish(SOON)
        assert machine.batches == (0, 0)
        assert (made.restored, await there.snapshots(JOB)) == (None, [])


async def report(machine: Machine, *batches: int) -> None:
    """As the driver does: its query after one of these batches, or no query."""
    queries = tuple(
        wire_agents.QueryBody(stage=COUNTS, checkpoint=f"file://h{machine.directory}", query_id=str(machine.made.lineage), batch_id=batch)
        for batch in batches
    )
    request = wire_agents.QueriesRequest(generation=machine.claim.generation, queries=queries)
    await machine.client.report_queries(machine.claim.run, ATTACHED_TASK, request)


async def test_a_checkpoint_that_has_batches_elsewhere_does_not_begin_again_without_a_snapshot(tmp_path: Path) -> None:
    """As with a relative state directory, in another working directory."""
    async with place(tmp_path / "home") as there:
        async with script(there, tmp_path / "one", "c1") as first:
            made = await first.checkpoint()
            first.runs(0)
            await report(first, 0)
        async with script(there, tmp_path / "two", "c2") as second:
            await report(second)
            with pytest.raises(StateNotLocal, match=re.escape(f"they are in file://h{first.directory}, and there is no snapshot")):
                await second.checkpoint()
            assert not second.directory.exists()
        async with script(there, tmp_path / "one", "c3") as third:
            assert await third.checkpoint() == Made(made.lineage)
            assert third.batches == (0, 0)


async def test_a_checkpoint_without_batches_begins_wherever_the_script_starts(tmp_path: Path) -> None:
    async with place(tmp_path / "home") as there:
        async with script(there, tmp_path / "one", "c1") as first:
            await first.checkpoint()
            await report(first)
        async with script(there, tmp_path / "two", "c2") as second:
            await second.checkpoint()
            assert second.batches == (-1, -1)


async def test_a_checkpoint_that_a_drain_flushes_is_not_backed_up(there: Place, tmp_path: Path) -> None:
    async with script(there, tmp_path / "one", "c1") as machine:
        await machine.checkpoint()
        machine.runs(0)
        await machine.backups.finish(SOON)
    async with script(there, tmp_path / "one", "c2") as machine:
        await machine.checkpoint()
        (machine.directory / DRAIN_MARKER).write_text('{"uuid":"d","batch":0}')
        machine.runs(1)
        await machine.backups.finish(SOON)
    assert [each["batchId"] for each in await there.snapshots(JOB)] == [0]


@dataclass
class Drain:
    """A drain of a script with the query `counts`, whose driver is this test."""

    client: OperatorClient
    uuid: str
    stopped: asyncio.Future[Position]
    flushed: asyncio.Future[Flushed]
    may_leave: asyncio.Event
    left: asyncio.Event

    async def until(self, phase: Phase) -> None:
        for _ in range(1_000):
            if (await self.client.drain(self.uuid)).phase is phase:
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"the drain is not {phase}")


@dataclass
class Queries:
    """A `Connection` to a driver with this query. It is where the futures say, as soon as they have a result."""

    drain: Drain

    def tell(self, method: str, *values: object) -> None: ...

    def request(self, method: str, *values: object) -> futures.Future[Any]:
        return asyncio.run_coroutine_threadsafe(self._answer(method), asyncio.get_running_loop())

    async def _answer(self, method: str) -> Any:
        match method:
            case "pause_queries":
                return {COUNTS: await self.drain.stopped}
            case "feeders":
                return {COUNTS: ()}
            case "flush":
                return await asyncio.shield(self.drain.flushed)
            case "leave":
                await self.drain.may_leave.wait()
                self.drain.left.set()
        return None


@asynccontextmanager
async def draining(there: Place, machine: Machine) -> AsyncIterator[Drain]:
    run = machine.claim.run
    query = wire_agents.QueryBody(stage=COUNTS, checkpoint=machine.directory.as_uri(), query_id=str(machine.made.lineage))
    body = wire_agents.QueriesRequest(generation=machine.claim.generation, queries=(query,))
    await machine.client.report_queries(run, ATTACHED_TASK, body)
    operator, loop = OperatorClient("http://c", there.app), asyncio.get_running_loop()
    uuid = (await operator.request_drain(wire_drains.DrainRequest(run_id=run))).uuid
    lifecycle = ContainerLifecycle(LoopClock(), SOON, lambda reason: None)
    drains = ScriptDrains(machine.client, run, machine.claim.generation, lifecycle, machine.backups.durable)
    drain = Drain(operator, uuid, loop.create_future(), loop.create_future(), asyncio.Event(), asyncio.Event())
    drain.may_leave.set()
    driver: Any = Queries(drain)
    drains.attached(driver)

    found = events(machine.client, run, LoopClock())
    works = [asyncio.create_task(drains.run()), asyncio.create_task(follow(found, lambda: drains, lambda: None))]
    try:
        yield drain
    finally:
        for each in works:
            each.cancel()
        await asyncio.gather(*works, return_exceptions=True)
        await operator.close()


async def begins(machine: Machine) -> tuple[str, Any, str]:
    """Where the checkpoint begins: the directory, the offsets, and why it cannot be used."""
    found = await last_drain_of(machine.client, JOB, machine.claim.run, COUNTS)
    return found.folder, found.offsets, found.failed


@pytest.mark.parametrize("flushed", [False, True])
async def test_after_a_drain_that_has_failed_in_its_flush_a_query_continues_at_the_snapshot_before_it(
    there: Place, tmp_path: Path, flushed: bool
) -> None:
    """The batches of the flush have plans, which must not run again: they close all windows."""
    async with script(there, tmp_path / "one", "c1") as first:
        made = await first.checkpoint()
        first.runs(0, 1, 2)
        async with draining(there, first) as drain:
            drain.stopped.set_result(Position(2, {}))
            await drain.until(Phase.FLUSHING)
            (first.directory / DRAIN_MARKER).write_text(json.dumps({"uuid": drain.uuid, "batch": 2}))
            first.plans(3)
            assert await first.backups.keep_plan(COUNTS, 3) == ""
            first.commits(3)
            if flushed:
                drain.may_leave.clear()
                drain.flushed.set_result(Flushed(Position(3, {})))
                await drain.until(Phase.COMMITTING)
            await drain.client.stop_run(first.claim.run, "the flush hangs")
            await drain.until(Phase.FAILED)
        await first.backups.finish(SOON)
    for disk in (tmp_path / "one", tmp_path / "two"):
        async with script(there, disk, f"c of {disk.name}".replace(" ", "-")) as later:
            assert await begins(later) == ("drain-1", {}, "")
            later.folder = "drain-1"
            again = await later.checkpoint()
            assert (again.restored, again.new_lineage, again.replay) == (2, True, {})
            assert again.lineage != made.lineage
            assert later.batches == (2, 2)


async def drained(there: Place, machine: Machine, batch: int) -> None:
    """Flush the query in a batch after the last one, and end the run."""
    async with draining(there, machine) as drain:
        drain.stopped.set_result(Position(batch, {}))
        await drain.until(Phase.FLUSHING)
        (machine.directory / DRAIN_MARKER).write_text(json.dumps({"uuid": drain.uuid, "batch": batch}))
        machine.runs(batch + 1)
        (machine.directory / f"offsets/{batch + 1 + 1_000_000}").write_text("the lock\n")
        drain.flushed.set_result(Flushed(Position(batch + 1, {})))
        await drain.until(Phase.DRAINED)
        assert drain.left.is_set()


@pytest.mark.parametrize("backed_up", [False, True])
async def test_of_a_checkpoint_that_a_drain_has_flushed_the_lock_remains_when_the_next_one_is_ready(
    tmp_path: Path, backed_up: bool
) -> None:
    async with place(tmp_path / "home", **(BACKED_UP if backed_up else {})) as there:
        for number in range(3):
            async with script(there, tmp_path / "one", f"c{number}") as machine:
                machine.folder = f"drain-{number}"
                assert await begins(machine) == (machine.folder, {}, "")
                await machine.checkpoint()
                machine.runs(0, 1, 2)
                await drained(there, machine, 2)
                job = machine.directory.parents[1]
        locked = ["commits", "drain.json", "metadata", "offsets"]
        assert [sorted(each.name for each in (job / f"drain-{number}/counts").iterdir()) for number in range(3)] == [
            locked,
            locked,
            [*locked, "state"],
        ]
        assert sorted(each.name for each in (job / "drain-0/counts/offsets").iterdir()) == ["1000003", "2", "3"]


async def test_a_drain_waits_until_the_last_batch_is_backed_up(there: Place, tmp_path: Path) -> None:
    stores: list[FaultyBlobs] = []

    def open_blobs(url: str) -> FaultyBlobs:
        stores.append(FaultyBlobs(open_blob_store(url, LoopClock())))
        return stores[-1]

    async with script(there, tmp_path / "one", "c1", open_blobs) as machine:
        await machine.checkpoint()
        machine.runs(0)
        await machine.backups.durable(COUNTS)
        machine.runs(1)
        stores[0].plan = every("put", Fault.FAIL)
        async with draining(there, machine) as drain:
            drain.stopped.set_result(Position(1, {}))
            await asyncio.sleep(0.3)
            assert (await drain.client.drain(drain.uuid)).phase is Phase.STOPPING
            stores[0].plan = healthy
            await drain.until(Phase.FLUSHING)
            (snapshot, *_) = await there.snapshots(JOB)
            assert snapshot["batchId"] == 1


async def test_a_script_waits_for_a_blob_store_that_has_a_batch_of_another_machine(there: Place, tmp_path: Path) -> None:
    plans = [every("open", Fault.FAIL)]
    opened: list[FaultyBlobs] = []

    def open_blobs(url: str) -> FaultyBlobs:
        opened.append(FaultyBlobs(open_blob_store(url, LoopClock()), plans[-1]))
        return opened[-1]

    async with script(there, tmp_path / "one", "c1") as first:
        made = await first.checkpoint()
        first.plans(0)
        assert await first.backups.keep_plan(COUNTS, 0) == ""
        first.commits(0)
        await first.backups.finish(SOON)
    async with script(there, tmp_path / "two", "c2") as second:
        assert (await second.checkpoint()).lineage == made.lineage
        (second.directory / "offsets/1").write_text(plan(17))
        assert await second.backups.keep_plan(COUNTS, 1) == ""
    async with script(there, tmp_path / "one", "c3", open_blobs) as third:
        waiting = asyncio.create_task(third.checkpoint())
        await until(lambda: len(opened) == 2)
        assert not waiting.done()
        plans.append(healthy)
        await waiting
        assert third.batches == (0, 1)
        assert (third.directory / "offsets/1").read_text() == plan(17)


async def test_an_agent_that_was_frozen_until_another_machine_has_the_script_backs_nothing_up(there: Place, tmp_path: Path) -> None:
    async with script(there, tmp_path / "one", "c1") as first:
        made = await first.checkpoint()
        first.runs(0)
        await first.backups.durable(COUNTS)
        there.clock.advance(60)
        async with script(there, tmp_path / "two", "c2") as second:
            again = await second.checkpoint()
            assert again.restored == 0
            first.runs(1)
            with pytest.raises(LeaseLost):
                await first.backups.durable(COUNTS)
            second.runs(1)
            await second.backups.finish(SOON)
    assert [(each["batchId"], each["lineage"]) for each in await there.snapshots(JOB)] == [(1, again.lineage), (0, made.lineage)]


async def test_a_blob_store_that_is_away_is_reported_and_does_not_stop_the_script(
    there: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_COMMIT_LATE_SECONDS", "0.1")
    made: list[FaultyBlobs] = []

    def open_blobs(url: str) -> FaultyBlobs:
        made.append(FaultyBlobs(open_blob_store(url, LoopClock())))
        return made[-1]

    async with script(there, tmp_path / "one", "c1", open_blobs) as machine:
        lineage = (await machine.checkpoint()).lineage
        made[0].plan = every("put", Fault.FAIL)
        machine.runs(0)
        measured = wire_agents.StageMetricsBody(rows=1, rows_per_second=1, batch_millis=1, at=there.clock.now())
        query = wire_agents.QueryBody(stage=COUNTS, checkpoint="file:/counts", query_id=str(lineage), metrics=measured)

        def problem() -> str | None:
            (shown,) = machine.backups.shown([query])
            assert shown.metrics is not None
            return shown.metrics.backup_problem

        await until(lambda: problem() is not None)
        assert machine.batches == (0, 0)
        made[0].plan = healthy
        await until(lambda: problem() is None)
    assert [each["batchId"] for each in await there.snapshots(JOB)] == [0]


async def test_after_a_rebuild_of_the_database_a_script_continues_at_its_last_snapshot(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with place(home, **BACKED_UP) as there, script(there, tmp_path / "one", "c1") as first:
        await first.checkpoint()
        first.runs(0, 1, 2)
        await first.backups.finish(SOON)
    for each in home.glob("coordinator.db*"):
        each.unlink()
    await rebuilt(home)
    async with place(home, **BACKED_UP) as there:
        there.clock.advance(36)  # leases of containers that are not in the database
        async with script(there, tmp_path / "two", "c2") as second:
            assert (await second.checkpoint()).restored == 2
            second.runs(3)
            await second.backups.finish(SOON)
        assert [each["batchId"] for each in await there.snapshots(JOB)] == [3, 2]


async def test_files_of_a_deleted_machine_are_not_needed(there: Place, tmp_path: Path) -> None:
    """The directories beside the checkpoint hold nothing that matters."""
    async with script(there, tmp_path / "one", "c1") as first:
        await first.checkpoint()
        first.runs(0)
        await first.backups.finish(SOON)
    for beside in (".cuts", ".staging", ".checked"):
        shutil.rmtree(tmp_path / "one" / JOB / "drain-0" / beside, ignore_errors=True)
    async with script(there, tmp_path / "one", "c2") as second:
        assert (await second.checkpoint()).restored is None
