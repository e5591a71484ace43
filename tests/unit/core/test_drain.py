from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.drain import (
    EFFECTS,
    LOSES,
    Blocker,
    BlockReason,
    DrainTimeLimits,
    Effect,
    Mode,
    Phase,
    RunTopology,
    StageAt,
    Step,
    advanced,
    begins,
    blockers,
    cancelled,
    check_mode,
    counts,
    done,
    drained_offsets,
    is_late,
    moved,
    operators_differ,
    remains,
    to_catch_up,
    waits_for,
)
from sluice.core.errors import DrainTooEarly, IllegalTransition, NotCancellable, OtherDrainMode, StaleRun
from sluice.core.ids import ProcessorId, Ssp, StageName, TaskName
from sluice.core.lifecycle import RunState

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
TASKS = [TaskName(f"Partition {n}") for n in range(3)]
ROUTE, HOURLY = StageName("route"), StageName("hourly")
ALL = list(itertools.product(TASKS, (ROUTE, HOURLY)))
ON = [Phase.REQUESTED, Phase.STOPPING, Phase.FLUSHING, Phase.COMMITTING]
MOVES = {
    ("REQUESTED", "STOPPING"),
    ("REQUESTED", "CANCELLED"),
    ("REQUESTED", "FAILED"),
    ("STOPPING", "FLUSHING"),
    ("STOPPING", "CANCELLED"),
    ("STOPPING", "FAILED"),
    ("FLUSHING", "COMMITTING"),
    ("FLUSHING", "CANCELLED"),
    ("FLUSHING", "FAILED"),
    ("COMMITTING", "DRAINED"),
    ("COMMITTING", "CANCELLED"),
    ("COMMITTING", "FAILED"),
}


# --- requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [RunState.CREATED, RunState.RUNNING])
@pytest.mark.parametrize(("newest", "flushed"), [(None, False), (Phase.CANCELLED, False), (Phase.FAILED, False)])
def test_a_request_for_a_run_that_continues_is_a_new_drain(state: RunState, newest: Phase | None, flushed: bool) -> None:
    assert begins(state, stopping=False, newest=newest, flushed=flushed)


@pytest.mark.parametrize(
    ("state", "stopping", "newest", "flushed"),
    [
        *((RunState.DRAINING, False, phase, phase in (Phase.FLUSHING, Phase.COMMITTING)) for phase in ON),
        (RunState.DRAINED, False, Phase.DRAINED, True),
        (RunState.RUNNING, True, Phase.FAILED, True),
        (RunState.STOPPED, True, Phase.FAILED, True),
        (RunState.FAILED, True, Phase.FAILED, True),
    ],
)
def test_a_request_for_a_run_that_a_drain_has_is_that_drain(state: RunState, stopping: bool, newest: Phase, flushed: bool) -> None:
    assert not begins(state, stopping=stopping, newest=newest, flushed=flushed)


@pytest.mark.parametrize(
    ("state", "stopping"), [(RunState.CREATED, True), (RunState.RUNNING, True), (RunState.STOPPED, True), (RunState.FAILED, True)]
)
@pytest.mark.parametrize("newest", [None, Phase.CANCELLED, Phase.FAILED])
def test_a_run_that_is_stopping_or_has_ended_is_not_drained(state: RunState, stopping: bool, newest: Phase | None) -> None:
    with pytest.raises(StaleRun):
        begins(state, stopping=stopping, newest=newest, flushed=False)


@pytest.mark.parametrize("phase", [Phase.REQUESTED, Phase.STOPPING, Phase.CANCELLED])
def test_a_drain_is_cancelled_while_nothing_is_flushed(phase: Phase) -> None:
    assert cancelled(phase) is Phase.CANCELLED


@pytest.mark.parametrize("phase", [Phase.FLUSHING, Phase.COMMITTING, Phase.DRAINED, Phase.FAILED])
def test_a_drain_is_not_cancelled_afterwards(phase: Phase) -> None:
    with pytest.raises(NotCancellable, match=phase):
        cancelled(phase)


@pytest.mark.parametrize("phase", [Phase.REQUESTED, Phase.STOPPING, Phase.FLUSHING, Phase.COMMITTING])
def test_a_drain_that_keeps_the_state_is_cancelled_in_every_phase(phase: Phase) -> None:
    assert cancelled(phase, Mode.KEEP_STATE) is Phase.CANCELLED


@pytest.mark.parametrize("phase", [Phase.DRAINED, Phase.FAILED])
def test_a_drain_that_has_ended_is_not_cancelled_even_if_it_kept_the_state(phase: Phase) -> None:
    with pytest.raises(NotCancellable, match=phase):
        cancelled(phase, Mode.KEEP_STATE)


