"""The site of the documentation: it is built without a warning, and can be read, searched and looked at without the Internet."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.browsers import chromium
from tests.support.screenshots import pictures

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. A warning, such as a dead link or a page without a place in the navigation, fails the build."""
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    return directory


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture(scope="module")
def url(site: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as made:
        yield made


class Reader:
    """A page of a browser, and the requests to other hosts, which fail."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.other_hosts: list[str] = []
        page.route("**/*", lambda route: route.continue_() if route.request.url.startswith(url) else self._refuse(route))

    def _refuse(self, route: object) -> None:
        self.other_hosts.append(route.request.url)  # type: ignore[attr-defined]
        route.abort()  # type: ignore[attr-defined]


@pytest.fixture
def reader(browser: Browser, url: str) -> Iterator[Reader]:
    page = browser.new_page()
    try:
        yield Reader(page, url)
    finally:
        page.close()


@pytest.mark.long
def test_diagrams_are_drawn_without_another_host(reader: Reader) -> None:
    reader.page.goto(f"{reader.url}/concepts/drains.html")
    expect(reader.page.locator("pre.mermaid")).to_have_count(0)
    drawn = reader.page.locator("div.mermaid")
    expect(drawn).to_have_count(1)
    box = drawn.bounding_box()
    assert box is not None
    assert box["height"] > 100
    assert reader.other_hosts == []


def test_the_search_finds_an_alert_without_another_host(reader: Reader) -> None:
    reader.page.goto(f"{reader.url}/index.html")
    reader.page.locator("input[name=query]").press_sequentially("SluiceTransactionOpen")  # the page reads what was typed at each key
    found = reader.page.locator('.md-search-result__link[href*="alerts.html"]').first
    expect(found).to_be_attached()
    assert reader.other_hosts == []


@pytest.mark.parametrize(
    "page", ["changelog", "contributing", "reporting", "examples/flights", "examples/pizza", "examples/weather", "decisions/index"]
)
def test_pages_from_outside_the_docs_folder_are_in_the_site(site: Path, page: str) -> None:
    assert "<h1" in (site / f"{page}.html").read_text()


def test_the_docs_have_a_picture_of_every_page_on_a_desktop_and_on_a_phone_light_and_dark() -> None:
    shown = re.findall(r"!\[[^]]+\]\(pages/([^)]+)\)", (ROOT / "docs" / "pictures.md").read_text())
    assert sorted(shown) == sorted(pictures())
    assert sorted(file.name for file in (ROOT / "docs" / "pages").iterdir()) == sorted(pictures())


def test_links_lead_to_pages_of_the_site_and_not_to_markdown(site: Path) -> None:
    assert [str(page) for page in site.rglob("*.html") for text in [page.read_text()] if '.md"' in text or ".md#" in text] == []


def test_only_pages_with_diagrams_load_the_script_for_diagrams(site: Path) -> None:
    assert "mermaid.min.js" in (site / "concepts" / "leases.html").read_text()
    assert "mermaid.min.js" not in (site / "limits.html").read_text()
