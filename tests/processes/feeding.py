"""A producer in the background of a test; its failure fails the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event


@contextmanager
def beside(feed: Callable[[], None], over: Event) -> Iterator[None]:
    """`feed` runs in a thread until `over` is set, at the end of the block. Its error is raised there; if the test has failed too, both
    errors are shown.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="feeder") as pool:
        work = pool.submit(feed)
        try:
            yield
        finally:
            over.set()
            work.result()
