"""What a run reads and writes, by stage."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.errors import BadGraph
from sluice.core.ids import JobName, Ssp, StageName, StreamId
from sluice.core.jobmodels.graph import Stage
from sluice.core.jobmodels.spec import MAX_PARTITIONS, Role, RunSpec, StreamSpec, broadcast_partitions, broadcast_text

FLIGHTS, BY_CARRIER, DELAYS, UNREAD = (StreamId("log", name) for name in ("flights", "carriers.2", "delays", "weather"))
ROUTE, COUNT = StageName("route"), StageName("count")
SPEC = RunSpec(
    job=JobName("flight-delays"),
    containers=2,
    streams=(
        StreamSpec("flights", Role.INPUT, FLIGHTS, partitions=4),
        StreamSpec("weather", Role.INPUT, UNREAD, partitions=1),
        StreamSpec("by-carrier", Role.INTERMEDIATE, BY_CARRIER, partitions=8),
        StreamSpec("delays", Role.OUTPUT, DELAYS, partitions=1),
    ),
    stages=(Stage(ROUTE, ("flights",), ("by-carrier",)), Stage(COUNT, ("by-carrier", "flights"), ("delays",))),
)


def test_a_stage_reads_the_streams_to_which_its_names_are_bound() -> None:
    assert SPEC.reads(ROUTE) == {FLIGHTS}
    assert SPEC.reads(COUNT) == {FLIGHTS, BY_CARRIER}
    with pytest.raises(KeyError):
        SPEC.reads(StageName("lost"))


def test_partitions_are_sorted_by_the_stages_that_read_them_and_stages_without_any_are_left_out() -> None:
    first, second = Ssp("log", "flights", 0), Ssp("log", "carriers.2", 0)
    assert dict(SPEC.by_stage([first, second])) == {ROUTE: {first}, COUNT: {first, second}}
    assert dict(SPEC.by_stage([second])) == {COUNT: {second}}
    assert dict(SPEC.by_stage([Ssp("kafka", "flights", 0)])) == {}


def test_a_stage_is_fed_by_those_that_write_what_it_reads() -> None:
    assert SPEC.feeders == {ROUTE: frozenset(), COUNT: {ROUTE}}


def test_the_monitored_streams_are_the_inputs_that_some_stage_reads() -> None:
    assert SPEC.inputs == {FLIGHTS, UNREAD}
    assert SPEC.intermediates == {BY_CARRIER}
    assert [each.name for each in SPEC.streams_read] == ["flights", "by-carrier"]
    assert [each.name for each in SPEC.monitored] == ["flights"]


def test_counts_and_identities_replace_those_of_the_streams_that_they_name() -> None:
    found = SPEC.with_counts({"flights": 16}).with_identities({FLIGHTS: "i", UNREAD: None})
    assert [(each.partitions, each.identity) for each in found.streams] == [(16, "i"), (1, None), (8, None), (1, None)]
    assert found.with_counts({}).with_identities({}) == found


def test_a_grouping_names_the_grouper_and_its_fold() -> None:
    assert (SPEC.grouping, replace(SPEC, max_tasks=3).grouping) == ("GroupByPartition", "GroupByPartition/3")


def bound(name: str, stream: StreamId) -> RunSpec:
    return replace(SPEC, streams=tuple(replace(each, id=stream) if each.name == name else each for each in SPEC.streams))


def test_a_good_spec_passes_the_check() -> None:
    SPEC.check()


def test_two_names_of_one_stream_are_refused() -> None:
    with pytest.raises(BadGraph, match=r"'flights' and another name are both bound to the stream log\.flights"):
        bound("weather", FLIGHTS).check()


def test_a_stage_that_reads_two_streams_of_one_name_is_refused() -> None:
    with pytest.raises(BadGraph, match="stage count reads two streams of one name, of different systems"):
        bound("by-carrier", StreamId("kafka", "flights")).check()


def test_a_name_that_is_declared_twice_or_not_at_all_is_refused() -> None:
    with pytest.raises(BadGraph, match="'flights' is declared twice"):
        replace(SPEC, streams=(*SPEC.streams, SPEC.streams[0])).check()
    with pytest.raises(BadGraph, match="reads 'flights', which is not declared"):
        replace(SPEC, streams=SPEC.streams[1:]).check()


def test_the_streams_of_stages_without_state_are_those_that_no_other_stage_reads() -> None:
    route, count = SPEC.stages
    assert SPEC.stateless_streams == frozenset()
    assert replace(SPEC, stages=(replace(route, stateful=False), count)).stateless_streams == frozenset()
    only_route = replace(SPEC, stages=(replace(route, stateful=False), replace(count, reads=("by-carrier",))))
    assert only_route.stateless_streams == {FLIGHTS}


# --- broadcast partitions --------------------------------------------------------------------------------------------


@given(st.sets(st.integers(0, 40) | st.integers(MAX_PARTITIONS - 3, MAX_PARTITIONS - 1), min_size=1))
def test_the_spelling_of_broadcast_partitions_reads_back(partitions: set[int]) -> None:
    text = broadcast_text(sorted(partitions))
    assert broadcast_partitions(text) == tuple(sorted(partitions))


def test_broadcast_partitions_are_spelled_as_samza_does() -> None:
    assert broadcast_partitions("#0") == (0,)
    assert broadcast_partitions("#[0-1], #1,#4") == (0, 1, 4)
    assert broadcast_text((0, 1, 2, 4)) == "#[0-2],#4"
    assert broadcast_text(()) == ""


@pytest.mark.parametrize("text", ["", "#", "0", "#-1", "#[2-1]", "#[0-1", "#1,", "#1000000", "#100000", "#[0-999999]", "#\u0661"])
def test_other_spellings_are_refused(text: str) -> None:
    with pytest.raises(BadGraph, match="does not name partitions to broadcast"):
        broadcast_partitions(text)
