"""The scripts of docker-compose.yml that make the certificate and the tokens, with a coordinator as a process."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.support.coordinators import running
from tests.support.processes import ROOT, SLUICE

COMPOSE = ROOT / "deploy" / "compose"


@pytest.fixture
def identity(tmp_path: Path) -> Path:
    found = tmp_path / "identity"
    found.mkdir()
    return found


def made(script: str, *arguments: Path, **environment: str) -> None:
    subprocess.run([COMPOSE / script, *arguments], env={**os.environ, **environment}, check=True, timeout=600)


def with_command(directory: Path) -> str:
    """PATH with the command `sluice` of this checkout."""
    directory.mkdir()
    sluice = directory / "sluice"
    sluice.write_text(f'#!/bin/sh\nexec {" ".join(SLUICE)} "$@"\n')
    sluice.chmod(0o700)
    return f"{directory}:{os.environ['PATH']}"


def contents(*directories: Path) -> dict[Path, str]:
    return {each: each.read_text() for directory in directories for each in sorted(directory.iterdir())}


def test_each_service_gets_its_own_token_over_tls_and_the_next_start_changes_none(tmp_path: Path, identity: Path) -> None:
    made("certificate", identity)
    path, scrape = with_command(tmp_path / "bin"), tmp_path / "scrape"
    scrape.mkdir()
    tls = ["--tls-certificate", str(identity / "tls.crt"), "--tls-key", str(identity / "tls.key")]
    file = tmp_path / "coordinator.toml"
    file.write_text(f"authentication = true\nfirst_token_file = {json.dumps(str(identity / 'admin-token'))}\n")
    with running(tmp_path / "home", *tls, SLUICE_CONFIG=str(file)) as coordinator:
        client = {
            "SLUICE_COORDINATOR_URL": f"https://localhost:{coordinator.port}",
            "SLUICE_CA_FILE": str(identity / "tls.crt"),
            "SLUICE_TOKEN_FILE": str(identity / "admin-token"),
            "PATH": path,
        }
        made("tokens", identity, scrape, **client)
        before = contents(identity, scrape)
        made("certificate", identity)
        made("tokens", identity, scrape, **client)
        assert contents(identity, scrape) == before

        trusted = ssl.create_default_context(cafile=scrape / "ca.crt")
        with httpx.Client(base_url=client["SLUICE_COORDINATOR_URL"], verify=trusted, trust_env=False) as http:

            def status(path: str, token: Path) -> int:
                return http.get(path, headers={"Authorization": f"Bearer {token.read_text().strip()}"}).status_code

            assert [status(path, scrape / "token") for path in ("/metrics", "/prometheus/targets", "/jobs")] == [200, 200, 403]
            assert [status(path, identity / "containers-token") for path in ("/jobs", "/tokens")] == [200, 403]
    assert (identity / "containers-token").stat().st_mode & 0o077 == 0
    assert (identity / "tls.key").stat().st_mode & 0o077 == 0


def test_a_truncated_certificate_is_created_again(identity: Path) -> None:
    (identity / "tls.key").write_text("half")
    made("certificate", identity)
    loaded = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    loaded.load_cert_chain(identity / "tls.crt", identity / "tls.key")
