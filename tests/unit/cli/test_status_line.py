"""The errors that `sluice run` prints where there is no terminal."""

from __future__ import annotations

from typing import Any

from sluice.cli.console.live import failures
from sluice.wire import runs as wire_runs
from tests.support.api import NOON, ago, container, detail


def gone(reason: str, number: int = 1) -> wire_runs.ContainerReply:
    how: dict[str, Any] = {"state": "EXITED", "exit_code": 1, "reason": reason, "ended_at": ago(minutes=1), "lease_seconds_left": None}
    return container(1, suffix=f"dead-{number}", **how)


def test_the_error_of_a_container_is_printed_without_the_rest_of_its_report() -> None:
    run = detail(incarnations=(container(0), gone("The settings cannot be used. config db refers to the variable DB\nlog: /logs/c1.log")))
    assert failures(run, NOON) == ["! The settings cannot be used. config db refers to the variable DB (container of slot 1)"]


def test_an_error_that_repeats_is_printed_once() -> None:
    assert failures(detail(incarnations=(gone("boom", 1), gone("boom", 2))), NOON) == ["! boom (container of slot 1)"]
    assert failures(detail(), NOON) == []
