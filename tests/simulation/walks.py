"""`python -m tests.simulation.walks`: which files of the project a heartbeat, a commit, a drain, a restore and a growth execute, in order.

A job of two stages runs in the simulation without faults. What the functions in `ROOTS` call belongs to their walk, also in tasks and
threads that they start, and in the coordinator and the driver while these answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from contextvars import ContextVar
from pathlib import Path
from random import Random
from types import CodeType, FrameType

import greenlet

from containers.agent.drain import DrainParticipant
from containers.agent.heartbeat import LeaseKeeper
from containers.agent.slot import Slot
from containers.state.commits import commit
from containers.state.recovery import prepare
from coordinator.drains.drains import Drains
from coordinator.jobmodels.partition_monitor import PartitionMonitor
from coordinator.jobmodels.versions import ModelVersions
from sluice.randomness import drawn_from
from tests.simulation.loop import collect_quietly, main_process, silent, simulated
from tests.simulation.world import World
from tests.support.agents import NO_ADDRESS
from tests.support.databases import create_migrated

ROOT = Path(__file__).parents[2]
PACKAGES = ("sluice", "coordinator", "containers")
EVERYWHERE = ("sluice/core/errors.py", "sluice/core/ids.py", "sluice/clock.py", "sluice/logconfig.py", "sluice/randomness.py")
"""Files that say nothing about a walk."""

ROOTS: dict[str, tuple[object, ...]] = {
    "heartbeat": (LeaseKeeper.run,),
    "commit": (commit.commit,),
    "drain": (Drains.request, DrainParticipant.run, Drains.report),
    "restore": (prepare.prepare_checkpoint,),
    "growth": (PartitionMonitor.run_once, ModelVersions.change, Slot._check_model),
}

_walk: ContextVar[str | None] = ContextVar("walk", default=None)


class Walks:
    """The files of each walk, in order."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, None]] = {name: {} for name in ROOTS}
        self._roots = {root.__code__: name for name, roots in ROOTS.items() for root in roots}  # type: ignore[attr-defined]
        self._names: dict[CodeType, str | None] = {}

    def follow(self, frame: FrameType, event: str, _: object) -> None:
        """A profile function, see `sys.setprofile`. A coroutine is called whenever it continues."""
        root = self._roots.get(frame.f_code)
        if event == "return" and root is not None and _walk.get() == root:
            _walk.set(None)
        if event != "call":
            return
        if root is not None:
            _walk.set(root)
        walk = _walk.get()
        if walk is not None and (name := self._name(frame.f_code)) is not None:
            self.files[walk].setdefault(name)

    def _name(self, code: CodeType) -> str | None:
        if code not in self._names:
            path = Path(code.co_filename)
            found = path.relative_to(ROOT) if path.is_relative_to(ROOT) else Path()
            ours = found.parts[:1] and found.parts[0] in PACKAGES and str(found) not in EVERYWHERE
            self._names[code] = str(found) if ours else None
        return self._names[code]


async def _live(world: World) -> None:
    create_migrated(world.directory / "home")
    await world.start_coordinator()
    world.log.create("in", 2)
    world.keep_streams_open()
    await world.deploy(1)
    world.produce(20)
    await asyncio.sleep(60)
    world.slots["0"].loses_disk = True
    assert world.slots["0"].container is not None
    world.kill(world.slots["0"].container, "to be restored")
    await asyncio.sleep(120)
    world.log.grow("in", 4)
    world.produce(20)
    await asyncio.sleep(120)
    await world.read_input()
    await world.drain()


def walks() -> dict[str, list[str]]:
    """The files by walk."""
    found, directory = Walks(), Path(tempfile.mkdtemp(prefix="walks-"))
    settings = {"commit_interval_seconds": 1, "report_seconds": 3.0, "metrics_host": NO_ADDRESS}
    try:
        with silent(), drawn_from(Random("walks")), simulated(Random(1)) as loop:
            world = World(loop, Random(1), directory, settings, pace=1.0)
            greenlet.settrace(lambda *_: sys.setprofile(found.follow))  # each greenlet has its own
            sys.setprofile(found.follow)
            try:
                loop.run_until_complete(loop.create_task(_live(world), context=main_process()))
            finally:
                greenlet.settrace(None)
                sys.setprofile(None)
                world.close()
            collect_quietly()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return {name: list(files) for name, files in found.files.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="walks", description="Which files of the project are executed by a heartbeat and so on.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    found = walks()
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        for name, files in found.items():
            print(f"{name}: {len(files)} files", *files, sep="\n    ")


if __name__ == "__main__":
    main()
