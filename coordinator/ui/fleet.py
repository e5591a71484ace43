"""All leases as a heat map: containers in the order of their registration, several in each cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CELLS = 1000
LEVELS = 5


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of `containers` leases. `level`: from 0 (the shortest lease is about to expire) to LEVELS - 1 (all were renewed recently)."""

    containers: int
    level: int
    least_seconds: float


def level(left: float, lease: float) -> int:
    """The level of a lease of `lease` seconds of which `left` remain."""
    return max(0, min(LEVELS - 1, int(left / lease * LEVELS))) if lease > 0 else 0


def heat_map(left: Sequence[float], lease: float, cells: int = CELLS) -> Sequence[Cell]:
    """At most `cells` cells of equal size. `left`: the remaining seconds of each lease. `lease`: the duration of a lease, in seconds."""
    if not left:
        return []
    each = -(-len(left) // cells)
    groups = [left[start : start + each] for start in range(0, len(left), each)]
    return [Cell(len(group), level(min(group), lease), min(group)) for group in groups]
