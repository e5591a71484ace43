"""The task and stage in a container's log records, on the agent's event loop and in the engine's threads."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from containers.engine import StageStart
from sluice.logconfig import FieldsFilter
from tests.support.agents import Place, place
from tests.support.engines import FakeEngine

log = logging.getLogger("user.code")


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Place]:
    async with place(tmp_path) as made:
        yield made


async def test_records_of_a_stage_name_task_stage_and_generation(here: Place, caplog: pytest.LogCaptureFixture) -> None:
    caplog.handler.addFilter(FieldsFilter({}))
    caplog.set_level("INFO")

    def user_function(start: StageStart) -> None:
        log.info("on a thread of the engine")

    run_id = await here.deploy()
    container = here.start(run_id, "c1", engine=FakeEngine(on_start=user_function))
    await container.engine.all_started(4)
    container.agent.stop_requested()
    await container.ending()

    for message in ("on a thread of the engine", "is running under generation"):
        found = [record.__dict__ for record in caplog.records if message in record.getMessage()]
        about = {(each["task"], each["stage"], each["generation"]) for each in found}
        assert about == {(task, stage, 1) for task in ("Partition 0", "Partition 1") for stage in ("first", "second")}
    (ending,) = [record.__dict__ for record in caplog.records if record.getMessage().startswith("exiting: ")]
    assert "task" not in ending


async def test_a_container_that_waits_for_a_task_logs_its_name(here: Place, caplog: pytest.LogCaptureFixture) -> None:
    caplog.handler.addFilter(FieldsFilter({}))
    caplog.set_level("INFO")
    run_id = await here.deploy()
    await here.start(run_id, "c1").engine.all_started(4)
    waiting = here.new_wire()
    here.start(run_id, "c2", wire=waiting)
    await waiting.after("acquire", 2)
    said = [record.__dict__["task"] for record in caplog.records if "may still act" in record.getMessage()]
    assert set(said) <= {"Partition 0", "Partition 1"}
    assert said
