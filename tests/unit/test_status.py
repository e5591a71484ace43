from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from sluice.status import PORTION, overview, overview_steps, status_of
from sluice.wire import runs as wire_runs
from tests.support.api import NOON, RUN, ago, container, detail, execution_id, stage, stage_metrics, task

HOLDER = execution_id(0)


def problems(**changes: Any) -> list[str]:
    return list(overview(detail(**changes), NOON).problems)


def only_stage(**changes: Any) -> dict[str, Any]:
    """A run of one task with one stage, with these changes."""
    return {"stages": ({"name": "route", "reads": ("flights",)},), "tasks": (task(0, HOLDER, stage("route", **changes)),)}


def test_a_healthy_run_has_no_problems_and_shows_its_numbers() -> None:
    seen = overview(detail(), NOON)
    assert seen.problems == ()
    assert (seen.containers_live, seen.containers, seen.tasks_owned, seen.tasks) == (2, 2, 4, 4)
    assert seen.lease_seconds_left == 35.2
    assert seen.since == ago(minutes=4, seconds=12)


def test_a_stage_shows_the_sum_of_its_tasks_rates_and_the_worst_of_their_times() -> None:
    slow = stage("route", metrics=stage_metrics(rows_per_second=0.5, batch_millis=9000, lag=7, watermark=ago(hours=1)))
    stale = stage("route", reported_at=ago(minutes=3), metrics=None, snapshot_at=ago(minutes=4))
    fast = stage("route", metrics=stage_metrics(watermark=ago(minutes=1)))
    seen = overview(detail(tasks=tuple(task(n, HOLDER, each) for n, each in enumerate((slow, stale, fast)))), NOON)
    route, hourly = seen.stages
    assert (route.stage, route.rows_per_second, route.lag, route.batch_millis, route.batches) == (
        "route",
        1000.5,
        107,
        9000,
        126,
    )
    assert route.watermark_lag_seconds == 3598
    assert (route.report_age_seconds, route.snapshot_age_seconds, hourly.snapshot_age_seconds) == (180, 240, None)
    assert (hourly.stage, hourly.rows_per_second, hourly.lag, hourly.report_age_seconds) == ("hourly", None, None, None)


def test_many_tasks_are_counted_in_short_steps_and_none_is_left_out() -> None:
    number = 2 * PORTION + 1
    late = {number - 1: ago(hours=1)}
    tasks = (task(i, HOLDER, stage("route", batch_id=1, reported_at=late.get(i, NOON), metrics=None, lag=3)) for i in range(number))
    run = detail(stages=({"name": "route", "reads": ("flights",)},), tasks=tuple(tasks))
    seen = overview(run, NOON)
    [found] = seen.stages
    assert (found.batches, found.lag, found.report_age_seconds) == (2 * number, 3 * number, 3600.0)
    assert [each for each in seen.problems if "without a report" in each and f"Partition {number - 1}" in each]
    steps = sum(1 for _ in overview_steps(run, NOON))
    assert steps - sum(1 for _ in overview_steps(detail(stages=run.stages, tasks=run.tasks[:1]), NOON)) == 4  # two more portions, twice


def test_a_stage_that_reports_without_a_batch_is_not_stale() -> None:
    seen = overview(detail(**only_stage(reported_at=ago(hours=1))), NOON)
    assert seen.stages[0].report_age_seconds == 2
    assert seen.problems == ()


def test_ages_are_measured_by_the_coordinators_clock_or_else_by_the_local_one() -> None:
    assert overview(detail(), NOON + timedelta(hours=1)).stages[0].report_age_seconds == 2
    assert overview(detail(server_time=None), NOON + timedelta(seconds=1)).stages[0].report_age_seconds == 3


@pytest.mark.parametrize(
    ("changes", "since"),
    [
        ({"state": "CREATED", "started_at": None}, ago(minutes=5)),
        ({"state": "STOPPED", "ended_at": ago(minutes=1)}, ago(minutes=1)),
    ],
)
def test_since_is_when_the_run_came_into_its_state(changes: dict[str, Any], since: object) -> None:
    assert overview(detail(**changes), NOON).since == since


# --- problems ---


def test_a_task_without_an_owner_is_a_problem() -> None:
    assert problems(tasks=(task(0, HOLDER), task(3, None))) == ["1 task without an owner: Partition 3"]


def test_a_task_of_a_slot_with_a_live_bare_container_needs_no_owner() -> None:
    tasks = (task(0, None), task(1, HOLDER))
    assert problems(tasks=tasks, incarnations=(container(0, bare=True), container(1))) == []
    lost = (container(0, bare=True, state="LOST"), container(1, bare=True))
    assert problems(tasks=tasks, incarnations=lost) == ["1 of 2 containers are live", "1 task without an owner: Partition 0"]


