"""Which command a run allows after an upgrade, and what an upgrade would do."""

from __future__ import annotations

from containers.attached.claim import COMMAND, REFUSED, command_digest
from containers.attached.script_drains import CHECKPOINTS
from containers.attached.upgrade import config_for, plan_lines, rollback_config
from sluice.core.ids import RunId
from sluice.wire import drains as wire_drains

OLD, NEW = ["spark-submit", "orders.py"], ["spark-submit", "orders_v2.py"]


def test_the_run_of_a_new_version_is_only_for_its_command() -> None:
    config = config_for({"owner": "shop", REFUSED: "x"}, NEW)
    assert config == {"owner": "shop", COMMAND: command_digest(NEW)}
    assert command_digest(NEW) != command_digest(OLD)


def test_the_run_after_a_rollback_is_for_any_other_command_and_has_checkpoints_of_its_own() -> None:
    before = config_for({"owner": "shop"}, OLD)
    config = rollback_config(before, NEW, RunId("run-2"))
    assert (config["owner"], config[REFUSED], COMMAND in config) == ("shop", command_digest(NEW), False)
    assert config[CHECKPOINTS] != rollback_config(before, NEW, RunId("run-3"))[CHECKPOINTS]
    assert config_for(config, NEW)[CHECKPOINTS] == config[CHECKPOINTS]


def plan(**fields: object) -> wire_drains.DrainPlanReply:
    stage = wire_drains.StagePlanReply(stage="counts", tasks=1, operators=("distinct",), state_rows=4, unknown_tasks=())
    return wire_drains.DrainPlanReply.model_validate({"run_id": "run-1", "job": "orders", "empties": False, "stages": (stage,), **fields})


def test_a_plan_names_the_queries_the_rows_that_stay_and_the_command() -> None:
    assert plan_lines(plan(), NEW) == [
        "1. drain run run-1: counts",
        "   rows would be left in state: counts: distinct",
        '2. start ["spark-submit", "orders_v2.py"]',
        "3. watch its first batches, and go back if they fail",
    ]


def test_a_plan_that_would_be_refused_says_why() -> None:
    assert plan_lines(plan(refused="these queries cannot be drained: rates"), NEW) == ["these queries cannot be drained: rates"]
