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
SOURCES = sorted(
    file.relative_to(ROOT)
    for folder in ("sluice", "coordinator", "containers", "bench", "examples", "tests")
    for file in (ROOT / folder).rglob("*.py")
)

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
PATH = re.compile(r"(?<![\w./-])(?:sluice|coordinator|containers|bench|examples|tests|migrations|deploy|scripts|docs)/[\w./-]*\w")


def text_of(page: Path) -> str:
    return (ROOT / page).read_text()


def anchors_of(page: Path) -> set[str]:
    """The anchors that GitHub generates for the headings of a page."""
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


def names_of_tests(file: Path) -> set[str]:
    """The names of the tests of a module."""
    return set(re.findall(r"^\s*(?:async )?def (test_\w+)", file.read_text(), re.M))


@pytest.mark.parametrize(("page", "table", "least"), [("guarantees.md", "| What ", 20), ("limits.md", "| limit | tests |", 9)])
def test_every_guarantee_and_limit_names_tests_that_exist(page: str, table: str, least: int) -> None:
    text = (ROOT / "docs" / page).read_text()
    rows = [line for line in text[text.index(table) :].splitlines() if re.match(r"\| (?!---|What |limit \|)", line)]
    assert len(rows) >= least
    for row in rows:
        cell = row.split("|")[-2].strip()
        assert re.fullmatch(r"`tests/[\w/]+\.py::test_\w+`(, `tests/[\w/]+\.py::test_\w+`)*", cell), row
        for file, name in re.findall(r"`(\S+)::(\w+)`", cell):
            assert name in names_of_tests(ROOT / file), row


def test_the_pages_that_the_source_names_exist() -> None:
    named = {(str(file), page) for file in SOURCES for page in re.findall(r"\bdocs/[\w./-]+\.md\b", (ROOT / file).read_text())}
    assert [each for each in sorted(named) if not (ROOT / each[1]).exists()] == []
    assert named


def test_the_messages_that_troubleshooting_quotes_are_in_the_source() -> None:
    (section,) = re.findall(r"^## Troubleshooting\n(.*)", (ROOT / "docs" / "operating.md").read_text(), re.M | re.S)
    symptoms = re.findall(r"^\| (.*?) \|", section, re.M)
    parts = [part.strip(" ,") for each in symptoms for quoted in re.findall(r'"(.+)"', each) for part in re.split(r"…|\bN\b", quoted)]
    source = "\n".join(re.sub(r'"\s*\n\s*f?"', "", (ROOT / file).read_text()) for file in SOURCES if file.parts[0] != "tests")
    assert [part for part in parts if part not in source] == []
    assert len(parts) > 8


def test_the_index_of_decisions_lists_each_of_them_by_its_title() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"^\| \[(\d+)\]\((\S+)\) \| (.*) \|$", (folder / "README.md").read_text(), re.M)
    titles = {file.name: file.read_text().splitlines()[0] for file in sorted(folder.glob("0*.md"))}
    assert {name: f"# {number}. {title}" for number, name, title in listed} == titles


def test_every_row_of_the_threat_model_names_tests_that_exist() -> None:
    section = (ROOT / "docs" / "security.md").read_text().partition("## Threat model")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ") and not line.startswith(("| ---", "| threat"))]
    defined = {name for file in SOURCES if file.parts[0] == "tests" for name in re.findall(r"def (test_\w+)", (ROOT / file).read_text())}
    assert len(rows) > 20
    for row in rows:
        named = set(re.findall(r"`(test_\w+)`", row))
        assert named, row
        assert named <= defined, named - defined
