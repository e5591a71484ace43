"""Whether a new version is healthy, by its first batches."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from sluice.cli.upgrade.watch import SETTLED, HealthState, HealthWatch, VersionHealth, assess
from sluice.wire import runs as wire_runs
from tests.support.api import NOON, ago, container, detail, execution_id, stage, stage_metrics, task
from tests.support.fakes import FakeClock

WITHIN = timedelta(minutes=10)


def of_stages(*stages: wire_runs.StageProgress, **changes: Any) -> wire_runs.RunDetail:
    return detail(tasks=(task(0, execution_id(0), *stages),), **changes)


def at(batch: int | None, behind: int | None = 100) -> wire_runs.StageProgress:
    return stage("hourly", batch_id=batch, lag=behind, metrics=None)


def test_a_version_with_enough_batches_of_every_stage_is_healthy() -> None:
    assert assess(of_stages(at(1), at(5)), 2) == assess(of_stages(at(1), at(1)), 2)
    found = assess(of_stages(at(1), at(1)), 2)
    assert (found.how, found.done, found.total) == (HealthState.HEALTHY, 2, 2)


@pytest.mark.parametrize("waiting", [at(None), at(None, 0), at(0), at(0, None)])
def test_a_stage_with_too_few_batches_and_something_to_read_is_not_healthy_yet(waiting: wire_runs.StageProgress) -> None:
    found = assess(of_stages(at(1), waiting), 2)
    assert (found.how, found.done, found.total) == (HealthState.PENDING, 1, 2)
    assert found.reason == "1 stages have not committed 2 batches and are not idle"


def test_a_stage_that_has_read_everything_is_healthy_after_a_while() -> None:
    assert assess(of_stages(at(1), at(0, 0)), 2).how is HealthState.SETTLING


def test_the_lag_that_a_container_measured_counts_if_the_coordinator_cannot_read_the_ends() -> None:
    idle = stage("hourly", batch_id=0, metrics=stage_metrics(lag=0))
    assert assess(of_stages(idle), 2).how is HealthState.SETTLING


def test_with_kept_state_only_batches_of_the_new_version_count() -> None:
    before = {("Partition 0", "hourly"): 57}
    assert assess(of_stages(at(57)), 2, before=before).how is HealthState.PENDING
    assert assess(of_stages(at(58)), 2, before=before).how is HealthState.PENDING
    assert assess(of_stages(at(59)), 2, before=before).how is HealthState.HEALTHY
    assert assess(of_stages(at(57, 0)), 2, before=before).how is HealthState.PENDING
    reported = stage("hourly", batch_id=57, lag=0, metrics=stage_metrics(lag=0))
    assert assess(of_stages(reported), 2, before=before).how is HealthState.SETTLING


def test_empty_slots_and_free_tasks_are_named() -> None:
    bare = wire_runs.TaskReply(task="Partition 9", processor_id="1", generation=None, holder=None, stages=())
    run = detail(state="CREATED", incarnations=(container(0),), tasks=(task(0, execution_id(0)), bare))
    found = assess(run, 2)
    assert found.how is HealthState.PENDING
    assert found.reason == "1 of 2 containers are live; 1 of 2 tasks have no owner"
    assert (found.done, found.total) == (2, 4)


@pytest.mark.parametrize("code", [1, -9, 137])
def test_a_container_that_ended_with_an_error_is_bad_in_spite_of_good_batches(code: int) -> None:
    gone = container(0, state="EXITED", exit_code=code, reason="boom", execution_container_id="c-7")
    found = assess(detail(incarnations=(gone, container(0), container(1))), 2)
    assert (found.how, found.reason) == (HealthState.FAILED, f"container c-7 ended with exit code {code}: boom")


def test_a_reason_is_shown_without_stack_frames() -> None:
    trace = 'it failed: Traceback:\n  File "x.py", line 1\n    boom()\nValueError: boom\n\tat java.lang.Thread\n\nCaused by: boom'
    gone = container(0, state="EXITED", exit_code=1, reason=trace, execution_container_id="c-7")
    found = assess(detail(incarnations=(gone,)), 2)
    assert found.reason == "container c-7 ended with exit code 1: it failed: Traceback: ValueError: boom Caused by: boom"


@pytest.mark.parametrize("changes", [{"state": "EXITED", "exit_code": 0}, {"state": "EXITED", "exit_code": 3}, {"state": "LOST"}])
def test_a_container_that_ended_without_an_error_and_was_replaced_does_not_count(changes: dict[str, Any]) -> None:
    assert assess(detail(incarnations=(container(0, **changes), container(0), container(1))), 2).how is HealthState.HEALTHY


def test_a_container_that_crashed_before_it_was_seen_is_bad() -> None:
    found = assess(detail(state="CREATED", incarnations=()), 2, "container-0 ended with exit code 1")
    assert (found.how, found.reason) == (HealthState.FAILED, "container-0 ended with exit code 1")


def test_a_failed_run_is_bad_and_one_that_another_client_drained_or_stopped_is_superseded() -> None:
    assert assess(detail(state="FAILED", reason="boom", ended_at=NOON), 2).how is HealthState.FAILED
    for state in ("DRAINING", "DRAINED", "STOPPED"):
        assert assess(detail(state=state), 2).how is HealthState.SUPERSEDED


def test_a_run_that_is_being_stopped_is_not_healthy() -> None:
    assert assess(detail(stop_requested_at=NOON, reason="night"), 2).reason == "it is being stopped: night"


# --- over time ---


class Trial:
    """A watch of a run that was deployed five minutes before noon."""

    def __init__(self, within: timedelta = WITHIN) -> None:
        self.clock = FakeClock()
        self.watch = HealthWatch(2, within, self.clock)
        self._deployed = self.clock.elapsed()

    def assess(self, *stages: wire_runs.StageProgress, after: float, jumped: float = 0) -> VersionHealth:
        """`after` seconds from the deployment; the coordinator's wall clock has `jumped` ahead by that many seconds."""
        self.clock.advance(self._deployed + after - self.clock.elapsed())
        return self.watch.seen(of_stages(*stages, server_time=ago(minutes=5) + timedelta(seconds=after + jumped)))

    def seen(self, *stages: wire_runs.StageProgress, after: float, jumped: float = 0) -> HealthState:
        return self.assess(*stages, after=after, jumped=jumped).how


