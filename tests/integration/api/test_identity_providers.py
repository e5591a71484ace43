"""Tokens of identity providers: which are accepted, and what they allow."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest

from coordinator.identity.providers import FETCH_PAUSE, REFRESH_INTERVAL, RefreshKeys
from sluice.core.access.providers import CLOCK_SKEW
from sluice.core.access.roles import Role
from sluice.core.access.tokens import BAD_LOGINS, Grant
from tests.support.api import Caller, calling, problem_slug, run_body
from tests.support.fakes import FakeClock
from tests.support.issuers import AUDIENCE, DISCOVERY_PATH, KEYS_PATH, Issuer, ec_key, issuer, rsa_key

pytestmark = pytest.mark.real_time

SKEW = CLOCK_SKEW.total_seconds()


@pytest.fixture(scope="module")
def shared_issuer() -> Iterator[Issuer]:
    with issuer() as made:
        yield made


@pytest.fixture
def corp(shared_issuer: Issuer) -> Issuer:
    """The issuer in its initial state."""
    shared_issuer.keys = {"one": shared_issuer.keys["one"]}
    shared_issuer.answers.clear()
    shared_issuer.away = False
    shared_issuer.requests.clear()
    shared_issuer.authorizations.clear()
    return shared_issuer


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def settings_of(corp: Issuer, **changes: Any) -> dict[str, Any]:
    rows = [
        {"group": "oncall", "roles": ["operator"], "jobs": ["flight-*"]},
        {"group": "everybody", "roles": ["viewer"]},
        {"subject": "repo:team-a/flights", "roles": ["deployer"]},
        {"group": "root", "roles": ["admin"]},
    ]
    return {"name": "corp", "issuer": corp.url, "audience": AUDIENCE, "roles": rows} | changes


@asynccontextmanager
async def trusting(home: Path, clock: FakeClock, *providers: dict[str, Any]) -> AsyncIterator[Caller]:
    async with calling(home, clock, authentication=True, identity_providers=providers) as caller:
        yield caller


@pytest.fixture
async def caller(tmp_path: Path, clock: FakeClock, corp: Issuer) -> AsyncIterator[Caller]:
    async with trusting(tmp_path, clock, settings_of(corp)) as made:
        yield made


async def status(caller: Caller, token: str, path: str = "/jobs") -> int:
    return (await caller.http.get(path, headers={"Authorization": f"Bearer {token}"})).status_code


async def refused(caller: Caller, token: str) -> str:
    """The reason for which the token is refused."""
    answer = await caller.http.get("/jobs", headers={"Authorization": f"Bearer {token}"})
    assert problem_slug(answer) == (401, "not-authenticated"), answer.text
    return str(answer.json()["detail"])


async def test_groups_get_their_roles_from_the_table(caller: Caller, corp: Issuer, clock: FakeClock) -> None:
    caller.log.create("flights", 2)
    admin = {"Authorization": f"Bearer {corp.token(clock.now(), groups=['root'])}"}
    caller.http.headers.update(admin)
    run = await caller.deploy()
    del caller.http.headers["Authorization"]
    stop = f"/runs/{run['runId']}/stop"

    async def stopping(**claims: Any) -> httpx.Response:
        return await caller.http.post(stop, headers={"Authorization": f"Bearer {corp.token(clock.now(), **claims)}"})

    assert "ann has no role" in (await stopping(groups=["strangers"])).json()["detail"]
    assert (await stopping(groups=None)).status_code == 403
    assert (await stopping(groups=["everybody"])).status_code == 403
    assert await status(caller, corp.token(clock.now(), groups=["everybody"]), "/runs") == 200
    assert (await stopping(groups=["everybody", "oncall"])).status_code == 202
    assert await status(caller, corp.token(clock.now(), sub="repo:team-a/flights", groups=None)) == 200
    events = (await caller.http.get("/audit-log", headers=admin)).json()["events"]
    assert [(each["actor"], each["status"]) for each in events[:2]] == [("corp:ann", 202), ("corp:ann", 403)]


async def test_a_role_of_one_group_does_not_widen_that_of_another(caller: Caller, corp: Issuer, clock: FakeClock) -> None:
    """Viewer of all jobs and operator of some is not operator of all."""
    both = {"Authorization": f"Bearer {corp.token(clock.now(), groups=['everybody', 'oncall'])}"}
    assert (await caller.http.get("/runs", headers=both)).status_code == 200
    assert (await caller.http.post("/gc/plan", headers=both)).status_code == 403
    body = {"after": 0}
    assert (await caller.http.post("/jobs/weather/snapshots/verify", json=body, headers=both)).status_code == 403
    action = await caller.http.post("/ui/actions/pin", data={"job": "weather", "checkpoint": "x"}, headers=both)
    assert action.status_code == 403


async def test_a_token_that_is_not_exactly_right_is_refused(caller: Caller, corp: Issuer, clock: FakeClock) -> None:
    now, private = clock.now(), corp.keys["one"]
    corp.keys["ec"] = ec_key()
    good = corp.token(now)
    assert await status(caller, good) == 200
    head, payload, signature = good.split(".")
    unsigned = jwt.encode(corp.claims(now), "", algorithm="none", headers={"kid": "one"})
    other_payload = base64.urlsafe_b64encode(json.dumps(corp.claims(now, groups=["root"])).encode()).rstrip(b"=").decode()
    public = json.dumps(corp.public("one"))
    wrong = {
        "its algorithm is not accepted": [unsigned, corp.token(now, key=public * 2, algorithm="HS256")],
        "its signature is not that": [
            corp.token(now, key=rsa_key()),
            f"{head}.{payload}.",
            f"{head}.{payload}.{signature[:-6]}",
            f"{head}.{other_payload}.{signature}",
            corp.token(now, key=private, algorithm="PS256")[:-6] + "AAAAAA",
            corp.token(now, "one", key=corp.keys["ec"], algorithm="ES256"),
        ],
        "has no such key": [corp.token(now, "two", key=private)],
        "it is for another audience": [
            corp.token(now, aud="other"),
            corp.token(now, aud=None),
            corp.token(now, aud=[]),
            corp.token(now, aud=[["x"]]),
        ],
        "its issuer is not one": [
            corp.token(now, iss="https://attacker.example"),
            corp.token(now, iss=None),
            corp.token(now, iss=corp.url + "/"),
        ],
        "it expired": [corp.token(now - timedelta(hours=1))],
        "it has no expiry": [corp.token(now, exp=None)],
        "is not a time": [corp.token(now, exp="tomorrow"), corp.token(now, nbf=True), corp.token(now, exp=1e300)],
        "it is valid from": [corp.token(now, nbf=int(now.timestamp()) + 3600), corp.token(now, iat=int(now.timestamp()) + 3600)],
        "it has no subject": [corp.token(now, sub=None), corp.token(now, sub="")],
        "it cannot be decoded": [f"{head}.e30x.{signature}", f"eyJ.{payload}.{signature}", f"{head[:-3]}.{payload}.{signature}"],
        "is not a name": [corp.token(now, sub="a\nb"), corp.token(now, sub="a" * 250), corp.token(now, sub="\u00e9")],
    }
    for number, (reason, tokens) in enumerate(wrong.items()):
        if number % 2 == 0:
            clock.advance(61)  # so that the limit of wrong tokens is not reached
        for token in tokens:
            assert reason in await refused(caller, token), token
            assert token.split(".")[1] not in await refused(caller, token)
    assert await status(caller, corp.token(clock.now())) == 200


def changed(claim: str, value: object) -> dict[str, Any]:
    return {claim: value}


@pytest.mark.parametrize(
    ("claim", "accepted", "late"), [("exp", -SKEW + 1, -SKEW - 1), ("nbf", SKEW - 1, SKEW + 1), ("iat", SKEW - 1, SKEW + 1)]
)
async def test_the_clocks_may_differ_by_a_minute(
    caller: Caller, corp: Issuer, clock: FakeClock, claim: str, accepted: float, late: float
) -> None:
    now = clock.now()
    assert await status(caller, corp.token(now, **changed(claim, now.timestamp() + accepted))) == 200
    assert await status(caller, corp.token(now, **changed(claim, now.timestamp() + late))) == 401


async def test_keys_are_kept_for_a_limited_time_while_their_server_is_unavailable(caller: Caller, corp: Issuer, clock: FakeClock) -> None:
    assert await status(caller, corp.token(clock.now())) == 200
    chore = RefreshKeys(caller.coordinator.authentication.providers, clock)
    corp.away = True
    for _ in range(3):
        clock.advance(REFRESH_INTERVAL.total_seconds())
        await chore.run_once()
        assert await status(caller, corp.token(clock.now())) == 200
    clock.advance(86400)
    answer = await caller.http.get("/jobs", headers={"Authorization": f"Bearer {corp.token(clock.now())}"})
    assert problem_slug(answer) == (503, "identity-provider-unavailable")
    corp.away = False
    clock.advance(FETCH_PAUSE.total_seconds())
    assert await status(caller, corp.token(clock.now())) == 200


async def test_heartbeats_continue_during_an_outage_of_the_provider(caller: Caller, corp: Issuer, clock: FakeClock) -> None:
    caller.log.create("flights", 2)
    headers = {"Authorization": f"Bearer {corp.token(clock.now(), groups=['root'])}"}
    run = (await caller.http.post("/runs", json=run_body(), headers=headers)).json()
    agent = await caller.coordinator.authentication.tokens.create("agent", Grant(frozenset({Role.AGENT})), None, "test")
    body = {"processorId": "0", "executionContainerId": "c1", "host": "h"}
    answer = await caller.http.post(f"/runs/{run['runId']}/containers", json=body, headers={"Authorization": f"Bearer {agent.token}"})
    token = answer.json()["token"]
    corp.away = True
    clock.advance(20)
    caller.http.headers["Authorization"] = f"Bearer {token}"
    assert await caller.alive("c1", 1)


async def test_a_new_key_is_fetched_when_a_token_uses_it_and_a_withdrawn_key_is_removed(
    caller: Caller, corp: Issuer, clock: FakeClock
) -> None:
    assert await status(caller, corp.token(clock.now())) == 200
    former = corp.keys.pop("one")
    try:
        corp.keys["two"] = ec_key()
        clock.advance(FETCH_PAUSE.total_seconds())
        assert await status(caller, corp.token(clock.now(), "two", algorithm="ES256")) == 200
        assert await status(caller, corp.token(clock.now(), "one", key=former)) == 401
    finally:
        corp.keys["one"] = former


async def test_unknown_keys_do_not_flood_the_provider(caller: Caller, corp: Issuer, clock: FakeClock) -> None:
    stranger = rsa_key()
    for n in range(20):
        assert await status(caller, corp.token(clock.now(), f"unknown-{n}", key=stranger)) == 401
    assert corp.requests == [DISCOVERY_PATH, KEYS_PATH]


async def test_no_redirect_to_another_host_is_followed(
    tmp_path: Path, corp: Issuer, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    with issuer() as internal:
        internal.keys = corp.keys
        corp.answers[KEYS_PATH] = (302, {"Location": f"{internal.url}{KEYS_PATH}"}, b"")
        async with trusting(tmp_path, clock, settings_of(corp)) as caller:
            assert await status(caller, corp.token(clock.now())) == 503
            assert internal.requests == []
            assert "a redirect to another host" in caplog.text
            corp.answers[KEYS_PATH] = (302, {"Location": "/other-keys"}, b"")
            clock.advance(FETCH_PAUSE.total_seconds())
            assert await status(caller, corp.token(clock.now())) == 200
            corp.answers[KEYS_PATH] = (302, {"Location": KEYS_PATH}, b"")
            clock.advance(86400)
            assert await status(caller, corp.token(clock.now())) == 503, "redirects without end"


@pytest.mark.parametrize(
    "answer",
    [
        (200, {}, b"{}"),
        (200, {}, b"[1]"),
        (200, {}, b"\xff"),
        (500, {}, b"{}"),
        (200, {}, b"x" * (1 << 20) + b"x"),
        (200, {}, b'{"keys": [7]}'),
    ],
)
async def test_an_answer_that_is_not_a_set_of_keys_is_treated_as_an_outage_of_the_provider(
    caller: Caller, corp: Issuer, clock: FakeClock, answer: tuple[int, dict[str, str], bytes]
) -> None:
    corp.answers[KEYS_PATH] = answer
    assert await status(caller, corp.token(clock.now())) in (503, 401)
    assert await status(caller, corp.token(clock.now())) != 200


async def test_a_provider_that_names_another_issuer_is_not_used(caller: Caller, corp: Issuer, clock: FakeClock) -> None:
    corp.answers[DISCOVERY_PATH] = (200, {}, json.dumps({"issuer": "https://other.example", "jwks_uri": corp.url + KEYS_PATH}).encode())
    assert await status(caller, corp.token(clock.now())) == 503


async def test_tokens_of_one_provider_are_not_accepted_as_those_of_another(tmp_path: Path, corp: Issuer, clock: FakeClock) -> None:
    with issuer() as partner:
        other = settings_of(partner, name="partner", roles=[])
        async with trusting(tmp_path, clock, settings_of(corp), other) as caller:
            forged = partner.token(clock.now(), iss=corp.url)
            assert await status(caller, forged) == 401
            assert await status(caller, partner.token(clock.now(), groups=["root"])) == 403


async def test_wrong_tokens_are_limited_and_right_ones_are_not(caller: Caller, corp: Issuer, clock: FakeClock) -> None:
    wrong = corp.token(clock.now(), aud="other")
    assert [await status(caller, wrong) for _ in range(BAD_LOGINS + 3)] == [401] * BAD_LOGINS + [429] * 3
    assert await status(caller, corp.token(clock.now())) == 200


async def test_a_token_in_a_url_is_refused_and_not_logged(
    caller: Caller, corp: Issuer, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    token = corp.token(clock.now())
    answer = await caller.http.get(f"/jobs?id_token={token}")
    assert problem_slug(answer) == (400, "token-in-url")
    assert token.split(".")[2] not in answer.text
    assert token.split(".")[2] not in "".join(
        record.getMessage() for record in caplog.records if record.name.startswith(("coordinator", "sluice"))
    )


async def test_a_token_is_not_valid_after_it_expires(caller: Caller, corp: Issuer, clock: FakeClock) -> None:
    principal = await caller.coordinator.authentication.identify(corp.token(clock.now()), "")
    assert caller.coordinator.authentication.is_valid(principal)
    clock.advance(600 + SKEW)
    assert not caller.coordinator.authentication.is_valid(principal)


# --- Kubernetes --------------------------------------------------------------------------------------------------------


def pod_token(cluster: Issuer, clock: FakeClock, uid: str | None, subject: str = "system:serviceaccount:flights:agent") -> str:
    bound = {"namespace": "flights", "pod": {"name": "p", "uid": uid}} if uid else {"namespace": "flights"}
    return cluster.token(clock.now(), sub=subject, groups=["root"], **changed("kubernetes.io", bound))


def cluster_settings(cluster: Issuer, token_file: Path) -> dict[str, Any]:
    return settings_of(
        cluster,
        name="k8s",
        kubernetes=True,
        keys_url=f"{cluster.url}/openid/v1/jwks",
        bearer_token_file=str(token_file),
        roles=[
            {"group": "system:serviceaccounts:flights", "roles": ["agent"], "jobs": ["flight-*"]},
            {"group": "root", "roles": ["admin"]},
        ],
    )


async def test_a_pod_registers_with_the_token_of_its_service_account(tmp_path: Path, corp: Issuer, clock: FakeClock) -> None:
    token_file = tmp_path / "token"
    token_file.write_text("of-the-coordinator-s-pod\n")
    async with trusting(tmp_path, clock, cluster_settings(corp, token_file)) as caller:
        caller.log.create("flights", 2)
        admin = await caller.coordinator.authentication.tokens.create("root", Grant(frozenset({Role.ADMIN})), None, "test")
        caller.http.headers["Authorization"] = f"Bearer {admin.token}"
        run = await caller.deploy()

        async def registers(token: str, container: str = "c1", job: str = "") -> int:
            caller.http.headers["Authorization"] = f"Bearer {token}"
            return (await caller.register(job or run["runId"], container)).status_code

        assert await registers(pod_token(corp, clock, "uid-1")) == 201
        assert await registers(pod_token(corp, clock, "uid-1")) == 201, "the same pod may register again"
        assert await registers(pod_token(corp, clock, "uid-2")) == 403, "another pod with the same service account may not"
        assert await registers(pod_token(corp, clock, "uid-2"), "c2") == 201
        assert await registers(pod_token(corp, clock, None)) == 401
        assert await registers(pod_token(corp, clock, "uid-1", "ann")) == 401
        assert await registers(pod_token(corp, clock, "uid-1", "system:serviceaccount:other:agent"), "c3") == 403
        assert await status(caller, pod_token(corp, clock, "uid-1"), "/audit-log") == 403, "claims of groups do not count"
        assert corp.requests == ["/openid/v1/jwks"]
        assert corp.authorizations == ["Bearer of-the-coordinator-s-pod"]
        token_file.write_text("renewed")
        clock.advance(REFRESH_INTERVAL.total_seconds())
        await RefreshKeys(caller.coordinator.authentication.providers, clock).run_once()
        assert corp.authorizations[-1] == "Bearer renewed"
