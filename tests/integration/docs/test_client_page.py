"""The examples of docs/client.md run in their order against a coordinator."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from sluice.client import Client
from sluice.streams.log import Log
from tests.support.api import checkpoint_id, report_body
from tests.support.coordinators import Running, running

PAGE = (Path(__file__).parents[3] / "docs" / "client.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)

JOB_FILE = """
from sluice import Job

job = Job("flight-delays")
flights, delays = job.input("flights"), job.output("delays")


@job.stage(reads=flights, writes=delays)
def hourly(task):
    raise NotImplementedError
"""


def test_each_method_of_the_client_has_an_example() -> None:
    methods = {name for name, _ in inspect.getmembers(Client, inspect.isfunction) if not name.startswith("_")}
    assert methods == set(re.findall(r"client\.(\w+)\(", "\n".join(EXAMPLES)))


def leave_a_snapshot(coordinator: Running, run_id: str) -> None:
    """As a container does that has committed once and exited."""

    def post(path: str, body: dict[str, Any]) -> Any:
        answer = coordinator.http.post(path, json=body)
        assert answer.is_success, answer.text
        return answer.json()

    post(f"/runs/{run_id}/containers", {"processorId": "0", "executionContainerId": "c1", "host": "h"})
    task = f"/runs/{run_id}/tasks/Partition 0"
    (stage,) = post(f"{task}/acquire", {"executionContainerId": "c1", "epoch": 1})["stages"]
    post(f"{task}/stages/hourly/snapshots", report_body(1, stage["lineage"]))
    post("/containers/c1/exit", {"exitCode": 0, "reason": "stopped"})


@pytest.mark.slow
def test_the_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    (tmp_path / "job.py").write_text(JOB_FILE)
    monkeypatch.chdir(tmp_path)
    with running(home) as coordinator:
        Log(home / "log").create("flights", 2)
        monkeypatch.setenv("SLUICE_COORDINATOR_URL", f"http://127.0.0.1:9,{coordinator.http.base_url}")
        names: dict[str, Any] = {}
        for example in EXAMPLES:
            if "client.set_backup" in example:
                leave_a_snapshot(coordinator, names["run_id"])
            exec(example, names)
        assert names["snapshot"].checkpoint_id == checkpoint_id(1)
