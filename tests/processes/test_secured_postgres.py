"""A coordinator whose PostgreSQL accepts encrypted connections only, with passwords or client certificates: docs/security.md."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sluice.streams.log import Log
from tests.support.api import run_body
from tests.support.coordinators import refused, running
from tests.support.servers import NotInstalled, Postgres, postgres

pytestmark = pytest.mark.slow

PASSWORD = "pa/ss word@1"

ONLY_TLS = """
local   all  sluice                    trust
hostssl all  coordinator 127.0.0.1/32  scram-sha-256
hostssl all  certified   127.0.0.1/32  cert
"""


def openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True, timeout=60)


@dataclass(frozen=True)
class Secured:
    """`authority`: of the certificates of the server and of the user "certified". `another`: it has signed neither."""

    server: Postgres
    authority: Path
    another: Path
    certificate: Path
    key: Path
    passwords: Path

    def url(self, user: str, mode: str = "verify-full") -> str:
        return f"postgresql+asyncpg://{user}@127.0.0.1:{self.server.port}/postgres?ssl={mode}"

    def sql(self, statement: str) -> str:
        where = ["-h", str(self.server.directory), "-p", str(self.server.port), "-U", "sluice", "-d", "postgres"]
        done = subprocess.run(
            [str(self.server.programs / "psql"), *where, "-Atc", statement], capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout.strip()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    files = tmp_path_factory.mktemp("certificates")

    def authority(name: str) -> Path:
        made = files / f"{name}.crt"
        new = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
        openssl(*new, "-keyout", str(made.with_suffix(".key")), "-out", str(made))
        return made

    first, another = authority("authority"), authority("another")

    def signed(name: str) -> Path:
        made = files / f"{name}.crt"
        request = ["req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}"]
        openssl(*request, "-keyout", str(made.with_suffix(".key")), "-out", str(made.with_suffix(".csr")))
        names = made.with_suffix(".ext")
        names.write_text("subjectAltName=IP:127.0.0.1\n")
        by = ["-CA", str(first), "-CAkey", str(first.with_suffix(".key")), "-CAcreateserial", "-days", "2", "-extfile", str(names)]
        openssl("x509", "-req", "-in", str(made.with_suffix(".csr")), *by, "-out", str(made))
        return made

    served, certified = signed("server"), signed("certified")
    certified.with_suffix(".key").chmod(0o600)
    passwords = files / "pgpass"
    passwords.write_text(f"*:*:*:coordinator:{PASSWORD}\n")
    passwords.chmod(0o600)
    try:
        with postgres() as server:
            made = Secured(server, first, another, certified, certified.with_suffix(".key"), passwords)
            made.sql(f"CREATE ROLE coordinator LOGIN PASSWORD '{PASSWORD}'")
            made.sql("CREATE ROLE certified LOGIN")
            made.sql("GRANT ALL ON SCHEMA public TO coordinator, certified")
            data = server.directory / "data"
            for source, name in ((served, "server.crt"), (served.with_suffix(".key"), "server.key"), (first, "root.crt")):
                shutil.copy(source, data / name)
                shutil.chown(data / name, data.owner(), data.group())
                (data / name).chmod(0o600)
            (data / "pg_hba.conf").write_text(ONLY_TLS)
            with (data / "postgresql.conf").open("a") as settings:
                settings.write("\nssl = on\nssl_ca_file = 'root.crt'\n")
            server.stop()
            server.start()
            yield made
    except NotInstalled as missing:
        pytest.skip(f"{missing} is not installed")


def test_a_coordinator_verifies_its_database_and_logs_in_with_a_password_that_no_setting_has(secured: Secured, tmp_path: Path) -> None:
    environment = {"PGSSLROOTCERT": str(secured.authority), "PGPASSFILE": str(secured.passwords)}
    with running(tmp_path / "home", "--database-url", secured.url("coordinator"), **environment) as coordinator:
        Log(tmp_path / "home" / "log").create("flights", 2)
        answer = coordinator.http.post("/runs", json=run_body())
        assert answer.is_success, answer.text
        encrypted = secured.sql("SELECT bool_and(s.ssl) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) WHERE usename='coordinator'")
        assert encrypted == "t"
    assert PASSWORD not in coordinator.log.read_text()


def test_a_coordinator_logs_in_with_a_client_certificate(secured: Secured, tmp_path: Path) -> None:
    environment = {"PGSSLROOTCERT": str(secured.authority), "PGSSLCERT": str(secured.certificate), "PGSSLKEY": str(secured.key)}
    secured.sql("DROP OWNED BY coordinator; GRANT ALL ON SCHEMA public TO coordinator")
    with running(tmp_path / "home", "--database-url", secured.url("certified"), **environment) as coordinator:
        assert coordinator.http.get("/jobs").json()["jobs"] == []
    secured.sql("DROP OWNED BY certified; GRANT ALL ON SCHEMA public TO certified")


@pytest.mark.parametrize(
    ("mode", "authority", "why"),
    [
        ("verify-full", "another", "certificate verify failed"),
        ("disable", "authority", "no pg_hba.conf entry"),
        ("nonsense", "authority", "must be one of"),
    ],
)
def test_a_database_that_is_not_the_one_meant_or_an_open_connection_is_refused_with_the_reason(
    secured: Secured, tmp_path: Path, mode: str, authority: str, why: str
) -> None:
    environment = {"PGSSLROOTCERT": str(getattr(secured, authority)), "PGPASSFILE": str(secured.passwords)}
    error = refused("--home", str(tmp_path / "home"), "--port", "0", "--database-url", secured.url("coordinator", mode), **environment)
    assert why in error
    assert PASSWORD not in error


def test_a_wrong_password_is_refused_with_the_reason_and_not_shown(secured: Secured, tmp_path: Path) -> None:
    wrong = tmp_path / "pgpass"
    wrong.write_text("*:*:*:coordinator:wrong-and-secret\n")
    wrong.chmod(0o600)
    environment = {"PGSSLROOTCERT": str(secured.authority), "PGPASSFILE": str(wrong)}
    error = refused("--home", str(tmp_path / "home"), "--port", "0", "--database-url", secured.url("coordinator"), **environment)
    assert "password authentication failed" in error
    assert "wrong-and-secret" not in error
