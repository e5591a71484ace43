"""Secret texts for tests that plant them and look for them in all outputs."""

from __future__ import annotations

import os

import httpx
import psutil

from coordinator.api import new_api
from tests.support.processes import SLUICE, completed

CANARY = "canary-7d1f0c52"

PAGES = ("", "fleet", "garbage", "audit", "jobs/{job}", "jobs/{job}/snapshots", "jobs/{job}/tasks")


def planted(name: str) -> str:
    """The text as it is planted in one place."""
    return f"{CANARY}-{name}"


def answers(http: httpx.Client, run_id: str, job: str = "flight-delays") -> str:
    """Everything that the coordinator answers to requests that change nothing, with the headers."""
    names = {"job": job, "runId": run_id, "task": "Partition 0", "version": "1", "later": "1", "file": "page.js"}
    paths = [path for path, methods in new_api().openapi()["paths"].items() if "get" in methods]
    found = []
    for path in [*paths, *(f"/ui/{page}" for page in PAGES), "/readyz?verbose", "/docs", "/nothing"]:
        filled = path
        for name, value in names.items():
            filled = filled.replace("{" + name + "}", value)
        answer = http.get(filled.replace("{", "").replace("}", ""), params={"wait": "0"} if "notices" in path else {})
        assert answer.status_code < 500, (path, answer.text)
        found.append(f"{answer.headers}{answer.text}")
    return "\n".join(found)


def output_of(*command: str, **variables: str) -> str:
    """Both outputs of a command."""
    made = {**os.environ, **variables}
    done = completed([*SLUICE, *command], environment=made)
    return done.stdout + done.stderr


def command_line(process: psutil.Process) -> str:
    """Its arguments; "" if it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def assert_absent(shown: str) -> None:
    lines = [line for line in shown.splitlines() if CANARY in line]
    assert not lines, "\n".join(line[:500] for line in lines)
