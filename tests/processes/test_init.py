"""What `sluice init` writes: the test of the job passes, and Compose accepts the file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from sluice.cli.init import write
from tests.integration.deploy.test_compose import read
from tests.support.processes import SLUICE, completed

GENEROUS = 1500.0


@pytest.mark.spark
@pytest.mark.slow
def test_the_test_of_the_first_job_passes(tmp_path: Path) -> None:
    assert completed([*SLUICE, "init", str(tmp_path / "orders")]).returncode == 0
    test = tmp_path / "orders" / "test_job.py"
    test.write_text(test.read_text().replace("WITHIN_SECONDS = 180", f"WITHIN_SECONDS = {GENEROUS}").replace("wait(60)", "wait(1500)"))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLUICE_", "PYTEST_"))}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_job.py"]
    done = subprocess.run(
        command,
        cwd=tmp_path / "orders",
        env={**kept, "SLUICE_SPARK_MASTER": "local[1]"},
        capture_output=True,
        text=True,
        timeout=GENEROUS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_compose_accepts_the_file(tmp_path: Path) -> None:
    write(tmp_path, "orders")
    done = read(tmp_path / "docker-compose.yml")
    assert done.returncode == 0, done.stderr
    found = yaml.safe_load(done.stdout)
    assert found["name"] == "orders"
    assert set(found["services"]) == {"kafka", "streams", "job"}
