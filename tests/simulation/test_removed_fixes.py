"""The simulation detects that a fix was removed. `make simulate FAULTS=1` removes all of them in turn."""

from __future__ import annotations

import subprocess

import pytest

from tests.simulation.removed_fixes import ROOT, found_by, removed_fixes

NAMES = (
    "scale-to-a-lost-slot",
    *(pytest.param(each, marks=pytest.mark.long) for each in ("container-of-another", "pin-of-a-drain")),
)
"""Most seeds detect the removal of these."""


def test_each_diff_that_removes_a_fix_applies_to_the_present_tree() -> None:
    for removed in removed_fixes():
        subprocess.run(["git", "apply", "--check", str(removed.file)], cwd=ROOT, check=True)


@pytest.mark.parametrize("name", NAMES)
def test_the_removal_of_a_fix_is_detected(name: str) -> None:
    (removed,) = (each for each in removed_fixes() if each.name == name)
    assert found_by(removed, known=True)