def test_an_idle_stage_must_stay_idle_until_the_coordinator_has_looked_again() -> None:
    trial, settled = Trial(), SETTLED.total_seconds()
    assert trial.seen(at(0, 0), after=1) is HealthState.SETTLING
    assert trial.seen(at(0, 0), after=settled) is HealthState.SETTLING
    assert trial.seen(at(0, 0), after=1 + settled) is HealthState.HEALTHY


def test_a_stage_that_gets_something_to_read_is_measured_from_then_on() -> None:
    trial = Trial()
    assert trial.seen(at(0, 0), after=1) is HealthState.SETTLING
    assert trial.seen(at(0, 7), after=8) is HealthState.PENDING
    assert trial.seen(at(0, 0), after=12) is HealthState.SETTLING
    assert trial.seen(at(1, 7), after=13) is HealthState.HEALTHY


def test_a_version_that_is_not_healthy_in_time_is_bad_and_the_reason_names_what_is_missing() -> None:
    trial = Trial()
    assert trial.seen(at(None), after=1) is HealthState.PENDING
    assert trial.seen(at(None), after=599) is HealthState.PENDING
    late = trial.assess(at(None), after=WITHIN.total_seconds())
    assert late.how is HealthState.FAILED
    assert late.reason.startswith("not within 600 s: ")
    assert not trial.watch.too_late


def test_a_jump_of_the_coordinators_clock_fails_no_upgrade() -> None:
    trial = Trial()
    assert trial.seen(at(None), after=1) is HealthState.PENDING
    assert trial.seen(at(None), after=2, jumped=3600) is HealthState.PENDING
    assert trial.seen(at(None), after=WITHIN.total_seconds(), jumped=-3600) is HealthState.FAILED


def test_a_command_that_starts_after_the_time_may_judge_and_not_roll_back() -> None:
    trial = Trial(timedelta(seconds=60))
    assert trial.seen(at(0), after=100) is HealthState.PENDING
    assert trial.watch.too_late
    assert trial.seen(at(1), after=101) is HealthState.HEALTHY
    another = Trial(timedelta(seconds=60))
    assert another.seen(at(0), after=100) is HealthState.PENDING
    assert another.seen(at(0), after=100 + 2 * SETTLED.total_seconds()) is HealthState.FAILED
    assert another.watch.too_late


def test_the_error_of_a_new_version_is_shown_while_it_is_retried() -> None:
    failure = {"error": "/jobs/new.py:7 in f: KeyError: 'a'", "failures": 1, "at": NOON, "retry_at": NOON, "log": "", "over": False}
    found = assess(of_stages(at(1), stage("hourly", batch_id=None, lag=None, metrics=None, failure=failure)), 2)
    assert found.how is HealthState.PENDING
    assert "/jobs/new.py:7 in f: KeyError: 'a' (stage hourly of Partition 0 failed once" in found.reason


def test_a_task_that_has_no_partition_of_a_stage_is_not_waited_for() -> None:
    narrow = task(0, execution_id(0), stage("route", batch_id=1)).model_copy(update={"assigned_stages": ("route",)})
    found = assess(detail(tasks=(narrow,)), 2)
    assert (found.how, found.done, found.total) == (HealthState.HEALTHY, 1, 1)
