"""Backup of a store of 2 GiB in 2,000 files (1,900 of 16 KiB, 100 of 21 MB) to an S3 server on loopback, compared with rclone, restic and
plain obstore.

Each tool backs up everything, then the difference after 1 % of the files were replaced (19 small ones and a large one are deleted, and as
many are created under new names), then restores everything into an empty directory. Every restored file is compared with the original. The
tools take turns; Sluice and obstore have two turns each, and the faster one counts. Before each turn the disk is idle and the bucket is
empty.

Sluice does what an agent does: hard links, a diff, hashes, packs and chunks, an index. Its restore verifies every byte by SHA-256 and has
synced it to disk (fsync) when it ends. obstore does the minimum: one object per file, without hashes or fsync. The targets bound the cost
of that work: at least 0.9 of obstore's rate; and for the difference, at least five times faster than rclone and restic, with at most one
PUT for the pack of small files, one for the index, and one for each chunk of the large file.
"""

from __future__ import annotations

import asyncio
import filecmp
import json
import os
import random
import shutil
import tempfile
import time
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from uuid import uuid4

from obstore.exceptions import BaseError

from bench.backup_peers import Bare, Peer, Rclone, Restic, Sluice, files, sluice
from bench.gateway import Gateway, gateway
from bench.harness import BenchFailed, Result, note
from containers.state.commits.packing import Packing
from sluice.core.errors import SluiceError
from tests.support.servers import program

