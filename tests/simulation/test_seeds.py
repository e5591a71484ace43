"""Seeds of the simulation: those that once failed, and new ones for as long as is asked for."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence

import pytest

from tests.simulation.runs import run_seed

KEPT = [0]
"""Seeds that have found a fault."""

KEPT_WITH_KINDS = [(0, 4, ("kill_container", "shorten_leases"))]
"""Seeds, how many faults they have and of which kinds: the first found that records were trimmed which a stage without snapshot needs."""

SECONDS = float(os.environ.get("SLUICE_SIMULATION_SECONDS", "0"))
"""For how long new seeds are run."""


@pytest.mark.parametrize("seed", KEPT)
def test_a_seed_that_found_a_fault_breaks_nothing_now(seed: int) -> None:
    outcome = run_seed(seed)
    assert not outcome.broken, "\n".join([*outcome.trace[-50:], *outcome.broken])
    assert outcome.drains


@pytest.mark.parametrize(("seed", "faults", "kinds"), KEPT_WITH_KINDS)
def test_a_seed_with_chosen_faults_that_found_a_fault_breaks_nothing_now(seed: int, faults: int, kinds: Sequence[str]) -> None:
    outcome = run_seed(seed, faults, kinds=kinds)
    assert not outcome.broken, "\n".join([*outcome.trace[-50:], *outcome.broken])
    assert outcome.drains


def test_new_seeds_break_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    if not SECONDS:
        pytest.skip("SLUICE_SIMULATION_SECONDS is not set; see `make simulate`")
    first, began, failed, run = int(time.time()), time.monotonic(), [], 0
    while time.monotonic() - began < SECONDS:
        outcome = run_seed(first + run)
        run += 1
        if outcome.broken:
            failed.append(f"seed {outcome.seed}: {outcome.broken[0]}")
    with capsys.disabled():
        print(f"\nsimulation: {run} seeds from {first}, {len(failed)} failed")
    assert not failed, "\n".join(failed)


def test_the_same_seed_gives_the_same_trace_in_two_processes() -> None:
    """Whatever the order of hashes is."""
    code = "from tests.simulation.runs import run_seed; print('\\n'.join(run_seed(5, faults=6).trace))"

    def trace(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True).stdout

    first = trace("1")
    assert "faults are over" in first
    assert trace("2") == first
