"""An installation like that of the image: scripts/install-image creates it, and the entry point of the Dockerfile starts it. CI creates one
and names it in SLUICE_INSTALLED; locally, `scripts/install-image PREFIX` creates one. That of CI has its third-party packages, its jars and
its archive of classes from a cache; tests/unit/test_packages.py shows that the declared dependencies suffice.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from sluice.streams.log import Log
from tests.processes.stage import TOY
from tests.support.deployed import ROOT, entrypoint, health_command, image_environment
from tests.support.processes import free_port, kill_whole, wait_for
from tests.support.servers import NotInstalled

GENEROUS = 600.0


@dataclass(frozen=True)
class Installed:
    """Sluice in `prefix`, with the image's environment except for its location, and a home directory of its own."""

    prefix: Path
    home: Path
    environment: dict[str, str]

    def run(self, *words: str, typed: str = "") -> str:
        done = self.call(["sluice", *words], typed)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def is_healthy(self) -> bool:
        return self.call(health_command()).returncode == 0

    def call(self, command: list[str], typed: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.prefix / "bin" / command[0]), *command[1:]],
            cwd=self.home,
            env=self.environment,
            input=typed,
            capture_output=True,
            text=True,
            timeout=GENEROUS,
            check=False,
        )

    @contextmanager
    def started(self, *words: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
        """Starts it like `docker run IMAGE arguments…`. Everything that still runs at the end of the block is killed."""
        with (self.home / f"{words[0]}.log").open("wb") as out:
            process = subprocess.Popen(
                [*entrypoint(), *words],
                cwd=self.home,
                env={**self.environment, **environment, "TINI_SUBREAPER": "1"},  # in the image tini is process 1
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        try:
            yield process
        finally:
            kill_whole(process)


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    prefix = os.environ.get("SLUICE_INSTALLED")
    if not prefix:
        raise NotInstalled("an installation such as the image's (scripts/install-image PREFIX, then SLUICE_INSTALLED=PREFIX)")
    of_image = {name: value.replace("/opt/sluice", prefix) for name, value in image_environment().items()}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLUICE_", "PYTHON", "VIRTUAL_ENV"))}
    path = f"{prefix}/bin:{os.environ['PATH']}"
    return Installed(
        Path(prefix), tmp_path, {**kept, **of_image, "PATH": path, "SLUICE_HOME": str(tmp_path), "SLUICE_PORT": str(free_port())}
    )


def test_a_job_runs_from_the_installation_and_stops_cleanly(installed: Installed) -> None:
    job = installed.home / "job.py"
    job.write_text(TOY)
    assert not installed.is_healthy()
    with installed.started("coordinator") as coordinator:
        wait_for("a healthy coordinator", installed.is_healthy, GENEROUS)
        installed.environment["SLUICE_COORDINATOR_URL"] = f"http://127.0.0.1:{installed.environment['SLUICE_PORT']}"
        installed.run("streams", "create", "numbers", "--partitions", "2")
        installed.run("streams", "append", "numbers", typed="one\ntwo\nthree\n")
        run = installed.run("deploy", str(job)).strip()
        with installed.started("container", str(job), SLUICE_RUN_ID=run, SLUICE_SPARK_MASTER="local[1]") as container:
            wait_for("the job's output", lambda: sum(Log(installed.home / "log").latest("out").values()) == 3, GENEROUS)
            container.send_signal(signal.SIGTERM)
            assert container.wait(GENEROUS) == 0
        assert sorted(installed.run("streams", "cat", "out").split()) == ["one", "three", "two"]
        coordinator.send_signal(signal.SIGTERM)
        assert coordinator.wait(GENEROUS) == 0


def test_the_installation_contains_the_jars_of_the_kafka_connector(installed: Installed) -> None:
    reported = Path(installed.run("kafka", "jars", "--connector").strip())
    assert reported.parent == installed.prefix / "jars"
    assert any(each.name.startswith("spark-sql-kafka") for each in reported.glob("*.jar"))


def test_the_installation_contains_a_class_archive_for_its_java_and_its_spark(installed: Installed) -> None:
    before = {each: each.stat() for each in (installed.prefix / "jars").resolve().glob("classes-*.jsa")}
    there = Path(installed.run("class-archive").strip())
    assert there.stat() == before[there]


def test_the_installation_contains_only_the_three_packages_of_sluice(installed: Installed) -> None:
    code = "import importlib.metadata as m; print(*sorted({each.parts[0] for each in m.files('sluice-spark')}))"
    output = installed.call(["python", "-P", "-c", code]).stdout.split()
    assert [each for each in output if each != ".." and not each.endswith(".dist-info")] == ["containers", "coordinator", "sluice"]


def test_the_replay_of_the_example_runs_with_the_installation(installed: Installed) -> None:
    shutil.copytree(ROOT / "examples", installed.home / "demo" / "examples")  # as docker-compose.yml mounts it
    installed.environment["PYTHONPATH"] = str(installed.home / "demo")
    done = installed.call(["python", "-P", "-m", "examples.flights.replay", "--help"])
    assert done.returncode == 0, done.stderr
