"""Deployments with user-defined groupers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from coordinator.api.runs import spec_of
from coordinator.fleet.notices import Notices
from coordinator.jobmodels.cache import JobModels
from coordinator.jobmodels.groupers import Groupers
from coordinator.runs.deploy import Deployments
from coordinator.runs.runs import Runs
from coordinator.store.sql import Store
from sluice.core.errors import BadGrouping
from sluice.core.ids import RunId
from sluice.deploy import job_request
from sluice.streams.log import LogSystem
from sluice.wire import runs as wire_runs
from tests.support.api import Caller, calling, problem_slug, run_body
from tests.support.custom_groupers import Endless
from tests.support.databases import temporary_store
from tests.support.fakes import FakeClock, no_blob_stores

BY_PARITY = "tests.support.custom_groupers:ByParity"


@pytest.fixture
async def caller(home: Path, clock: FakeClock) -> AsyncIterator[Caller]:
    """A coordinator that allows the groupers of the tests; `flights` has two partitions."""
    async with calling(home, clock, groupers=["tests.support.custom_groupers:*", "grouping_beside:Mine"]) as made:
        made.log.create("flights", 2)
        yield made


def tasks(model: object) -> dict[str, list[int]]:
    """The partitions of every task of a `GET /jobModel`."""
    assert isinstance(model, dict)
    return {
        name: [ssp["partition"] for ssp in task["system-stream-partitions"]]
        for container in model["containers"].values()
        for name, task in container["tasks"].items()
    }


async def model(caller: Caller) -> dict[str, list[int]]:
    return tasks((await caller.http.get("/jobModel?job=flight-delays")).json())


async def test_a_job_is_grouped_by_a_class_that_the_operator_allows(caller: Caller) -> None:
    run = await caller.deploy(run_body(grouper=BY_PARITY, containers=2))
    assert await model(caller) == {"even": [0], "odd": [1]}
    await caller.registered(run["runId"], "c1", "1")
    assert (await caller.acquired(run["runId"], "c1", task="odd"))["stages"][0]["starts"][0]["partition"] == 1


async def test_a_stateful_job_keeps_its_tasks_when_its_stream_grows(caller: Caller) -> None:
    await caller.deploy(run_body(grouper=BY_PARITY))
    caller.log.grow("flights", 4)
    await caller.deploy(run_body(grouper=BY_PARITY))
    assert await model(caller) == {"even": [0, 2], "odd": [1, 3]}
    caller.log.grow("flights", 5)
    refused = await caller.http.post("/runs", json=run_body(grouper=BY_PARITY))
    assert problem_slug(refused) == (422, "incompatible-expansion")
    assert await model(caller) == {"even": [0, 2], "odd": [1, 3]}


async def test_a_stateful_job_keeps_its_grouper_and_a_stateless_one_may_change_it(caller: Caller) -> None:
    await caller.deploy(run_body(grouper=BY_PARITY))
    assert problem_slug(await caller.http.post("/runs", json=run_body())) == (422, "bad-grouping")
    await caller.deploy(run_body(stateful=False))
    assert await model(caller) == {"Partition 0": [0], "Partition 1": [1]}


async def test_a_grouper_decides_itself_whether_it_supports_max_tasks(caller: Caller) -> None:
    caller.log.grow("flights", 6)
    await caller.deploy(run_body(grouper="tests.support.custom_groupers:InBlocks", maxTasks=2))
    assert await model(caller) == {"block 0": [0, 2, 4], "block 1": [1, 3, 5]}
    refused = await caller.http.post("/runs", json=run_body(job="other", grouper=BY_PARITY, maxTasks=2))
    assert problem_slug(refused) == (422, "bad-grouping")


@pytest.mark.parametrize(
    ("grouper", "expected"),
    [
        ("elsewhere:Grouper", "SLUICE_GROUPERS='[\"elsewhere:Grouper\"]'"),
        ("os:system", "its operator must allow it"),
        ("tests.support.custom_groupers:Lost", "there is no such name"),
        ("tests.support.custom_groupers:Drops", "gives 1 of 2 partitions to no task"),
        ("tests.support.custom_groupers:Doubles", "twice"),
        ("tests.support.custom_groupers:NoMapping", "must return a mapping"),
        ("tests.support.custom_groupers:Unnamed", "names a task 'None'"),
        ("tests.support.custom_groupers:Raises", "failed: ZeroDivisionError: of no use"),
        ("tests.support.custom_groupers:Exits", "failed: SystemExit: 3"),
        ("tests.support.custom_groupers:ByChance", "two different results"),
        ("tests.support.custom_groupers:NeedsArguments", "without arguments"),
        ("a:b:c", "as module:Class"),
    ],
)
async def test_a_grouper_that_cannot_be_used_is_refused_and_nothing_is_changed(caller: Caller, grouper: str, expected: str) -> None:
    await caller.deploy(run_body(stateful=False))
    before = (await model(caller), (await caller.http.get("/runs")).json(), caller.log.streams())
    outputs = [{"name": "delays", "system": "log", "stream": "not-made"}]
    refused = await caller.http.post("/runs", json=run_body(grouper=grouper, stateful=False, outputs=outputs))
    assert problem_slug(refused) == (422, "bad-grouping")
    assert expected in refused.json()["detail"]
    assert (await model(caller), (await caller.http.get("/runs")).json(), caller.log.streams()) == before


async def test_a_coordinator_allows_no_grouper_by_default(home: Path, clock: FakeClock) -> None:
    async with calling(home, clock) as caller:
        caller.log.create("flights", 2)
        refused = await caller.http.post("/runs", json=run_body(grouper=BY_PARITY))
        assert problem_slug(refused) == (422, "bad-grouping")
        assert f"SLUICE_GROUPERS='[\"{BY_PARITY}\"]'" in refused.json()["detail"]
        assert (await caller.http.get("/jobs")).json()["jobs"] == []


async def test_heartbeats_continue_while_a_grouper_runs(caller: Caller) -> None:
    run = await caller.deploy()
    await caller.registered(run["runId"], "c1")
    Endless.released.clear()
    deploying = asyncio.create_task(caller.deploy(run_body(job="other", grouper="tests.support.custom_groupers:Endless")))
    for _ in range(20):
        assert await caller.alive("c1", 1)
    assert not deploying.done()
    Endless.released.set()
    assert (await deploying)["state"] == "CREATED"


@pytest.mark.real_time
async def test_a_grouper_that_does_not_return_is_refused(home: Path, caller: Caller, clock: FakeClock) -> None:
    store, systems = temporary_store(Store), {"log": LogSystem(home / "log")}
    within = timedelta(seconds=0.05)
    names = Groupers(["tests.support.custom_groupers:*"], within)
    models, notices = JobModels(store), Notices(store)
    deployments = Deployments(store, systems, models, notices, clock, lambda job, at: RunId(job), names, no_blob_stores())
    Endless.released.clear()
    with pytest.raises(BadGrouping, match=r"tests\.support\.custom_groupers:Endless did not return within 0\.05 s"):
        await deployments.deploy(spec_of(wire_runs.RunRequest.model_validate(run_body(grouper="tests.support.custom_groupers:Endless"))))
    Endless.released.set()
    assert await Runs(store, models, notices, clock).jobs() == []
    assert (await deployments.deploy(spec_of(wire_runs.RunRequest.model_validate(run_body())))).job == "flight-delays"


JOB = """
from sluice import Job

job = Job("flight-delays", grouper="grouping_beside:Mine")
flights, out = job.input("flights"), job.output("out")

@job.stage(reads=flights, writes=out)
def only(task): ...
"""
GROUPER = """
class Mine:
    def group(self, previous, ssps):
        return {f"{ssp.stream} from {ssp.partition}": [ssp] for ssp in ssps}
"""


async def test_a_grouper_in_a_job_file_is_deployed_with_the_job(caller: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "grouping_beside.py").write_text(GROUPER)
    (tmp_path / "job.py").write_text(JOB)
    request = job_request(tmp_path / "job.py", 1, "checkpoint", "log", [])
    await caller.deploy(request.model_dump(mode="json", by_alias=True))
    assert await model(caller) == {"flights from 0": [0], "flights from 1": [1]}
