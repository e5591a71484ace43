"""The commands of docs/tutorial.md on a real broker. They are unchanged, except that the broker and the coordinator have other addresses,
and that the broker is running already."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from examples.harness.topics import Topics
from sluice.core.errors import UnknownStream
from tests.support.deployed import ROOT
from tests.support.processes import await_answer, end, free_port, start, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
GENEROUS = 600.0


def blocks(language: str) -> list[str]:
    return [text for of, text in re.findall(r"^```(\w*)\n(.*?)^```$", TUTORIAL, re.M | re.S) if of == language]


class Reader:
    """A reader who follows the tutorial, in the folder that its first commands create."""

    def __init__(self, root: Path, environment: Mapping[str, str], broker: str) -> None:
        self.root = root
        self.folder = root
        self.environment = environment
        self.broker = broker
        self.opened: list[subprocess.Popen[bytes]] = []

    def changed(self, block: str) -> str:
        return block.replace("sluice kafka up\n", "").replace("127.0.0.1:9092", self.broker)

    def types(self, block: str) -> str:
        """Run the commands, and return what they print."""
        done = subprocess.run(
            ["bash", "-e", "-c", self.changed(block)],
            cwd=self.folder,
            env=dict(self.environment),
            capture_output=True,
            text=True,
            check=False,
            timeout=GENEROUS,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def opens_a_terminal(self, name: str, block: str) -> tuple[subprocess.Popen[bytes], Path]:
        """Start the commands. The last one takes the place of the shell."""
        first, last = self.changed(block).rstrip("\n").rsplit("\n", 1)
        log = self.root / f"{name}.log"
        process = start(["bash", "-e", "-c", f"{first}\nexec {last}"], log, cwd=self.folder, environment=self.environment)
        self.opened.append(process)
        return process, log

    def logs(self) -> str:
        return "\n".join(file.read_text(errors="replace")[-3000:] for file in sorted(self.root.glob("*.log")))


@contextmanager
def reader(root: Path, broker: str) -> Iterator[Reader]:
    port = free_port()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("SLUICE_") or name == "SLUICE_SPARK_CONF"},
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "SLUICE_KAFKA_BOOTSTRAP": broker,
        "SLUICE_PORT": str(port),
        "SLUICE_COORDINATOR_URL": f"http://127.0.0.1:{port}",
        "SLUICE_SPARK_MASTER": "local[1]",
    }
    made = Reader(root, environment, broker)
    try:
        yield made
    finally:
        for process in reversed(made.opened):
            end(process, waits=(GENEROUS, GENEROUS))


def counts(topics: Topics) -> list[str]:
    """What the job has written; nothing until it has created the topic."""
    try:
        end = topics.latest("counts")[0]
    except UnknownStream:
        return []
    return sorted((row[3] or b"").decode() for rows in topics.read("counts", 0, 0, end) for row in rows)


def test_the_commands_of_the_tutorial_start_drain_and_change_a_job(tmp_path: Path, kafka_server: str) -> None:
    begin, coordinator, container, look, drain, edit, again, more = blocks("sh")
    printed = [block for block in blocks("") if block.startswith("{")]
    expected = sorted(printed[0].splitlines())
    topics = Topics(kafka_server)
    with closing(topics), reader(tmp_path, kafka_server) as me:
        me.types(begin)
        me.folder = tmp_path / "word-count"
        process, log = me.opens_a_terminal("coordinator", coordinator)
        await_answer(process, f"{me.environment['SLUICE_COORDINATOR_URL']}/readyz", log)

        first, _ = me.opens_a_terminal("first", container)
        wait_for("the counts of the first version", lambda: counts(topics) == expected, GENEROUS, every=1, details=me.logs)
        looked = me.types(look)
        assert set(expected) <= set(looked.splitlines())
        assert "word-count" in looked

        me.types(drain)
        assert first.wait(GENEROUS) == 0

        me.types(edit)
        me.opens_a_terminal("second", again)
        assert "DRAINED" in me.types(more)
        of_new = ['{"word":"be","count":1}', '{"word":"to","count":1}']
        wait_for("the counts of the new version", lambda: counts(topics) == sorted(expected + of_new), GENEROUS, every=1, details=me.logs)
