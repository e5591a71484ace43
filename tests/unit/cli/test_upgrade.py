"""The next step of an upgrade, and the request that it deploys."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from sluice import Job
from sluice.cli.upgrade.decide import (
    BACK,
    CODE,
    FORMER,
    GIVEN_UP,
    AwaitEnd,
    Deploy,
    Drain,
    PlanOptions,
    Refuse,
    RollBack,
    Settings,
    Step,
    UpgradeStatus,
    Watch,
    new_request,
    next_step,
    plan_lines,
    rollback_request,
    same_version,
    upgrade_request,
)
from sluice.core.drain import Mode
from sluice.core.errors import BadSettings
from sluice.core.ids import RunId
from sluice.deploy import deploy_request
from sluice.wire import runs as wire_runs
from sluice.wire.drains import DrainSummary
from tests.support.api import NOON, detail

OLD, NEW = RunId("old"), RunId("new")
UPGRADED = {FORMER: OLD, CODE: "c1", "spark.x": "1"}


def drain(run_id: str, phase: str, seq: int = 1, reason: str = "") -> DrainSummary:
    return DrainSummary.model_validate(
        {
            "uuid": f"drain-{seq}",
            "run_id": run_id,
            "job": "flight-delays",
            "drain_mode": "DEFAULT",
            "phase": phase,
            "seq": seq,
            "reason": reason,
            "requested_at": NOON,
            "soft_deadline_at": None,
            "hard_deadline_at": None,
            "ended_at": None,
            "drained": (),
        }
    )


def step(*, is_new: bool = False, drains: tuple[DrainSummary, ...] = (), back: bool = True, force: bool = False, **run: Any) -> Step:
    return next_step(UpgradeStatus(detail(**run), is_new, drains), rollback=back, force=force)


def of_new(**changes: Any) -> dict[str, Any]:
    return {"run_id": NEW, "config": UPGRADED, "drains": (drain(OLD, "DRAINED"),), **changes}


# --- steps ---


@pytest.mark.parametrize("state", ["CREATED", "RUNNING", "DRAINING"])
def test_a_live_run_is_drained_first(state: str) -> None:
    assert step(run_id=OLD, state=state) == Drain(OLD)


def test_a_drain_of_the_other_mode_is_not_continued() -> None:
    emptied, kept = drain(OLD, "DRAINED"), drain(OLD, "DRAINED").model_copy(update={"drain_mode": "KEEP_STATE"})
    seen = UpgradeStatus(detail(run_id=OLD, state="DRAINED", ended_at=NOON), False, (kept,))
    assert next_step(seen, rollback=True, mode=Mode.KEEP_STATE) == Deploy(OLD)
    refused = next_step(seen, rollback=True)
    assert isinstance(refused, Refuse)
    assert "use --keep-state" in refused.why
    refused = next_step(replace(seen, drains=(emptied,)), rollback=True, mode=Mode.KEEP_STATE)
    assert isinstance(refused, Refuse)
    assert "its state is empty" in refused.why


def test_a_drained_run_is_followed_by_the_new_version_although_another_client_drained_it() -> None:
    assert step(run_id=OLD, state="DRAINED", ended_at=NOON) == Deploy(OLD)
    assert step(**of_new(is_new=True, state="DRAINED", ended_at=NOON)) == Deploy(NEW)


def test_a_run_of_the_new_version_is_only_watched() -> None:
    assert step(**of_new(is_new=True)) == Watch(NEW, OLD)
    assert step(**of_new(is_new=True, state="CREATED", started_at=None)) == Watch(NEW, OLD)


def test_a_run_of_another_version_or_one_upgraded_with_force_is_drained() -> None:
    assert step(**of_new()) == Drain(NEW)
    assert step(**of_new(is_new=True, force=True)) == Drain(NEW)


def given_up(**changes: Any) -> dict[str, Any]:
    return of_new(reason=f"{GIVEN_UP}boom", **{"state": "FAILED", "ended_at": NOON, **changes})


def test_a_version_that_was_given_up_is_rolled_back() -> None:
    assert step(**given_up(is_new=True)) == RollBack(NEW, OLD)
    assert step(**given_up(is_new=True, state="RUNNING", ended_at=None, stop_requested_at=NOON)) == RollBack(NEW, OLD)


@pytest.mark.parametrize("changes", [{"is_new": False}, {"is_new": True, "back": False}])
def test_another_version_begins_where_the_one_that_was_given_up_began(changes: dict[str, Any]) -> None:
    assert step(**given_up(**changes)) == Deploy(OLD)
    assert step(**given_up(state="RUNNING", ended_at=None, stop_requested_at=NOON, **changes)) == AwaitEnd(NEW)


def test_there_is_no_rollback_across_a_later_drain() -> None:
    later = (drain(NEW, "DRAINED", 2), drain(OLD, "DRAINED"))
    found = step(**given_up(is_new=True, drains=later))
    assert found == Refuse("run new failed as an upgrade of run old, but the job's last drain is now that of run new")


def test_a_drain_that_was_cancelled_later_does_not_count() -> None:
    later = (drain(NEW, "CANCELLED", 2), drain(OLD, "DRAINED"))
    assert step(**given_up(is_new=True, drains=later)) == RollBack(NEW, OLD)


@pytest.mark.parametrize("state", ["STOPPED", "FAILED"])
def test_an_ordinary_stop_does_not_count_as_a_drain(state: str) -> None:
    found = step(run_id=OLD, state=state, reason="on request", ended_at=NOON)
    assert isinstance(found, Refuse)
    assert found.why.startswith(f"run old has ended as {state} without a drain, so its state is not empty: deploy the old version again")


def test_a_run_that_is_being_stopped_is_refused() -> None:
    found = step(run_id=OLD, stop_requested_at=NOON, reason="night")
    assert isinstance(found, Refuse)
    assert "is being stopped (night)" in found.why


def test_a_run_whose_drain_failed_is_reported_as_such() -> None:
    found = step(run_id=OLD, state="STOPPED", ended_at=NOON, drains=(drain(OLD, "FAILED", reason="too late"),))
    assert isinstance(found, Refuse)
    assert "the drain of run old failed (too late), and its tasks are back at their pinned checkpoints" in found.why


# --- requests ---


def job(*outputs: str, name: str = "delays", intermediate: str = "mid") -> Job:
    made = Job(name)
    read, mid = made.input("in"), made.intermediate(intermediate, partitions=2)
    made.stage(reads=read, writes=mid, name="first")(lambda task: None)  # type: ignore[arg-type, return-value]
    made.stage(reads=mid, writes=[made.output(each) for each in outputs], name="second")(
        lambda task: None  # type: ignore[arg-type, return-value]
    )
    return made


def present(**bindings: dict[str, str]) -> wire_runs.RunRequest:
    return deploy_request(job("out"), 3, "log", "checkpoint", {"backup.stores": "s3", FORMER: "before"}, bindings)


def test_options_that_are_not_given_keep_the_values_of_the_current_run() -> None:
    made = new_request(job("out", "more"), Settings(config=["a=b"]), present(out={"system": "log", "stream": "elsewhere"}))
    assert (made.containers, made.start, made.config) == (3, "drained", {"backup.stores": "s3", "a": "b"})
    assert [(each.name, each.system, each.stream) for each in made.streams] == [
        ("in", "log", None),
        ("mid", "log", None),
        ("out", "log", "elsewhere"),
        ("more", "log", None),
    ]


def test_messages_are_printed_above_it() -> None:
    settings = Settings(containers=5, system="kafka", bind=["out=log:x"], config=["backup.stores="])
    made = new_request(job("out"), settings, present())
    assert (made.containers, made.config) == (5, {"backup.stores": ""})
    assert [(each.system, each.stream) for each in made.streams] == [("kafka", None), ("kafka", None), ("log", "x")]


def test_a_new_stream_beside_several_systems_has_to_be_placed() -> None:
    with pytest.raises(BadSettings, match=r"several systems \(kafka, log\): give the system of more with --bind NAME=SYSTEM"):
        new_request(job("out", "more"), Settings(), present(out={"system": "kafka"}))
    made = new_request(job("out", "more"), Settings(bind=["more=kafka"]), present(out={"system": "kafka"}))
    assert [each.system for each in made.outputs] == ["kafka", "kafka"]


def test_an_upgraded_run_is_recognised_and_others_are_not() -> None:
    new = new_request(job("out"), Settings(), present())
    made = upgrade_request(new, OLD, "c1")
    assert (made.start, made.config[FORMER], made.config[CODE]) == ("drained", OLD, "c1")
    again = new_request(job("out"), Settings(), made)
    assert same_version(made, again, "c1")
    assert not same_version(made, again, "c2")
    assert not same_version(made, new_request(job("out"), Settings(containers=4), made), "c1")
    assert not same_version(new, new, "c1")


def test_going_back_repeats_the_old_request_from_the_drained_offsets() -> None:
    old = upgrade_request(present(), RunId("older"), "c0")
    back = rollback_request(old, NEW)
    assert back.start == "drained"
    assert back.config == {**old.config, BACK: NEW}
    assert back.model_copy(update={"config": old.config}) == old
    assert not same_version(back, back, "c0")
    assert BACK not in rollback_request(back, None).config


# --- the plan ---

PLAN = wire_runs.RunPlanReply(
    job="j",
    replaces=OLD,
    streams=(),
    creates=("more",),
    tasks=tuple(wire_runs.PlannedTask(task=f"Partition {n}", processor_id="0") for n in range(4)),
)


def lines(of: Step, **changes: Any) -> list[str]:
    terms: dict[str, Any] = {
        "allow_leftover_state": False,
        "rollback": True,
        "batches": 2,
        "watch": timedelta(seconds=180),
    }
    return list(plan_lines(of, PlanOptions(**(terms | changes)), PLAN, 2))


def test_a_plan_has_the_steps_from_the_next_one_on() -> None:
    whole = lines(Drain(OLD))
    assert whole == [
        "drain run old: refused if a flush would leave rows in state",
        "check that state is empty",
        "deploy the new version at the drained offsets: 4 tasks in 2 containers, creating more",
        "wait for its containers, which the deployment platform starts",
        "watch until each stage has committed 2 batches or has nothing to read, at most 180 s",
        "if it fails: stop it, and deploy the old version (the request of run old) at the same offsets; output of the new version is kept",
    ]
    assert lines(Deploy(OLD)) == whole[2:]
    assert lines(Watch(NEW, OLD)) == whole[3:]
    assert lines(RollBack(NEW, OLD)) == ["wait until run new has ended", whole[-1].removeprefix("if it fails: ")]
    assert lines(AwaitEnd(NEW))[0] == "wait until run new has ended"


def test_a_plan_says_what_was_chosen() -> None:
    chosen = lines(Drain(OLD), allow_leftover_state=True, rollback=False)
    assert "rows that a flush cannot empty are left in state" in chosen[0]
    assert chosen[3] == "wait for its containers, which the deployment platform starts"
    assert chosen[-1] == "if it fails: leave it running"
