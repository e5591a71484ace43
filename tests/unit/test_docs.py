"""The documentation refers to files and headings that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page.relative_to(ROOT)
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "deploy/**/*.md", "tests/*.md")
    for page in ROOT.glob(pattern)
)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
PATH = re.compile(r"(?<![\w./-])(?:sluice|coordinator|containers|bench|examples|tests|migrations|deploy|scripts|docs)/[\w./-]*\w")
OLD_MODULE = re.compile(r"^\| `\S+` \| `.*` \|$")
"""A row of decision 1's map from the old modules to the new ones, which tests/unit/test_packages.py checks."""


def text_of(page: Path) -> str:
    return "\n".join(line for line in (ROOT / page).read_text().splitlines() if not OLD_MODULE.match(line))


def anchors_of(page: Path) -> set[str]:
    """Those that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.S), re.M)
    return {
        re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)).strip().lower().replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_the_links_of_a_page_lead_to_files_and_headings_that_exist(page: Path) -> None:
    for link in LINK.findall(re.sub(r"```.*?```", "", text_of(page), flags=re.S)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (ROOT / page.parent / name).resolve().relative_to(ROOT) if name else page
        assert (ROOT / target).exists(), link
        if anchor:
            assert anchor in anchors_of(target), link


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_the_files_that_a_page_names_exist(page: Path) -> None:
    text = re.sub(r"\b[a-z]+://\S+", "", text_of(page))
    assert [path for path in PATH.findall(text) if not (ROOT / path).exists()] == []
