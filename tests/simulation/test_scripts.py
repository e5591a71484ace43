"""Seeds of scripts, chosen for what happens in them; `make simulate SCRIPTS=1` draws new ones."""

from __future__ import annotations

import pytest

from tests.simulation.scripts import run_seed


@pytest.mark.parametrize("seed", [3, 6])
def test_a_script_writes_each_record_once_through_kills_lost_disks_and_drains(seed: int) -> None:
    """Seeds that take little time: two queries that feed one another (3), three queries (6)."""
    outcome = run_seed(seed)
    assert outcome.broken == []
    assert outcome.batches > 10
    assert outcome.drains >= 1


def test_a_seed_gives_the_same_outcome_again() -> None:
    assert run_seed(3, faults=4) == run_seed(3, faults=4)
