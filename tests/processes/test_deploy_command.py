"""`sluice deploy` against a coordinator process: its output and its errors. No container is started."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.stage import Stage, stage
from tests.support.processes import free_port

GENEROUS = 60.0


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path) as made:
        made.start_coordinator()
        yield made


def deploy(scene: Stage, *words: str, port: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sluice", "deploy", str(scene.job_file), *words]
    url = f"http://127.0.0.1:{port or scene.port}"
    given = {**os.environ, "SLUICE_COORDINATOR_URL": url}
    return subprocess.run(command, env=given, capture_output=True, text=True, timeout=GENEROUS, check=False, stdin=subprocess.DEVNULL)


def test_deploy_prints_only_the_id_of_the_run(scene: Stage) -> None:
    scene.log.create("numbers", 4)
    done = deploy(scene, "--containers", "2", "--config", "a=b")
    assert done.returncode == 0, done.stderr
    scene.run_id = done.stdout.strip()
    assert done.stdout == f"{scene.run_id}\n"
    detail = scene.detail()
    assert (detail.job, detail.state, detail.containers, detail.config) == ("toy", "CREATED", 2, {"a": "b"})


def test_a_second_deployment_ends_the_former_run(scene: Stage) -> None:
    scene.log.create("numbers", 4)
    first, second = (deploy(scene).stdout.strip() for _ in range(2))
    assert first != second
    scene.run_id = first
    assert scene.detail().state.ended
    scene.run_id = second
    assert not scene.detail().state.ended


def test_a_refusal_is_printed_and_the_exit_code_is_1(scene: Stage) -> None:
    done = deploy(scene)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "numbers" in done.stderr


def test_the_error_names_a_coordinator_that_is_unreachable(scene: Stage) -> None:
    port = free_port()
    done = deploy(scene, port=port)
    assert done.returncode == 1
    assert done.stdout == ""
    assert f"http://127.0.0.1:{port}" in done.stderr


def test_a_file_without_a_job_is_refused_before_any_request_to_the_coordinator(scene: Stage) -> None:
    scene.job_file.write_text("x = 1\n")
    done = deploy(scene, port=free_port())
    assert done.returncode == 1
    assert "job.py" in done.stderr
    assert "127.0.0.1" not in done.stderr
