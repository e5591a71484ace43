from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path, PurePath

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from containers.errors import CheckpointUnreadable, DiskUnwritable, StateNotLocal
from containers.state.checkpoint import (
    CheckpointInfo,
    Checkpoints,
    PlannedBatches,
    check_not_emptied,
    check_writable,
    inspect,
    mark_emptied,
    planned_batches,
)
from sluice.core.ids import Lineage, directory_name

OURS, OTHERS = Lineage("ours"), Lineage("others")
TASK, STAGE = "Partition 0", "hourly"

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
look_alikes = st.text("aA._- /\u00e40", max_size=6)


@pytest.fixture
def stores(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path, "delays")


@pytest.fixture
def directory(stores: Checkpoints) -> Path:
    return stores.directory(TASK, STAGE)


def spark_ran(directory: Path, committed: int, planned: int | None = None) -> None:
    """Leave what Spark leaves: checksums and temporary files next to the batches."""
    for name, last in (("offsets", committed if planned is None else planned), ("commits", committed)):
        (directory / name).mkdir(exist_ok=True)
        for batch in range(max(0, last - 1), last + 1):
            (directory / name / str(batch)).write_text("v1\n{}")
            (directory / name / f".{batch}.crc").touch()
        (directory / name / ".99.0f1e2d.tmp").touch()


def everything(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("task", "name"), [("Partition 0", "Partition_0"), ("Partition 12", "Partition_12"), ("all", "all")])
def test_directories_of_ordinary_tasks_have_recognisable_names(task: str, name: str) -> None:
    assert directory_name(task) == name


def test_the_task_of_a_partition_of_a_system_can_be_recognised_too() -> None:
    assert directory_name("SystemStreamPartition [kafka, a, 0]").startswith("SystemStreamPartition__kafka__a__0_-")


@given(st.one_of(texts, look_alikes), st.one_of(texts, look_alikes))
@example("Partition 0", "Partition_0")
@example("a.b", "a b")
@example(".", "..")
@example("", ".")
def test_different_names_have_different_directories(one: str, other: str) -> None:
    assert (directory_name(one) == directory_name(other)) == (one == other)


@given(st.one_of(texts, look_alikes))
def test_no_name_has_the_directory_of_a_name_that_imitates_it(task: str) -> None:
    taken = directory_name(task)
    assert task in (taken, taken.replace("_", " ")) or taken not in (directory_name(taken), directory_name(taken.replace("_", " ")))


@given(st.one_of(texts, look_alikes))
@example("..")
@example(".")
@example("/")
@example("../../etc/passwd")
@example("SystemStreamPartition [kafka, " + "x" * 249 + ", 0]")
@example("\u00e4\u0000\n")
def test_a_directory_name_is_valid_on_every_file_system(task: str) -> None:
    name = directory_name(task)
    assert len(PurePath(name).parts) == 1
    assert name.isascii()
    assert 0 < len(name) <= 250
    assert not name.startswith(".")
    assert not set(name) & set("/\\\0\n ")


# --- a missing checkpoint ---------------------------------------------------------------------------------------


def test_a_new_store_holds_its_lineage_before_spark_sees_it(stores: Checkpoints) -> None:
    directory = stores.prepare(TASK, STAGE, OURS, None)
    assert json.loads((directory / "metadata").read_text()) == {"id": "ours"}
    assert [path.name for path in directory.iterdir()] == ["metadata"]
    assert inspect(directory) == CheckpointInfo(OURS, -1, -1)


def test_stores_of_tasks_and_stages_are_apart(stores: Checkpoints) -> None:
    places = {stores.prepare(task, stage, OURS, None) for task in ("Partition 0", "Partition 1") for stage in ("a", "b")}
    assert len(places) == 4


def test_the_longest_names_fit(stores: Checkpoints) -> None:
    task, stage = "SystemStreamPartition [kafka, " + "x" * 249 + ", 0]", "s" * 249
    stores.prepare(task, stage, OTHERS, None)
    assert inspect(stores.prepare(task, stage, OURS, None)) == CheckpointInfo(OURS, -1, -1)


