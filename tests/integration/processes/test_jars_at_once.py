"""Several processes fetch the same jars, and some are killed. Java is replaced by a script; the network is not used."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from containers.jars import connectors_of
from coordinator.store.claim import lock_file
from tests.support.processes import wait_for

JARS = [f"{each.module}-{each.revision}.jar" for each in connectors_of(os.environ)[0].artefacts]
GENEROUS = 600.0

JAVA = """\
#!/bin/sh
echo run >>"$ROOM/runs"
while [ "$1" != -retrieve ]; do shift; done
for jar in {jars}; do
    : >"$(dirname "$2")/$jar"
done
while [ ! -e "$ROOM/go" ]; do sleep 0.05; done
"""


class Room:
    """Processes that fetch jars with a Java that waits until `go` is called."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.jars = directory / "jars"
        java = directory / "jdk" / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.write_text(JAVA.format(jars=" ".join(JARS)))
        java.chmod(0o755)
        self.environment = {
            **os.environ,
            "ROOM": str(directory),
            "JAVA_HOME": str(directory / "jdk"),
            "SLUICE_JARS_DIR": str(self.jars),
        }
        self.started: list[subprocess.Popen[str]] = []

    def fetch(self) -> subprocess.Popen[str]:
        program = "from containers.jars import connector_jars; print(*(jar.name for jar in connector_jars()))"
        self.started.append(
            subprocess.Popen(
                [sys.executable, "-c", program], env=self.environment, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
            )
        )
        return self.started[-1]

    def runs(self) -> int:
        """The number of times that Java was run."""
        file = self.directory / "runs"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def at_the_lock(self, process: subprocess.Popen[str]) -> bool:
        return str(self.jars / "lock") in [each.path for each in psutil.Process(process.pid).open_files()]

    def go(self) -> None:
        (self.directory / "go").touch()

    def got(self, process: subprocess.Popen[str]) -> list[str]:
        reported, _ = process.communicate(timeout=GENEROUS)
        assert process.returncode == 0
        return sorted(reported.split())


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    made = Room(tmp_path)
    yield made
    made.go()
    for process in made.started:
        process.communicate(timeout=GENEROUS)


def test_one_of_two_processes_that_need_the_same_jars_fetches_them(room: Room) -> None:
    first = room.fetch()
    wait_for("Ivy", lambda: room.runs() == 1)
    second = room.fetch()
    wait_for("the second one at the lock", lambda: room.at_the_lock(second))
    room.go()
    assert room.got(first) == room.got(second) == sorted(JARS)
    assert room.runs() == 1


def test_when_a_fetch_is_killed_the_next_waits_for_its_processes_and_fetches_again(room: Room) -> None:
    first = room.fetch()
    wait_for("Ivy", lambda: room.runs() == 1)
    first.kill()
    first.wait()
    assert lock_file(room.jars / "lock") is None, "the first one's Java still runs, and writes"
    second = room.fetch()
    wait_for("the second one at the lock", lambda: room.at_the_lock(second))
    room.go()
    assert room.got(second) == sorted(JARS)
    assert room.runs() == 2
    assert {each.name for each in room.jars.iterdir()} == {"lock", connectors_of(os.environ)[0].directory_name}