def test_many_tasks_without_a_holder_are_named_in_part() -> None:
    (reported,) = problems(tasks=tuple(task(n, None) for n in range(9)))
    assert reported == "9 tasks without an owner: Partition 0, Partition 1, Partition 2, Partition 3, Partition 4 and 4 more"


def test_a_missing_container_is_a_problem() -> None:
    assert problems(incarnations=(container(0), container(1, state="LOST"))) == ["1 of 2 containers are live"]


def test_a_script_whose_command_has_ended_with_exit_code_0_is_idle() -> None:
    ended = container(0, state="EXITED", ended_at=ago(minutes=3), exit_code=0)
    script = {"kind": "attached", "containers": 1, "tasks": (task(0, None),)}
    seen = overview(detail(**script, incarnations=(ended,)), NOON)
    assert (seen.problems, seen.idle_since) == ((), ago(minutes=3))
    missing = ["0 of 1 containers are live", "1 task without an owner: Partition 0"]
    failed = container(0, state="EXITED", ended_at=ago(minutes=2), exit_code=1, epoch=2)
    for incarnations in [(), (ended, failed), (ended, container(0, state="LOST", epoch=2))]:
        seen = overview(detail(**script, incarnations=incarnations), NOON)
        assert seen.idle_since is None
        assert [each for each in missing if each in seen.problems] == missing
    jobs = overview(detail(containers=1, incarnations=(ended,), tasks=(task(0, None),)), NOON)
    assert (list(jobs.problems), jobs.idle_since) == (missing, None)


def test_a_failed_run_is_a_problem_and_shows_the_reason() -> None:
    assert problems(state="FAILED", reason="boom", ended_at=NOON) == [f"run {RUN} has failed: boom"]
    assert problems(state="FAILED", ended_at=NOON) == [f"run {RUN} has failed"]


@pytest.mark.parametrize(
    "changes", [{"state": "STOPPED", "ended_at": NOON}, {"state": "DRAINED", "ended_at": NOON}, {"stop_requested_at": ago(seconds=5)}]
)
def test_a_run_that_ended_in_order_or_is_stopping_has_no_problems(changes: dict[str, Any]) -> None:
    assert problems(incarnations=(), tasks=(task(0, None),), **changes) == []


def test_a_stage_with_lag_that_has_not_reported_for_long_is_a_problem() -> None:
    late = only_stage(reported_at=ago(minutes=6), metrics=stage_metrics(at=ago(minutes=6)))
    assert problems(**late) == ["1 task without a report of stage route for more than 300 s: Partition 0"]


def test_the_caller_chooses_the_age_of_an_old_report() -> None:
    late = detail(**only_stage(reported_at=ago(minutes=6), metrics=stage_metrics(at=ago(minutes=6))))
    assert overview(late, NOON, timedelta(minutes=10)).problems == ()
    assert overview(detail(), NOON, timedelta(seconds=1)).problems != ()


def test_a_stage_with_nothing_left_to_read_may_be_silent() -> None:
    assert problems(**only_stage(reported_at=ago(hours=6), metrics=stage_metrics(lag=0, at=ago(hours=6)))) == []


def test_the_lag_that_the_coordinator_reads_takes_precedence_over_the_one_of_the_container() -> None:
    hanging = only_stage(reported_at=ago(hours=6), lag=9, metrics=stage_metrics(lag=0, at=ago(hours=6)))
    assert len(problems(**hanging)) == 1
    assert overview(detail(**hanging), NOON).stages[0].lag == 9
    idle = only_stage(batch_id=None, reported_at=None, metrics=None, lag=0)
    assert problems(**idle, started_at=ago(hours=6)) == []


def test_a_stage_of_unknown_lag_that_does_not_report_is_a_problem() -> None:
    assert len(problems(**only_stage(reported_at=ago(hours=6), metrics=stage_metrics(lag=None, at=ago(hours=6))))) == 1
    assert len(problems(**only_stage(reported_at=ago(hours=6), metrics=None))) == 1


def test_a_stage_that_never_reported_is_a_problem_once_the_run_is_older_than_the_limit() -> None:
    silent = only_stage(batch_id=None, reported_at=None, metrics=None)
    assert problems(**silent) == []
    assert len(problems(**silent, started_at=ago(minutes=6))) == 1
    unknown: dict[str, Any] = {"tasks": (task(0, HOLDER, stage("route")),), "started_at": ago(minutes=6)}
    assert problems(**unknown) == ["1 task without a report of stage hourly for more than 300 s: Partition 0"]