def test_a_disk_without_the_checkpoint_of_reported_batches_needs_a_restore(stores: Checkpoints, tmp_path: Path) -> None:
    with pytest.raises(StateNotLocal, match=r"is at batch 3, but .*hourly does not exist: start this container on the disk that has it"):
        stores.prepare(TASK, STAGE, OURS, 3)
    assert list(tmp_path.iterdir()) == []


# --- a checkpoint of the same lineage -------------------------------------------------------------------------------------


@pytest.mark.parametrize("reported", [None, 0, 6, 7])
def test_a_store_at_least_as_new_as_reported_continues_untouched(
    stores: Checkpoints, directory: Path, tmp_path: Path, reported: int | None
) -> None:
    stores.prepare(TASK, STAGE, OURS, None)
    spark_ran(directory, committed=7, planned=8)
    before = everything(tmp_path)
    assert stores.prepare(TASK, STAGE, OURS, reported) == directory
    assert everything(tmp_path) == before
    assert inspect(directory) == CheckpointInfo(OURS, planned=8, committed=7)


@pytest.mark.parametrize(("committed", "reported"), [(-1, 0), (6, 7)])
def test_a_store_older_than_reported_is_refused_and_kept(
    stores: Checkpoints, directory: Path, tmp_path: Path, committed: int, reported: int
) -> None:
    stores.prepare(TASK, STAGE, OURS, None)
    if committed >= 0:
        spark_ran(directory, committed, planned=7)
    before = everything(tmp_path)
    with pytest.raises(StateNotLocal, match=f"is at batch {reported}, but .* ends at batch {committed}"):
        stores.prepare(TASK, STAGE, OURS, reported)
    assert everything(tmp_path) == before


# --- a checkpoint of another lineage --------------------------------------------------------------------------------------


def test_a_checkpoint_of_a_history_that_was_given_up_is_replaced(stores: Checkpoints, directory: Path, tmp_path: Path) -> None:
    stores.prepare(TASK, STAGE, OTHERS, None)
    spark_ran(directory, committed=7)
    stores.prepare(TASK, STAGE, OURS, None)
    assert inspect(directory) == CheckpointInfo(OURS, -1, -1)
    assert list(everything(tmp_path)) == [str((directory / "metadata").relative_to(tmp_path))]


def test_a_checkpoint_of_another_lineage_is_not_used_for_reported_batches_and_is_kept(
    stores: Checkpoints, directory: Path, tmp_path: Path
) -> None:
    stores.prepare(TASK, STAGE, OTHERS, None)
    spark_ran(directory, committed=7)
    before = everything(tmp_path)
    with pytest.raises(StateNotLocal, match=r"is of another lineage \(others\)"):
        stores.prepare(TASK, STAGE, OURS, 3)
    assert everything(tmp_path) == before


# --- an unreadable checkpoint -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "metadata",
    [b"", b"{", b'{"id"', b"{}", b"[]", b"5", b"null", b'{"id":null}', b'{"id":""}', b'{"id":{}}', b"\xff\xfe\x00\x81", b"\0" * 40],
)
@pytest.mark.parametrize("reported", [None, 3])
def test_truncated_metadata_is_an_error_and_nothing_is_lost(
    stores: Checkpoints, directory: Path, tmp_path: Path, metadata: bytes, reported: int | None
) -> None:
    stores.prepare(TASK, STAGE, OURS, None)
    spark_ran(directory, committed=7)
    (directory / "metadata").write_bytes(metadata)
    before = everything(tmp_path)
    with pytest.raises(
        CheckpointUnreadable, match=r"is not the metadata of a checkpoint .*move the directory away to start with empty state"
    ):
        stores.prepare(TASK, STAGE, OURS, reported)
    assert everything(tmp_path) == before


