"""Decisions about a running run whose streams grow or whose slots change."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.core.errors import BadPlacement, IncompatibleExpansion
from sluice.core.ids import JobName, ProcessorId, Ssp, StageName, StreamId, TaskName
from sluice.core.jobmodels.expansion import (
    Move,
    StreamCount,
    StreamVerdict,
    Verdict,
    check_nothing_is_taken,
    effect,
    evaluate,
    overall,
    skew,
)
from sluice.core.jobmodels.graph import Stage
from sluice.core.jobmodels.grouping import Grouper, Groups, PreviousAssignment, grouper_named
from sluice.core.jobmodels.model import JobModel, PlannedModel, plan_model
from sluice.core.jobmodels.placement import slots
from sluice.core.jobmodels.spec import Role, RunSpec, StreamSpec

FLIGHTS, WEATHER, CARRIERS = StreamId("kafka", "flights"), StreamId("kafka", "weather.hourly"), StreamId("log", "carriers")
BINDINGS = {"flights": FLIGHTS, "weather": WEATHER, "carriers": CARRIERS}

FLIGHTS_ALONE: Mapping[StageName, Sequence[str]] = {StageName("hourly"): ("flights",)}
BESIDE: Mapping[StageName, Sequence[str]] = {StageName("hourly"): ("flights",), StageName("warn"): ("weather",)}
JOIN: Mapping[StageName, Sequence[str]] = {StageName("join"): ("flights", "weather")}
WITH_BROADCAST: Mapping[StageName, Sequence[str]] = {StageName("hourly"): ("flights", "carriers")}


class Running:
    """A run with these partition counts, and new models of it at other counts."""

    def __init__(
        self,
        reads: Mapping[StageName, Sequence[str]],
        counts: dict[str, int],
        *,
        containers: int = 1,
        stateful: bool = True,
        grouper: str = "GroupByPartition",
        max_tasks: int | None = None,
        by: Grouper | None = None,
    ) -> None:
        inputs = [StreamSpec(name, Role.INPUT, stream, broadcast=name == "carriers") for name, stream in BINDINGS.items()]
        stages = [Stage(name, tuple(names)) for name, names in reads.items()]
        self.spec = RunSpec(JobName("j"), containers, tuple(inputs), tuple(stages), grouper, max_tasks, stateful, config={"x": "y"})
        self.grouper = by or grouper_named(grouper, max_tasks)
        self.counts = counts
        self.plan = plan_model(self.spec.with_counts(counts), self.grouper, PreviousAssignment(), None, slots(containers))

    @property
    def model(self) -> JobModel:
        return self.plan.model

    def planned(self, containers: int | None = None, without: Sequence[str] = ()) -> Callable[[Mapping[str, int]], PlannedModel]:
        spec = self.spec if containers is None else replace(self.spec, containers=containers)
        kept = [pid for pid in slots(spec.containers) if pid not in without]
        return lambda counts: plan_model(spec.with_counts(counts), self.grouper, self.plan.assignment, self.model, kept)

    def at(self, **now: int | None) -> Sequence[StreamVerdict]:
        """Judge the streams, and continue with the result."""
        counted = [StreamCount(name, BINDINGS[name], known, now.get(name, known)) for name, known in self.counts.items()]
        self.plan, streams = evaluate(counted, self.planned(), self.model)
        self.counts |= {j.count.name: j.count.now for j in streams if j.verdict is Verdict.SAFE and j.count.now is not None}
        return streams


def verdicts(streams: Sequence[StreamVerdict]) -> dict[str, Verdict]:
    return {each.count.name: each.verdict for each in streams}


def test_unchanged_counts_change_nothing() -> None:
    running = Running(FLIGHTS_ALONE, {"flights": 2})
    before = running.model
    streams = running.at(flights=2)
    assert verdicts(streams) == {"flights": Verdict.UNCHANGED}
    assert overall(streams, changed=False) is Verdict.UNCHANGED
    assert running.model == before
    assert effect(before, running.model).nothing


def test_a_doubled_stream_gives_each_task_a_second_partition_and_moves_none() -> None:
    running = Running(FLIGHTS_ALONE, {"flights": 2}, containers=2)
    before = running.model
    assert verdicts(running.at(flights=4)) == {"flights": Verdict.SAFE}
    found = effect(before, running.model)
    assert found.partitions == {Ssp("kafka", "flights", 2): "Partition 0", Ssp("kafka", "flights", 3): "Partition 1"}
    assert (found.affected, found.made, found.moves) == (["Partition 0", "Partition 1"], [], [])
    assert (found.before.partitions_per_task, found.after.partitions_per_task) == ((1, 1.0), (2, 2.0))
    assert running.model.config["job.container.count"] == "2"


def test_a_chain_of_growths_keeps_what_each_task_had() -> None:
    running = Running(FLIGHTS_ALONE, {"flights": 2})
    models = [running.model]
    for count in (4, 8, 24):
        running.at(flights=count)
        models.append(running.model)
    for before, after in pairwise(models):
        check_nothing_is_taken(before, after)
    assert running.plan.assignment.baselines == {FLIGHTS: 2}


@pytest.mark.parametrize(
    ("now", "expected"), [(3, "not a multiple of 2.*grow it to 4"), (1, "had 2 partitions and now has 1.*deploy it with an explicit start")]
)
def test_an_unsafe_change_is_refused_with_what_to_do_and_nothing_changes(now: int, expected: str) -> None:
    running = Running(FLIGHTS_ALONE, {"flights": 2})
    before = running.model
    (stream,) = running.at(flights=now)
    assert stream.verdict is Verdict.REFUSED
    assert re.search(expected, stream.reason)
    assert running.model == before


def test_a_stream_that_cannot_grow_does_not_block_others() -> None:
    running = Running(BESIDE, {"flights": 2, "weather": 2})
    streams = running.at(flights=4, weather=3)
    assert verdicts(streams) == {"flights": Verdict.SAFE, "weather": Verdict.REFUSED}
    assert overall(streams, changed=True) is Verdict.REFUSED
    assert running.counts == {"flights": 4, "weather": 2}


def test_a_stream_of_unknown_count_does_not_block_others() -> None:
    running = Running(BESIDE, {"flights": 2, "weather": 2})
    streams = running.at(flights=4, weather=None)
    assert verdicts(streams) == {"flights": Verdict.SAFE, "weather": Verdict.UNKNOWN}
    assert overall(streams, changed=True) is Verdict.UNKNOWN


def test_a_stream_that_was_created_again_is_refused_with_any_count() -> None:
    running = Running(FLIGHTS_ALONE, {"flights": 2})
    _, (stream,) = evaluate([StreamCount("flights", FLIGHTS, 2, None, "created again", another=True)], running.planned(), running.model)
    assert (stream.verdict, stream.reason) == (Verdict.REFUSED, "created again")


def test_both_sides_of_a_stateless_join_grow_together_only() -> None:
    together = Running(JOIN, {"flights": 2, "weather": 2}, stateful=False)
    assert verdicts(together.at(flights=4, weather=4)) == {"flights": Verdict.SAFE, "weather": Verdict.SAFE}
    alone = Running(JOIN, {"flights": 2, "weather": 2}, stateful=False)
    (flights, weather) = alone.at(flights=4)
    assert (flights.verdict, weather.verdict) == (Verdict.REFUSED, Verdict.UNCHANGED)
    assert "unequal partition counts" in flights.reason


def test_one_side_of_a_stateful_join_may_grow_since_the_baselines_stay_equal() -> None:
    running = Running(JOIN, {"flights": 2, "weather": 2})
    running.at(flights=8)
    owners = running.plan.assignment.tasks
    assert owners[Ssp("kafka", "flights", 7)] == owners[Ssp("kafka", "weather.hourly", 1)] == "Partition 1"


def test_a_broadcast_stream_grows_for_every_task_by_any_number() -> None:
    running = Running(WITH_BROADCAST, {"flights": 2, "carriers": 1})
    before = running.model
    assert verdicts(running.at(carriers=2))["carriers"] is Verdict.SAFE
    found = effect(before, running.model)
    assert found.partitions == {Ssp("log", "carriers", 1): None}
    assert found.affected == ["Partition 0", "Partition 1"]
    assert running.at(carriers=1)[1].verdict is Verdict.REFUSED


def test_a_stateless_job_gets_new_tasks_and_old_tasks_keep_their_partitions() -> None:
    running = Running(FLIGHTS_ALONE, {"flights": 2}, stateful=False, containers=2)
    before = running.model
    assert verdicts(running.at(flights=3)) == {"flights": Verdict.SAFE}
    found = effect(before, running.model)
    assert (found.made, found.affected, found.moves) == (["Partition 2"], [], [])


@pytest.mark.parametrize("stateful", [True, False])
@pytest.mark.parametrize(
    ("grouper", "max_tasks"),
    [("GroupByPartition", None), ("GroupByPartition", 3), ("GroupBySystemStreamPartition", None), ("AllSspToSingleTask", None)],
)
def test_with_every_grouper_a_doubled_stream_takes_nothing_from_any_task(grouper: str, max_tasks: int | None, stateful: bool) -> None:
    running = Running(FLIGHTS_ALONE, {"flights": 4}, grouper=grouper, max_tasks=max_tasks, stateful=stateful)
    before = running.model
    assert verdicts(running.at(flights=8)) == {"flights": Verdict.SAFE}
    check_nothing_is_taken(before, running.model)
    assert {ssp.partition for task in running.model.tasks.values() for ssp in task.ssps} == set(range(8))


class ByHalves:
    """Assigns partitions by halves, so that growth moves them."""

    def group(self, previous: PreviousAssignment, ssps: frozenset[Ssp]) -> Groups:
        ordered = sorted(ssps)
        half = len(ordered) // 2
        return {TaskName("low"): frozenset(ordered[:half]), TaskName("high"): frozenset(ordered[half:])}


def test_a_grouper_that_would_take_partitions_from_a_running_task_is_refused() -> None:
    running = Running(FLIGHTS_ALONE, {"flights": 2}, stateful=False, by=ByHalves())
    (stream,) = running.at(flights=4)
    assert stream.verdict is Verdict.REFUSED
    assert "task high would lose kafka.flights.1, and a running query cannot give partitions up" in stream.reason


def test_a_model_without_a_task_of_the_former_one_takes_all_of_its_partitions() -> None:
    with pytest.raises(IncompatibleExpansion, match=r"Partition 1 would lose kafka\.flights\.1"):
        check_nothing_is_taken(Running(FLIGHTS_ALONE, {"flights": 2}).model, Running(FLIGHTS_ALONE, {"flights": 1}).model)


def test_another_container_takes_its_share_and_the_lost_ones_tasks_go_to_the_rest() -> None:
    running = Running(FLIGHTS_ALONE, {"flights": 4}, containers=2)
    more = running.planned(containers=3)(running.counts).model
    assert [move.to for move in effect(running.model, more).moves] == ["2"]
    fewer = running.planned(without=["1"])(running.counts).model
    assert effect(running.model, fewer).moves == [Move(TaskName(f"Partition {p}"), ProcessorId("1"), ProcessorId("0")) for p in (1, 3)]
    assert fewer.config["job.container.count"] == "2"
    assert skew(fewer).tasks_per_container == (4, 4.0)
    with pytest.raises(BadPlacement, match="5 containers for 4 tasks"):
        running.planned(containers=5)(running.counts)


@settings(deadline=None)
@given(
    counts=st.fixed_dictionaries({"flights": st.integers(1, 6), "weather": st.integers(1, 6)}),
    later=st.lists(st.fixed_dictionaries({"flights": st.integers(1, 30), "weather": st.none() | st.integers(1, 30)}), max_size=5),
    stateful=st.booleans(),
    max_tasks=st.none() | st.integers(1, 5),
)
def test_no_growth_of_streams_takes_a_partition_from_a_task_of_a_running_run(
    counts: dict[str, int], later: list[dict[str, int | None]], stateful: bool, max_tasks: int | None
) -> None:
    running = Running(BESIDE, counts, stateful=stateful, max_tasks=max_tasks)
    for now in later:
        before, known = running.model, dict(running.counts)
        streams = running.at(**now)
        check_nothing_is_taken(before, running.model)
        for each in streams:
            grew = each.count.now is not None and each.count.now > each.count.known
            assert (each.verdict is Verdict.SAFE) <= grew
            assert running.counts[each.count.name] == (each.count.now if each.verdict is Verdict.SAFE else known[each.count.name])
