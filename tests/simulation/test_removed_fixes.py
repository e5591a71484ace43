"""The simulation finds fixes that are taken out. `make simulate FAULTS=1` looks for all of them."""

from __future__ import annotations

import subprocess

import pytest

from tests.simulation.removed_fixes import ROOT, found_by, removed_fixes

QUICK = ("pin-of-a-drain", "scale-to-a-lost-slot")
"""Most seeds find these."""


def test_each_fix_can_be_taken_out_of_the_present_tree() -> None:
    for removed in removed_fixes():
        subprocess.run(["git", "apply", "--check", str(removed.file)], cwd=ROOT, check=True)


@pytest.mark.parametrize("name", QUICK)
def test_a_fix_that_is_taken_out_is_found(name: str) -> None:
    (removed,) = (each for each in removed_fixes() if each.name == name)
    assert found_by(removed, most=20)
