"""Logins with a real OpenID Connect provider: browsers by authorization code, the command line by device codes, programs by a secret."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from coordinator.identity.logins import LOGIN_LASTS
from sluice import logins
from sluice.cli.access.login import confirmed
from sluice.clock import SystemClock
from sluice.core.access.roles import Role
from sluice.core.access.tokens import Grant
from sluice.core.errors import ClientError
from tests.support.api import Caller, calling
from tests.support.fakes import FakeClock
from tests.support.issuers import confirm, followed, oidc_provider, submitted, utc_now

USERS = {"ann": ["oncall"], "bob": []}


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with oidc_provider(tmp_path_factory.mktemp("oidc"), USERS) as issuer:
        yield issuer


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(utc_now())


@asynccontextmanager
async def trusting(home: Path, clock: FakeClock, issuer: str) -> AsyncIterator[Caller]:
    rows = [{"group": "oncall", "roles": ["operator"]}, {"subject": "ci", "roles": ["deployer"]}]
    settings = {"name": "corp", "issuer": issuer, "client_id": "sluice", "audience": "urn:sluice", "roles": rows, "scopes": "openid"}
    async with calling(home, clock, authentication=True, identity_providers=[settings]) as caller:
        yield caller


@pytest.fixture
async def caller(tmp_path: Path, clock: FakeClock, provider: str) -> AsyncIterator[Caller]:
    async with trusting(tmp_path, clock, provider) as made:
        yield made


async def authorized(browser: httpx.AsyncClient, url: str, user: str) -> str:
    """Log in at the provider, and consent. Returns the URL to which the provider sends the browser."""
    page = await followed(browser, await browser.get(url))
    while not page.is_redirect:
        page = await submitted(browser, page, **({"login": user, "password": "x"} if 'name="login"' in page.text else {}))
    return page.headers["location"]


async def begun(caller: Caller) -> str:
    answer = await caller.http.get("/ui/login/corp")
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


async def test_a_browser_logs_in_with_the_provider(caller: Caller) -> None:
    form = await caller.http.get("/ui/")
    assert form.status_code == 401
    assert 'href="./login/corp"' in form.text
    url = await begun(caller)
    query = parse_qs(urlsplit(url).query)
    assert query["code_challenge_method"] == ["S256"]
    async with httpx.AsyncClient(timeout=600) as browser:
        back = await authorized(browser, url, "ann")
    assert back.startswith("http://c/ui/login/corp/callback?")
    answer = await caller.http.get(back, headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"})
    assert answer.status_code == 200, answer.text
    assert 'content="0; url=../../"' in answer.text
    cookie = next(each for each in answer.headers.get_list("set-cookie") if each.startswith("sluice_session="))
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Path=/ui" in cookie
    page = await caller.http.get("/ui/")
    assert page.status_code == 200
    assert "corp:ann" in page.text
    again = await caller.http.get(back)
    assert again.status_code == 401, "a code is good for one login"
    await caller.http.post("/ui/logout")
    assert (await caller.http.get("/ui/")).status_code == 401


async def test_a_login_survives_a_restart_and_ends_when_its_provider_is_removed(tmp_path: Path, clock: FakeClock, provider: str) -> None:
    async with trusting(tmp_path, clock, provider) as caller:
        async with httpx.AsyncClient(timeout=600) as browser:
            await caller.http.get(await authorized(browser, await begun(caller), "ann"))
        session = caller.http.cookies["sluice_session"]
    async with trusting(tmp_path, clock, provider) as caller:
        caller.http.cookies.set("sluice_session", session)
        assert (await caller.http.get("/ui/")).status_code == 200
    async with calling(tmp_path, clock, authentication=True) as caller:
        caller.http.cookies.set("sluice_session", session)
        assert (await caller.http.get("/ui/")).status_code == 401


async def test_an_administrator_ends_the_sessions_of_a_user(caller: Caller) -> None:
    made = await caller.coordinator.authentication.tokens.create("root", Grant(frozenset({Role.ADMIN})), None, "test")
    admin = {"Authorization": f"Bearer {made.token}"}
    async with httpx.AsyncClient(timeout=600) as browser:
        await caller.http.get(await authorized(browser, await begun(caller), "ann"))
    assert (await caller.http.delete("/sessions/corp:ann")).status_code == 401, "a session is for the pages only"
    assert (await caller.http.delete("/sessions/corp:bob", headers=admin)).json() == {"ended": 0}
    assert (await caller.http.get("/ui/")).status_code == 200
    assert (await caller.http.delete("/sessions/corp:ann", headers=admin)).json() == {"ended": 1}
    assert (await caller.http.get("/ui/")).status_code == 401
    await caller.http.post("/ui/login", data={"token": made.token})
    assert (await caller.http.delete("/sessions/root", headers=admin)).json() == {"ended": 1}
    assert (await caller.http.get("/ui/")).status_code == 401


async def test_a_user_in_no_group_of_the_table_gets_no_session(caller: Caller) -> None:
    async with httpx.AsyncClient(timeout=600) as browser:
        answer = await caller.http.get(await authorized(browser, await begun(caller), "bob"))
    assert answer.status_code == 403
    assert "corp:bob has no role" in answer.text
    assert "sluice_session" not in caller.http.cookies


async def test_a_login_link_of_another_browser_is_refused(caller: Caller, clock: FakeClock) -> None:
    async with httpx.AsyncClient(timeout=600) as browser:
        back = await authorized(browser, await begun(caller), "ann")
        attacker_s = caller.http.cookies["sluice_login"]
        caller.http.cookies.clear()
        for cookie in ({}, {"Cookie": "sluice_login=guessed"}):
            answer = await caller.http.get(back, headers=cookie)
            assert answer.status_code == 401
            assert "this login was not begun here" in answer.text
        assert (await caller.http.get(back, headers={"Cookie": f"sluice_login={attacker_s}"})).status_code == 401, "the state was used up"
        late = await authorized(browser, await begun(caller), "ann")
    clock.advance(LOGIN_LASTS.total_seconds())
    assert (await caller.http.get(late)).status_code == 401


@pytest.mark.parametrize("change", ["code", "state", "iss", "error"])
async def test_a_modified_answer_of_the_provider_is_refused(caller: Caller, change: str) -> None:
    async with httpx.AsyncClient(timeout=600) as browser:
        back = httpx.URL(await authorized(browser, await begun(caller), "ann"))
    if change == "error":
        query = {"error": "access_denied", "state": back.params["state"]}
    else:
        query = {**back.params, change: "https://attacker.example"}
    answer = await caller.http.get(back.copy_with(params=query))
    assert answer.status_code == 401
    assert 'role="alert"' in answer.text
    assert "sluice_session" not in caller.http.cookies


async def test_an_unknown_provider_has_no_login_page(caller: Caller) -> None:
    assert (await caller.http.get("/ui/login/other")).status_code == 404
    assert (await caller.http.get("/ui/login/other/callback?state=x")).status_code == 401


async def test_a_program_logs_in_with_its_client_secret(caller: Caller, provider: str) -> None:
    form = {"grant_type": "client_credentials", "resource": "urn:sluice", "scope": "api"}
    async with httpx.AsyncClient(timeout=600) as program:
        token = (await program.post(f"{provider}/token", data=form, auth=("ci", "a-secret-of-a-program"))).json()["access_token"]
        other = (
            await program.post(f"{provider}/token", data=form | {"resource": "urn:other"}, auth=("ci", "a-secret-of-a-program"))
        ).json()
    assert (await caller.http.get("/jobs", headers={"Authorization": f"Bearer {token}"})).status_code == 200
    assert (await caller.http.post("/gc/run", headers={"Authorization": f"Bearer {token}"})).status_code == 403
    assert (await caller.http.get("/jobs", headers={"Authorization": f"Bearer {other['access_token']}"})).status_code == 401


# --- sluice login ------------------------------------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "sluice" / "logins.json"


def mode(file: Path) -> int:
    return file.stat().st_mode & 0o777


def expire(file: Path) -> None:
    """Set all logins in the file to expired."""
    kept = json.loads(file.read_text())
    file.write_text(json.dumps({url: {**login, "expires_at": 0} for url, login in kept.items()}))


def kept_expiry(file: Path) -> float:
    return float(json.loads(file.read_text())["http://c"]["expires_at"])


def device_code(provider: str) -> tuple[str, dict[str, Any]]:
    found = logins.discovered(provider)
    status, begun = logins.post_form(str(found["device_authorization_endpoint"]), {"client_id": "sluice", "scope": "openid"})
    assert status == 200, begun
    return str(found["token_endpoint"]), dict(begun)


async def test_a_command_logs_in_by_a_code_and_renews_its_login(caller: Caller, provider: str, config: Path) -> None:
    assert (await caller.http.get("/identity-providers")).json()["providers"] == [
        {"name": "corp", "issuer": provider, "clientId": "sluice", "scopes": "openid"}
    ]
    endpoint, begun = device_code(provider)
    waits: list[float] = []

    def pause(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            thread = threading.Thread(target=confirm, args=(begun, "ann"))
            thread.start()
            thread.join()

    login = confirmed(endpoint, "sluice", begun, SystemClock(), pause)
    assert len(waits) >= 2
    logins.keep("http://c/", login)
    assert mode(config) == 0o600
    token = logins.token_for("http://c", SystemClock())
    assert (await caller.http.get("/jobs", headers={"Authorization": f"Bearer {token}"})).status_code == 200
    expire(config)
    renewed = logins.token_for("http://c", SystemClock())
    assert kept_expiry(config) > utc_now().timestamp()
    assert (await caller.http.get("/jobs", headers={"Authorization": f"Bearer {renewed}"})).status_code == 200
    logins.keep("http://c", None)
    assert logins.token_for("http://c", SystemClock()) == ""


def test_a_code_that_is_not_confirmed_or_is_wrong_gives_no_login(provider: str) -> None:
    endpoint, begun = device_code(provider)
    with pytest.raises(ClientError, match="the login failed"):
        confirmed(endpoint, "sluice", {**begun, "device_code": "wrong"}, SystemClock(), lambda _: None)
    clock = FakeClock()
    with pytest.raises(ClientError, match="the code has expired"):
        confirmed(endpoint, "sluice", begun | {"expires_in": 10}, clock, clock.advance)


def test_the_error_about_an_expired_login_names_the_command_to_log_in(config: Path) -> None:
    logins.keep("http://c", logins.Login("t", 0.0, "http://127.0.0.1:1/token", "sluice"))
    with pytest.raises(ClientError, match="sluice login"):
        logins.token_for("http://c", SystemClock())
