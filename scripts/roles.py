"""Writes docs/roles.md from the table in coordinator/api/access.py. With --check it writes nothing, and exits with 1 if the page
differs."""

from __future__ import annotations

import sys
from pathlib import Path

from coordinator.api.access import RULES, ContainerAccess
from sluice.core.access.roles import Role

PAGE = Path(__file__).parents[1] / "docs/roles.md"


def page() -> str:
    lines = [
        "# Roles",
        "",
        "Who may send which request where the coordinator requires tokens ([security](security.md)). A role is for the jobs that its token",
        "names; `job` says how a request names the job, and `containers` which containers may send it with the token of their",
        "registration. `scripts/roles.py` writes this page from `coordinator/api/access.py`.",
        "",
        f"| request | {' | '.join(Role)} | job | containers |",
        f"| --- |{' --- |' * (len(Role) + 2)}",
    ]
    for request, rule in RULES.items():
        cells = ["yes" if rule.is_open or role in rule.roles else "" for role in Role]
        job = "needs no token" if rule.is_open else rule.job.value if rule.roles else ""
        if rule.unless_query:
            job = f"needs no token without `?{rule.unless_query}`"
        containers = "" if rule.containers is ContainerAccess.NONE else rule.containers.value
        if rule.samza:
            containers += "; of Apache Samza, in `samza_networks`"
        lines.append(f"| `{request}` | {' | '.join(cells)} | {job} | {containers} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if "--check" in sys.argv:
        raise SystemExit(PAGE.read_text() != page())
    PAGE.write_text(page())
