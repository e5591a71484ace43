"""The check of one path by one executor. tests/processes/test_standalone.py covers executors of a cluster that do not see the path."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from containers.spark.executors import NONCE, check_probe, this_machine

OTHER_USER = 65534


@pytest.fixture
def directory(tmp_path: Path) -> str:
    (tmp_path / NONCE).write_text("4711")
    return str(tmp_path)


def test_a_process_that_finds_the_nonce_leaves_a_file(directory: str) -> None:
    name, problem = check_probe(directory, "4711", None)
    assert problem == ""
    assert (Path(directory) / name).is_file()


def test_every_probe_leaves_its_own_file(directory: str) -> None:
    assert len({check_probe(directory, "4711", None)[0] for _ in range(3)}) == 3


def test_a_missing_directory_is_reported(tmp_path: Path) -> None:
    assert check_probe(str(tmp_path / "gone"), "4711", None) == (
        "",
        "does not see what the driver wrote there (No such file or directory)",
    )


def test_a_directory_with_another_nonce_is_a_different_one(directory: str) -> None:
    assert check_probe(directory, "4712", None) == ("", "sees another directory there than the driver")


@contextmanager
def another_user() -> Iterator[None]:
    """The identity under which an executor may run; without root it stays the same."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(OTHER_USER)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_read_only_directory_is_reported() -> None:
    with TemporaryDirectory() as made:  # a directory that other users may enter, unlike pytest's
        directory = Path(made)
        (directory / NONCE).write_text("4711")
        directory.chmod(0o555)
        with another_user():
            name, problem = check_probe(made, "4711", None)
        directory.chmod(0o755)
    assert name == ""
    assert problem.startswith("cannot write into what the driver has created there (Permission denied; it runs as user ")


def test_the_log_is_refused_to_executors_of_another_machine(directory: str) -> None:
    if this_machine() is None:
        pytest.skip("this system does not tell one machine from another")
    assert "the embedded log is for processes of one machine" in check_probe(directory, "4711", "another")[1]
    assert check_probe(directory, "4711", this_machine())[1] == ""
