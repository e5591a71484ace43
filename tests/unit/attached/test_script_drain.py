"""The steps of a drain in a driver, with queries that exist only here."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from containers.attached.driver_drains import prepare
from containers.attached.port import Step
from containers.attached.script_drain import Paused, ScriptDrain
from containers.spark.scripts.active_queries import StreamSource
from containers.spark.scripts.drain import Drained, Position
from sluice.core.drain import Phase
from sluice.core.ids import Ssp, StageName

SOON = timedelta(seconds=10)


@dataclass
class Query:
    """A query that is paused at a batch. `done` has what happened to it."""

    name: str
    journal: list[str]
    fails: bool = False

    def position(self) -> Position:
        return Position(7, {Ssp("kafka", self.name, 0): 40})

    def flush(self, drain: str, feeders: Sequence[StageName]) -> Drained:
        if self.fails:
            raise RuntimeError("the sink is full")
        self.journal.append(f"flush {self.name} after {','.join(feeders) or 'nothing'}")
        return Drained(self.position(), rows_left=0, locked=True)

    def resume(self) -> None:
        self.journal.append(f"resume {self.name}")

    def end(self, deadline: timedelta) -> bool:
        self.journal.append(f"end {self.name}")
        return True


@dataclass
class Script:
    queries: dict[StageName, Query]
    feeds: Mapping[StageName, frozenset[StageName]]
    journal: list[str]
    starts_later: dict[StageName, Query] = field(default_factory=dict)

    def pause_all(self, over: threading.Event) -> Mapping[StageName, Paused]:
        found = dict(self.queries)
        self.queries |= self.starts_later
        return found

    def all_paused(self) -> bool:
        return True

    def feeders(self) -> Mapping[StageName, frozenset[StageName]]:
        return self.feeds

    def drained(self) -> None:
        self.journal.append("stop later starts")


class World:
    """A drain whose coordinator moves it as soon as all stages have taken a step."""

    def __init__(
        self, feeds: Mapping[str, Sequence[str]], *, fails: str = "", later: Sequence[str] = (), first: Phase = Phase.STOPPING
    ) -> None:
        self.journal: list[str] = []
        queries = {StageName(name): Query(name, self.journal, fails=name == fails) for name in feeds}
        held_back = {name: queries.pop(StageName(name)) for name in map(StageName, later)}
        feeding = {StageName(name): frozenset(map(StageName, others)) for name, others in feeds.items()}
        self.script = Script(queries, feeding, self.journal, held_back)
        self.steps: list[tuple[str, str]] = []
        self.moves: dict[tuple[str, int], Phase] = {("stopped", len(feeds)): Phase.FLUSHING, ("flushed", len(feeds)): Phase.COMMITTING}
        self.drain = ScriptDrain("d-1", first, self.script, self.report, self.ended, SOON, list(map(StageName, feeds)))

    def report(self, step: Step) -> None:
        self.steps.append((step.step, step.stage))
        phase = self.moves.get((step.step, sum(taken == step.step for taken, _ in self.steps)))
        if phase is not None:
            self.drain.move(phase)

    def ended(self) -> None:
        self.journal.append("drained")


def test_each_query_is_flushed_after_those_that_write_its_input_and_all_end_together() -> None:
    world = World({"minutes": ["tens"], "tens": [], "alerts": ["minutes", "tens"]})
    world.drain.run()
    assert world.journal[:3] == ["flush tens after nothing", "flush minutes after tens", "flush alerts after minutes,tens"]
    assert world.journal[3] == "stop later starts"
    assert sorted(world.journal[4:7]) == ["end alerts", "end minutes", "end tens"]
    assert world.journal[7:] == ["drained"]


def test_queries_that_write_each_others_input_are_flushed_one_after_the_other() -> None:
    world = World({"a": ["b"], "b": ["a"]})
    world.drain.run()
    assert [each for each in world.journal if each.startswith("flush")] == ["flush a after b", "flush b after a"]


@pytest.mark.parametrize("over", [Phase.CANCELLED, Phase.FAILED])
def test_a_drain_that_is_over_before_the_flush_lets_the_queries_continue(over: Phase) -> None:
    world = World({"tens": [], "minutes": ["tens"]})
    world.moves = {("stopped", 2): over}
    world.drain.run()
    assert sorted(world.journal) == ["resume minutes", "resume tens"]
    assert world.drain.goes_on


def test_a_query_that_starts_later_is_waited_for_if_the_coordinator_needs_it() -> None:
    world = World({"tens": [], "minutes": ["tens"]}, later=["minutes"], first=Phase.FLUSHING)
    world.drain.run()
    assert [each for each in world.steps if each[0] != "flushing"] == [("flushed", "tens"), ("flushed", "minutes")]
    assert world.journal[-1] == "drained"


def test_a_query_that_fails_ends_the_others_and_is_not_reported_as_flushed() -> None:
    world = World({"tens": [], "minutes": ["tens"]}, fails="tens")
    with pytest.raises(RuntimeError, match="the sink is full"):
        world.drain.run()
    assert ("flushed", "tens") not in world.steps
    assert "drained" not in world.journal
    assert {"end tens", "end minutes"} <= set(world.journal)
    assert world.drain.finished.is_set()


def test_a_script_that_is_stopped_before_the_flush_continues_so_that_its_queries_can_be_stopped() -> None:
    world = World({"tens": []})
    world.moves = {}
    running = threading.Thread(target=world.drain.run)
    running.start()
    world.drain.abandon(SOON)
    running.join(300)
    assert world.journal == ["resume tens"]


@pytest.mark.parametrize("stopped", [False, True])
def test_queries_that_a_former_start_has_begun_to_flush_do_not_continue(stopped: bool) -> None:
    """`stopped`: the script is; otherwise the drain fails. Another query that the drain needs has not started yet."""
    world = World({"tens": []})
    drain = ScriptDrain("d-1", Phase.FLUSHING, world.script, world.report, world.ended, SOON, [StageName("tens"), StageName("minutes")])
    running = threading.Thread(target=drain.run)
    running.start()
    if stopped:
        drain.abandon(SOON)
    else:
        drain.move(Phase.FAILED)
    running.join(300)
    assert world.journal == ["stop later starts", "end tens"]
    assert world.steps == []
    assert drain.finished.is_set()


# --- checkpoints of queries that start -------------------------------------------------------------------------------


class Checkpoint:
    def __init__(self, *, emptied_by: str | None = None, begins: Any = None) -> None:
        self._emptied_by = emptied_by
        self._begins = begins
        self.journal: list[str] = []

    def begins_at(self) -> Any:
        return self._begins

    def emptied_by(self) -> str | None:
        return self._emptied_by

    def set_sources(self, sources: Any) -> None:
        self.journal.append(f"begin at {dict(sources)}")

    def lock(self, why: str) -> None:
        self.journal.append(f"lock: {why}")

    def unlock(self) -> None:
        self.journal.append("unlock")

    def mark_emptied(self, drain: str, batch: int) -> None:
        self.journal.append(f"emptied by {drain}")


class Reading:
    def __init__(self, *topics: str, sources: Sequence[StreamSource] = ()) -> None:
        self._sources = sources or [StreamSource("kafka", (topic,)) for topic in topics]

    def sources(self) -> Sequence[StreamSource]:
        return self._sources


@pytest.mark.parametrize(
    ("emptied_by", "drain", "expected"),
    [
        (None, None, []),
        (None, "d-1", []),
        ("d-1", "d-1", ["unlock"]),
        ("d-1", None, ["emptied by d-1"]),
        ("d-1", "d-2", ["emptied by d-1"]),
        ("", "d-2", ["emptied by (unknown)"]),
    ],
)
def test_only_the_drain_that_has_locked_a_checkpoint_may_start_a_query_on_it(
    emptied_by: str | None, drain: str | None, expected: list[str]
) -> None:
    checkpoint = Checkpoint(emptied_by=emptied_by)
    prepare(checkpoint, Reading("orders"), drain)
    assert checkpoint.journal == expected


def test_each_source_of_the_first_query_begins_at_the_offsets_of_its_topics() -> None:
    checkpoint = Checkpoint(begins={"orders": {"0": 7}, "prices": {"0": 9}})
    prepare(checkpoint, Reading("prices", "orders"), None)
    assert checkpoint.journal == ["begin at {'0': {'prices': {'0': 9}}, '1': {'orders': {'0': 7}}}"]


def test_a_source_with_a_name_begins_under_its_name() -> None:
    """Spark counts only those that have none."""
    checkpoint = Checkpoint(begins={"orders": {"0": 7}, "prices": {"0": 9}})
    sources = [StreamSource("kafka", ("prices",), name="src"), StreamSource("kafka", ("orders",))]
    prepare(checkpoint, Reading(sources=sources), None)
    assert checkpoint.journal == ["begin at {'src': {'prices': {'0': 9}}, '0': {'orders': {'0': 7}}}"]


def test_sources_that_share_the_partitions_of_a_topic_begin_with_their_own() -> None:
    checkpoint = Checkpoint(begins={"orders": {"0": 7, "1": 9}})
    sources = [StreamSource("kafka", ("orders",), partitions={"orders": [number]}) for number in (1, 0)]
    prepare(checkpoint, Reading(sources=sources), None)
    assert checkpoint.journal == ["begin at {'0': {'orders': {'1': 9}}, '1': {'orders': {'0': 7}}}"]


def test_a_first_query_that_reads_another_topic_is_refused() -> None:
    checkpoint = Checkpoint(begins={"orders": {"0": 7}})
    prepare(checkpoint, Reading("orders", "payments"), None)
    assert checkpoint.journal == [
        "unlock",
        "lock: The first query on this checkpoint cannot begin at the offsets of the drain: the query reads payments, and the drained "
        "query did not.",
    ]
