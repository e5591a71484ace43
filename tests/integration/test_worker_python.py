from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from containers.workerpython import worker_python

LIBRARY = Path(pyspark.__file__).parent / "python" / "lib"
TELL = "import sys, os, pyspark; print(os.environ.get('PYTHONPATH'), pyspark.__file__, sys.executable, sys.argv[1:], sep='\\n')"


def told(program: str, path: str | None) -> list[str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment = kept if path is None else {**kept, "PYTHONPATH": path}
    done = subprocess.run([program, "-c", TELL, "a b", "*"], env=environment, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()


def test_spark_s_own_zips_are_taken_off_the_path_and_all_else_stays(tmp_path: Path) -> None:
    path = f"{LIBRARY}/pyspark.zip:{LIBRARY}/py4j-0.10.9.9-src.zip:/of the/user:/other/pyspark.zip:*"
    found = told(worker_python(tmp_path), path)
    assert found == ["/of the/user:/other/pyspark.zip:*", pyspark.__file__, sys.executable, "['a b', '*']"]


def test_without_a_path_there_is_none(tmp_path: Path) -> None:
    assert told(worker_python(tmp_path), None)[0] == ""


@pytest.fixture
def without_programs(tmp_path: Path) -> Iterator[Path]:
    """A file system on which nothing may be executed."""
    directory = tmp_path / "noexec"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "noexec,size=1m", "tmpfs", str(directory)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a small file system")
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


def test_it_is_plain_python_where_nothing_may_be_executed(without_programs: Path) -> None:
    assert worker_python(without_programs) == sys.executable
