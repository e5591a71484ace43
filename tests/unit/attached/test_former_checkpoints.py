"""What is deleted of the former directories of a script's checkpoint."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from containers.attached.checkpoints.former import Deletion, Former, delete_former, plan_deletion
from containers.state.checkpoint import DRAIN_MARKER
from sluice.core.ids import StageName

COUNTS = StageName("counts")
OPEN, FLUSHED, STATELESS = Former(False, True), Former(True, True), Former(False, False)
LEFTOVERS = (".cuts", ".staging", ".replaced", ".given-up", ".adopted")


def checkpoint(job: Path, folder: str, name: str = COUNTS, *, flushed: bool = False) -> Path:
    """A checkpoint of five batches, with what killed processes may have left beside it."""
    directory = job / folder / name
    for log in ("offsets", "commits"):
        (directory / log).mkdir(parents=True)
        for batch in range(5):
            (directory / log / str(batch)).touch()
            (directory / log / f".{batch}.crc").touch()
    (directory / "metadata").touch()
    (directory / "state/0/0").mkdir(parents=True)
    (directory / "state/0/0/1.delta").touch()
    for beside in LEFTOVERS:
        (job / folder / beside / name).mkdir(parents=True)
        (job / folder / beside / name / "file").touch()
    if flushed:
        (directory / DRAIN_MARKER).touch()
        (directory / "offsets/1000004").touch()
    return directory


def files(directory: Path) -> set[str]:
    return {str(each.relative_to(directory)) for each in directory.rglob("*") if not each.is_dir()}


# --- the plan --------------------------------------------------------------------------------------------------------


def test_the_state_of_flushed_checkpoints_is_deleted_and_their_locks_remain() -> None:
    plan = plan_deletion("drain-10", {"drain-0": FLUSHED, "drain-9": FLUSHED, "drain-10": OPEN}, backed_up=True)
    assert plan == Deletion(state=frozenset({"drain-0", "drain-9"}))


def test_of_checkpoints_that_were_not_flushed_those_of_the_newest_former_drain_are_kept() -> None:
    """The script was on other machines when it was drained."""
    plan = plan_deletion(
        "drain-10", {"drain-0": OPEN, "drain-2": OPEN, "drain-7": OPEN, "drain-7-0a1b2c3d": OPEN, "drain-10": OPEN}, backed_up=True
    )
    assert plan == Deletion(whole=frozenset({"drain-0", "drain-2"}))


def test_the_checkpoint_of_a_version_that_was_rolled_back_is_kept_until_after_the_next_drain() -> None:
    found = {"drain-4": FLUSHED, "drain-5": OPEN, "drain-5-0a1b2c3d": OPEN}
    assert plan_deletion("drain-5-0a1b2c3d", found, backed_up=True) == Deletion(state=frozenset({"drain-4"}))
    found |= {"drain-5-0a1b2c3d": FLUSHED, "drain-6-0a1b2c3d": OPEN}
    assert plan_deletion("drain-6-0a1b2c3d", found, backed_up=True) == Deletion(state=frozenset({"drain-4", "drain-5-0a1b2c3d"}))
    found |= {"drain-6-0a1b2c3d": FLUSHED, "drain-7-0a1b2c3d": OPEN}
    assert plan_deletion("drain-7-0a1b2c3d", found, backed_up=True).whole == {"drain-5"}


@pytest.mark.parametrize("former", [OPEN, FLUSHED])
def test_after_the_database_has_gone_back_nothing_newer_is_deleted(former: Former) -> None:
    assert plan_deletion("drain-2", {"drain-2": OPEN, "drain-3": former, "drain-4": former}, backed_up=True) == Deletion()


@pytest.mark.parametrize(
    "name", ["drain", "drain-", "drain-old", "drain-01", "drain-1-", "drain-1-copy", "drain-1.bak", "my-drain-1", ".drain-1"]
)
def test_directories_with_other_names_are_not_sluices(name: str) -> None:
    assert plan_deletion("drain-9", {name: OPEN, "drain-8": OPEN, "drain-9": OPEN}, backed_up=True) == Deletion()
    assert plan_deletion("drain-9", {name: FLUSHED, "drain-9": OPEN}, backed_up=True) == Deletion()


def test_of_a_checkpoint_without_state_the_last_batches_remain() -> None:
    """It needs no flush, so it has no lock."""
    found = {"drain-0": STATELESS, "drain-7": STATELESS, "drain-10": STATELESS}
    assert plan_deletion("drain-10", found, backed_up=True) == Deletion(state=frozenset({"drain-0"}))


def test_state_that_was_not_flushed_is_kept_if_the_run_has_no_blob_store() -> None:
    assert plan_deletion("drain-10", {"drain-0": OPEN, "drain-7": FLUSHED, "drain-10": OPEN}, backed_up=False).whole == frozenset()


# --- on the disk -----------------------------------------------------------------------------------------------------


def test_a_flushed_checkpoint_keeps_its_lock_and_its_last_batches(tmp_path: Path) -> None:
    former, present = checkpoint(tmp_path, "drain-0", flushed=True), checkpoint(tmp_path, "drain-1")
    before = files(tmp_path / "drain-1")
    delete_former(tmp_path, "drain-1", COUNTS, backed_up=True)
    offsets = {"offsets/3", "offsets/.3.crc", "offsets/4", "offsets/.4.crc", "offsets/1000004"}
    commits = {f"commits/{name}" for name in ("2", ".2.crc", "3", ".3.crc", "4", ".4.crc")}
    assert files(former) == {"metadata", DRAIN_MARKER, *offsets, *commits}
    assert not (former / "state").exists()
    assert files(tmp_path / "drain-0") == {f"counts/{each}" for each in files(former)}
    assert files(tmp_path / "drain-1") == before
    assert present.exists()


def test_other_checkpoints_and_files_of_a_person_are_not_touched(tmp_path: Path) -> None:
    checkpoint(tmp_path, "drain-0", flushed=True)
    kept = [
        checkpoint(tmp_path, "drain-0", "rows", flushed=True),
        checkpoint(tmp_path, "drain-0", "counts.bak", flushed=True),
        checkpoint(tmp_path, "drain-old", flushed=True),
        checkpoint(tmp_path, "drain-2"),
    ]
    checkpoint(tmp_path, "drain-1")
    before = [files(each) for each in kept]
    delete_former(tmp_path, "drain-1", COUNTS, backed_up=True)
    assert [files(each) for each in kept] == before


def test_links_are_not_followed(tmp_path: Path) -> None:
    elsewhere = checkpoint(tmp_path / "elsewhere", "drain-0", flushed=True)
    before, job = files(tmp_path / "elsewhere"), tmp_path / "orders"
    (job / "drain-1").mkdir(parents=True)
    (job / "drain-0").symlink_to(elsewhere.parent)
    (job / "drain-1/counts").symlink_to(elsewhere)
    linked = checkpoint(job, "drain-2", flushed=True)
    shutil.rmtree(linked / "state")
    (linked / "state").symlink_to(elsewhere / "state")
    checkpoint(job, "drain-3")
    delete_former(job, "drain-3", COUNTS, backed_up=True)
    assert files(tmp_path / "elsewhere") == before
    assert (linked / "state").is_symlink()


def test_a_checkpoint_that_was_not_flushed_is_deleted_with_everything_beside_it(tmp_path: Path) -> None:
    """Also if a kill has left only something beside it."""
    checkpoint(tmp_path, "drain-0")
    shutil.rmtree(checkpoint(tmp_path, "drain-1"))
    rows = checkpoint(tmp_path, "drain-0", "rows")
    kept = checkpoint(tmp_path, "drain-2")
    checkpoint(tmp_path, "drain-3")
    delete_former(tmp_path, "drain-3", COUNTS, backed_up=True)
    assert files(tmp_path / "drain-1") == set()
    assert not list(tmp_path.glob("drain-[01]/**/counts"))
    assert rows.exists()
    assert (kept / "state/0/0/1.delta").exists()


def test_an_error_does_not_prevent_the_start_of_the_query(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        delete_former(tmp_path / "nothing", "drain-1", COUNTS, backed_up=True)
    assert "not all former directories of checkpoint counts were deleted" in caplog.text
