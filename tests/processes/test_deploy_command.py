"""`sluice deploy` against a coordinator process: its output and its errors. No container is started."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.processes.stage import Stage, stage
from tests.support.processes import SLUICE, completed, free_port


def deploy(scene: Stage, *words: str, port: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SLUICE_COORDINATOR_URL": f"http://127.0.0.1:{port or scene.port}"}
    return completed([*SLUICE, "deploy", str(scene.job_file), *words], environment=environment)


def test_deploy_prints_only_the_id_of_the_run_and_a_second_deployment_ends_the_former_run(tmp_path: Path) -> None:
    with stage(tmp_path) as scene:
        scene.start_coordinator()
        refused = deploy(scene)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "numbers" in refused.stderr

        scene.log.create("numbers", 4)
        done = deploy(scene, "--containers", "2", "--config", "a=b")
        assert done.returncode == 0, done.stderr
        scene.run_id = done.stdout.strip()
        assert done.stdout == f"{scene.run_id}\n"
        detail = scene.detail()
        assert (detail.job, detail.state, detail.containers, detail.config) == ("toy", "CREATED", 2, {"a": "b"})

        second = deploy(scene).stdout.strip()
        assert second != scene.run_id
        assert scene.detail().state.ended
        scene.run_id = second
        assert not scene.detail().state.ended


def test_the_error_names_a_coordinator_that_is_unreachable_unless_the_file_has_no_job(tmp_path: Path) -> None:
    with stage(tmp_path) as scene:
        done = deploy(scene, port=free_port())
        assert (done.returncode, done.stdout) == (1, "")
        assert "http://127.0.0.1:" in done.stderr
        scene.job_file.write_text("x = 1\n")
        done = deploy(scene, port=free_port())
        assert done.returncode == 1
        assert "job.py" in done.stderr
        assert "127.0.0.1" not in done.stderr
