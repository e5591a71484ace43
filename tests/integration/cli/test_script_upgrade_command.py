"""`sluice upgrade JOB -- COMMAND` against a coordinator process; the test reports in place of the driver."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import httpx

from tests.support.coordinators import GENEROUS, running
from tests.support.terminal import at_terminal


def requested(http: httpx.Client, method: str, path: str, body: Any) -> Any:
    answer = http.request(method, path, json=body)
    assert answer.is_success, answer.text
    return answer.json() if answer.content else None


def test_an_upgrade_that_is_interrupted_in_its_drain_says_how_it_continues(tmp_path: Path) -> None:
    with running(tmp_path / "home") as coordinator:
        http = coordinator.http
        attached = {"job": "orders", "kind": "attached", "containers": 1, "inputs": [], "stages": []}
        run = requested(http, "POST", "/runs", attached)["runId"]
        requested(http, "POST", f"/runs/{run}/containers", {"processorId": "0", "executionContainerId": "c1"})
        requested(http, "POST", f"/runs/{run}/tasks/Driver/acquire", {"executionContainerId": "c1", "epoch": 1})
        query = {"stage": "counts", "checkpoint": "file:/counts", "queryId": "q-1"}
        requested(http, "PUT", f"/runs/{run}/tasks/Driver/queries", {"generation": 1, "queries": [query]})
        command = [sys.executable, "-m", "sluice", "upgrade", "orders", "--allow-leftover-state", "--coordinator", str(http.base_url)]
        with at_terminal([*command, "--", "spark-submit", "orders_v2.py"]) as terminal:
            terminal.until("STOPPING")
            terminal.press_ctrl_c()
            terminal.until("run the same command again")
            assert terminal.process.wait(GENEROUS) != 0
        (drain,) = requested(http, "GET", "/drains?job=orders", None)["drains"]
        assert drain["phase"] == "STOPPING"
