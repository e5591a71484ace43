"""Which parts of the history of a job may be deleted."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from sluice.core.drain import DrainId, Phase
from sluice.core.ids import ExecutionContainerId, RunId, StageName, StreamId
from sluice.core.pruning import (
    NEWEST_VERSIONS,
    HistoryPolicy,
    JobHistory,
    PastContainer,
    PastDrain,
    PastRun,
    PastVersion,
    PruningPlan,
    plan_pruning,
    prunes_notices,
    surplus_containers,
)

NOW = datetime(2026, 6, 1, tzinfo=UTC)
POLICY = HistoryPolicy(incarnations=3, keep=timedelta(days=30))
READ = (StreamId("log", "flights"), StageName("hourly"))


def ago(days: float) -> datetime:
    return NOW - timedelta(days=days)


def run(number: int, days: float, first: int | None = None, *, active: bool = False, version: int = 1, over: bool = True) -> PastRun:
    """A run that began that many days ago and ended a day later."""
    first_run = RunId(f"r{number if first is None else first}")
    return PastRun(RunId(f"r{number}"), ago(days), ago(days - 1) if over else None, first_run, version, active)


def drain(number: int, of: int, days: float, phase: Phase = Phase.DRAINED, *, emptied: bool = False) -> PastDrain:
    return PastDrain(DrainId(f"d{number}"), RunId(f"r{of}"), number, phase, ago(days), 1, emptied)


def planned(*runs: PastRun, **more: object) -> PruningPlan:
    """The rule for a job with these runs, newest first."""
    history = JobHistory(runs[0].run_id, runs, **more)  # type: ignore[arg-type]
    return plan_pruning(history, POLICY, NOW)


def test_runs_go_a_month_after_their_end_but_not_the_last_two() -> None:
    young = [run(5, 3, over=False), run(4, 20), run(3, 30)]
    assert planned(*young, run(2, 31), run(1, 90)).runs == ["r1", "r2"]
    assert planned(run(3, 300, over=False), run(2, 400), run(1, 500)).runs == ["r1"]


def test_the_first_run_of_the_history_stays_and_so_does_the_newest_that_reads_a_stream_in_a_stage() -> None:
    other = (StreamId("log", "weather"), StageName("hourly"))
    runs = [run(6, 3, 1, over=False), run(5, 99, 1), run(4, 100, 1), run(3, 101, 1), run(2, 102, 1), run(1, 200)]
    reads = {"r6": [READ], "r5": [READ], "r4": [READ], "r3": [READ, other], "r2": [other], "r1": [READ]}
    assert planned(*runs, readers={RunId(name): found for name, found in reads.items()}).runs == ["r2", "r4"]


def test_a_run_stays_while_something_refers_to_it() -> None:
    runs = [run(6, 3, over=False), run(5, 90), run(4, 91, active=True), run(3, 92), run(2, 93), run(1, 94)]
    assert planned(*runs, used_runs=[RunId("r3")]).runs == ["r1", "r2"]
    assert planned(*runs, drains=[drain(2, 3, 91), drain(1, 2, 92)]).runs == ["r1", "r2"]
    failed = drain(1, 1, 93, Phase.FAILED, emptied=True)
    assert planned(*runs, drains=[drain(2, 5, 89), failed]).runs == ["r2", "r3"]


def test_drains_go_but_for_the_last_complete_one_and_those_whose_records_remain() -> None:
    runs = [run(9, 3, over=False), run(8, 90)]
    found = [
        drain(6, 9, 2, Phase.CANCELLED),
        drain(5, 8, 80, Phase.CANCELLED),
        drain(4, 8, 85),
        drain(3, 8, 86, Phase.FAILED, emptied=True),
        drain(2, 8, 87, Phase.FAILED),
        drain(1, 8, 88),
    ]
    assert planned(*runs, drains=found).drains == ["d1", "d2"]


def test_versions_go_but_for_the_newest_and_those_that_something_refers_to() -> None:
    versions = [PastVersion(n, ago(100)) for n in range(NEWEST_VERSIONS + 9, 0, -1)]
    runs = [run(2, 90, version=5, over=False), run(1, 95, version=3)]
    assert planned(*runs, versions=versions, used_versions=[2], adopted=1_000).versions == [1, 4, 6, 7, 8, 9]
    assert planned(*runs, versions=versions, adopted=7).versions == [1, 2, 4, 6]
    young = [replace(each, created_at=ago(29)) for each in versions]
    assert planned(*runs, versions=young, adopted=1_000).versions == []


def test_versions_to_which_a_roll_back_is_possible_stay() -> None:
    """No container has adopted a version, so the run may roll back to any."""
    versions = [PastVersion(n, ago(100)) for n in range(2 * NEWEST_VERSIONS, 0, -1)]
    assert planned(run(1, 90, version=2 * NEWEST_VERSIONS, over=False), versions=versions).versions == []


def test_of_a_slot_the_newest_containers_stay_and_those_that_have_not_ended_or_own_a_task() -> None:
    def container(epoch: int, *, ended: bool = True, owner: bool = False) -> PastContainer:
        return PastContainer(ExecutionContainerId(f"c{epoch}"), epoch, 9, ended, owner)

    found = [container(1), container(2, owner=True), container(3, ended=False), *(container(n) for n in range(4, 10))]
    assert surplus_containers(found, POLICY) == ["c1", "c4", "c5", "c6"]


def test_notices_of_a_stop_and_of_a_drain_stay() -> None:
    assert [prunes_notices(*flags) for flags in [(True, True, False), (False, False, False)]] == [True, True]
    assert [prunes_notices(*flags) for flags in [(False, True, False), (False, False, True)]] == [False, False]


def test_a_plan_can_be_read() -> None:
    assert str(PruningPlan()) == "nothing"
    assert str(PruningPlan([DrainId("d1")], [1, 2], [RunId("r1")])) == "runs r1; drains d1; versions 1, 2 of the job model"


# --- pruning changes no later answer ---------------------------------------------------------------------------------

DAYS = st.integers(0, 400)


@st.composite
def histories(draw: st.DrawFn) -> JobHistory:
    """A history as deployments, drains and growth leave it; the newest run is the current one."""
    count = draw(st.integers(1, 12))
    begun = sorted((draw(DAYS) for _ in range(count)), reverse=True)
    runs: list[PastRun] = []
    for number, days in enumerate(begun):
        continues = bool(runs) and draw(st.booleans())
        ended = None if number == count - 1 and draw(st.booleans()) else ago(draw(st.integers(0, days)))
        first = runs[-1].first_run if continues else RunId(f"r{number}")
        runs.append(PastRun(RunId(f"r{number}"), ago(days), ended, first, draw(st.integers(1, 80)), draw(st.integers(0, 9)) == 0))
    pairs = st.tuples(st.sampled_from([StreamId("log", name) for name in "abc"]), st.sampled_from([StageName(name) for name in "xy"]))
    first = runs[-1].first_run
    phases = st.sampled_from([Phase.DRAINED, Phase.FAILED, Phase.CANCELLED])
    drains = [
        PastDrain(DrainId(f"d{seq}"), draw(st.sampled_from(runs)).run_id, seq, draw(phases), ago(draw(DAYS)), 1, draw(st.booleans()))
        for seq in range(draw(st.integers(0, 8)), 0, -1)
    ]
    chance = random.Random(draw(st.integers(0, 2**32)))  # 80 draws for one example would take most of its time
    return JobHistory(
        runs[-1].run_id,
        runs[::-1],
        [PastVersion(version, ago(chance.randrange(400))) for version in range(80, 0, -1)],
        drains,
        {each.run_id: draw(st.frozensets(pairs, max_size=4)) for each in runs if each.first_run == first},
        draw(st.frozensets(st.sampled_from([each.run_id for each in runs]), max_size=2)),
        draw(st.frozensets(st.integers(1, 80), max_size=3)),
        draw(st.integers(0, 80)),
    )


def pruned(history: JobHistory, plan: PruningPlan) -> JobHistory:
    return replace(
        history,
        runs=[each for each in history.runs if each.run_id not in plan.runs],
        versions=[each for each in history.versions if each.version not in plan.versions],
        drains=[each for each in history.drains if each.drain_id not in plan.drains],
        readers={run_id: reads for run_id, reads in history.readers.items() if run_id not in plan.runs},
    )


def answers(history: JobHistory) -> dict[str, object]:
    """What requests read of the history of a job: the next deployment with each kind of start, a roll-back, the next drain and version,
    a container that starts.
    """
    runs = {each.run_id: each for each in history.runs}
    current = runs.get(history.current)
    complete = [each for each in history.drains if each.phase is Phase.DRAINED][:1]
    assert current is not None
    in_history = [each.run_id for each in history.runs if each.first_run == current.first_run]
    streams = {stream for run_id in in_history for stream, _ in history.readers.get(run_id, ())}
    return {
        "current": current,
        "the first run of its history, whose start decides whether kept state was given up": runs.get(current.first_run),
        "where a stream that is read again begins": {
            stream: next((run_id for run_id in in_history if stream in {read for read, _ in history.readers[run_id]}), None)
            for stream in streams
        },
        "the stages that have read a stream": {each for run_id in in_history for each in history.readers[run_id]},
        "start drained": [(each, runs.get(each.run_id)) for each in complete],
        "drains whose records are skipped": [each.drain_id for each in history.drains if each.phase is Phase.FAILED and each.emptied],
        "the next drain": max((each.seq for each in history.drains), default=0) + 1,
        "the next version": max((each.version for each in history.versions), default=0) + 1,
        "versions to roll back to": [each for each in history.versions if each.version >= history.adopted],
        "the model of the current run": [each for each in history.versions if each.version == current.model_version],
        "the models that owners run": [each for each in history.versions if each.version in history.used_versions],
        "runs of snapshots and owners": [runs.get(run_id) for run_id in sorted(history.used_runs)],
        "runs that containers may still ask for": [each for each in history.runs if each.active or each.ended_at is None],
        "the drain that a starting container takes part in": next((d for d in history.drains if d.run_id == history.current), None),
    }


@given(history=histories(), later=st.integers(0, 400))
def test_pruning_changes_no_later_answer(history: JobHistory, later: int) -> None:
    before = answers(history)
    left = history
    for days in (0, later):
        left = pruned(left, plan_pruning(left, POLICY, NOW + timedelta(days=days)))
        assert answers(left) == before


@given(history=histories())
def test_what_stays_is_complete(history: JobHistory) -> None:
    """Every drain has its run, and every run and drain its version."""
    left = pruned(history, plan_pruning(history, POLICY, NOW))
    runs, versions = {each.run_id for each in left.runs}, {each.version for each in left.versions}
    assert {each.run_id for each in left.drains} <= runs
    assert {each.model_version for each in left.runs} | {each.model_version for each in left.drains} <= versions


@given(history=histories())
def test_nothing_goes_before_its_time(history: JobHistory) -> None:
    plan = plan_pruning(history, POLICY, NOW)
    times = [
        *(each.ended_at for each in history.runs if each.run_id in plan.runs),
        *(each.ended_at for each in history.drains if each.drain_id in plan.drains),
        *(each.created_at for each in history.versions if each.version in plan.versions),
    ]
    assert all(at is not None and at <= NOW - POLICY.keep for at in times)
