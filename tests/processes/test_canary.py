"""A secret text is planted wherever the coordinator and commands read secrets. It appears in no log, answer or process list. The secrets
of containers are in test_watched_job.py."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from sluice.streams.log import Log
from tests.support.api import run_body
from tests.support.canaries import answers, assert_absent, command_line, output_of, planted
from tests.support.processes import SLUICE, free_port, serving
from tests.support.servers import Postgres


def environment(home: Path, database: str, port: int) -> Mapping[str, str]:
    """Settings with secrets: in URLs, in files, and in variables that a job's config refers to."""
    files = {name: home.with_name(f"{name}.secret") for name in ("client", "cluster")}
    for name, file in files.items():
        file.write_text(planted(name))
    first = f"http://127.0.0.1:{port + 1 if port < 65535 else 1}"
    provider = f'"issuer": "{first}", "client_id": "sluice", "client_secret_file": "{files["client"]}"'
    cluster = (
        f'"issuer": "{first}/k8s", "audience": "a", "kubernetes": true, "keys_url": "{first}/k", "bearer_token_file": "{files["cluster"]}"'
    )
    return {
        "SLUICE_HOME": str(home),
        "SLUICE_PORT": str(port),
        "SLUICE_DATABASE_URL": database.replace("sluice@", f"sluice:{planted('database')}%2Fwith%40signs@"),
        "SLUICE_AUTHENTICATION": "true",
        "SLUICE_FIRST_TOKEN_FILE": str(home.with_name("first.token")),
        "SLUICE_IDENTITY_PROVIDERS": f'[{{"name": "corp", {provider}}}, {{"name": "k8s", {cluster}}}]',
        "SLUICE_LOG_LEVEL": "DEBUG",
        "CANARY_OF_A_JOB": planted("job"),
    }


def refusals(http: httpx.Client) -> str:
    """Answers to requests that have a secret where none belongs."""
    config: list[Mapping[str, str]] = [{"db.password": planted("value")}, {"db": f"jdbc:postgresql://u:{planted('url')}@h/d"}]
    requests: list[tuple[str, str, dict[str, Any]]] = [
        *(("POST", "/runs", {"json": run_body(config=each)}) for each in config),
        ("GET", "/jobs", {"headers": {"Authorization": f"Bearer {planted('wrong')}"}}),
        ("GET", "/jobs", {"headers": {"Authorization": f"Basic {planted('basic')}"}}),
        ("GET", "/ui/", {"headers": {"Cookie": f"sluice_session={planted('session')}"}}),
        ("GET", f"/jobs?access_token=sluice-t.0123456789abcdef.{planted('in-a-url')}-and-more", {}),
        ("POST", "/ui/login", {"data": {"token": planted("form")}}),
        ("GET", f"/ui/login/corp/callback?code={planted('code')}&state=x", {}),
        ("GET", "/ui/login/corp", {}),
    ]
    found = []
    token = http.headers.pop("Authorization")
    for method, path, more in requests:
        answer = http.request(method, path, **{"headers": {"Authorization": token} if path == "/runs" else {}, **more})
        assert answer.status_code >= 400, (path, answer.text)
        found.append(f"{answer.headers}{answer.text}")
    http.headers["Authorization"] = token
    return "\n".join(found)


def test_a_planted_secret_appears_in_no_output(tmp_path: Path, postgres_server: Postgres) -> None:
    home, port = tmp_path / "home", free_port()
    Log(home / "log").create("flights", 2)
    planted_in = environment(home, postgres_server.new_database(), port)
    log, url = tmp_path / "coordinator.log", f"http://127.0.0.1:{port}"
    shown = ""
    with serving([*SLUICE, "coordinator"], f"{url}/livez", log, environment=planted_in) as process:
        token = (tmp_path / "first.token").read_text().strip()
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60) as http:
            deployed = http.post("/runs", json=run_body(config={"db.password": "secret:env:CANARY_OF_A_JOB"}))
            assert deployed.status_code == 201, deployed.text
            shown += answers(http, deployed.json()["runId"]) + refusals(http)
            shown += http.get("/audit-log").text
        processes = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        shown += "\n".join(map(command_line, processes))
        shown += output_of("jobs", "--coordinator", url, SLUICE_TOKEN=planted("token"))
        shown += output_of("config", "show", "--json", **planted_in, SLUICE_TOKEN=planted("token"))
        shown += output_of(
            "jobs", "--coordinator", f"http://user:{planted('password')}@127.0.0.1:{port}/{planted('x')}?password={planted('query')}"
        )
    shown += log.read_text()
    assert "secret:env:CANARY_OF_A_JOB" in shown, "the reference is shown"
    assert_absent(shown)


@pytest.mark.parametrize(
    "url", ["postgresql+asyncpg://u:{}@127.0.0.1:1/d", "postgresql+asyncpg://u@127.0.0.1:1/d?password={}", "nonsense://u:{}@h/d"]
)
def test_an_error_in_a_setting_does_not_show_its_secret(tmp_path: Path, url: str) -> None:
    shown = output_of(
        "coordinator", SLUICE_HOME=str(tmp_path), SLUICE_DATABASE_URL=url.format(planted("database")), SLUICE_PORT=str(free_port())
    )
    assert shown
    assert_absent(shown)
