"""Runs seeds in several processes. It is not in `__main__`, whose functions cannot be found by processes that are spawned."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import TypeVar

T = TypeVar("T")

SEEDS_OF_A_PROCESS = 50
"""After so many seeds a process is replaced by a new one, because seeds leave some memory behind, which makes later ones slower."""


def outcomes(run: Callable[[int], T], seeds: Iterable[int], workers: int, seconds: float | None = None) -> Iterator[T]:
    """What `run` returns for each seed, in the order in which they end. Seeds that have begun within the time are finished."""
    began, left = time.monotonic(), iter(seeds)
    if workers == 1:
        for seed in left:
            yield run(seed)
            if seconds is not None and time.monotonic() - began > seconds:
                return
        return
    while some := list(islice(left, SEEDS_OF_A_PROCESS * workers)):
        waiting = iter(some)
        with ProcessPoolExecutor(workers, get_context("spawn"), end_with_parent) as pool:
            running: set[Future[T]] = {pool.submit(run, seed) for seed in islice(waiting, workers)}
            while running:
                ended, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (each.result() for each in ended)
                if seconds is not None and time.monotonic() - began > seconds:
                    left = waiting = iter(())
                running |= {pool.submit(run, seed) for seed in islice(waiting, len(ended))}


def end_with_parent() -> None:
    """End this worker when the process that has started it is killed. A seed may have minutes left."""

    def watch() -> None:
        parent = parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    Thread(target=watch, daemon=True).start()
