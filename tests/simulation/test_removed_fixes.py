"""The simulation finds fixes that are taken out. `make simulate FAULTS=1` looks for all of them."""

from __future__ import annotations

import pytest

from tests.simulation.removed_fixes import found_by, removed_fixes

QUICK = ("pin-of-a-drain", "scale-to-a-lost-slot")
"""Most seeds find these."""


@pytest.mark.parametrize("name", QUICK)
def test_a_fix_that_is_taken_out_is_found(name: str) -> None:
    (removed,) = (each for each in removed_fixes() if each.name == name)
    assert found_by(removed, most=20)
