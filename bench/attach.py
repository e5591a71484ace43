"""What `sluice exec` and `sluice.attach` cost an existing script: a stateful query with 200 partitions (`bench/attach_script.py`), plain
and as a job, alternately on `local[2]`.

Compared are the median time of a batch, the CPU time of the driver's processes while the batches run (with those of `sluice exec`, without
the coordinator), and the time from the start of the command to the end of the first batch. Batches of one script differ from run to run, so
the plain script runs twice in each round. The median of the attached runs must be within the spread of the plain runs (A/A).

The job's checkpoint is one of `app.checkpoint`, which is backed up every ten seconds to a blob store on this disk.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.cpu import measuring
from bench.harness import BenchFailed, Result, Server, coordinator, note, peer, running
from tests.support.processes import STOP_SECONDS, free_port, tail

NAME = "attach"
ROUNDS = int(os.environ.get("BENCH_ATTACH_ROUNDS", "3"))
WARM = int(os.environ.get("BENCH_ATTACH_WARM", "10"))
BATCHES = int(os.environ.get("BENCH_ATTACH_BATCHES", "30"))
"""WARM and BATCHES are at most 100 together, because Spark keeps the progress of so many batches."""

MORE_CPU = 1.1
MORE_START_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Turn:
    """One run of the script. `p50_ms`: of a batch. `cpu`: seconds for the measured batches. `start`: seconds to the end of the first
    batch."""

    p50_ms: float
    cpu: float
    start: float


def turn(directory: Path, url: str, job: str) -> Turn:
    """Run the script; as the job, if one is given. Raises BenchFailed."""
    directory.mkdir()
    script = ["bench.attach_script", str(directory), str(WARM), str(BATCHES)]
    arguments = ["sluice", "exec", "--job", job, "--", sys.executable, "-m", *script, job] if job else script
    launched = time.time()
    environment = {"SLUICE_COORDINATOR_URL": url, "SLUICE_STATE_DIR": str(directory / "state"), "SPARK_LOCAL_IP": "127.0.0.1"}
    with peer(arguments, directory / "stderr", environment) as driver:
        lines = driver.lines()
        warm = next(lines, None)
        with measuring(psutil.Process(driver.process.pid)) as cpu:
            before = cpu.seconds()
            done = next(lines, None)
            used = cpu.seconds() - before
        if warm is None or done is None:
            raise BenchFailed(f"the script ended\n{tail(driver.errors)}")
        assert driver.process.stdin is not None
        driver.process.stdin.close()
        driver.process.wait(STOP_SECONDS)
    return Turn(statistics.median(done["millis"]), used, warm["first"] - launched)


def measured(server: Server, root: Path) -> Mapping[str, Sequence[Turn]]:
    """The runs of the plain script and of the job."""
    turns: dict[str, list[Turn]] = {"plain": [], "attached": []}
    for number in range(ROUNDS):
        named = f"bench-{number}"  # the checkpoint of a former round would be restored
        for place, job in enumerate(("", named, "")):
            found = turn(root / f"{number}-{place}", server.url, job)
            kind = "attached" if job else "plain"
            turns[kind].append(found)
            note(f"round {number + 1} of {ROUNDS}, {kind}: batch p50 {found.p50_ms:g} ms, CPU {found.cpu:.1f} s, start {found.start:.1f} s")
    return turns


def judged(plain: Sequence[Turn], attached: Sequence[Turn]) -> Result:
    """The medians of the runs. `plain_spread`: the slowest plain run by their median."""
    p50s = [each.p50_ms for each in plain]
    base, mine = statistics.median(p50s), statistics.median(each.p50_ms for each in attached)
    spread, ratio = max(p50s) / base, mine / base
    cpu = statistics.median(each.cpu for each in attached) / statistics.median(each.cpu for each in plain)
    start = statistics.median(each.start for each in attached) - statistics.median(each.start for each in plain)
    return Result(
        name=NAME,
        figures={
            "plain_batch_p50_ms": base,
            "attached_batch_p50_ms": mine,
            "plain_spread": round(spread, 3),
            "cpu_ratio": round(cpu, 3),
            "start_later_s": round(start, 2),
        },
        ratio=round(ratio, 3),
        target="batch p50 at most that of the slowest plain run (plain spread), CPU at most 1.1 times, start at most 1 s later",
        met=ratio <= spread and cpu <= MORE_CPU and start <= MORE_START_SECONDS,
    )


def run() -> Result:
    """Raises BenchFailed."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as made:
        root, port = Path(made), free_port()
        with running(coordinator(root / "home", port), port) as server:
            turns = measured(server, root)
    return judged(turns["plain"], turns["attached"])
