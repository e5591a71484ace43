"""`sluice run` checks everything that can be checked before it starts a process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from containers.local.processes import container_environment
from containers.local.run import RunOptions, run_options
from sluice.core.errors import BadJobFile, BadPlacement, BadSettings

JOB = """
from sluice import Job

job = Job("delays", stateful=False, max_tasks=3)
flights, lookup = job.input("flights"), job.input("lookup", broadcast=True)
between, out = job.intermediate("between", partitions=4), job.output("out", partitions=2)

@job.stage(reads=[flights, lookup], writes=between)
def first(task): ...

@job.stage(reads=between, writes=out)
def second(task): ...
"""


@pytest.fixture
def job_file(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "job.py").write_text(JOB)
    path = list(sys.path)
    yield tmp_path / "job.py"
    sys.path[:] = path
    sys.modules.pop("sluice_job", None)


def options(job_file: Path, **changes: Any) -> RunOptions:
    given: dict[str, Any] = {
        "containers": 1,
        "home": Path("home"),
        "port": 8180,
        "start": "checkpoint",
        "system": "log",
        "config": [],
    } | changes
    return run_options(job_file, **(given | changes))


def test_a_run_is_deployed_as_its_file_declares_it(job_file: Path) -> None:
    request = options(job_file, containers=2, system="kafka", config=["a=1", "spark.x.y=p=q", "empty="]).request
    assert (request.job, request.containers, request.max_tasks, request.stateful) == ("delays", 2, 3, False)
    assert [(each.name, each.system, each.broadcast) for each in request.inputs] == [
        ("flights", "kafka", False),
        ("lookup", "kafka", True),
    ]
    assert [(each.name, each.partitions) for each in request.intermediates] == [("between", 4)]
    assert [(each.name, each.partitions) for each in request.outputs] == [("out", 2)]
    assert [(each.name, each.reads, each.writes) for each in request.stages] == [
        ("first", ("flights", "lookup"), ("between",)),
        ("second", ("between",), ("out",)),
    ]
    assert request.config == {"a": "1", "spark.x.y": "p=q", "empty": ""}


def test_paths_stay_right_for_processes_that_start_elsewhere(job_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(job_file.parent)
    made = options(Path("job.py"), home=Path("home"))
    assert (made.job_file, made.home) == (job_file, job_file.parent / "home")


def test_port_0_means_any_free_port(job_file: Path) -> None:
    made = options(job_file, port=0)
    assert made.port > 0
    assert made.url == f"http://127.0.0.1:{made.port}"


@pytest.mark.parametrize(("master", "expected"), [("spark://host:7077", "spark://host:7077"), (None, "local[4]"), ("", "local[4]")])
def test_containers_get_the_master_that_the_command_names_or_else_that_of_the_environment(
    job_file: Path, monkeypatch: pytest.MonkeyPatch, master: str | None, expected: str
) -> None:
    monkeypatch.setenv("SLUICE_SPARK_MASTER", "local[4]")
    environment = container_environment(options(job_file, master=master).launch, "r1", "0")
    assert environment["SLUICE_SPARK_MASTER"] == expected


@pytest.mark.parametrize("start", ["earliest", "latest", "2026-03-01T12:00:00+00:00", "2026-03-01"])
def test_a_run_may_start_at_a_keyword_or_a_time(job_file: Path, start: str) -> None:
    assert str(options(job_file, start=start).request.start).startswith(start[:10])


@pytest.mark.parametrize("count", [0, -1])
def test_a_run_without_containers_is_refused(job_file: Path, count: int) -> None:
    with pytest.raises(BadPlacement, match=f"needs at least one container, not {count}"):
        options(job_file, containers=count)


def test_more_containers_than_allowed_are_refused(job_file: Path) -> None:
    with pytest.raises(BadSettings, match=r"containers: .* less than or equal to 100000"):
        options(job_file, containers=100_001)


@pytest.mark.parametrize("config", ["novalue", "=x", ""])
def test_a_setting_that_is_not_a_pair_is_quoted_whole(job_file: Path, config: str) -> None:
    with pytest.raises(BadSettings) as caught:
        options(job_file, config=["a=1", config])
    assert str(caught.value) == f"--config takes key=value, not {config!r}"


@pytest.mark.parametrize("start", ["yesterday", "", "2026-13-01", "EARLIEST"])
def test_the_refusal_of_a_bad_start_names_the_valid_ones(job_file: Path, start: str) -> None:
    with pytest.raises(BadSettings) as caught:
        options(job_file, start=start)
    assert str(caught.value) == f"--start takes checkpoint, drained, earliest, latest or an ISO time, not {start!r}"


@pytest.mark.parametrize("port", [-1, 65536])
def test_an_invalid_port_is_refused(job_file: Path, port: int) -> None:
    with pytest.raises(BadSettings, match=f"--port takes 0 to 65535, not {port}"):
        options(job_file, port=port)


def test_an_invalid_system_is_named(job_file: Path) -> None:
    with pytest.raises(BadSettings, match=r"inputs\.0\.system"):
        options(job_file, system="../log")


def test_a_bad_job_file_is_refused_first(tmp_path: Path) -> None:
    with pytest.raises(BadJobFile, match="there is no file"):
        options(tmp_path / "lost.py", containers=0)


def test_the_checks_create_nothing_on_the_disk(job_file: Path, tmp_path: Path) -> None:
    before = sorted(each.name for each in tmp_path.iterdir() if each.name != "__pycache__")
    options(job_file, home=tmp_path / "home")
    assert sorted(each.name for each in tmp_path.iterdir() if each.name != "__pycache__") == before