def test_one_job_with_a_problem_makes_the_status_unhealthy() -> None:
    well, ill = overview(detail(), NOON), overview(detail(incarnations=()), NOON)
    assert status_of([well]).healthy
    assert not status_of([well, ill]).healthy
    assert status_of([]).healthy


def watched(**changes: Any) -> dict[str, Any]:
    reported = {
        "name": "in",
        "system": "kafka",
        "stream": "flights",
        "known": 4,
        "seen": 4,
        "verdict": "UNCHANGED",
        "reason": "",
        "since": NOON,
    }
    return reported | changes


def test_a_stream_whose_growth_is_refused_is_a_problem_and_one_that_the_run_followed_is_none() -> None:
    refused = watched(seen=6, verdict="REFUSED", reason="6 is no multiple of 4")
    output = problems(watched=(watched(), watched(seen=8, verdict="SAFE", reason="it has grown to 8"), refused))
    assert output == ["kafka.flights does not grow the job: 6 is no multiple of 4"]


def test_a_slot_in_crash_loop_backoff_is_a_problem() -> None:
    held = {"processor_id": "1", "failures": 4, "until": NOON + timedelta(seconds=5)}
    assert problems(crash_loop_backoff=(held,)) == [
        "slot 1 is backing off until 12:00:05: it has failed 4 times in a row right after starting"
    ]


def test_slots_whose_tasks_have_failed_over_are_a_problem() -> None:
    assert problems(failed_over_slots=("1",)) == ["1 of 2 slots have no container, and their tasks were reassigned"]


@pytest.mark.parametrize(
    ("since", "expected"), [(ago(minutes=6), ["still not at version 3 of the job model: slot 1"]), (ago(minutes=4), [])]
)
def test_a_container_that_does_not_adopt_a_version_for_long_is_a_problem(since: object, expected: list[str]) -> None:
    behind = {"execution_container_id": execution_id(1), "processor_id": "1", "version": 2, "since": since}
    assert problems(adoption={"version": 3, "since": since, "all_on": None, "outdated": (behind,)}) == expected


def held(**changes: Any) -> dict[str, Any]:
    holder = {"task": "Partition 1", "stage": "route", "why": "no container owns it"}
    reported = {"system": "log", "stream": "mid", "event_time": NOON, "newest": NOON, "lag_seconds": 0.0, "held_by": (holder,)}
    return reported | {"held_seconds": 301.0} | changes


def test_a_watermark_that_has_waited_for_long_is_a_problem_and_names_the_task() -> None:
    assert problems(watermarks=(held(),)) == [
        "the watermark behind log.mid has not risen for 301 s: it waits for Partition 1/route (no container owns it)"
    ]
    assert problems(watermarks=(held(held_seconds=40.0),)) == []
    assert problems(watermarks=(held(held_by=(), held_seconds=0.0),)) == []


def test_a_watermark_whose_stream_cannot_be_read_is_a_problem() -> None:
    assert problems(watermarks=(held(held_by=(), error="the ends of log.mid are unknown: gone"),)) == [
        "the watermark behind log.mid does not advance: the ends of log.mid are unknown: gone"
    ]


def test_rows_that_were_dropped_as_late_are_a_problem_for_an_hour() -> None:
    dropped = only_stage(late_rows=12, late_rows_at=ago(minutes=59))
    assert problems(**dropped) == ["1 task of stage route dropped 12 rows as late: Partition 0"]
    assert problems(**only_stage(late_rows=12, late_rows_at=ago(minutes=61))) == []
    apart = only_stage(late_rows=12, late_rows_given_up=5, late_rows_at=NOON)
    assert problems(**apart) == [
        "1 task of stage route dropped 12 rows as late, 5 of them behind a task that was not waited for: Partition 0"
    ]
    assert overview(detail(**apart), NOON).stages[0].late_rows == 12


# --- failures, exits, silence ----------------------------------------------------------------------------------------

ERROR = "/jobs/delays.py:12 in write: ZeroDivisionError: division by zero"


def failure(**changes: Any) -> dict[str, Any]:
    reported = {"error": ERROR, "failures": 2, "at": ago(seconds=3), "retry_at": NOON + timedelta(seconds=27), "log": "/logs/c0.log"}
    return {**reported, "over": False, **changes}


def failing(**changes: Any) -> dict[str, Any]:
    return only_stage(failure=failure(**changes))


