from __future__ import annotations

import itertools

import pytest

from sluice.core.errors import IllegalTransition
from sluice.core.lifecycle import RunState, moved

ALLOWED = {
    ("CREATED", "RUNNING"),
    ("CREATED", "DRAINING"),
    ("CREATED", "STOPPED"),
    ("CREATED", "FAILED"),
    ("RUNNING", "DRAINING"),
    ("RUNNING", "STOPPED"),
    ("RUNNING", "FAILED"),
    ("DRAINING", "CREATED"),
    ("DRAINING", "RUNNING"),
    ("DRAINING", "DRAINED"),
    ("DRAINING", "STOPPED"),
    ("DRAINING", "FAILED"),
}


@pytest.mark.parametrize(("source", "target"), sorted(ALLOWED))
def test_a_run_takes_every_transition_of_its_life_cycle(source: str, target: str) -> None:
    assert moved(RunState(source), RunState(target)) is RunState(target)


@pytest.mark.parametrize(
    ("source", "target"), sorted((a, b) for a, b in itertools.product(RunState, RunState) if a != b and (a.value, b.value) not in ALLOWED)
)
def test_any_other_transition_is_a_bug_that_names_both_states(source: RunState, target: RunState) -> None:
    with pytest.raises(IllegalTransition, match=f"{source}.*{target}"):
        moved(source, target)


@pytest.mark.parametrize("state", list(RunState))
def test_a_transition_to_the_same_state_is_allowed(state: RunState) -> None:
    assert moved(state, state) is state


def test_only_drained_stopped_and_failed_are_final_states() -> None:
    assert {state.value for state in RunState if state.ended} == {"DRAINED", "STOPPED", "FAILED"}
