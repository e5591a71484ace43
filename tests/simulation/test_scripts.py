"""Seeds of scripts, chosen for what happens in them; `make simulate SCRIPTS=1` draws new ones."""

from __future__ import annotations

import pytest

from tests.simulation.scripts import run_seed


@pytest.mark.parametrize("seed", [13, 15, *(pytest.param(each, marks=pytest.mark.long) for each in (7, 31))])
def test_a_script_writes_each_record_once_through_kills_lost_disks_and_drains(seed: int) -> None:
    """Drains that end while others are announced (7), disks that are lost between plan and snapshot (13, 15), many drains (31)."""
    outcome = run_seed(seed)
    assert outcome.broken == []
    assert outcome.batches > 10
    assert outcome.drains >= 1


def test_a_seed_gives_the_same_outcome_again() -> None:
    assert run_seed(3, faults=4) == run_seed(3, faults=4)
