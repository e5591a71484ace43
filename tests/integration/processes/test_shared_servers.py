"""Servers that all workers of a run of pytest share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.processes import ProcessFailed
from tests.support.servers import NotInstalled
from tests.support.shared_servers import ServersOfController, SharedServers


class Started:
    """What a run has started and ended."""

    def __init__(self) -> None:
        self.log: list[str] = []

    @contextmanager
    def server(self, directory: Path) -> Iterator[str]:
        self.log.append(f"start in {directory.name}")
        yield f"address {len(self.log)}"
        self.log.append("end")

    @contextmanager
    def missing(self, _directory: Path) -> Iterator[str]:
        raise NotInstalled("Kafka", "apt install kafka")
        yield ""

    @contextmanager
    def broken(self, _directory: Path) -> Iterator[str]:
        raise ValueError("the port is in use")
        yield ""


@pytest.fixture
def started() -> Started:
    return Started()


@pytest.fixture
def shared(started: Started) -> Iterator[SharedServers]:
    made = SharedServers({"one": started.server, "two": started.server, "missing": started.missing, "broken": started.broken})
    yield made
    made.end()


def test_all_workers_get_the_server_that_the_first_has_started(shared: SharedServers, started: Started, tmp_path: Path) -> None:
    workers = [ServersOfController(shared.listen()) for _ in range(2)]
    assert started.log == []
    assert [worker.get(name, tmp_path) for name in ("one", "two") for worker in workers] == ["address 1"] * 2 + ["address 2"] * 2
    shared.end()
    assert started.log == ["start in one", "start in two", "end", "end"]


def test_without_workers_tests_get_the_same(shared: SharedServers, started: Started, tmp_path: Path) -> None:
    assert [shared.get("one", tmp_path) for _ in range(2)] == ["address 1"] * 2
    assert started.log == ["start in one"]


def test_a_worker_is_told_what_is_not_installed_and_why_a_server_has_not_started(shared: SharedServers, tmp_path: Path) -> None:
    worker = ServersOfController(shared.listen())
    with pytest.raises(NotInstalled, match=r"^Kafka is not installed: apt install kafka$"):
        worker.get("missing", tmp_path)
    with pytest.raises(ProcessFailed, match=r"(?s)the shared broken:.*in broken.*ValueError: the port is in use"):
        worker.get("broken", tmp_path)
    assert worker.get("one", tmp_path) == "address 1"