def test_files_without_metadata_are_refused_and_kept(stores: Checkpoints, directory: Path, tmp_path: Path) -> None:
    stores.prepare(TASK, STAGE, OURS, None)
    spark_ran(directory, committed=7)
    (directory / "metadata").unlink()
    before = everything(tmp_path)
    with pytest.raises(CheckpointUnreadable, match="has files but no metadata: move it away, or put its metadata back"):
        stores.prepare(TASK, STAGE, OURS, None)
    assert everything(tmp_path) == before


@pytest.mark.parametrize("place", [".", "metadata"])
def test_a_file_in_place_of_a_directory_or_the_reverse_is_an_error(stores: Checkpoints, directory: Path, place: str) -> None:
    directory.parent.mkdir(parents=True)
    if place == ".":
        directory.write_text("not a directory")
    else:
        (directory / place).mkdir(parents=True)
    with pytest.raises(CheckpointUnreadable, match="metadata"):
        stores.prepare(TASK, STAGE, OURS, None)


# --- crashes between two steps ---------------------------------------------------------------------------------------


def left_by(directory: Path, *, store: bool, given_up: bool, draft: bytes | None, empty: bool) -> None:
    """An interrupted replacement: the contents of the checkpoint's place, of the directory that is given up, and of the temporary
    metadata file.
    """
    if store or empty:
        directory.mkdir(parents=True)
    if store:
        (directory / "metadata").write_text('{"id": "others"}')
        spark_ran(directory, committed=7)
    directory.parent.mkdir(parents=True, exist_ok=True)
    if given_up:
        old = directory.parent / ".given-up" / directory.name
        old.mkdir(parents=True)
        (old / "metadata").write_text('{"id": "others"}')
        spark_ran(old, committed=7)
    if draft is not None:
        (directory.parent / ".drafts").mkdir()
        (directory.parent / ".drafts" / directory.name).write_bytes(draft)


HALF_DONE: dict[str, Callable[[Path], None]] = {
    "before the first step": lambda d: left_by(d, store=True, given_up=False, draft=None, empty=False),
    "an older directory is not deleted yet": lambda d: left_by(d, store=True, given_up=True, draft=None, empty=False),
    "renamed": lambda d: left_by(d, store=False, given_up=True, draft=None, empty=False),
    "the new directory exists": lambda d: left_by(d, store=False, given_up=True, draft=None, empty=True),
    "the temporary file is incomplete": lambda d: left_by(d, store=False, given_up=True, draft=b'{"i', empty=True),
    "the temporary file is complete": lambda d: left_by(d, store=False, given_up=True, draft=b'{"id": "ours"}', empty=True),
    "the directory of a new checkpoint exists": lambda d: left_by(d, store=False, given_up=False, draft=None, empty=True),
    "the temporary file of a new checkpoint is incomplete": lambda d: left_by(d, store=False, given_up=False, draft=b"", empty=True),
}


@pytest.mark.parametrize("state", HALF_DONE)
def test_a_crash_between_two_steps_heals_at_the_next_start(stores: Checkpoints, directory: Path, tmp_path: Path, state: str) -> None:
    HALF_DONE[state](directory)
    assert stores.prepare(TASK, STAGE, OURS, None) == directory
    assert inspect(directory) == CheckpointInfo(OURS, -1, -1)
    assert list(everything(tmp_path)) == [str((directory / "metadata").relative_to(tmp_path))]


@pytest.mark.parametrize("reported", [None, 2])
def test_a_crash_while_the_given_up_history_was_deleted_costs_no_batch_and_no_room(
    stores: Checkpoints, directory: Path, tmp_path: Path, reported: int | None
) -> None:
    HALF_DONE["renamed"](directory)
    directory.mkdir()
    (directory / "metadata").write_text('{"id": "ours"}')
    spark_ran(directory, committed=2)
    stores.prepare(TASK, STAGE, OURS, reported)
    assert inspect(directory) == CheckpointInfo(OURS, 2, 2)
    assert all((tmp_path / each).is_relative_to(directory) for each in everything(tmp_path))


# --- a disk that cannot be written ---------------------------------------------------------------------------------------


