"""How progress reports are checked, how streams are trimmed by them, and where a regrouped stateless job continues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.errors import FalseReport
from sluice.core.ids import Generation, Lineage, Ssp, TaskName
from sluice.core.leases.ownership import (
    LAST_BATCH,
    Committed,
    PartitionReader,
    RegroupedStage,
    StagePosition,
    check_report,
    kept_for_snapshots,
    regrouped,
    unread_from,
    updated_offsets,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
P0, P1, P2, P3 = (Ssp("log", "s", p) for p in range(4))
KNOWN = Committed(Generation(2), Lineage("l"), 7, {P0: 70})


def refusal(report: Committed, known: Committed | None = KNOWN, ends: Mapping[Ssp, int] | None = None) -> str | None:
    try:
        check_report(report, {P0, P2}, known, ends or {})
    except FalseReport as error:
        return error.reason
    return None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"batch": 8, "offsets": {P0: 71, P2: 1}}, None),
        ({"batch": 8, "offsets": {}}, None),
        ({"batch": 8, "offsets": {P0: 69}}, "offset-backwards"),
        ({"batch": 6, "offsets": {P0: 71}}, "offset-backwards"),
        ({"batch": None, "offsets": {P0: 71}}, "offset-backwards"),
        ({"batch": 6, "offsets": {P0: 60}}, None),
        ({"batch": 8, "offsets": {P0: 80, P1: 1}}, "foreign-partition"),
        ({"batch": LAST_BATCH, "offsets": {P0: 80}}, None),
        ({"batch": LAST_BATCH + 1, "offsets": {P0: 80}}, "batch-too-large"),
        ({"lineage": Lineage("restored"), "batch": 3, "offsets": {P0: 30}}, None),
        ({"generation": Generation(3), "batch": 8, "offsets": {P0: 30}}, None),
    ],
)
def test_a_report_is_rejected_if_it_cannot_be_true(changes: dict[str, object], expected: str | None) -> None:
    assert refusal(replace(KNOWN, **changes)) == expected  # type: ignore[arg-type]


def test_what_was_reported_beyond_an_end_that_was_looked_up_later_binds_no_report() -> None:
    less = replace(KNOWN, batch=8, offsets={P0: 60})
    assert refusal(less, ends={P0: 70}) == "offset-backwards"
    assert refusal(less, ends={P0: 69}) is None


def test_offsets_that_a_report_leaves_out_are_kept_within_a_lineage() -> None:
    assert updated_offsets(KNOWN, replace(KNOWN, batch=8, offsets={P2: 5})) == {P0: 70, P2: 5}
    assert updated_offsets(KNOWN, replace(KNOWN, lineage=Lineage("m"), offsets={P2: 5})) == {P2: 5}
    assert updated_offsets(None, KNOWN) == {P0: 70}


readers = st.builds(
    PartitionReader,
    start=st.integers(0, 10),
    reported=st.none() | st.integers(0, 40),
    snapshots=st.lists(st.none() | st.integers(0, 40), max_size=3),
)


@given(st.lists(readers, min_size=1, max_size=4), st.integers(0, 40))
def test_a_trim_waits_for_every_reader_and_its_snapshots_and_never_passes_an_end(found: list[PartitionReader], end: int) -> None:
    at = unread_from(found, end)
    for reader in found:
        confirmed = reader.reported is not None and reader.reported <= end
        assert at <= (reader.reported if confirmed and reader.reported is not None else reader.start)
        if confirmed:
            assert all(at <= (reader.start if offset is None else offset) for offset in reader.snapshots)
    assert at <= max(end, *(reader.start for reader in found))


def test_a_partition_is_not_trimmed_beyond_the_start_of_a_reader_without_a_report() -> None:
    assert unread_from([PartitionReader(3, 9), PartitionReader(5, None)], 10) == 5
    assert unread_from([PartitionReader(3, 9, [7]), PartitionReader(5, 8)], 10) == 7
    assert unread_from([PartitionReader(3, 11)], 10) == 3


def test_only_old_records_that_all_readers_have_passed_and_a_snapshot_needs_are_kept_for_snapshots() -> None:
    readers = [PartitionReader(3, 9, [7, 4]), PartitionReader(0, 8)]
    assert kept_for_snapshots(readers, begin=0, end=10, limit=10) == 4
    assert kept_for_snapshots(readers, begin=5, end=10, limit=10) == 3
    assert kept_for_snapshots(readers, begin=0, end=10, limit=6) == 2
    assert kept_for_snapshots([PartitionReader(0, 8, [None]), PartitionReader(2, None)], begin=0, end=10, limit=10) == 2
    assert kept_for_snapshots([PartitionReader(3, 9, [9])], begin=0, end=10, limit=10) == 0


# --- regrouping ---------------------------------------------------------------------------------------------------

A, B, C = (TaskName(f"Partition {p}") for p in range(3))


def test_a_task_that_takes_partitions_over_continues_with_them_where_they_were_left() -> None:
    before = {A: StagePosition({P0: 10}), B: StagePosition({P1: 20})}
    found = regrouped(before, {A: frozenset({P0, P1})}, ())
    assert not found.begin
    assert found.extend == {A: {P1: 20}}
    assert found.gone == {B}


def test_a_task_that_gives_partitions_up_begins_a_new_lineage_where_it_was() -> None:
    before = {A: StagePosition({P0: 10, P1: 20})}
    found = regrouped(before, {A: frozenset({P0}), B: frozenset({P1}), C: frozenset({P2})}, ())
    assert (found.begin, found.extend, found.gone) == ({A: {P0: 10}, B: {P1: 20}}, {}, frozenset())


def test_if_two_tasks_have_read_a_partition_the_last_report_counts() -> None:
    before = {A: StagePosition({P0: 10, P1: 20}, NOON), B: StagePosition({P1: 25}, NOON + timedelta(seconds=1)), C: StagePosition({P1: 99})}
    assert regrouped(before, {A: frozenset({P0, P1})}, ()).begin == {A: {P0: 10, P1: 25}}


def test_each_task_has_an_offset_of_its_own_in_broadcast_partitions() -> None:
    before = {A: StagePosition({P0: 10, P1: 20, P3: 5}), B: StagePosition({P2: 30, P3: 7})}
    reads = {A: frozenset({P0, P3}), B: frozenset({P2, P3}), C: frozenset({P1, P3})}
    assert regrouped(before, reads, {P3}).begin == {A: {P0: 10, P3: 5}, C: {P1: 20}}


def test_the_offsets_of_a_stream_that_a_stage_leaves_out_are_kept_for_its_return() -> None:
    other = Ssp("log", "other", 0)
    before = {A: StagePosition({P0: 10, other: 5})}
    assert regrouped(before, {A: frozenset({P0})}, ()).nothing
    split = {A: StagePosition({P0: 10, P1: 20, other: 5})}
    assert regrouped(split, {A: frozenset({P0}), B: frozenset({P1})}, ()).begin == {A: {P0: 10, other: 5}, B: {P1: 20}}


class Stage:
    """The tasks of a stage through deployments. `committed`: how far each partition was read, by any task."""

    def __init__(self) -> None:
        self.committed: dict[Ssp, int] = {}
        self.positions: dict[TaskName, dict[Ssp, int]] = {}

    def changes(self, reads: Mapping[TaskName, frozenset[Ssp]]) -> RegroupedStage:
        return regrouped({task: StagePosition(at) for task, at in self.positions.items()}, reads, ())

    def deploy(self, reads: Mapping[TaskName, frozenset[Ssp]]) -> None:
        found = self.changes(reads)
        for task in found.gone:
            del self.positions[task]
        self.positions |= {task: dict(at) for task, at in found.begin.items()}
        for task, at in found.extend.items():
            self.positions[task] |= at
        assert self.changes(reads).nothing
        for task, ssps in reads.items():
            self.positions[task] = {**dict.fromkeys(ssps, 0), **self.positions.get(task, {})}

    def read(self, task: TaskName, ssp: Ssp, count: int) -> None:
        assert self.positions[task][ssp] == self.committed.get(ssp, 0)
        self.positions[task][ssp] += count
        self.committed[ssp] = self.positions[task][ssp]


@given(
    groupings=st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=6), min_size=1, max_size=6),
    work=st.lists(st.lists(st.integers(0, 5), max_size=6), min_size=6, max_size=6),
)
def test_through_any_groupings_each_partition_is_read_once_from_its_beginning(groupings: list[list[int]], work: list[list[int]]) -> None:
    stage = Stage()
    for partitions, (grouping, done) in enumerate(zip(groupings, work, strict=False), 2):  # the stream grows too
        reader = {Ssp("log", "s", p): TaskName(f"Partition {number}") for p, number in enumerate(grouping[:partitions])}
        stage.deploy({task: frozenset(ssp for ssp, by in reader.items() if by == task) for task in set(reader.values())})
        for partition in done:
            ssp = Ssp("log", "s", partition)
            if ssp in reader:
                stage.read(reader[ssp], ssp, 3)
        for ssp, task in reader.items():
            stage.read(task, ssp, 0)
