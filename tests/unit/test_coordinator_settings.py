"""Settings, most of them of the coordinator, that are refused when they are read: the message names the setting and what it takes."""

from __future__ import annotations

import re

import pytest

from containers.settings import read_container_settings
from coordinator.settings import read_settings
from sluice.core.errors import BadSettings
from sluice.streams.settings import read_stream_settings

FORMS = "write sqlite+aiosqlite:///FILE or postgresql+asyncpg://USER@HOST/DATABASE"


@pytest.mark.parametrize(
    "url",
    [
        *("foo", "mysql://x", "postgresql://u@127.0.0.1:9/x", "postgres://u@h/x", "postgresql+psycopg2://u@h/x", "sqlite:////tmp/x.db"),
        *(
            "sqlite+aiosqlite://host/x.db",
            "postgresql+asyncpg:/u@h/x",
            "postgresql+asyncpg://u@h:port/x",
            "postgresql+asyncpg://u@h x/d y\n",
        ),
    ],
)
def test_a_database_url_of_another_form_is_refused_with_the_accepted_ones(url: str) -> None:
    with pytest.raises(BadSettings, match=rf"^database_url: .*{re.escape(FORMS)}"):
        read_settings(database_url=url)


@pytest.mark.parametrize(
    "url",
    [
        *(
            "sqlite+aiosqlite:///x.db",
            "sqlite+aiosqlite:////tmp/a b.db",
            "sqlite+aiosqlite://",
            "sqlite+aiosqlite:///file:x?mode=ro&uri=true",
        ),
        "postgresql+asyncpg://sluice@srv:pw@srv.example:5432/db",
        *("postgresql+asyncpg://db", "postgresql+asyncpg://u:p%2Fq@db:5432/sluice?ssl=verify-full", "postgresql+asyncpg://u:a/b@[::1]:1/x"),
        "postgresql+asyncpg:///sluice?host=/var/run/postgresql",
    ],
)
def test_database_urls_with_the_drivers_of_the_coordinator_are_accepted(url: str) -> None:
    assert read_settings(database_url=url).database == url


@pytest.mark.parametrize("url", ["postgresql://u:hunter2@h/x", "postgresql:u:hunter2@h/x", "u:hunter2@h"])
def test_the_refusal_of_a_database_url_does_not_show_its_password(url: str) -> None:
    with pytest.raises(BadSettings, match="database_url") as caught:
        read_settings(database_url=url)
    assert "hunter2" not in str(caught.value)


def test_the_option_of_other_drivers_for_tls_is_refused_with_the_right_one() -> None:
    with pytest.raises(BadSettings, match=r"database_url: .*asyncpg has the option ssl, as in \?ssl=verify-full, and not sslmode"):
        read_settings(database_url="postgresql+asyncpg://u@h/x?sslmode=require")


@pytest.mark.parametrize("seconds", ["nan", "inf"])
def test_a_number_that_is_not_finite_is_refused_with_its_setting(seconds: str) -> None:
    with pytest.raises(BadSettings, match=r"^lease_seconds: .*finite number"):
        read_settings(lease_seconds=seconds)


@pytest.mark.parametrize("servers", ["foo", ":9092", "kafka:", "kafka:x", "kafka:0", "a:9092,", "PLAINTEXT://a:9092"])
def test_bootstrap_servers_of_another_form_are_refused_with_the_right_one(servers: str) -> None:
    for read in (read_settings, read_container_settings, read_stream_settings):
        with pytest.raises(BadSettings, match=r"(?i)kafka_bootstrap: .*write HOST:PORT, or several with commas"):
            read(kafka_bootstrap=servers)


@pytest.mark.parametrize("servers", ["", "kafka:9092", "a.example.com:9092, b_c:1,[::1]:9092"])
def test_bootstrap_servers_with_ports_are_accepted(servers: str) -> None:
    assert read_settings(kafka_bootstrap=servers).kafka_bootstrap == servers


def test_a_container_without_a_run_is_told_where_its_id_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLUICE_RUN_ID", raising=False)
    with pytest.raises(BadSettings, match=r"^SLUICE_RUN_ID: set it to the id that `sluice deploy job\.py` prints$"):
        read_container_settings()
