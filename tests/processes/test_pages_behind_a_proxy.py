"""The web pages with tokens: under a prefix that a proxy adds, and event streams that end with the token and with the coordinator."""

from __future__ import annotations

import http.client
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from playwright.sync_api import expect

from sluice.streams.log import Log
from tests.support.api import chained_body
from tests.support.browsers import JOB, chromium
from tests.support.coordinators import Running, running

PREFIX = "/data/sluice"


class PrefixProxy(BaseHTTPRequestHandler):
    """Passes requests below PREFIX on, without it, and refuses all others."""

    def __init__(self, port: int, *arguments: object) -> None:
        self._port = port
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        if not self.path.startswith(f"{PREFIX}/"):
            self.send_error(404)
            return
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        upstream = http.client.HTTPConnection("127.0.0.1", self._port, timeout=600)
        upstream.request(self.command, self.path.removeprefix(PREFIX), body, dict(self.headers))
        answer = upstream.getresponse()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection"):
                self.send_header(name, value)
        self.end_headers()  # HTTP/1.0: the end of the connection is the end of the answer
        try:
            while part := answer.read1(65536):
                self.wfile.write(part)
                self.wfile.flush()
        except OSError:
            pass  # the browser has closed the connection
        finally:
            upstream.close()

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def prefixed(port: int) -> Iterator[str]:
    """The URL of the prefix at a proxy."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(PrefixProxy, port))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}{PREFIX}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A coordinator that needs tokens, for all tests. The last one stops it. Its client is an administrator."""
    root = tmp_path_factory.mktemp("guarded")
    settings = {"SLUICE_AUTHENTICATION": "true", "SLUICE_FIRST_TOKEN_FILE": str(root / "token")}
    with running(root / "home", **settings) as found:
        found.http.headers["Authorization"] = f"Bearer {(root / 'token').read_text().strip()}"
        yield found


def token(coordinator: Running, *roles: str) -> tuple[str, str]:
    """The id of a new token, and the token."""
    made = coordinator.http.post("/tokens", json={"name": " and ".join(roles), "roles": roles}).raise_for_status().json()
    return made["tokenId"], made["token"]


def test_the_pages_work_under_the_prefix_of_a_proxy(guarded: Running) -> None:
    Log(guarded.log.with_name("home") / "log").create("flights", 4)
    guarded.http.post("/runs", json=chained_body(partitions=4, containers=2)).raise_for_status()
    with prefixed(guarded.port or 0) as url, chromium() as browser:
        page = browser.new_page()
        page.goto(f"{url}/ui/")
        page.get_by_label("Token").fill(token(guarded, "operator")[1])
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("link", name=JOB, exact=True).click()
        expect(page).to_have_url(f"{url}/ui/jobs/{JOB}")
        expect(page.locator("#connection")).to_have_text("live")
        page.get_by_role("button", name="Scale…").click()
        page.get_by_role("dialog").get_by_label("Containers").fill("3")
        page.get_by_role("dialog").get_by_role("button", name=f"Scale {JOB}").click()
        expect(page.get_by_role("dialog")).to_contain_text("The run has 3 slots")  # the plan for the new number comes first
        page.get_by_role("dialog").get_by_role("button", name=f"Scale {JOB}").click()
        expect(page.get_by_role("dialog")).to_contain_text("is in force")
        page.keyboard.press("Escape")
        expect(page.locator("#timeline")).to_contain_text("operator requested a change of the job model, on the page")
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_role("heading", name="Log in")).to_be_visible()


@contextmanager
def watching(coordinator: Running, secret: str) -> Iterator[Iterator[str]]:
    """The lines of an event stream of a browser that has logged in, from its first event."""
    with httpx.Client(base_url=coordinator.http.base_url, timeout=600) as browser:
        browser.post("/ui/login", data={"token": secret})
        with browser.stream("GET", "/ui/events?page=&version=0") as answer:
            lines = answer.iter_lines()
            assert next(line for line in lines if line.startswith("data: "))
            yield lines


def await_end(lines: Iterator[str]) -> None:
    """The stream ends before it is silent for so long that it sends a comment."""
    for line in lines:
        assert not line.startswith(": alive")


def test_an_event_stream_ends_when_its_token_is_revoked(guarded: Running) -> None:
    token_id, secret = token(guarded, "viewer")
    with watching(guarded, secret) as lines:
        guarded.http.delete(f"/tokens/{token_id}").raise_for_status()
        await_end(lines)


def test_event_streams_end_when_the_coordinator_is_stopped(guarded: Running) -> None:
    with watching(guarded, token(guarded, "viewer")[1]) as lines:
        guarded.process.send_signal(signal.SIGTERM)
        await_end(lines)
    assert guarded.process.wait(600) == 0
