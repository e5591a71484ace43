"""The count of JVMs at the end of a run."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.jvm_starts import JvmStarts

JVM = "not-a-jvm"
"""So that these tests do not count for the run."""


@pytest.fixture
def started(tmp_path: Path) -> Iterator[ExitStack]:
    """A process with the name, its child with the name, and one with another name. They run until the stack is closed."""
    for name in (JVM, "other"):
        shutil.copy(str(shutil.which("cat")), tmp_path / name)
    pipe = subprocess.PIPE
    with ExitStack() as stack:
        for command in ([JVM], ["sh", "-c", f"{tmp_path / JVM}; true"], ["other"]):
            path = tmp_path / command[0] if command[0] != "sh" else Path(command[0])
            process = stack.enter_context(subprocess.Popen([str(path), *command[1:]], stdin=pipe, stdout=pipe))
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b"it runs")
            process.stdin.flush()
            assert os.read(process.stdout.fileno(), 1)
        yield stack


def test_jvms_are_counted_that_descend_from_the_process(started: ExitStack) -> None:
    assert JvmStarts(JVM).end().endswith(" s of CPU time of 2 JVMs")
    started.close()
    assert JvmStarts(JVM).end() == ""
