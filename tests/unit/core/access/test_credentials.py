"""Passwords in URLs are in no message: a canary is planted in every place where a URL may have one."""

from __future__ import annotations

import httpx
import pytest

from coordinator.settings import read_settings
from sluice.client.agents import AgentClient
from sluice.core.access.credentials import without_credentials
from sluice.core.errors import BadSettings, SluiceError

CANARY = "c4n4ry"

URLS = [
    f"postgresql+asyncpg://sluice:{CANARY}@db/sluice",
    f"postgresql+asyncpg://sluice:a/{CANARY}@b/{CANARY}@db/sluice",
    f"postgresql+asyncpg://db/sluice?user=sluice&password={CANARY}",
    f"postgresql+asyncpg://db/sluice?PASSWORD={CANARY}&ssl=require",
    f"https://:{CANARY}@sluice.example.com:8180",
    f"https://{CANARY}%40x:{CANARY}@sluice.example.com".replace(f"{CANARY}%40x", "user"),
    f"s3://bucket/prefix?region=x&secret_access_key={CANARY}",
    f"https://sluice.example.com/?access_token={CANARY}",
]


@pytest.mark.parametrize("url", URLS)
def test_a_url_is_shown_without_its_credentials(url: str) -> None:
    shown = without_credentials(f"cannot reach {url!r}: refused")
    assert CANARY not in shown
    assert shown.startswith("cannot reach ")
    assert shown.endswith(": refused")


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8180", "https://sluice@c/x?region=eu&limit=3", "sqlite+aiosqlite:////a/b@c.db", "no url: a@b"]
)
def test_what_has_no_credentials_is_shown_as_it_is(url: str) -> None:
    assert without_credentials(url) == url


@pytest.mark.parametrize("url", URLS)
def test_an_error_in_other_settings_does_not_show_the_database_s_password(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_DATABASE_URL", url)
    wrong: list[dict[str, object]] = [{"backup_stores": ["lost"]}, {"port": 70_000}, {"lease_seconds": 1}, {"port": url}, {"home": 7}]
    for settings in wrong:
        with pytest.raises(BadSettings) as raised:
            read_settings(**settings)
        assert CANARY not in str(raised.value)
    with pytest.raises(BadSettings, match=r"port: .*got 70000"):
        read_settings(port=70_000)


@pytest.mark.parametrize("url", [each for each in URLS if each.startswith("postgresql")])
def test_the_database_is_shown_without_its_password(url: str) -> None:
    assert CANARY not in read_settings(database_url=url).database_shown


@pytest.mark.parametrize("url", [each for each in URLS if each.startswith("https")])
async def test_errors_of_the_client_do_not_show_the_credentials_of_its_url(url: str) -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    for answer in (refuse, lambda _: httpx.Response(503), lambda _: httpx.Response(200, text="no JSON"), lambda _: httpx.Response(404)):
        client = AgentClient(url, httpx.MockTransport(answer))
        with pytest.raises(SluiceError) as raised:
            await client.jobs()
        assert CANARY not in str(raised.value)
        assert CANARY not in client.url
