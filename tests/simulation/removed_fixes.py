"""`python -m tests.simulation.removed_fixes [NAME...]`: whether the simulation detects that a fix was removed; `make simulate FAULTS=1`.

Each file faults/NAME.diff removes one fix. The lines before the diff name the fix, the seeds to run, how many faults a seed has and of
which kinds, and the seed that detected the removal. The kinds are limited because a combination of certain faults out of all kinds is rare:

    Fix: a shorter lease waits for the longer ones that were granted before
    Seeds: 20 from 0
    Faults: 4
    Kinds: kill_container, shorten_leases
    Found: 3

The diff is applied to a copy of the tree. There the seed in `Found` is run first, and then the others until one fails. After a change of
the product or of the simulation another seed may fail instead; the output then names the seed to write into the file.

docs/simulation.md lists the fixes whose removal the simulation cannot detect, and why.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DIFFS = Path(__file__).parent / "faults"
SCRIPT = "script"
"""In place of kinds of faults: the seeds are those of `tests.simulation.scripts`."""

COPIED = ("sluice", "coordinator", "containers", "migrations", "tests")


@dataclass(frozen=True, slots=True)
class RemovedFix:
    name: str
    file: Path
    fix: str
    first: int
    seeds: int
    kinds: Sequence[str]
    faults: int
    """How many faults a seed has."""
    found: int | None
    """The seed that has found it."""


def read_diff(file: Path) -> RemovedFix:
    """Raises KeyError or ValueError for a file whose first lines have another form."""
    head = file.read_text().partition("diff --git")[0]
    found = {name: text.strip() for name, _, text in (line.partition(":") for line in head.splitlines() if line)}
    seeds, _, first = found["Seeds"].partition(" from ")
    kinds = [each.strip() for each in found["Kinds"].split(",")]
    by = int(found["Found"]) if "Found" in found else None
    return RemovedFix(file.stem, file, found["Fix"], int(first), int(seeds), kinds, int(found["Faults"]), by)


def removed_fixes() -> Sequence[RemovedFix]:
    return [read_diff(file) for file in sorted(DIFFS.glob("*.diff"))]


def found_by(removed: RemovedFix, *, known: bool = False) -> str:
    """The first seed that fails without the fix, and what breaks; empty if none fails. `known`: only the one in `Found` is tried. Raises
    RuntimeError if the seed fails with the fix, too."""
    with tempfile.TemporaryDirectory(prefix="removed-fix-") as name:
        tree = Path(name)
        for part in COPIED:
            shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
        subprocess.run(["git", "apply", str(removed.file)], cwd=tree, check=True)
        found = "" if removed.found is None else _first_broken(tree, removed, removed.found, 1)
        if not known:
            found = found or _first_broken(tree, removed, removed.first, removed.seeds)
        if found and (broken := _first_broken(ROOT, removed, int(found.partition(":")[0].removeprefix("seed ")), 1)):
            raise RuntimeError(f"the seed also fails with the fix: {broken}")
        return found


def _first_broken(tree: Path, removed: RemovedFix, first: int, count: int) -> str:
    seeds = ["--seeds", str(count), "--from", str(first), "--faults", str(removed.faults), "--until-broken"]
    if count == 1:
        seeds += ["--workers", "1"]
    if removed.kinds == [SCRIPT]:
        command = ["tests.simulation.scripts", *seeds]
    else:
        command = ["tests.simulation", *seeds, "--kinds", ",".join(removed.kinds), "--no-shrink"]
    ended = subprocess.run([sys.executable, "-m", *command], cwd=tree, capture_output=True, text=True, check=False)
    line = ended.stdout.partition("\n")[0]
    if ended.returncode and not line.startswith("seed "):
        raise RuntimeError(ended.stderr)
    return line if ended.returncode else ""


def main(names: Sequence[str]) -> int:
    missed = []
    for removed in removed_fixes():
        if names and removed.name not in names:
            continue
        found = found_by(removed)
        print(f"{removed.name}: {removed.fix}\n    {found or 'not found'}", flush=True)
        if not found:
            missed.append(removed.name)
    print(f"not found: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
