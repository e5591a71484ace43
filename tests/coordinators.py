"""Coordinators as processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

SLUICE = [sys.executable, "-m", "coordinator.cli", "coordinator"]
GENEROUS = 30.0


def refused(*flags: str, **environment: str) -> str:
    """The one line with which a coordinator does not start."""
    command = [*SLUICE, *flags]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=GENEROUS, check=False, env={**os.environ, **environment}, stdin=subprocess.DEVNULL
    )
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 1, done.stderr
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("sluice: ")
    return lines[0]


class Running:
    """A coordinator process, with the address that it told."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.http = httpx.Client(base_url=url, timeout=GENEROUS)
        self.port = httpx.URL(url).port


@contextmanager
def running(home: Path, *flags: str) -> Iterator[Running]:
    command = [*SLUICE, "--home", str(home), "--port", "0", *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL) as process:
        assert process.stderr is not None
        told = next(line for line in process.stderr if "coordinator on " in line)
        made = Running(process, told.split("coordinator on ")[1].split(",")[0])
        try:
            yield made
        finally:
            made.http.close()
            process.kill()
