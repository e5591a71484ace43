"""The stage graph of a job: which streams each stage reads and writes, by their names in the job file.

The coordinator and the container check the same rules, so an invalid job file fails with the same message on the developer's machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sluice.core.errors import BadGraph
from sluice.core.ids import StageName, checked_name


@dataclass(frozen=True, slots=True)
class Stage:
    """One Structured Streaming query per task: `reads` and `writes` are names of declared streams. `stateful`: false if the
    job file declares that the query keeps no state."""

    name: StageName
    reads: tuple[str, ...]
    writes: tuple[str, ...] = ()
    stateful: bool = True


@dataclass(frozen=True, slots=True)
class Graph:
    inputs: frozenset[str]
    intermediates: frozenset[str]
    outputs: frozenset[str]
    stages: tuple[Stage, ...]

    @staticmethod
    def declared(inputs: Sequence[str], intermediates: Sequence[str], outputs: Sequence[str], stages: Sequence[Stage]) -> Graph:
        """A graph from the lists as declared. Raises BadGraph for a name that is declared twice."""
        twice = [name for name, n in Counter([*inputs, *intermediates, *outputs]).items() if n > 1]
        if twice:
            raise BadGraph(f"the name {twice[0]!r} is declared twice: every stream needs a unique name")
        return Graph(frozenset(inputs), frozenset(intermediates), frozenset(outputs), tuple(stages))


def chain(graph: Graph) -> Sequence[Stage]:
    """The stages, ordered so that each comes after its feeders; ties in the order of declaration.

    Raises BadGraph, naming the stage or stream at fault: no inputs or stages, a name twice, an undeclared name, a stage that reads
    nothing or reads an output, one that writes an input or a name twice, two writers to one output, an intermediate stream without a
    writer, a cycle. Stages may share an intermediate stream: its readers come after all of them.
    """
    _check_names(graph)
    for stage in graph.stages:
        _check_stage(graph, stage)
    _check_writers(graph)
    ordered: list[Stage] = []
    waiting = list(graph.stages)
    while waiting:
        to_come = {name for stage in waiting for name in stage.writes}
        ready = [stage for stage in waiting if to_come.isdisjoint(stage.reads)]
        if not ready:
            raise BadGraph(f"the stages {', '.join(s.name for s in waiting)} form a cycle: each reads what another of them writes")
        ordered += ready
        waiting = [stage for stage in waiting if stage not in ready]
    return ordered


def _check_names(graph: Graph) -> None:
    if not graph.inputs:
        raise BadGraph("the run has no inputs: declare at least one with job.input(name)")
    if not graph.stages:
        raise BadGraph("the job has no stages: write a function under @job.stage(reads=…)")
    for stage in graph.stages:
        checked_name("stage", stage.name)
    twice: list[str] = [name for name, n in Counter(s.name for s in graph.stages).items() if n > 1]
    if twice:
        raise BadGraph(f"the name {twice[0]!r} is declared twice: every stage needs a unique name")


def _check_stage(graph: Graph, stage: Stage) -> None:
    if not stage.reads:
        raise BadGraph(f"stage {stage.name} reads nothing")
    if len(set(stage.reads)) < len(stage.reads):
        raise BadGraph(f"stage {stage.name} reads one stream twice")
    for name in stage.reads:
        if name not in graph.inputs | graph.intermediates:
            what = "an output" if name in graph.outputs else "not declared"
            raise BadGraph(f"stage {stage.name} reads {name!r}, which is {what}: read an input or an intermediate stream")
    for name in stage.writes:
        if name not in graph.outputs | graph.intermediates:
            what = "an input" if name in graph.inputs else "not declared"
            raise BadGraph(f"stage {stage.name} writes {name!r}, which is {what}: write an output or an intermediate stream")


def _written(graph: Graph) -> Sequence[str]:
    """Each stream once, in the order of declaration."""
    return list(dict.fromkeys(name for stage in graph.stages for name in stage.writes))


def _check_writers(graph: Graph) -> None:
    """Check the writers of streams. An output has one writer, because its readers could not distinguish the records of two writers."""
    writers = {name: [stage.name for stage in graph.stages for each in stage.writes if each == name] for name in _written(graph)}
    for name, stages in writers.items():
        if twice := [stage for stage, n in Counter(stages).items() if n > 1]:
            raise BadGraph(f"stage {twice[0]} writes {name!r} twice")
        if len(stages) > 1 and name in graph.outputs:
            raise BadGraph(f"the stages {' and '.join(stages)} both write {name!r}: give each its own output")
    for name in sorted(graph.intermediates):
        if name not in writers:
            raise BadGraph(f"no stage writes the intermediate stream {name!r}")
