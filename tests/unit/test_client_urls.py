"""Several URLs of one coordinator, and repeated requests."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import httpx
import pytest

from sluice.client import NO_RETRIES, AsyncClient, Client, EnvironmentToken, Retries, urls_of
from sluice.client.agents import AgentClient
from sluice.core.errors import BadSettings, CoordinatorUnavailable, CoordinatorUnreachable, SluiceError
from sluice.wire.access import TokenRequest

JOBS = {"jobs": [{"job": "delays", "currentRun": "r1", "state": "RUNNING", "runs": 1}]}
SOON = Retries(timedelta(seconds=30), pause=timedelta(0))

Answer = Callable[[httpx.Request], httpx.Response]


class Hosts:
    """The coordinator's hosts: each connects, or does not, and notes what it was asked."""

    def __init__(self, **answers: Answer) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.host)
        assert request.url.userinfo or request.headers["Authorization"] == "Bearer t"
        return self.answers[request.url.host](request)

    def client(self, url: str = "http://a,http://b", retries: Retries = NO_RETRIES) -> AsyncClient:
        return AsyncClient(url, token="t", retries=retries, transport=httpx.MockTransport(self))


def good(_: httpx.Request) -> httpx.Response:
    return httpx.Response(200, json=JOBS)


def down(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused", request=request)


def silent(request: httpx.Request) -> httpx.Response:
    raise httpx.ReadTimeout("no answer", request=request)


def unavailable(_: httpx.Request) -> httpx.Response:
    return httpx.Response(503, text="starting")


def times(count: int, first: Answer, then: Answer) -> Answer:
    left = [first] * count

    def answer(request: httpx.Request) -> httpx.Response:
        return (left.pop() if left else then)(request)

    return answer


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("http://a", ("http://a",)),
        ("http://a,https://b:1/x", ("http://a", "https://b:1/x")),
        (" http://a , http://b, ", ("http://a", "http://b")),
        ("http://a,http://a", ("http://a",)),
        ("http://me:p,w@a,http://b", ("http://me:p,w@a", "http://b")),
    ],
)
def test_commas_separate_urls_and_not_the_parts_of_one(text: str, urls: tuple[str, ...]) -> None:
    assert urls_of(text) == urls


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nonsense", "begin with http"),
        ("", "begin with http"),
        ("ftp://a", "begin with http"),
        ("http://", "name a host"),
        ("http://a b/", "name a host"),
        ("http://a:99999999", "from 1 to 65535"),
        ("http://a:0", "from 1 to 65535"),
        ("http://[::1", "'http://"),
        ("http://a,ftp://me:secret@b", "name a host"),
        ("http://a\x00", "is not the URL"),
    ],
)
def test_a_url_that_no_coordinator_can_have_is_refused_with_the_reason_and_without_credentials(text: str, why: str) -> None:
    with pytest.raises(BadSettings, match=why) as refused:
        urls_of(text)
    assert "secret" not in str(refused.value)


def test_without_a_url_there_is_no_token_of_a_login(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLUICE_TOKEN", "SLUICE_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    assert EnvironmentToken()() == ""


async def test_a_url_that_does_not_connect_is_passed_over_and_the_one_that_answers_is_remembered() -> None:
    hosts = Hosts(a=down, b=good)
    client = hosts.client()
    for _ in range(3):
        await client.jobs()
    assert hosts.asked == ["a", "b", "b", "b"]
    hosts.answers |= {"a": good, "b": down}
    for _ in range(2):
        await client.jobs()
    assert hosts.asked[4:] == ["b", "a", "a"]


@pytest.mark.parametrize(("trouble", "error"), [(silent, CoordinatorUnreachable), (unavailable, CoordinatorUnavailable)])
async def test_a_request_that_may_have_arrived_is_not_sent_to_another_url_but_the_next_one_is(
    trouble: Answer, error: type[SluiceError]
) -> None:
    hosts = Hosts(a=trouble, b=good)
    client = hosts.client()
    with pytest.raises(error):
        await client.jobs()
    await client.jobs()
    assert hosts.asked == ["a", "b"]


async def test_a_former_coordinator_is_not_asked_again_while_another_one_answers() -> None:
    def of_term(term: int) -> Answer:
        return lambda _: httpx.Response(200, json=JOBS, headers={"Sluice-Term": str(term)})

    hosts = Hosts(a=of_term(5), b=of_term(6))
    client = hosts.client()
    await client.jobs()
    hosts.answers["a"] = unavailable
    with pytest.raises(CoordinatorUnavailable):
        await client.jobs()
    await client.jobs()
    hosts.answers["b"] = of_term(5)
    with pytest.raises(CoordinatorUnreachable, match=r"^http://b was answered by a former coordinator"):
        await client.jobs()
    hosts.answers["a"] = of_term(6)
    await client.jobs()
    assert hosts.asked == ["a", "a", "b", "b", "a"]


async def test_a_token_follows_no_redirect() -> None:
    hosts = Hosts(a=lambda _: httpx.Response(307, headers={"Location": "http://elsewhere/jobs"}))
    with pytest.raises(SluiceError):
        await hosts.client("http://a").jobs()
    assert hosts.asked == ["a"]


async def test_if_no_url_connects_the_error_names_all_without_passwords() -> None:
    hosts = Hosts(a=down, b=down)
    with pytest.raises(CoordinatorUnreachable, match=r"^http://a,http://me:\*\*\*@b: ConnectError"):
        await hosts.client("http://a,http://me:canary@b").jobs()


@pytest.mark.parametrize("trouble", [down, silent, unavailable])
async def test_a_read_is_repeated_until_it_is_answered(trouble: Answer) -> None:
    hosts = Hosts(a=times(3, trouble, good))
    assert [each.job for each in (await hosts.client("http://a", SOON).jobs()).jobs] == ["delays"]
    assert hosts.asked == ["a"] * 4


@pytest.mark.parametrize(("trouble", "asked"), [(down, 4), (silent, 1), (unavailable, 1)])
async def test_a_request_that_must_not_arrive_twice_is_repeated_only_if_it_cannot_have_arrived(trouble: Answer, asked: int) -> None:
    hosts = Hosts(a=times(3, trouble, lambda _: httpx.Response(503)))
    with pytest.raises(CoordinatorUnreachable):
        await hosts.client("http://a", SOON).create_token(TokenRequest(name="ci", roles=("viewer",)))
    assert len(hosts.asked) == asked


async def test_a_repeated_request_ends_with_the_last_error_when_the_time_is_up() -> None:
    hosts = Hosts(a=unavailable)
    with pytest.raises(CoordinatorUnavailable, match="starting"):
        await hosts.client("http://a", Retries(timedelta(seconds=0.05), timedelta(seconds=0.01))).jobs()
    assert len(hosts.asked) > 1


@pytest.mark.parametrize("trouble", [down, silent, unavailable])
async def test_the_client_of_agents_repeats_nothing(trouble: Answer) -> None:
    hosts = Hosts(a=trouble)
    with pytest.raises(CoordinatorUnreachable):
        await AgentClient("http://a", httpx.MockTransport(hosts), lambda: "t").jobs()
    assert hosts.asked == ["a"]


async def test_the_blocking_client_works_while_a_loop_runs_and_raises_the_same_errors() -> None:
    hosts = Hosts(a=times(1, good, unavailable))
    with Client("http://a", token="t", retries=Retries(timedelta(0)), transport=httpx.MockTransport(hosts)) as client:
        assert client.jobs().jobs[0].job == "delays"
        with pytest.raises(CoordinatorUnavailable):
            client.jobs()
    client.close()
