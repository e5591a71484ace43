"""Work beside a test, whose failure is the test's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event


@contextmanager
def beside(feed: Callable[[], None], over: Event) -> Iterator[None]:
    """`feed` runs in a thread of its own until `over` is set, at the end of the block. What it raises is raised there; a test that has
    failed for want of what it should have fed shows both."""
    with ThreadPoolExecutor(1, thread_name_prefix="feeder") as pool:
        work = pool.submit(feed)
        try:
            yield
        finally:
            over.set()
            work.result()
