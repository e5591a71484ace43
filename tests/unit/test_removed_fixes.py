"""The diffs with which the simulation is tested apply to the present code."""

from __future__ import annotations

import subprocess

import pytest

from tests.simulation.fault_injection import FAULTS
from tests.simulation.removed_fixes import ROOT, SCRIPT, RemovedFix, removed_fixes
from tests.simulation.runs import EVENT_TIMES


def test_at_least_ten_fixes_are_removed() -> None:
    assert len(removed_fixes()) >= 10


@pytest.mark.parametrize("removed", removed_fixes(), ids=lambda removed: removed.name)
def test_a_diff_that_removes_a_fix_applies(removed: RemovedFix) -> None:
    checked = subprocess.run(["git", "apply", "--check", str(removed.file)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, f"{checked.stderr}\nadapt {removed.file} to the new code, so that it takes out the same fix"
    assert removed.kinds == [SCRIPT] or set(removed.kinds) <= FAULTS.keys() | {EVENT_TIMES}
