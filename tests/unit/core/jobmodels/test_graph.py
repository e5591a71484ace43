from __future__ import annotations

import pytest

from sluice.core.errors import BadGraph, BadName
from sluice.core.ids import StageName
from sluice.core.jobmodels.graph import Graph, Stage, chain


def stage(name: str, reads: str, writes: str = "") -> Stage:
    return Stage(StageName(name), tuple(reads.split()), tuple(writes.split()))


def graph(*stages: Stage, inputs: str = "in", intermediates: str = "", outputs: str = "out") -> Graph:
    return Graph.declared(inputs.split(), intermediates.split(), outputs.split(), stages)


def order(made: Graph) -> list[str]:
    return [each.name for each in chain(made)]


def test_a_stage_comes_after_those_that_feed_it() -> None:
    made = graph(stage("last", "b", "out"), stage("middle", "a", "b"), stage("first", "in", "a"), intermediates="a b")
    assert order(made) == ["first", "middle", "last"]


def test_stages_that_do_not_feed_each_other_stay_as_declared() -> None:
    made = graph(stage("z", "in", "a"), stage("a", "in", "out"), stage("join", "a in"), intermediates="a")
    assert order(made) == ["z", "a", "join"]


def test_a_diamond_waits_for_both_sides() -> None:
    made = graph(
        stage("end", "l r", "out"), stage("left", "s", "l"), stage("split", "in", "s"), stage("right", "in", "r"), intermediates="s l r"
    )
    assert order(made) == ["split", "right", "left", "end"]


def test_a_reader_of_a_stream_that_two_stages_write_comes_after_both() -> None:
    made = graph(
        stage("end", "both", "out"), stage("near", "in", "both"), stage("far", "a", "both"), stage("s", "in", "a"), intermediates="a both"
    )
    assert order(made) == ["near", "s", "far", "end"]


def test_a_stage_may_write_no_stream_of_sluice() -> None:
    assert order(graph(stage("sink", "in"), outputs="")) == ["sink"]


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (graph(stage("s", "in", "out"), inputs=""), "no inputs"),
        (graph(), "no stages"),
        (graph(stage("s", ""), outputs=""), "stage s reads nothing"),
        (graph(stage("s", "in in", "out")), "stage s reads one stream twice"),
        (graph(stage("s", "lost", "out")), "stage s reads 'lost', which is not declared"),
        (graph(stage("s", "out")), "stage s reads 'out', which is an output"),
        (graph(stage("s", "in", "lost")), "stage s writes 'lost', which is not declared"),
        (graph(stage("s", "in", "in")), "stage s writes 'in', which is an input"),
        (graph(stage("s", "in", "out"), stage("t", "in", "out")), "stages s and t both write 'out'"),
        (graph(stage("s", "in", "out out")), "stage s writes 'out' twice"),
        (graph(stage("s", "in", "a a"), intermediates="a", outputs=""), "stage s writes 'a' twice"),
        (graph(stage("s", "in", "out"), stage("s", "in")), "'s' is declared twice"),
        (graph(stage("s", "in", "out"), intermediates="dry"), "no stage writes the intermediate stream 'dry'"),
        (graph(stage("s", "a", "b"), stage("t", "b", "a"), intermediates="a b", outputs=""), "stages s, t form a cycle"),
        (graph(stage("s", "a in", "a"), intermediates="a", outputs=""), "stages s form a cycle"),
    ],
)
def test_a_graph_that_cannot_run_is_refused_with_the_reason(made: Graph, expected: str) -> None:
    with pytest.raises(BadGraph, match=expected):
        chain(made)


@pytest.mark.parametrize(("inputs", "intermediates", "outputs"), [("x x", "", ""), ("x", "x", ""), ("x", "", "x"), ("i", "x", "x")])
def test_a_stream_declared_twice_is_refused(inputs: str, intermediates: str, outputs: str) -> None:
    with pytest.raises(BadGraph, match="'x' is declared twice"):
        graph(stage("s", "x"), inputs=inputs, intermediates=intermediates, outputs=outputs)


def test_the_name_of_a_stage_must_be_valid_as_the_name_of_a_directory() -> None:
    with pytest.raises(BadName):
        chain(graph(stage("../s", "in", "out")))


def test_a_stage_behind_a_cycle_does_not_hide_it() -> None:
    made = graph(stage("s", "in", "out"), stage("t", "a", "b"), stage("u", "b", "a"), intermediates="a b")
    with pytest.raises(BadGraph, match="t, u form a cycle"):
        chain(made)