NAME = "backup"
SHARE = float(os.environ.get("BENCH_SHARE", "1"))
"""1 is the real benchmark; a smaller scale is for a quick test."""
SMALL, SMALL_BYTES = round(1900 * SHARE), 16 << 10
LARGE, LARGE_BYTES = round(100 * SHARE), 21_000_000
SMALL_CHANGED, LARGE_CHANGED = max(1, SMALL // 100), max(1, LARGE // 100)
TURNS = ("obstore", "sluice", "rclone", "restic", "sluice", "obstore")
LEAST_RATE = 0.9
LEAST_SPEEDUP = 5.0
MOST_PUTS = 2 + LARGE_CHANGED * ceil(LARGE_BYTES / Packing().chunk_bytes)


@dataclass(frozen=True, slots=True)
class Turn:
    """Durations in seconds; `puts` is the number of PUT requests that Sluice sent for the difference."""

    first: float
    change: float
    restore: float
    puts: int = 0


def run() -> Result:
    """Raises BenchFailed."""
    for each in ("rclone", "restic"):
        program(each)
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as made, gateway() as server:
        place = Path(made)
        note(f"writing {SMALL} files of {SMALL_BYTES} bytes and {LARGE} of {LARGE_BYTES}")
        chance = random.Random(5)
        write(place / "stage", chance)
        turns: dict[str, list[Turn]] = {}
        for number, name in enumerate(TURNS):
            try:
                turn = asyncio.run(take_turn(name, place, server, chance))
            except (SluiceError, BaseError) as error:
                raise BenchFailed(f"{name} failed: {error}") from error
            note(f"{number + 1}/{len(TURNS)} {name}: first {turn.first:.1f} s, change {turn.change:.2f} s, restore {turn.restore:.1f} s")
            turns.setdefault(name, []).append(turn)
        return judged(turns)


def judged(turns: dict[str, list[Turn]]) -> Result:
    best = {
        name: Turn(
            min(t.first for t in taken),
            min(t.change for t in taken),
            min(t.restore for t in taken),
            max(t.puts for t in taken),
        )
        for name, taken in turns.items()
    }
    mine, bare = best["sluice"], best["obstore"]
    first, restore = bare.first / mine.first, bare.restore / mine.restore
    speedup = min(best["rclone"].change, best["restic"].change) / mine.change
    seconds = {
        f"{name}_{what}_s": round(getattr(turn, what), 3)
        for what in ("first", "change", "restore")
        for name, turn in best.items()
        if (name, what) != ("obstore", "change")
    }
    return Result(
        name=NAME,
        figures={
            "files": SMALL + LARGE,
            "bytes": SMALL * SMALL_BYTES + LARGE * LARGE_BYTES,
            **seconds,
            "change_puts": mine.puts,
            "first_of_obstore": round(first, 3),
            "restore_of_obstore": round(restore, 3),
            "change_speedup": round(speedup, 2),
        },
        ratio=round(min(first, restore), 3),
        target=f"first backup and restore >= {LEAST_RATE} of obstore's rate; a 1 % change >= {LEAST_SPEEDUP:g} times faster than rclone "
        f"and restic, in at most {MOST_PUTS} PUTs",
        met=min(first, restore) >= LEAST_RATE and speedup >= LEAST_SPEEDUP and mine.puts <= MOST_PUTS,
    )


async def take_turn(name: str, place: Path, server: Gateway, chance: random.Random) -> Turn:
    """Back up everything, back up a difference, and restore."""
    os.sync()
    stage, restored = place / "stage", place / "restored"
    async with AsyncExitStack() as stack:
        peer = await _peer(name, place, server, stack)
        first = await _seconds(peer.backup())
        change(stage, chance)
        puts = peer.puts if isinstance(peer, Sluice) else 0
        changed = await _seconds(peer.backup()) if name != "obstore" else 0.0
        puts = peer.puts - puts if isinstance(peer, Sluice) else 0
        if name == "obstore":
            await peer.backup()
        os.sync()
        began = time.perf_counter()
        found = await peer.restore(restored)
        back = time.perf_counter() - began
        check(stage, found, name)
    shutil.rmtree(restored)
    for each in server.bucket.iterdir():
        shutil.rmtree(each)
    return Turn(first, changed, back, puts)


async def _peer(name: str, place: Path, server: Gateway, stack: AsyncExitStack) -> Peer:
    stage = place / "stage"
    match name:
        case "sluice":
            (place / "cuts").mkdir(exist_ok=True)
            return await stack.enter_async_context(sluice(server, stage, place / "cuts"))
        case "rclone":
            return Rclone(server, stage)
        case "restic":
            restic = Restic(server, stage, place / "restic-cache")
            await restic.create()
            return restic
        case _:
            return Bare(server, stage)


async def _seconds(work: Awaitable[None]) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


def _path(stage: Path, kind: str, number: int) -> Path:
    return stage / "state" / "0" / str(number % 4) / f"{kind}-{number:06}.sst"


def write(stage: Path, chance: random.Random) -> None:
    """Write a directory as of a query that has not committed a batch yet, so that freezing it copies files only."""
    for partition in range(4):
        (stage / "state" / "0" / str(partition)).mkdir(parents=True)
    (stage / "metadata").write_text(json.dumps({"id": str(uuid4())}))
    for kind, count, size in (("small", SMALL, SMALL_BYTES), ("large", LARGE, LARGE_BYTES)):
        for number in range(count):
            _path(stage, kind, number).write_bytes(chance.randbytes(size))


def change(stage: Path, chance: random.Random) -> None:
    """Replace 1 % of the files by new ones with other names, as RocksDB does when it merges files. Spark never writes to an existing
    file again.
    """
    for kind, changed, size in (("small", SMALL_CHANGED, SMALL_BYTES), ("large", LARGE_CHANGED, LARGE_BYTES)):
        for path in chance.sample(sorted(stage.rglob(f"{kind}-*.sst")), changed):
            (path.parent / f"{kind}-{chance.getrandbits(64):016x}.sst").write_bytes(chance.randbytes(size))
            path.unlink()


def check(stage: Path, restored: Path, name: str) -> None:
    """Raises BenchFailed."""
    wanted = files(stage)
    if files(restored) != wanted:
        raise BenchFailed(f"{name} did not restore the files that were backed up")
    for path in wanted:
        if not filecmp.cmp(stage / path, restored / path, shallow=False):
            raise BenchFailed(f"{name} restored {path} with different contents")
