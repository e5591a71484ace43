"""Temporary directories of containers: who may delete them, and when."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from containers.supervision import scratch
from containers.supervision.scratch import Scratch
from sluice.core.ids import ExecutionContainerId


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "temporary"
    made.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(made))
    return made


def claimed(home: Path, container: str = "c1") -> Scratch:
    made = scratch.claim(home, ExecutionContainerId(container))
    assert made is not None
    (made.directory / "blockmgr").mkdir(parents=True)
    (made.directory / "blockmgr" / "block").write_bytes(bytes(100))
    return made


def killed(made: Scratch) -> None:
    """The last process that held the lock has ended."""
    os.close(made.lock)


def nothing_lives(_session: int) -> Sequence[int]:
    return []


def left(home: Path, temporary: Path) -> list[str]:
    return sorted(each.name for each in (*(home / "spark").iterdir(), *temporary.iterdir()))


def test_directories_of_killed_containers_are_deleted(tmp_path: Path, temporary: Path) -> None:
    made = claimed(tmp_path)
    made.started(12345)
    killed(made)
    assert scratch.clear(tmp_path, nothing_lives) == ["c1"]
    assert left(tmp_path, temporary) == []


def test_directories_of_running_containers_are_kept(tmp_path: Path) -> None:
    made = claimed(tmp_path)
    made.started(12345)
    assert scratch.clear(tmp_path, nothing_lives) == []
    assert made.sockets is not None
    assert made.sockets.is_dir()
    assert (made.directory / "blockmgr" / "block").exists()


def test_a_container_whose_jvm_outlives_python_keeps_its_directories(tmp_path: Path) -> None:
    made = claimed(tmp_path)
    made.started(12345)
    killed(made)
    assert scratch.clear(tmp_path, lambda session: [session + 1]) == []
    assert (made.directory / "blockmgr" / "block").exists()


def test_a_container_that_was_killed_before_its_driver_had_started_is_cleared(tmp_path: Path, temporary: Path) -> None:
    killed(claimed(tmp_path))
    assert scratch.clear(tmp_path, nothing_lives) == ["c1"]
    assert left(tmp_path, temporary) == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"session": "x", "sockets": 5}', '{"session": null, "sockets": "/etc"}'])
def test_an_incomplete_lock_file_claims_nothing(tmp_path: Path, text: str) -> None:
    made = claimed(tmp_path)
    killed(made)
    made.directory.with_name("c1.lock").write_text(text)
    assert scratch.clear(tmp_path, nothing_lives) == ["c1"]
    assert not made.directory.exists()


def test_directories_of_former_releases_which_have_no_lock_file_stay(tmp_path: Path) -> None:
    old = tmp_path / "spark" / "old"
    old.mkdir(parents=True)
    assert scratch.clear(tmp_path, nothing_lives) == []
    assert old.exists()


def test_a_second_process_with_the_same_id_neither_claims_nor_deletes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = claimed(tmp_path)
    assert scratch.claim(tmp_path, ExecutionContainerId("c1")) is None
    assert "another process on this machine has the id c1" in caplog.text
    assert (made.directory / "blockmgr" / "block").exists()


def test_a_container_that_ends_in_order_leaves_no_directories(tmp_path: Path, temporary: Path) -> None:
    claimed(tmp_path).remove()
    assert left(tmp_path, temporary) == []


def test_containers_that_start_concurrently_delete_only_directories_of_ended_ones(tmp_path: Path, temporary: Path) -> None:
    for each in range(20):
        killed(claimed(tmp_path, f"dead-{each}"))

    def start(number: int) -> tuple[Scratch, Sequence[str]]:
        mine = claimed(tmp_path, f"new-{number}")
        return mine, scratch.clear(tmp_path, nothing_lives)

    with ThreadPoolExecutor(8) as pool:
        started = list(pool.map(start, range(8)))
    assert sorted(name for _, cleared in started for name in cleared) == sorted(f"dead-{each}" for each in range(20))
    for mine, _ in started:
        assert (mine.directory / "blockmgr" / "block").exists()
        mine.remove()
    assert left(tmp_path, temporary) == []


def test_a_home_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    home = tmp_path / "file"
    home.write_text("")
    assert scratch.claim(home, ExecutionContainerId("c1")) is None
    assert "cannot be locked" in caplog.text
