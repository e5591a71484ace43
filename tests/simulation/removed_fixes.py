"""`python -m tests.simulation.removed_fixes [NAME...]`: whether the simulation finds a fix that is taken out; `make simulate FAULTS=1`.

Each file faults/NAME.diff takes one fix out. Before the diff it says what the fix is for, which seeds are run, and of which kinds their
faults are, since a fault that needs three others of 25 kinds comes seldom:

    Fix: a shorter lease waits for the longer ones that were granted before
    Seeds: 20 from 0
    Kinds: restart_coordinator_with_another_lease, cut_container_off

The diff is applied to a copy of the tree, and the seeds are run there until one fails. It has not been measured yet which of the fixes are
found within their seeds. Run the same seeds and kinds on the tree itself, too: they must not fail there.

What the simulation cannot see: fixes of Spark's plans, of the JVM, of sockets and of the watchdog's process, which are outside of it (late
rows and watermark caps, half-open connections, the class archive); of costs and sizes (pruning, long lists, the WAL); of what PostgreSQL,
S3 and Kafka do; and of requests that its operators do not make (text that cannot be stored, clients of Samza, jobs without backup).
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
COPIED = ("sluice", "coordinator", "containers", "migrations", "tests")


@dataclass(frozen=True, slots=True)
class RemovedFix:
    name: str
    file: Path
    fix: str
    first: int
    seeds: int
    kinds: Sequence[str]


def read_diff(file: Path) -> RemovedFix:
    """Raises KeyError or ValueError for a file whose first lines are not as above."""
    head = file.read_text().partition("diff --git")[0]
    found = {name: text.strip() for name, _, text in (line.partition(":") for line in head.splitlines() if line)}
    seeds, _, first = found["Seeds"].partition(" from ")
    return RemovedFix(file.stem, file, found["Fix"], int(first), int(seeds), [each.strip() for each in found["Kinds"].split(",")])


def removed_fixes() -> Sequence[RemovedFix]:
    return [read_diff(file) for file in sorted(DIFFS.glob("*.diff"))]


def is_found(removed: RemovedFix) -> bool:
    with tempfile.TemporaryDirectory(prefix="removed-fix-") as name:
        tree = Path(name)
        for part in COPIED:
            shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
        subprocess.run(["git", "apply", str(removed.file)], cwd=tree, check=True)
        seeds = ["--seeds", str(removed.seeds), "--from", str(removed.first), "--kinds", ",".join(removed.kinds), "--until-broken"]
        ended = subprocess.run([sys.executable, "-m", "tests.simulation", *seeds], cwd=tree, capture_output=True, text=True, check=False)
        print(f"{removed.name}: {removed.fix}\n    {ended.stdout.splitlines()[0] if ended.stdout else ended.stderr}", flush=True)
        return ended.returncode == 1 and ended.stdout.startswith("seed ")


def main(names: Sequence[str]) -> int:
    missed = [each.name for each in removed_fixes() if (not names or each.name in names) and not is_found(each)]
    print(f"not found: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
