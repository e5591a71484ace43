"""Writes docs/deprecated-names.md and the section "Deprecated" of CHANGELOG.md from the table in sluice/core/deprecations.py.

With --check it writes nothing, prints the files that are out of date, and then exits with 1.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from sluice.core.deprecations import DEPRECATIONS, Kind

ROOT = Path(__file__).parents[1]
PAGE, CHANGELOG = ROOT / "docs/deprecated-names.md", ROOT / "CHANGELOG.md"
SECTION = re.compile(r"(?<=<!-- deprecated names: begin -->\n).*?(?=<!-- deprecated names: end -->)", re.S)

HEADINGS: Mapping[Kind, tuple[str, str]] = {
    Kind.ROUTE: ("Routes", "The answer to a request on an old route has the headers `Deprecation` (RFC 9745) and `Link`."),
    Kind.HEADER: (
        "Headers",
        "If a request has both headers, the old one is ignored. An answer to the old one alone has the header `Deprecation`.",
    ),
    Kind.FIELD: (
        "Fields of requests and answers",
        "Requests may use either name; if one has both, the old one is ignored. Answers carry both. The body is the name of the schema in\n"
        "`/openapi.json`, where old fields are marked `deprecated`; bodies that extend it have the field, too.\n"
        "`RunOverview`, `StageOverview` and `UpgradeReply` are what `sluice status --json` and `sluice upgrade --json` print.",
    ),
    Kind.SETTING: (
        "Settings",
        "In the file named by `SLUICE_CONFIG`, and as variables: `hold_back_seconds` is also `SLUICE_HOLD_BACK_SECONDS`.",
    ),
    Kind.COMMAND: ("Commands", ""),
    Kind.OPTION: ("Options", ""),
    Kind.METRIC: (
        "Metrics",
        "Both names are exposed. Counters have the suffix `_total`. Change your own dashboards and alert rules; those in `deploy/` use\n"
        "the new names.",
    ),
    Kind.URL: ("URLs", ""),
}


def page() -> str:
    lines = [
        "# Deprecated names",
        "",
        "Release 0.2 replaces many names by standard terms. The old names work for one release: 0.2 accepts and shows both, 0.3 knows the",
        "new ones only. The first use of an old name in a process is logged as a warning; commands print it on standard error.",
        "",
        "Containers and coordinators of 0.1 and 0.2 work with each other. A container of 0.2 sends the new names; a coordinator of 0.1",
        "refuses them, and the container repeats the request with the old ones.",
        "",
        "This page is written by `scripts/deprecated_names.py` from `sluice/core/deprecations.py`.",
    ]
    for kind in Kind:
        heading, text = HEADINGS[kind]
        lines += ["", f"## {heading}", "", *([text, ""] if text else []), *_table(kind)]
    return "\n".join(lines) + "\n"


def _table(kind: Kind) -> Iterator[str]:
    where = {Kind.FIELD: "body", Kind.OPTION: "command"}.get(kind)
    yield f"| {f'{where} | ' if where else ''}old | new |"
    yield f"| {'--- | ' if where else ''}--- | --- |"
    for each in DEPRECATIONS:
        if each.kind is kind:
            new = f"`{each.new}`" if each.new else f"none: {each.advice}"
            yield f"| {f'`{each.where}` | ' if where else ''}`{each.old}` | {new} |"


def section() -> str:
    lines = []
    for kind in Kind:
        names = [f"`{each.where} {each.old}`" if kind is Kind.OPTION else f"`{each.old}`" for each in DEPRECATIONS if each.kind is kind]
        lines.append(f"- {HEADINGS[kind][0]}: {', '.join(dict.fromkeys(names))}.")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    wanted = {PAGE: page(), CHANGELOG: SECTION.sub(lambda _: section(), CHANGELOG.read_text())}
    changed = [file for file, text in wanted.items() if not file.exists() or file.read_text() != text]
    for file in changed:
        if "--check" in arguments:
            print(f"{file.relative_to(ROOT)} is out of date: run scripts/deprecated_names.py")
        else:
            file.write_text(wanted[file])
    return int("--check" in arguments and bool(changed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
