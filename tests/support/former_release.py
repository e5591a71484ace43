"""The commit f0c0f2cc as processes: its packages, unpacked from tests/data, with the Python and the dependencies of the present
release. At f0c0f2cc the agent of a job file was in its driver.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.processes import ROOT, SLUICE

DATA = ROOT / "tests" / "data"


@dataclass(frozen=True, slots=True)
class Release:
    """How to run the command `sluice` of a release: `command` followed by the subcommand, in `directory` and with `environment`."""

    command: tuple[str, ...]
    directory: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    def run(self, *arguments: str, **environment: str) -> str:
        """Returns the output of a subcommand. Fails with its errors."""
        done = subprocess.run(
            [*self.command, *arguments],
            cwd=self.directory,
            env={**os.environ, **self.environment, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()


TODAY = Release(SLUICE, ROOT)


def commit_f0c0f2cc(directory: Path) -> Release:
    """Unpack the commit into an empty directory."""
    return _unpacked(DATA / "f0c0f2cc.tar.xz", directory, (sys.executable, "-P", "-m", "sluice"))


def _unpacked(file: Path, directory: Path, command: tuple[str, ...]) -> Release:
    with tarfile.open(file) as archive:
        archive.extractall(directory, filter="data")
    environment = {"PYTHONPATH": str(directory)}
    imported = Release(
        (sys.executable, "-c", "import containers, coordinator; print(containers.__file__, coordinator.__file__)"), directory, environment
    )
    assert imported.run() == f"{directory}/containers/__init__.py {directory}/coordinator/__init__.py"
    return Release(command, directory, environment)
