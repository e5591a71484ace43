"""docker-compose.yml as Compose reads it: with `docker compose` if it is installed, otherwise with compose-spec, the loader of Compose.

The loader (go install github.com/compose-spec/compose-go/v2/cmd) checks only the schema and the variables. References to services and
volumes that are not declared are checked by tests/unit/deploy/test_deploy_files.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import yaml

from tests.support.deployed import ROOT
from tests.support.servers import NotInstalled

GENEROUS = 60.0
SET_BY_USERS = {"POSTGRES_PASSWORD", "S3_SECRET_KEY", "GRAFANA_PASSWORD", "COMPOSE_FILE", "COMPOSE_PROFILES"}


def reader(file: Path) -> Sequence[str]:
    """The command that prints the file as Compose understands it."""
    docker, loader = shutil.which("docker"), shutil.which("compose-spec")
    if docker and subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode == 0:
        return [docker, "compose", "--file", str(file), "--profile", "flights", "--profile", "pizza", "config"]
    if loader:
        return [loader, str(file)]
    raise NotInstalled("Docker Compose (docker compose, or its loader as compose-spec)")


def read(file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        reader(file),
        cwd=file.parent,
        env={name: value for name, value in os.environ.items() if name not in SET_BY_USERS},
        capture_output=True,
        text=True,
        timeout=GENEROUS,
        check=False,
    )


def test_compose_accepts_the_file() -> None:
    done = read(ROOT / "docker-compose.yml")
    assert done.returncode == 0, done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    examples = {"flights-0", "flights-1", "pizza-0", "pizza-1"}
    assert {"coordinator", "postgres", "kafka", "s3", "prometheus", "grafana"} | examples <= set(services)
    assert services["coordinator"]["environment"]["SLUICE_DATABASE_URL"] == "postgresql+asyncpg://sluice:sluice@postgres/sluice"


def test_a_shell_s_variables_are_left_to_the_shell() -> None:
    services = yaml.safe_load(read(ROOT / "docker-compose.yml").stdout)["services"]
    assert "$(cat /var/lib/sluice/flights.run)" in str(services["flights-0"]["command"]).replace("$$", "$")


def test_compose_refuses_an_invalid_file(tmp_path: Path) -> None:
    file = tmp_path / "docker-compose.yml"
    file.write_text("services: {coordinator: {image: sluice, healthcheck: {tset: [CMD, 'true']}}}\n")
    done = read(file)
    assert done.returncode != 0
    assert "tset" in done.stderr
