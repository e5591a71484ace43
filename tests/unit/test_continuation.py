"""A run can be continued from its snapshots alone: owners, baselines, history and start offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.blobpool import Backup, BlobStores
from coordinator.snapshots.continuation import ContinuedRun, continuation, continued_run, of_index
from coordinator.snapshots.operations import Progress
from coordinator.snapshots.rebuild import find
from coordinator.store.runs import RunRow
from sluice.blobs.locations import open_blob_store
from sluice.blobs.port import Purpose, RequestContext
from sluice.core.drain import KeptHistory
from sluice.core.errors import IncompatibleExpansion
from sluice.core.ids import Generation, JobName, Lineage, ProcessorId, RunId, Ssp, StageKey, StageName, StreamId, TaskName
from sluice.core.jobmodels.grouping import GroupByPartition, PreviousAssignment
from sluice.core.jobmodels.model import PlannedModel, plan_model
from sluice.core.jobmodels.spec import Role, RunSpec, StreamSpec
from sluice.core.snapshots.indexjson import decoded, encoded
from sluice.core.snapshots.snapshot import (
    BlobId,
    BlobStoreName,
    CommitId,
    DirIndex,
    Kind,
    SnapshotIndex,
    SnapshotMetadata,
    stage_prefix,
)
from tests.contracts.rows import JOB, NOON, run_row, run_spec

IN, SIDE = StreamId("log", "in"), StreamId("log", "side")


def spec_of(partitions: int) -> RunSpec:
    """One stage that reads a keyed input and a broadcast input of two partitions."""
    return spec_with(StreamSpec("in", Role.INPUT, IN, partitions, identity="i1"))


def spec_with(keyed: StreamSpec) -> RunSpec:
    streams = (
        keyed,
        StreamSpec("side", Role.INPUT, SIDE, 2, broadcast=True, identity="i2"),
    )
    made = run_spec(JOB, [StageName("s")], containers=2)
    stages = (replace(made.stages[0], reads=("in", "side")),)
    return replace(made, streams=(*streams, *(each for each in made.streams if each.role is Role.OUTPUT)), stages=stages)


def planned(partitions: int, previous: PreviousAssignment, spec: RunSpec | None = None) -> PlannedModel:
    return plan_model(spec or spec_of(partitions), GroupByPartition(), previous, None, [ProcessorId("0"), ProcessorId("1")])


def snapshot(run: RunRow, plan: PlannedModel, task: TaskName, generation: int = 1, stage: str = "s", at: int = 5) -> SnapshotIndex:
    """The snapshot as it is read from a blob store. `at`: the offset in the first partition."""
    found = plan.model.task(task)
    assert found is not None
    owned = [ssp for ssp, owner in plan.assignment.tasks.items() if owner == task]
    reported = continuation(run, *found, owned, plan.assignment, {ssp: 10 * ssp.partition for ssp in found[1].ssps})
    document = reported.model_dump(mode="json", by_alias=True, exclude_none=True)
    about = SnapshotMetadata(CommitId(f"{generation}-000001"), JOB, task, StageName(stage))
    index = SnapshotIndex(7, about, DirIndex(""), None, Generation(generation), Lineage("l"), 3, {Ssp("log", "in", 0): at}, document)
    return decoded(encoded(index), BlobId("i"))


def version(number: int, run: str = "r1", first_run: str = "r1", hours: int = 0) -> RunRow:
    at = NOON + timedelta(hours=hours)
    return replace(run_row(RunId(run), first_run=RunId(first_run), spec=spec_of(2), created_at=at), model_version=number)


def put_together(*indexes: SnapshotIndex) -> ContinuedRun:
    found = continued_run(JOB, indexes, NOON)
    assert found is not None
    return found


@given(data=st.data(), first=st.integers(2, 6), growths=st.lists(st.integers(2, 3), max_size=3))
def test_a_grown_stream_keeps_its_tasks_whatever_versions_its_snapshots_are_of(data: st.DataObject, first: int, growths: list[int]) -> None:
    counts = [first]
    for factor in growths:
        counts.append(counts[-1] * factor)
    plans, previous = [], PreviousAssignment()
    for count in counts:
        plans.append(planned(count, previous))
        previous = plans[-1].assignment
    last = data.draw(st.integers(0, len(plans) - 1))  # a task that has committed under the last version
    indexes = []
    for number, task in enumerate(plans[-1].model.tasks):
        of = last if number == 0 else data.draw(st.integers(0, last))
        indexes.append(snapshot(version(of + 1), plans[of], task))
    rebuilt = put_together(*data.draw(st.permutations(indexes)))
    assert rebuilt.run.model_version == last + 1
    assert planned(counts[-1], rebuilt.assignment).assignment == previous


def test_the_run_continues_with_its_history_its_identities_and_its_start_offsets() -> None:
    plan = planned(2, PreviousAssignment())
    rebuilt = put_together(*(snapshot(version(4, "r3"), plan, task) for task in plan.model.tasks))
    assert (rebuilt.run.run_id, rebuilt.run.first_run, rebuilt.run.model_version) == ("r3", "r1", 4)
    assert rebuilt.run.state.ended
    assert {each.id: (each.identity, each.partitions) for each in rebuilt.run.spec.streams} == {IN: ("i1", 2), SIDE: ("i2", 2)}
    assert rebuilt.starts == {Ssp("log", name, partition): 10 * partition for name in ("in", "side") for partition in (0, 1)}
    assert rebuilt.model.tasks == plan.model.tasks
    assert rebuilt.model.placement == plan.model.placement
    assert rebuilt.assignment == plan.assignment


def test_a_task_without_a_snapshot_gets_the_partitions_that_it_had() -> None:
    plan = planned(6, planned(3, PreviousAssignment()).assignment)
    tasks = sorted(plan.model.tasks)
    rebuilt = put_together(*(snapshot(version(2), plan, task) for task in tasks[1:]))
    assert planned(6, rebuilt.assignment).assignment == plan.assignment


@pytest.mark.parametrize("with_snapshot", [("Partition 1", "Partition 2", "Partition 3"), ("Partition 2",)])
def test_single_partitions_that_are_broadcast_are_so_again_after_a_rebuild(with_snapshot: tuple[str, ...]) -> None:
    spec = spec_with(StreamSpec("in", Role.INPUT, IN, 4, identity="i1", broadcast_partitions=(0,)))
    plan = planned(4, PreviousAssignment(), spec)
    rebuilt = put_together(*(snapshot(version(1), plan, TaskName(task)) for task in with_snapshot))
    again = planned(4, rebuilt.assignment, spec)
    assert again.assignment == plan.assignment
    assert again.model.tasks == plan.model.tasks
    with pytest.raises(IncompatibleExpansion, match="single partitions of it are broadcast"):
        planned(8, rebuilt.assignment, spec_with(StreamSpec("in", Role.INPUT, IN, 8, broadcast_partitions=(0,))))


def test_snapshots_of_a_history_that_has_ended_are_ignored() -> None:
    old, new = planned(4, planned(2, PreviousAssignment()).assignment), planned(4, PreviousAssignment())
    indexes = [snapshot(version(1), old, task, 9) for task in old.model.tasks]
    indexes += [snapshot(version(2, "r2", "r2", hours=1), new, task) for task in new.model.tasks]
    assert put_together(*indexes).assignment == new.assignment


def after(kept: Sequence[KeptHistory], run: str, hours: int) -> RunRow:
    """The first run of a history that began with the state of these."""
    return replace(version(1, run, run, hours), kept=tuple(kept))


TASK_0, TASK_1 = TaskName("Partition 0"), TaskName("Partition 1")
FIRST = KeptHistory(RunId("r1"))


def test_a_run_continues_from_the_kept_histories_of_tasks_that_have_run_no_batch_since() -> None:
    grown = planned(4, planned(2, PreviousAssignment()).assignment)
    rebuilt = put_together(
        snapshot(version(1), grown, TASK_1, 1, at=7),
        snapshot(version(1), grown, TASK_0, 2),
        snapshot(after([FIRST], "r2", 1), grown, TASK_0, 3),
    )
    assert (rebuilt.run.first_run, rebuilt.run.kept) == ("r2", (FIRST,))
    assert rebuilt.model.tasks == grown.model.tasks
    assert rebuilt.assignment == grown.assignment
    assert {each.id: each.partitions for each in rebuilt.run.spec.streams} == {IN: 4, SIDE: 2}


def test_stages_that_were_not_begun_since_a_drain_that_kept_the_state_begin_where_it_ended() -> None:
    plan = planned(2, PreviousAssignment())
    of_history = [snapshot(version(1), plan, TASK_0, 1, at=3), snapshot(version(1), plan, TASK_0, 2, at=90)]
    of_history += [snapshot(version(1), plan, TASK_0, 1, "t", at=80)]
    rebuilt = put_together(*of_history, snapshot(after([FIRST], "r2", 1), plan, TASK_1, 3))
    assert rebuilt.starts[Ssp("log", "in", 0)] == 80


@pytest.mark.parametrize(
    ("kept", "goes_on"),
    [
        ([FIRST], ("r1", True)),
        ([KeptHistory(RunId("r2")), FIRST], ("r2", False)),
        ([KeptHistory(RunId("r2"), frozenset({StageName("s")})), FIRST], None),
        ([KeptHistory(RunId("r2"), frozenset({StageName("other")})), FIRST], ("r2", False)),
        ([], None),
    ],
    ids=["returned to the first", "of the second", "the stage begins again", "another stage begins again", "nothing was kept"],
)
async def test_a_rebuild_restores_the_newest_snapshot_of_the_histories_that_continue(
    tmp_path: Path, kept: list[KeptHistory], goes_on: tuple[str, bool] | None
) -> None:
    """Partition 1 has snapshots of two histories; Partition 0 has one of the last, which went on from `kept`."""
    plan, runs = planned(2, PreviousAssignment()), {1: "r1", 2: "r2"}
    made = [snapshot(version(1, run, run, number), plan, TASK_1, number) for number, run in runs.items()]
    store = open_blob_store(tmp_path.as_uri())
    await store.open(create=True)
    for index in (*made, snapshot(after(kept, "r3", 3), plan, TASK_0, 3)):
        of = index.metadata
        blob = BlobId(f"{stage_prefix(StageKey(of.job, of.task, of.store))}{Kind.SNAPSHOTS}/{index.generation}")
        await store.put(blob, encoded(index), RequestContext(Purpose.AUDIT))
    name = BlobStoreName("a")
    stores = BlobStores({name: tmp_path.as_uri()}, lambda name, url: store, Backup((name,), (name,)))
    found = await find(stores, Progress("blobs"), NOON)
    states = {each.task: (runs[each.generation or 0], each.chosen) for each in found.stores if each.task == TASK_1}
    assert states.get(TASK_1) == goes_on
    assert (str(StageKey(JOB, TASK_1, StageName("s"))) in found.left_out) is (goes_on is None)


def test_an_index_without_a_readable_run_is_ignored() -> None:
    index = snapshot(version(1), planned(2, PreviousAssignment()), TaskName("Partition 0"))
    strange: list[Mapping[str, object] | None] = [None, {}, {**(index.continuation or {}), "modelVersion": "many"}]
    strange += [{**(index.continuation or {}), name: "\ud800"} for name in ("runId", "firstRun", "grouping", "slot")]
    for each in strange:
        without = decoded(encoded(replace(index, continuation=each)), BlobId("i"))
        assert of_index(without) is None
        assert continued_run(JobName("j"), [without], NOON) is None


def test_an_index_keeps_the_offsets_of_its_stage() -> None:
    index = snapshot(version(1), planned(2, PreviousAssignment()), TaskName("Partition 0"))
    assert index.offsets == {Ssp("log", "in", 0): 5}
