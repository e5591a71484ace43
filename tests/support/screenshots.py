"""Takes pictures of all web pages, at two widths and in both colour schemes, into the directory that is given."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from playwright.sync_api import expect

from tests.support.browsers import PAGES, Staged, chromium
from tests.support.coordinators import running

WIDTHS = {"wide": 1280, "narrow": 390}
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


def main(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as made, running(Path(made) / "home") as coordinator, chromium() as browser:
        drain = Staged(coordinator.http, Path(made) / "home").drain()
        for width, pixels in WIDTHS.items():
            for scheme in SCHEMES:
                page = browser.new_page(viewport={"width": pixels, "height": 900}, color_scheme=scheme)
                for name, path in PAGES.items():
                    page.goto(f"{coordinator.http.base_url}/ui/{path.format(drain=drain)}")
                    expect(page.locator("#connection")).to_have_text("live", timeout=30_000)
                    page.screenshot(path=directory / f"{name}-{width}-{scheme}.png", full_page=True)
                page.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
