"""Takes pictures of all web pages, at two widths and in both colour schemes, into the directory that is given: by default as WebP, which is
small enough for the docs; `png` as a second argument gives PNG."""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from playwright.sync_api import Page, expect

from tests.support.browsers import JOB, PAGES, Staged, chromium
from tests.support.coordinators import running

WIDTHS = {"wide": 1280, "narrow": 390}
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
DIALOG = "dialog"
"""The picture of the dialog of an action."""
EMPTY = "empty"
"""The picture of the jobs before there is one."""
TALLEST = 3000
"""Pixels. A longer page is cut."""


def pictures(suffix: str = "webp") -> list[str]:
    """The names of all pictures."""
    return [f"{name}-{width}-{scheme}.{suffix}" for name in (EMPTY, *PAGES, DIALOG) for width in WIDTHS for scheme in SCHEMES]


def main(directory: Path, suffix: str = "webp") -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as made, running(Path(made) / "home") as coordinator, chromium() as browser:

        def opened(path: str, pixels: int, scheme: Literal["light", "dark"]) -> Page:
            page = browser.new_page(viewport={"width": pixels, "height": 800}, color_scheme=scheme)
            page.goto(f"{coordinator.http.base_url}/ui/{path}")
            expect(page.locator("#connection")).to_have_text("live")
            return page

        def taken(page: Page, name: str, *, whole: bool = True) -> None:
            _take(page, directory / f"{name}.{suffix}", suffix, whole=whole)
            page.context.close()

        looks = [(f"{width}-{scheme}", pixels, scheme) for width, pixels in WIDTHS.items() for scheme in SCHEMES]
        for look, pixels, scheme in looks:
            taken(opened("", pixels, scheme), f"{EMPTY}-{look}")
        drain = Staged(coordinator.http, Path(made) / "home")
        for look, pixels, scheme in looks:
            page = opened(f"jobs/{JOB}", pixels, scheme)
            page.get_by_role("button", name="Drain…").click()
            expect(page.get_by_role("dialog")).to_contain_text("At a terminal")
            taken(page, f"{DIALOG}-{look}", whole=False)
        drain_id = drain.drain()
        for look, pixels, scheme in looks:
            for name, path in PAGES.items():
                taken(opened(path.format(drain=drain_id), pixels, scheme), f"{name}-{look}")


def _take(page: Page, file: Path, suffix: str, *, whole: bool) -> None:
    width, height = page.evaluate("[document.documentElement.clientWidth, document.documentElement.scrollHeight]")
    if whole:
        page.set_viewport_size({"width": width, "height": min(height, TALLEST)})
    session = page.context.new_cdp_session(page)
    answer = session.send("Page.captureScreenshot", {"format": suffix, **({"quality": 60} if suffix == "webp" else {})})
    file.write_bytes(base64.b64decode(answer["data"]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