@pytest.mark.parametrize("phase", [Phase.STOPPING, Phase.DRAINED])
def test_a_drain_answers_requests_of_its_own_mode_only(phase: Phase) -> None:
    for mode in Mode:
        check_mode(mode, phase, mode)
    with pytest.raises(OtherDrainMode, match="keeps the state"):
        check_mode(Mode.KEEP_STATE, phase, Mode.DEFAULT)
    with pytest.raises(OtherDrainMode, match="empties the state"):
        check_mode(Mode.DEFAULT, phase, Mode.KEEP_STATE)


@pytest.mark.parametrize(("source", "target"), list(itertools.product(Phase, Phase)))
def test_a_drain_takes_only_the_transitions_of_its_life_cycle(source: Phase, target: Phase) -> None:
    if (source.value, target.value) in MOVES:
        assert moved(source, target) is target
    else:
        with pytest.raises(IllegalTransition, match=f"{source}.*{target}"):
            moved(source, target)


# --- steps ------------------------------------------------------------------------------------------------------------


@given(st.data())
def test_no_order_of_reports_skips_a_phase_or_ends_with_a_stage_missing(data: st.DataObject) -> None:
    """Reports of any step of any stage, also wrong and repeated ones, until every step has been reported in its turn."""
    steps = dict.fromkeys(ALL, Step.NONE)
    phase, came = Phase.STOPPING, [Phase.STOPPING]

    def report(key: tuple[TaskName, StageName], step: Step) -> None:
        nonlocal phase
        try:
            if counts(phase, steps[key], step):
                assert step >= steps[key]
                steps[key] = step
        except DrainTooEarly:
            assert not done(phase, at(steps))
            return
        after = advanced(phase, min(steps.values()))
        if after is not phase:
            assert done(phase, at(steps))
            moved(phase, after)
            came.append(after)
            phase = after

    reported = st.tuples(st.sampled_from(ALL), st.sampled_from([Step.STOPPED, Step.FLUSHING, Step.FLUSHED, Step.COMMITTED]))
    for key, step in data.draw(st.lists(reported, max_size=60)):
        report(key, step)
        assert (phase is Phase.DRAINED) == (min(steps.values()) is Step.COMMITTED)
    for step in (Step.STOPPED, Step.FLUSHED, Step.COMMITTED):
        for key in data.draw(st.permutations(ALL)):
            report(key, step)
    assert came == [Phase.STOPPING, Phase.FLUSHING, Phase.COMMITTING, Phase.DRAINED]


def at(steps: dict[tuple[TaskName, StageName], Step]) -> list[StageAt]:
    return [StageAt(task, stage, step) for (task, stage), step in steps.items()]


@pytest.mark.parametrize("phase", [Phase.DRAINED, Phase.CANCELLED, Phase.FAILED])
@pytest.mark.parametrize("step", list(Step)[1:])
def test_a_report_to_a_drain_that_has_ended_changes_nothing(phase: Phase, step: Step) -> None:
    assert not counts(phase, Step.NONE, step)
    assert advanced(phase, Step.COMMITTED) is phase


def test_no_step_is_taken_before_the_first_container_registers() -> None:
    with pytest.raises(DrainTooEarly):
        counts(Phase.REQUESTED, Step.NONE, Step.STOPPED)
    assert advanced(Phase.REQUESTED, Step.COMMITTED) is Phase.REQUESTED


# --- who blocks -------------------------------------------------------------------------------------------------------

SHAPE = RunTopology(
    slots={TASKS[0]: ProcessorId("0"), TASKS[1]: ProcessorId("0"), TASKS[2]: ProcessorId("1")},
    feeders={ROUTE: frozenset(), HOURLY: frozenset({ROUTE})},
    live={ProcessorId("0"), ProcessorId("1")},
    held=set(TASKS),
)


def stages(**steps: Step) -> list[StageAt]:
    """Tasks 0, 1 and 2, with all stages at STOPPED but those given as route0=…"""
    return [StageAt(task, stage, steps.get(f"{stage}{n}", Step.STOPPED)) for n, task in enumerate(TASKS) for stage in (ROUTE, HOURLY)]


def test_a_stage_behind_another_waits_until_that_is_flushed_in_every_task() -> None:
    some = stages(route0=Step.FLUSHED, route1=Step.FLUSHED)
    assert waits_for(Phase.FLUSHING, HOURLY, SHAPE, some) == [ROUTE]
    assert blockers(Phase.FLUSHING, some, SHAPE) == [Blocker(ProcessorId("1"), BlockReason.AT_WORK, TASKS[2], ROUTE)]
    every = stages(route0=Step.FLUSHED, route1=Step.FLUSHED, route2=Step.FLUSHED)
    assert waits_for(Phase.FLUSHING, HOURLY, SHAPE, every) == []
    assert [(each.task, each.stage) for each in blockers(Phase.FLUSHING, every, SHAPE)] == [(task, HOURLY) for task in TASKS]


