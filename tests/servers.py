"""Real servers for tests: started on loopback, ended by whoever started them.

Where a server is not installed its tests are skipped, and say so; with REQUIRE_SERVERS=1, as in CI, they fail.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def missing(what: str) -> None:
    """Skip the test, or fail it where every server is required."""
    if os.environ.get("REQUIRE_SERVERS") == "1":
        pytest.fail(f"{what} is not installed, and REQUIRE_SERVERS=1")
    pytest.skip(f"{what} is not installed")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _postgres_programs() -> Path | None:
    """Debian keeps the server's programs out of the path."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    found = debian[-1] if debian else shutil.which("initdb")
    return Path(found).parent if found else None


@contextmanager
def postgres(directory: Path) -> Iterator[str]:
    """A PostgreSQL of its own in `directory`; the URL of its server, to which a database's name is to be added."""
    programs = _postgres_programs()
    if programs is None:
        missing("PostgreSQL")
        raise AssertionError
    as_owner = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    if as_owner:  # the server refuses to run as root
        for each in (directory, *directory.parents):
            if each.stat().st_uid == 0 and not each.stat().st_mode & 0o005:
                each.chmod(each.stat().st_mode | 0o055)
        shutil.chown(directory, "postgres")
    port, data = free_port(), directory / "data"
    _run([*as_owner, str(programs / "initdb"), "-D", str(data), "-U", "sluice", "-A", "trust", "--no-sync", "-E", "UTF8"], directory)
    options = f"-h 127.0.0.1 -p {port} -k {directory} -c fsync=off"
    _run([*as_owner, str(programs / "pg_ctl"), "-D", str(data), "-w", "-l", str(directory / "log"), "-o", options, "start"], directory)
    try:
        yield f"postgresql+asyncpg://sluice@127.0.0.1:{port}"
    finally:
        _run([*as_owner, str(programs / "pg_ctl"), "-D", str(data), "-m", "immediate", "stop"], directory)


def _run(command: list[str], directory: Path) -> None:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