def test_a_missing_directory_is_created_and_left_empty(tmp_path: Path) -> None:
    check_writable(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_a_path_that_cannot_be_a_directory_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DiskUnwritable, match=r"/file: File exists: .*SLUICE_STATE_DIR"):
        check_writable(tmp_path / "file")
    with pytest.raises(DiskUnwritable, match=r"/file/below: Not a directory"):
        check_writable(tmp_path / "file" / "below")


def test_the_error_about_a_directory_that_cannot_be_created_names_the_obstacle(tmp_path: Path) -> None:
    in_the_way = tmp_path / "delays" / "Partition_0" / ".drafts"
    in_the_way.parent.mkdir(parents=True)
    in_the_way.touch()
    with pytest.raises(DiskUnwritable, match=rf"{tmp_path} \({in_the_way}\): File exists: "):
        Checkpoints(tmp_path, "delays").prepare(TASK, STAGE, OURS, None)


# --- checkpoints that a drain has emptied ---------------------------------------------------------------------------------


def test_a_store_that_a_drain_empties_continues_under_that_drain_only(stores: Checkpoints) -> None:
    store = stores.prepare("Partition 0", "hourly", Lineage("a"), None)
    check_not_emptied(store)
    mark_emptied(store, "drain-1", 7)
    mark_emptied(store, "drain-1", 9)  # again, after a crash
    check_not_emptied(store, "drain-1")
    for drain in ("", "drain-2"):
        with pytest.raises(StateNotLocal, match="was flushed after batch 7 by the drain drain-1, which failed"):
            check_not_emptied(store, drain)


@pytest.mark.parametrize("text", ["", "{}", '{"uuid": 7, "batch": 1}', '{"uuid": "a"}'])
def test_a_truncated_mark_of_a_drain_is_an_error(stores: Checkpoints, text: str) -> None:
    store = stores.prepare("Partition 0", "hourly", Lineage("a"), None)
    (store / "drain.json").write_text(text)
    with pytest.raises(CheckpointUnreadable, match=r"drain\.json"):
        check_not_emptied(store, "a")


# --- batches between plan and commit ---------------------------------------------------------------------------------


def planned_at(hour: int) -> str:
    metadata = {"batchWatermarkMs": 0, "batchTimestampMs": hour * 3_600_000, "conf": {}}
    return f"v1\n{json.dumps(metadata)}\n-"


def hour(number: int) -> datetime:
    return datetime(1970, 1, 1, number, tzinfo=UTC)


def test_a_batch_that_is_planned_and_not_committed_is_unfinished_since_its_plan(stores: Checkpoints, directory: Path) -> None:
    stores.prepare(TASK, STAGE, OURS, None)
    assert planned_batches(directory, OURS, {}, None) == PlannedBatches(-1, {})
    spark_ran(directory, committed=4, planned=5)
    (directory / "offsets" / "5").write_text(planned_at(7))
    assert planned_batches(directory, OURS, {}, None) == PlannedBatches(4, {5: hour(7)})
    spark_ran(directory, committed=5)
    assert planned_batches(directory, OURS, {}, None) == PlannedBatches(5, {})


def test_only_the_last_batch_that_was_planned_may_be_unfinished(stores: Checkpoints, directory: Path) -> None:
    replay = {batch: planned_at(batch) for batch in (4, 5, 6)}
    assert planned_batches(directory, OURS, replay, None) == PlannedBatches(5, {6: hour(6)}), "on a new disk"
    assert planned_batches(directory, OURS, replay, 6) == PlannedBatches(6), "another disk has committed batch 6"
    stores.prepare(TASK, STAGE, OURS, None)
    spark_ran(directory, committed=4)
    assert planned_batches(directory, OURS, replay, None) == PlannedBatches(5, {6: hour(6)})


def test_batches_of_another_lineage_are_not_unfinished(stores: Checkpoints, directory: Path) -> None:
    stores.prepare(TASK, STAGE, OTHERS, None)
    spark_ran(directory, committed=4, planned=5)
    assert planned_batches(directory, OURS, {}, None) == PlannedBatches(-1, {})
