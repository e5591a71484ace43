"""`sluice login` at a coordinator that trusts a real OpenID Connect provider."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.support.issuers import confirm, oidc_provider
from tests.support.processes import SLUICE, completed, free_port, serving


def run(environment: Mapping[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    return completed([*SLUICE, *command], environment=environment)


def test_a_command_logs_in_and_out(tmp_path: Path) -> None:
    home, port = tmp_path / "home", free_port()
    url = f"http://127.0.0.1:{port}"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
    user = {**inherited, "XDG_CONFIG_HOME": str(tmp_path / "config"), "SLUICE_COORDINATOR_URL": url}
    with oidc_provider(tmp_path, {"ann": ["oncall"]}) as issuer:
        trusted = {"name": "corp", "issuer": issuer, "client_id": "sluice", "roles": [{"group": "oncall", "roles": ["viewer"]}]}
        settings = {
            "SLUICE_HOME": str(home),
            "SLUICE_PORT": str(port),
            "SLUICE_AUTHENTICATION": "true",
            "SLUICE_FIRST_TOKEN_FILE": str(tmp_path / "first.token"),
            "SLUICE_IDENTITY_PROVIDERS": json.dumps([trusted]),
        }
        with serving([*SLUICE, "coordinator"], f"{url}/livez", tmp_path / "coordinator.log", environment=settings):
            assert run(user, "jobs").returncode == 1
            with subprocess.Popen([*SLUICE, "login"], env=user, stdout=subprocess.PIPE, text=True) as login:
                assert login.stdout is not None
                shown = [login.stdout.readline(), login.stdout.readline()]
                found = re.search(r"or open (\S+)", shown[1])
                assert found is not None, shown
                confirm({"verification_uri_complete": found[1]}, "ann")
                assert login.wait(120) == 0
                assert "logged in" in login.stdout.read()
            jobs = run(user, "jobs")
            assert jobs.returncode == 0, jobs.stderr
            forbidden = run(user, "token", "ls")
            assert forbidden.returncode == 1
            assert "corp:ann has the roles viewer" in forbidden.stderr
            assert run(user, "logout").returncode == 0
            assert run(user, "jobs").returncode == 1
