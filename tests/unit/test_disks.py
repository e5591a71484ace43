from __future__ import annotations

from pathlib import Path

import pytest

from sluice import disks
from sluice.disks import DiskSpace, LocalDisks, Room, Thresholds, note, readable, says_no_room, shortages

LIMITS = Thresholds(low=1000, full=100)


@pytest.mark.parametrize(("free", "room"), [(1000, Room.ENOUGH), (999, Room.LOW), (100, Room.LOW), (99, Room.FULL), (0, Room.FULL)])
def test_a_disk_is_low_or_full_below_its_thresholds(free: int, room: Room) -> None:
    assert LIMITS.judge(DiskSpace(free, 5000)) is room


@pytest.mark.parametrize(
    "error",
    [
        "OSError: [Errno 28] No space left on device: '/state/offsets/3'",
        "java.io.IOException: No space left on device",
        "org.rocksdb.RocksDBException: IO error: No space left on device: While appending to file: /scratch/000012.sst",
        "sluice.core.errors.StreamUnavailable: log stream counts: database or disk is full (file /log/counts.db)",
        "OSError: [Errno 122] Disk quota exceeded",
        "log stream s: disk I/O error (file /log/s.db); the disk of /log is full (0 B free): free some space",
        'ERROR: could not extend file "base/16384/16397": No space left on device',
    ],
)
def test_full_disks_are_recognised_in_the_errors_of_all_writers(error: str) -> None:
    assert says_no_room(error)


@pytest.mark.parametrize("error", ["KeyError: 'space'", "ValueError: the disk is fully loaded", ""])
def test_other_errors_do_not(error: str) -> None:
    assert not says_no_room(error)


def test_only_disks_with_too_little_space_are_named() -> None:
    found = {"state": DiskSpace(999, 4096), "log": DiskSpace(1001, 4096)}
    assert shortages(found, LIMITS) == "state: 999 B free of 4.0 KiB"
    assert shortages({}, LIMITS) == ""


def test_the_disk_of_a_missing_directory_is_that_of_its_parent(tmp_path: Path) -> None:
    assert disks.space(tmp_path / "a" / "b").size == disks.space(tmp_path).size
    assert set(disks.measure({"here": tmp_path, "nowhere": Path("/" + "x" * 5000)})) == {"here"}


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1536, "1.5 KiB"), (1 << 30, "1.0 GiB"), (1 << 42, "4.0 TiB"), (1 << 53, "8192 TiB")]
)
def test_sizes_are_readable(count: int, text: str) -> None:
    assert readable(count) == text


def test_an_error_that_does_not_mention_space_is_explained_by_a_full_disk(tmp_path: Path) -> None:
    roomy, full = LocalDisks({"state": tmp_path}, Thresholds(0, 0)), LocalDisks({"state": tmp_path}, Thresholds(1 << 60, 1 << 60))
    error = "java.lang.UnsatisfiedLinkError: /tmp/librocksdbjni.so: file too short"
    assert not roomy.explain(error)
    assert full.explain(error)
    assert roomy.explain("No space left on device")
    assert full.shortages().startswith("state: ")


def test_a_file_system_without_a_size_is_not_a_full_disk() -> None:
    assert note(Path("/proc/nope")) == ""