def test_in_other_phases_no_stage_waits_for_another() -> None:
    none = [StageAt(task, stage, Step.NONE) for task, stage in ALL]
    assert waits_for(Phase.STOPPING, HOURLY, SHAPE, none) == []
    assert len(blockers(Phase.STOPPING, none, SHAPE)) == len(ALL)


def test_an_empty_slot_and_a_task_without_an_owner_are_named_instead_of_their_stages() -> None:
    exits = {ProcessorId("0"): "killed", ProcessorId("1"): "ValueError: bad"}
    shape = RunTopology(SHAPE.slots, SHAPE.feeders, live={ProcessorId("0")}, held={TASKS[0]}, exits=exits)
    found = blockers(Phase.FLUSHING, stages(), shape)
    assert found == [
        Blocker(ProcessorId("0"), BlockReason.AT_WORK, TASKS[0], ROUTE),
        Blocker(ProcessorId("0"), BlockReason.NOT_HELD, TASKS[1]),
        Blocker(ProcessorId("1"), BlockReason.NO_CONTAINER, last_exit="ValueError: bad"),
    ]
    assert [str(each) for each in found] == [
        "Partition 0, stage route (slot 0): at work",
        "Partition 1 (slot 0): not held",
        "slot 1: no container; the last one ended: ValueError: bad",
    ]


def test_a_slot_that_has_done_everything_may_be_empty() -> None:
    shape = RunTopology(SHAPE.slots, SHAPE.feeders, live={ProcessorId("0")}, held=set(TASKS))
    all_done = stages(route2=Step.FLUSHED, hourly2=Step.FLUSHED)
    assert {each.processor_id for each in blockers(Phase.FLUSHING, all_done, shape)} == {"0"}


@given(st.sampled_from(list(Phase)), st.lists(st.sampled_from(list(Step)), min_size=len(ALL), max_size=len(ALL)))
def test_a_drain_has_blockers_exactly_while_something_remains(phase: Phase, steps: list[Step]) -> None:
    found = [StageAt(task, stage, step) for (task, stage), step in zip(ALL, steps, strict=True)]
    assert done(phase, found) == (remains(phase, found) == []) == (blockers(phase, found, SHAPE) == [])


# --- time and offsets -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "began", "entered", "late"),
    [
        (Phase.STOPPING, 0, 0, False),
        (Phase.STOPPING, 61, 5, True),
        (Phase.FLUSHING, 20, 11, True),
        (Phase.FLUSHING, 20, 10, False),
        (Phase.COMMITTING, 59, 59, False),
        (Phase.REQUESTED, None, 999, False),
        (Phase.DRAINED, 999, 999, False),
    ],
)
def test_a_drain_is_late_after_its_soft_deadline_or_the_budget_of_its_phase(
    phase: Phase, began: int | None, entered: int, late: bool
) -> None:
    times = DrainTimeLimits(timedelta(seconds=60), timedelta(seconds=600), {Phase.FLUSHING: timedelta(seconds=10)})
    since = None if began is None else NOON - timedelta(seconds=began)
    assert is_late(times, phase, since, NOON - timedelta(seconds=entered), NOON) == late


A, B, C = Ssp("log", "a", 0), Ssp("log", "a", 1), Ssp("log", "b", 0)


def test_readers_of_one_partition_catch_up_to_the_furthest() -> None:
    assert to_catch_up([{A: 5, B: 3}, {A: 9}, {A: 7, C: 2}, {C: 2}]) == {A: 9}
    assert to_catch_up([]) == {}


def test_the_next_run_begins_behind_what_every_reader_has_read() -> None:
    assert drained_offsets({A: 1, B: 1, C: 1}, [{A: 5}, {A: 9}, {C: 2}], {C: 4}) == {A: 5, B: 1, C: 4}


@given(st.lists(st.dictionaries(st.sampled_from([A, B, C]), st.integers(0, 9)), max_size=5))
def test_without_a_stage_that_catches_up_nothing_is_read_twice(positions: list[dict[Ssp, int]]) -> None:
    found, twice = drained_offsets({}, positions, {}), to_catch_up(positions)
    for position in positions:
        for ssp, offset in position.items():
            assert found[ssp] == offset or (ssp in twice and found[ssp] <= offset)


# --- state ------------------------------------------------------------------------------------------------------------


def test_every_effect_has_a_text_and_those_that_lose_what_later_input_needs_are_known() -> None:
    assert EFFECTS.keys() == set(Effect)
    assert {Effect.FORGETS, Effect.DROPS, Effect.UNMATCHED} == LOSES


def test_operators_differ_by_their_texts_and_their_order() -> None:
    assert operators_differ(["a", "b"], ("a", "b")) == ""
    assert operators_differ([], []) == ""
    assert operators_differ(["a", "b"], ["b", "a"]) == "the kept state belongs to a; b, and this version has b; a"
    assert operators_differ(["a"], []) == "the kept state belongs to a, and this version has no stateful operator"
