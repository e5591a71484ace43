"""`python -m tests.simulation.coverage_report FILE`: the share of the lines of each package of verbs that seeds have run."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from coverage import Coverage

ROOT = Path(__file__).parents[2]

VERBS: Mapping[str, Sequence[str]] = {
    "coordinator": ("coordinator/drains", "coordinator/fleet", "coordinator/jobmodels", "coordinator/runs", "coordinator/snapshots"),
    "agent": ("containers/agent",),
    "state": ("containers/state",),
}
"""Packages by part."""

OUTSIDE = {"containers/agent/metrics.py", "containers/agent/metrics_server.py"}
"""Not counted: a server on a socket, and what it shows."""

WANTED = 0.85
"""The least share of the lines of the coordinator and of the agent."""

Lines = tuple[int, int]
"""Statements, and how many of them ran."""


def measured(file: Path) -> Mapping[str, Lines]:
    """By file, relative to the project."""
    coverage = Coverage(str(file))
    coverage.load()
    found = {}
    for name in coverage.get_data().measured_files():
        _, statements, _, missing, _ = coverage.analysis2(name)
        place = str(Path(name).relative_to(ROOT))
        if place not in OUTSIDE:
            found[place] = len(statements), len(statements) - len(missing)
    return found


def shares(lines: Mapping[str, Lines], packages: Sequence[str]) -> Mapping[str, float]:
    """The share of each of the packages, and of all as ""."""
    sums: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    for file, counted in lines.items():
        package = next((each for each in packages if file.startswith(f"{each}/")), None)
        for name in () if package is None else (package, ""):
            sums[name] = [total + more for total, more in zip(sums[name], counted, strict=True)]
    return {name: ran / max(1, statements) for name, (statements, ran) in sums.items()}


def main(file: Path) -> int:
    lines, enough = measured(file), True
    for part, packages in VERBS.items():
        found = shares(lines, packages)
        print(f"{part}: {found.get('', 0):.1%} of the lines")
        print("\n".join(f"    {name} {found.get(name, 0):.1%}" for name in packages))
        enough = enough and (part == "state" or found.get("", 0) >= WANTED)
    if not enough:
        print(f"less than {WANTED:.0%} of the coordinator or of the agent: run more seeds, or extend the simulation")
    return 0 if enough else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