def test_a_stage_that_fails_is_a_problem_that_begins_with_the_line_of_the_user_and_names_the_log() -> None:
    assert problems(**failing()) == [f"{ERROR} (stage route of Partition 0 failed 2 times; next attempt in 27 s; log: /logs/c0.log)"]
    assert problems(**failing(failures=1, retry_at=None, log="")) == [
        f"{ERROR} (stage route of Partition 0 failed once; no further attempt)"
    ]


@pytest.mark.parametrize(
    ("kind", "then"), [("stages", "deploy the new version with `sluice upgrade`"), ("attached", "start the script again")]
)
def test_the_remedy_of_a_failing_stage_fits_the_kind_of_the_job(kind: str, then: str) -> None:
    assert f"Correct the line that is named first, then {then}." in overview(detail(kind=kind, **failing()), NOON).remedies


def test_tasks_that_fail_with_one_error_are_one_problem() -> None:
    tasks = tuple(task(n, HOLDER, stage("route", failure=failure(failures=n + 1))) for n in range(7))
    (reported,) = problems(stages=({"name": "route", "reads": ("flights",)},), tasks=tasks)
    assert "of Partition 0, Partition 1, Partition 2, Partition 3, Partition 4 and 2 more failed 7 times" in reported


def test_a_stage_that_makes_progress_again_is_no_problem_and_is_remembered_for_ten_minutes() -> None:
    seen = overview(detail(**failing(over=True)), NOON)
    assert seen.problems == ()
    assert [each.error for each in seen.restarted] == [ERROR]
    assert overview(detail(**failing(over=True, at=ago(minutes=11))), NOON).restarted == ()


def gone(slot: int = 1, suffix: str = "dead", **changes: Any) -> wire_runs.ContainerReply:
    how = {"state": "EXITED", "exit_code": 1, "reason": "boom", "ended_at": ago(minutes=1), "lease_seconds_left": None}
    return container(slot, execution_container_id=execution_id(slot, suffix), **{**how, **changes})


def test_a_slot_without_a_container_shows_how_the_last_one_ended() -> None:
    reported = problems(incarnations=(container(0), gone(reason="boom\nlog: /logs/c1.log")))
    assert reported == [
        "1 of 2 containers are live",
        f"container {execution_id(1, 'dead')} exited with code 1: boom\nlog: /logs/c1.log",
    ]


def test_one_replaced_container_is_not_a_problem_and_two_are() -> None:
    once = overview(detail(incarnations=(container(0), gone(), container(1))), NOON)
    assert once.problems == ()
    assert [(each.processor_id, each.exit_code, each.replaced) for each in once.exits] == [("1", 1, True)]
    lost = gone(suffix="lost", state="LOST", exit_code=None, reason="its lease expired", ended_at=ago(minutes=2))
    assert problems(incarnations=(container(0), gone(), lost, container(1))) == [
        f"2 containers of slot 1 failed within 10 min; the last {execution_id(1, 'dead')} exited with code 1: boom"
    ]


@pytest.mark.parametrize("changes", [{"exit_code": 0}, {"exit_code": 3}, {"ended_at": ago(minutes=11)}])
def test_a_container_that_stopped_in_order_or_long_ago_is_not_a_recent_exit(changes: dict[str, Any]) -> None:
    assert overview(detail(incarnations=(container(0), gone(**changes), container(1))), NOON).exits == ()


def test_what_was_recorded_under_a_clock_that_was_ahead_is_not_recent() -> None:
    ahead = NOON + timedelta(days=3)
    assert problems(**only_stage(late_rows=12, late_rows_at=ahead)) == []
    assert problems(**only_stage(late_rows=12, late_rows_at=NOON + timedelta(minutes=4))) != [], "clocks may differ by so much"
    exits = [gone(suffix="first", ended_at=ahead), gone(suffix="second", ended_at=ahead)]
    assert overview(detail(incarnations=(container(0), *exits, container(1))), NOON).exits == ()
    assert overview(detail(**failing(over=True, at=ahead)), NOON).restarted == ()


def test_a_live_container_that_misses_heartbeats_is_a_problem() -> None:
    silent = [container(slot, silent=True, heartbeat_age_seconds=18.0 + slot) for slot in (0, 1)]
    seen = overview(detail(incarnations=silent), NOON)
    assert seen.problems == ("2 of 2 containers silent for 18 s: slot 0, 1",)
    assert (seen.containers_live, seen.containers_silent, seen.heartbeat_age_seconds) == (2, 2, 19.0)


def test_a_task_that_has_no_partition_of_a_stage_is_not_late_with_it() -> None:
    narrow = task(2, HOLDER, stage("route")).model_copy(update={"assigned_stages": ("route",)})
    assert problems(tasks=(narrow,), started_at=ago(minutes=6)) == []
