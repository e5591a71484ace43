"""What MkDocs needs to know beyond mkdocs.yml: pages that are kept outside of docs/, links that leave docs/, and the script that draws
diagrams.

A page of docs/ must be readable on its own, as a file or in a repository's web view. So its links lead to files of the repository, also to
those that the site does not have. For some of them the site has a page (`PAGES`); a link to any other is replaced by its text.
"""

from __future__ import annotations

import importlib.util
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]

PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting.md",
    "README.md": "index.md",
    "examples/flights/README.md": "examples/flights.md",
    "examples/pizza/README.md": "examples/pizza.md",
    "examples/weather/README.md": "examples/weather.md",
}
"""Files outside of docs/ -> their pages. docs/index.md replaces the README."""

LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(```.*?^```[ ]*$)", re.M | re.S)
MERMAID = "assets/mermaid.min.js"


def on_config(config: Any) -> Any:
    """Replace the entry DECISIONS of the navigation by all decisions, in their order. Pages that the navigation does not name are added at
    its end."""
    folder = ROOT / "docs" / "decisions"
    decisions = [{_title(file): f"decisions/{file.name}"} for file in sorted(folder.glob("0*.md"))]
    config.nav = [
        {"Decisions": ["decisions/README.md", *decisions]} if entry == {"Decisions": "DECISIONS"} else entry for entry in config.nav
    ]
    named = set(_pages(config.nav))
    others = [str(file.relative_to(ROOT / "docs")) for file in sorted((ROOT / "docs").rglob("*.md"))]
    more = [page for page in others if page not in named]
    if more:
        config.nav.append({"More": more})
    return config


def _pages(entry: Any) -> Iterator[str]:
    """The pages that a part of the navigation names."""
    if isinstance(entry, str):
        yield entry
    else:
        for each in entry.values() if isinstance(entry, dict) else entry:
            yield from _pages(each)


def on_files(files: Files, config: Any) -> Files:
    for source, page in PAGES.items():
        if page != "index.md":
            files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    files.append(File.generated(config, MERMAID, abs_src_path=str(_mermaid())))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Make links lead to the pages of the site. Code blocks are not changed."""
    here = page.file.src_uri
    source = next((each for each, name in PAGES.items() if name == here and name != "index.md"), f"docs/{here}")
    parts = FENCE.split(markdown)
    return "".join(part if part.startswith("```") else LINK.sub(lambda found: _link(found, source, here), part) for part in parts)


def _link(found: re.Match[str], source: str, here: str) -> str:
    text, target = found[1], found[2]
    name, _, anchor = target.partition("#")
    if not name or re.match(r"[a-z]+:", target):
        return found[0]
    file = posixpath.normpath(posixpath.join(posixpath.dirname(source), name))
    if (ROOT / file / "README.md").is_file():
        file += "/README.md"
    if file not in PAGES and ((ROOT / file).is_dir() or not file.startswith("docs/")):
        return text
    page = PAGES.get(file, file.removeprefix("docs/"))
    link = posixpath.relpath(page, posixpath.dirname(here) or ".")
    return f"[{text}]({link}#{anchor})" if anchor else f"[{text}]({link})"


def _title(file: Path) -> str:
    return file.read_text().splitlines()[0].removeprefix("# ").replace("`", "")


def _mermaid() -> Path:
    """The script in the package that the extra `docs` installs."""
    spec = importlib.util.find_spec("diagram_renderer")
    folders = spec.submodule_search_locations if spec else None
    found = [file for folder in folders or () for file in Path(folder).rglob("mermaid.min.js")]
    if not found:
        raise FileNotFoundError("mermaid.min.js: install the extra `docs`")
    return found[0]
