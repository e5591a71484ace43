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
from typing import Any

import pytest
import yaml

from tests.support.deployed import OPERATOR, ROOT, SECURE, filled_in, secured
from tests.support.servers import NotInstalled

GENEROUS = 600.0
SET_BY_USERS = {"POSTGRES_PASSWORD", "S3_SECRET_KEY", "GRAFANA_PASSWORD", "COMPOSE_FILE", "COMPOSE_PROFILES", *OPERATOR}


def reader(*files: Path) -> Sequence[str]:
    """The command that prints the merged files as Compose understands them."""
    docker, loader = shutil.which("docker"), shutil.which("compose-spec")
    if docker and subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode == 0:
        named = [word for file in files for word in ("--file", str(file))]
        return [docker, "compose", *named, "--profile", "flights", "--profile", "pizza", "config"]
    if loader:
        return [loader, *map(str, files)]
    raise NotInstalled("Docker Compose (docker compose, or its loader as compose-spec)")


def read(*files: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        reader(*files),
        cwd=files[0].parent,
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


# --- with everything on -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def everything_on(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The services of both files. The loader reads no environment, so the operator's variables are written into a copy."""
    directory = tmp_path_factory.mktemp("secure")
    copies = [directory / "docker-compose.yml", directory / "secure.yaml"]
    copies[0].write_text((ROOT / "docker-compose.yml").read_text())
    copies[1].write_text(filled_in(SECURE.read_text()))
    done = read(*copies)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = yaml.safe_load(done.stdout)["services"]
    return found


def _environment(service: dict[str, Any]) -> dict[str, str]:
    found = service.get("environment") or {}
    pairs = found.items() if isinstance(found, dict) else (each.split("=", 1) for each in found)
    return {name: str(value).replace("$$", "$").strip() for name, value in pairs}


def _words(service: dict[str, Any], key: str) -> list[str]:
    return [str(each).replace("$$", "$") for each in service.get(key) or []]


@pytest.mark.parametrize("name", secured()["services"])
def test_compose_merges_the_secure_file_as_the_other_tests_do(name: str, everything_on: dict[str, Any]) -> None:
    ours, found = secured()["services"][name], everything_on[name]
    assert _environment(ours) == _environment(found)
    for key in ("command", "entrypoint", "cap_drop", "security_opt"):
        assert _words(ours, key) == _words(found, key)
    assert {each.split(":")[1] for each in ours.get("volumes", [])} == {each["target"] for each in found.get("volumes", [])}
    named = {each["target"]: each["source"] for each in found.get("volumes", []) if each["type"] == "volume"}
    assert named.items() <= {each.split(":")[1]: each.split(":")[0] for each in ours.get("volumes", [])}.items()
    assert set(ours.get("depends_on", {})) == set(found.get("depends_on", {}))
    for key in ("read_only", "user", "network_mode"):
        assert ours.get(key) == found.get(key)


@pytest.mark.parametrize("name", OPERATOR)
def test_a_setting_that_only_the_operator_knows_is_requested(name: str, tmp_path: Path) -> None:
    file = tmp_path / "secure.yaml"
    others = {other: value for other, value in OPERATOR.items() if other != name}
    file.write_text(filled_in(SECURE.read_text(), others))
    done = read(ROOT / "docker-compose.yml", file)
    assert done.returncode != 0
    assert f"required variable {name} is missing" in done.stderr
